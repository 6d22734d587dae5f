"""A table of names: of the program, in its own process; of detached meshes, at a host agent.

A mesh stands in it as bytes, which whoever asked for it unpickles: an agent runs no user code. A name is free again
when nothing that it stands for lives any more.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

from ..actors.errors import MeshFailure, RoostError
from ..actors.node import Node
from ..actors.peer import Peer
from ..actors.refs import ProcRef
from ..actors.requests import request

logger = logging.getLogger("roost.names")

ALIVE_TIMEOUT = 5.0  # seconds a process has to say whether an actor lives there; one that says nothing may live


@dataclass(slots=True)
class Named:
    """What a name stands for: actors on processes, or the processes themselves (actor 0)."""

    packed: bytes
    about: str
    refs: tuple[ProcRef, ...]
    actor_id: int
    ended: dict[int, bool] = field(default_factory=dict)  # by process: whether it was stopped on purpose

    @property
    def over(self) -> bool:
        """Every process of it is known to have ended."""
        return len(self.ended) == len(self.refs)

    async def lives(self, node: Node) -> bool:
        """Whether any of it lives; a process that does not answer in time may."""
        if self.over:
            return False
        left = [ref for ref in self.refs if ref.proc_id not in self.ended]
        return any(await asyncio.gather(*(self._lives_at(node, ref) for ref in left)))

    async def _lives_at(self, node: Node, ref: ProcRef) -> bool:
        try:
            async with asyncio.timeout(ALIVE_TIMEOUT):
                return bool(await request(node, ref, "has actor", self.actor_id))
        except TimeoutError:
            return True
        except MeshFailure:
            return False
        except RoostError as error:
            logger.debug("%s does not say whether an actor lives: %s", ref.name, error)
            return False


class NameTable:
    """Serves "names put", "get", "drop" and "list" for one process."""

    def __init__(self, node: Node) -> None:
        self.named: dict[str, Named] = {}
        self._claims: dict[str, asyncio.Lock] = {}
        node.system.update(
            {"names put": self.put, "names get": self.get, "names drop": self.drop, "names list": self.names}
        )

    def __repr__(self) -> str:
        return f"<NameTable: {', '.join(sorted(self.named)) or 'empty'}>"

    def refuses(self, refs: tuple[ProcRef, ...]) -> bool:
        """Whether such a mesh does not belong into this table."""
        return False

    async def put(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[name, about, processes, actor, copy]: None when the name is now this mesh's, else what has it, or False
        where such a mesh has no place. A copy of another table's entry is taken as it is."""
        name, about, processes, actor_id, copy = arguments
        refs = tuple(ProcRef.from_wire(ref) for ref in processes)
        if self.refuses(refs) and not copy:
            return False
        entry = Named(bytes(body), about, refs, actor_id)
        async with self._claims.setdefault(name, asyncio.Lock()):
            known = self.named.get(name)
            if known is not None and not copy and known.packed != entry.packed and await known.lives(node):
                return known.about
            self.named[name] = entry
        for ref in refs:
            node.vigil.watch(node.peer_at(ref))  # its agent tells of its end
        return None

    async def get(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[name]: the mesh as it was put; None when there is none."""
        known = self.named.get(arguments[0])
        return known.packed if known is not None else None

    def drop(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[name]: whether there was such a name."""
        return self.named.pop(arguments[0], None) is not None

    def names(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[]: the names of what may live."""
        return [name for name, known in self.named.items() if not known.over]

    def exited(self, proc_id: int, planned: bool) -> None:
        """A process has ended. The names of meshes that were stopped go; of those that died they stay, to tell how."""
        for name, known in list(self.named.items()):
            if any(ref.proc_id == proc_id for ref in known.refs):
                known.ended[proc_id] = planned
                if known.over and all(known.ended.values()):
                    del self.named[name]


def has_actor(node: Node, peer: Peer, arguments: list[Any], body: Any) -> bool:
    """[actor]: whether it lives here; 0 is the process itself."""
    cell = node.cells.get(arguments[0])
    return arguments[0] == 0 or (cell is not None and not cell.ended.is_set())
