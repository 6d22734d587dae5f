"""What the data plane needs of the process it lives in.

The process runtime installs one `Home`; nothing here knows how control messages travel. The runtime hands
messages that another process sent by `tell` to `roost.rdma.service.receive(sender, kind, body)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Home(Protocol):
    """The running Roost process, as seen from here.

    `host` is the address that this node's data server binds and other nodes dial. `secret` is the job's.
    """

    proc_id: int
    node_id: str
    secret: bytes
    host: str

    def on_process_death(self, proc_id: int, callback: Callable[[int], None]) -> None:
        """Call `callback(proc_id)` once, from any thread, when that process is known dead."""

    def tell(self, proc_id: int, kind: str, body: tuple[object, ...]) -> None:
        """Send one small message to the data plane of `proc_id`; never blocks, may be lost if it is dead.

        `body` holds bytes, ints, None and tuples of ints only.
        """

    def place(self) -> tuple[object, ...] | None:
        """How others' control messages find this process, in plain values; travels in its handles."""

    def learn(self, place: tuple[object, ...] | None) -> None:
        """A handle has come that says where its owner is."""


_home: Home | None = None


def set_home(home: Home | None) -> None:
    """Install (or, with None, remove) the process that the data plane lives in."""
    global _home
    _home = home


def home() -> Home:
    """The installed process; RuntimeError with a sentence where there is none."""
    global _home
    if _home is None:
        from ..actors.runtime import current_runtime

        runtime = current_runtime()
        if runtime is None:
            raise RuntimeError("RDMABuffer needs a running Roost process: call this_host() first")
        from .node_home import NodeHome

        _home = NodeHome(runtime)
    return _home


def home_or_none() -> Home | None:
    """The installed process, for clean-up that must not fail when the runtime is gone."""
    return _home
