"""What an agent tells of its host's processes to the command line: "ps" and "stacks of"."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ...actors.errors import MeshFailure, RoostError
from ...actors.node import Node
from ...actors.peer import Peer
from ...actors.refs import ProcRef
from ...actors.requests import request
from ..stacks import stacks_of

if TYPE_CHECKING:
    from .agent import Agent

PATIENCE = 0.5  # seconds for a worker to say what its actors do
GOODBYE = 1.0  # seconds after which who has said goodbye is forgotten


class Table:
    """The processes of one host, for people's eyes."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        agent.node.system.update({"ps": self.ps, "stacks of": self.stacks, "goodbye": self.goodbye})

    async def ps(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> list[dict[str, Any]]:
        """[]: every worker; `actors` is None for one that does not answer within half a second."""
        live = self._agent.launcher.live()
        asked = [asyncio.create_task(self._actors(node, proc_id)) for proc_id in live]
        actors = await asyncio.gather(*asked)
        return [
            {
                "proc_id": proc_id,
                "name": launched.name,
                "pid": launched.pid,
                "output": self._agent.output.path(launched.name, proc_id),
                "actors": theirs,
            }
            for (proc_id, launched), theirs in zip(live.items(), actors, strict=True)
        ]

    async def _actors(self, node: Node, proc_id: int) -> list[Any] | None:
        asked = request(node, node.peer(proc_id), "statistics")
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await asked
        except (TimeoutError, RoostError):
            return None
        return list(answer["actors"])

    async def stacks(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> list[str]:
        """[[process, name], …] and seconds: the stacks of each as text."""
        named, seconds = arguments
        assert node.ref is not None
        refs = [
            ProcRef(proc_id, name, node.node_id, node.host, "", node.proc_id, node.ref.agent_address)
            for proc_id, name in named
        ]
        found = await stacks_of(node, refs, seconds)
        return [found[index] for index in range(len(refs))]

    def goodbye(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> bool:
        """[]: the asker leaves, and will not come back under its number."""

        def forget() -> None:
            node.bury(peer, MeshFailure(f"{peer.name} has left"))
            node.peers.pop(peer.proc_id, None)

        node.io.loop.call_later(GOODBYE, forget)
        return True
