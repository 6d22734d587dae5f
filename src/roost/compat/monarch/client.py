"""The end of the client, by Monarch's name."""

from __future__ import annotations

from ... import mesh
from ...actors.future import Future


def shutdown_context(host_timeout: float | None = None) -> Future[None]:
    """End everything that the program has spawned; `host_timeout` in seconds. It also happens at exit."""
    return mesh.shutdown_context(host_timeout)
