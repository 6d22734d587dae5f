"""What every process with a runtime hears and can ask of others: ended processes, stacks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..actors.errors import ActorStopped, MeshFailure
from ..actors.peer import Peer
from ..actors.runtime import Runtime
from .launch import ExitReport
from .origin import tell_origins
from .stacks import stacks_of


def watch_exits(runtime: Runtime) -> None:
    """Take agents' word for which processes have ended; ask them for the stacks of those that do not answer."""
    runtime.node.stacks_of = partial(stacks_of, runtime.node)
    tell_origins(runtime)

    def exited(peer: Peer, proc_id: int, report: list[Any], planned: bool, reason: str) -> None:
        runtime.supervisor.exited(proc_id, ExitReport.from_wire(report), planned, reason)

    runtime.events["exited"] = exited


def agent_lost(runtime: Runtime, agent_id: int, error: Callable[[str], MeshFailure]) -> None:
    """A host's agent is gone, and what ran under it with it: owners hear of it, and calls fail. On the I/O thread."""
    for peer in list(runtime.node.peers.values()):
        where = peer.where
        if where is not None and where.agent_id == agent_id and peer.dead is None:
            lost = error(peer.name)
            if not isinstance(lost, ActorStopped):
                runtime.supervisor._fail_owners(peer.proc_id, lost)
            runtime.node.bury(peer, lost)
