"""Where an actor comes from: the mesh of processes that it was spawned on, as its owner's process knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..actors.node import Node
from ..actors.peer import Peer
from ..actors.refs import SYSTEM_ACTOR, ProcRef
from ..actors.requests import request
from ..actors.runtime import Runtime
from .shape import Extent

if TYPE_CHECKING:
    from ..actors.cell import Cell
    from .procmesh import ProcMesh

TIMEOUT = 10.0  # seconds for the owner's process to answer


def tell_origins(runtime: Runtime) -> None:
    """Serve "processes of": [actor], the processes that an actor mesh of this process was spawned on."""

    def serve(node: Node, peer: Peer, arguments: list[Any], body: Any) -> list[Any]:
        for owned in runtime.supervisor.owned:
            if owned.actor_id == arguments[0]:
                ranked = sorted(owned.ranks, key=owned.ranks.__getitem__)
                places = [node.peer(proc_id).where for proc_id in ranked]
                return [where.to_wire() for where in places if where is not None]
        return []

    runtime.node.system["processes of"] = serve


def procs_of(cell: Cell) -> ProcMesh:
    """The processes of an actor's mesh, in its shape; of a detached one, whose owner is no process, its own alone.

    Waits for the owner's process, TIMEOUT seconds at most; raises its death.
    """
    from .local import this_proc
    from .procmesh import Processes, ProcMesh

    if cell.owner.actor_id == SYSTEM_ACTOR:
        return this_proc()
    labels, sizes = cell.shape
    answer = request(cell.node, cell.node.peer(cell.owner.proc_id), "processes of", cell.actor_id).get(TIMEOUT)
    refs = [ProcRef.from_wire(wire) for wire in answer]
    extent = Extent(labels, sizes)
    if len(refs) != extent.nelements:
        return this_proc()
    return ProcMesh(Processes(refs[0].name.rpartition("-")[0] or refs[0].name, refs), extent.region)
