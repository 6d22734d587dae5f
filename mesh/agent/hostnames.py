"""The names that a host agent keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...actors.node import Node
from ...actors.peer import Peer
from ...actors.refs import ProcRef
from ..nametable import NameTable

if TYPE_CHECKING:
    from .agent import Agent


class HostNames(NameTable):
    """The names of detached meshes whose first host this is, and copies of those of others."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent.node)
        self._agent = agent

    def refuses(self, refs: tuple[ProcRef, ...]) -> bool:
        """Only what is detached outlives the program that has named it."""
        return refs[0].proc_id not in self._agent.owners.detached

    def knows(self, proc_id: int) -> bool:
        """Whether processes, of which this is one, have a name here."""
        return any(
            known.actor_id == 0 and any(ref.proc_id == proc_id for ref in known.refs) for known in self.named.values()
        )

    async def put(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """The same; processes that have a name now are kept when their spawner ends."""
        name, _, processes, actor_id, copy = arguments
        answer = await super().put(node, peer, arguments, body)
        if answer is None and not copy:
            refs = tuple(ProcRef.from_wire(ref) for ref in processes)
            if self.refuses(refs) and self.named[name].refs == refs:  # its spawner has ended meanwhile
                del self.named[name]
                return False
            if actor_id == 0:
                self._agent.owners.keep([ref.proc_id for ref in refs])
        return answer
