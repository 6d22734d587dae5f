"""What a peer must offer to be measured, and the bodies of the endpoints that every peer's actor runs.

The timing loops are in `benchmarks.cases`; a peer's module only translates. Modules here import neither numpy
nor torch at the top, since every worker process imports them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

Mesh = TypeVar("Mesh")
One = TypeVar("One")
Pending = TypeVar("Pending")
Handle = TypeVar("Handle")


class NotOffered(Exception):
    """The peer has no such feature; the table shows a dash and no failure."""


class Peer(Protocol[Mesh, One, Pending, Handle]):
    """A peer: meshes of processes with one `Echo` actor each, and calls on one actor or on all."""

    def start(self) -> None:
        """Bring the runtime up as far as a user's program would before its first spawn."""

    def spawn(self, n: int) -> Mesh:
        """`n` new processes with an actor each; need not wait for them."""

    def first_answers(self, mesh: Mesh, with_torch: bool) -> Sequence[tuple[int, bool]]:
        """`first_answer` of every rank, in any order."""

    def one(self, mesh: Mesh) -> One:
        """The actor of rank 0."""

    def call(self, actor: One, value: object) -> object:
        """Echo `value`, blocking, as a script does."""

    def awaitable(self, actor: One, value: object) -> Awaitable[object]:
        """Start an echo inside a running loop."""

    def submit(self, actor: One, value: object) -> Pending:
        """Start an echo from blocking code."""

    def collect(self, pending: list[Pending]) -> list[object]:
        """Wait for many echoes, in order."""

    def call_all(self, mesh: Mesh, value: object) -> Sequence[object]:
        """Echo `value` on every rank, blocking; the results in rank order."""

    def touch(self, actor: One, value: object) -> object:
        """Echo a bulk value after the actor has read every byte of it."""

    def share(self, actor: One, nbytes: int) -> Handle:
        """A handle for one-sided reads of `nbytes` bytes of value 7 held by the actor."""

    def read(self, handle: Handle, into: object) -> None:
        """One-sided read into a one-dimensional uint8 torch tensor."""

    def stall(self, actor: One, path: str) -> Pending:
        """Start `stall(path)`."""

    def leave(self, actor: One, path: str) -> Pending:
        """Start `leave(path)`."""

    def fail_one(self, mesh: Mesh, pid: int, seconds: float) -> object:
        """`fail_one` on every rank, blocking as `call_all` does; raises when the caller learns of the failure."""

    def run(self, coroutine: Coroutine[object, object, object]) -> object:
        """Run a coroutine on the loop where `awaitable` works."""

    def stop(self, mesh: Mesh) -> None:
        """End the mesh's processes and wait for that."""

    def shutdown(self) -> None:
        """Leave nothing behind."""


AnyPeer: TypeAlias = Peer[Any, Any, Any, Any]


def first_answer(with_torch: bool) -> tuple[int, bool]:
    """(pid, is torch imported) of this worker; `with_torch` first runs an operation of torch."""
    if with_torch:
        import torch

        assert float(torch.ones(4).sum()) == 4.0
    return os.getpid(), "torch" in sys.modules


def read_every_byte(value: object) -> object:
    """Read all of an ndarray or tensor, as 8-byte words, and return it unchanged."""
    import numpy

    array = value if isinstance(value, numpy.ndarray) else value.numpy()  # type: ignore[attr-defined]
    array.view(numpy.uint64).max()
    return value


STALLED_SECONDS = 60.0


def _note(path: str) -> None:
    """(pid, clock) for the measuring process, whole or not at all; the clock is the host's, in nanoseconds."""
    with open(f"{path}.new", "w") as file:
        file.write(f"{os.getpid()} {time.perf_counter_ns()}")
    os.rename(f"{path}.new", path)


def stall(path: str) -> None:
    """Say where it runs, then run for a minute: the call that is pending when its process is killed."""
    _note(path)
    time.sleep(STALLED_SECONDS)


def leave(path: str) -> None:
    """Say when, and end the process with exit code 3."""
    _note(path)
    os._exit(3)


def fail_one(pid: int, seconds: float) -> None:
    """Raise at once in one process; the others go on for `seconds`."""
    if os.getpid() == pid:
        raise ValueError("the first failure")
    time.sleep(seconds)


def sevens(nbytes: int) -> object:
    """A one-dimensional uint8 torch tensor of value 7."""
    import torch

    return torch.full((nbytes,), 7, dtype=torch.uint8)
