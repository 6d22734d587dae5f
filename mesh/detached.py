"""Processes that outlive the program that has spawned them."""

from __future__ import annotations

from collections.abc import Sequence

from ..actors.errors import RoostError
from ..actors.refs import ProcRef
from ..actors.runtime import current_runtime
from .hostref import HostRef


def is_detached(lifetime: str | None, name: str | None, restart: object, hosts: Sequence[HostRef]) -> bool:
    """Whether processes are asked for that outlive the program. Raises for what cannot be."""
    if lifetime is None:
        return False
    if lifetime != "job":
        raise ValueError(f'lifetime is "job", for processes that outlive the program, or None; not {lifetime!r}')
    if not name:
        raise ValueError('lifetime="job" needs a name=, under which later programs find the processes')
    if restart is not None:
        raise ValueError("detached processes have no owner that could restart them: leave out lifetime= or restart=")
    from .local import own_agents

    own = [host.host for host in hosts if host.agent_id in own_agents()]
    if own:
        raise RoostError(
            f"detached processes outlive the program, and the agent of {own[0]} ends with it: spawn them on hosts of "
            "worker loops (`run_worker_loop_forever`, `attach_to_workers`)"
        )
    return True


def current_root() -> ProcRef | None:
    """The program's own process; None in a detached process, which outlives it."""
    runtime = current_runtime()
    if runtime is None:
        return None
    return runtime.node.ref if runtime.node.role == "controller" else runtime.root
