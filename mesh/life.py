"""How the news of ended processes reaches whoever must know."""

from __future__ import annotations

from typing import Any

from ..actors.peer import Peer
from ..actors.runtime import Runtime
from .launch import ExitReport


def watch_exits(runtime: Runtime) -> None:
    """Take agents' word for which processes have ended."""

    def exited(peer: Peer, proc_id: int, report: list[Any], planned: bool, reason: str) -> None:
        runtime.supervisor.exited(proc_id, ExitReport.from_wire(report), planned, reason)

    runtime.events["exited"] = exited
