"""What the workers of the launcher's tests run; apart from the rest so that they import nothing else."""

from __future__ import annotations


def run_source(payload: bytes) -> None:
    """Run the payload, a program."""
    exec(compile(payload, "<worker>", "exec"), {"__name__": "worker"})
