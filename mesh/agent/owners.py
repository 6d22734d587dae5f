"""Whose the processes of a host are, and what ends with whom.

What a process has spawned ends with it, however it ends. Detached processes belong to their spawner too, until their
mesh stands in the table of names at its first host: only then could anybody else find and stop them. That agent keeps
its own from then on, and the spawner tells the others; where it ended before it could, they ask the first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...actors.errors import RoostError
from ...actors.node import Node
from ...actors.peer import Peer
from ...actors.refs import ProcRef
from ...actors.requests import request
from .clients import LEASE

if TYPE_CHECKING:
    from .agent import Agent

logger = logging.getLogger("roost.agent")

GRACE = 0.3  # seconds between SIGTERM and SIGKILL for a worker that did not end when asked


class Owners:
    """The owners of the workers of one host."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._node = agent.node
        self.owned: dict[int, set[int]] = {}  # workers here, by the process that they belong to
        self.detached: set[int] = set()  # workers here that belong to nobody, or will
        self._nameless: dict[int, tuple[ProcRef, int]] = {}  # of these: the agent, and the first process of the mesh
        self._decisions: dict[int, asyncio.Future[bool]] = {}  # by the first process, here: whether it got its name
        self._node.system.update({"keep detached": self.keep_detached, "is kept": self.is_kept})

    def __repr__(self) -> str:
        return f"<Owners: {len(self.owned)}, of {sum(map(len, self.owned.values()))} workers>"

    def __contains__(self, proc_id: int) -> bool:
        """Whether a worker belongs to anybody."""
        return any(proc_id in owned for owned in self.owned.values())

    def own(self, owner: ProcRef, proc_ids: Sequence[int], first: list[Any] | None) -> str | None:
        """Take note of whose they are; one elsewhere is watched by its own agent. Why not, where it has ended already.

        `first` is of detached ones: the agent, and the first process, of their mesh.
        """
        agent, known = self._agent, self._node.peers.get(owner.proc_id)
        if owner.proc_id in agent.ended or (known is not None and known.dead is not None):
            return f"{owner.name}, which has asked for it, has ended"
        self.owned.setdefault(owner.proc_id, set()).update(proc_ids)
        if first is not None:
            self.detached.update(proc_ids)
            self._nameless.update(dict.fromkeys(proc_ids, (ProcRef.from_wire(first[0]), first[1])))
            if first[1] in proc_ids:
                self._decisions[first[1]] = self._node.io.loop.create_future()
        peer = self._node.peer(owner.proc_id, where=None if owner.proc_id in agent.clients else owner)
        if peer.link is not None and peer.link.peer.proc_id != owner.proc_id:  # a relayed one: a worker of another host
            self._node.vigil.watch(peer)
            agent.clients.keep_up(owner.agent_id)
        return None

    def exited(self, proc_id: int) -> None:
        """A worker has ended: it belongs to nobody, and what it has spawned ends."""
        self.detached.discard(proc_id)
        self._nameless.pop(proc_id, None)
        self._decide(proc_id, False)
        for owned in self.owned.values():
            owned.discard(proc_id)
        self.ended(proc_id)

    def ended(self, owner: int) -> None:
        """An owner has ended."""
        if owner in self.owned:
            task = self._node.io.loop.create_task(self.end([owner], "its owner has ended", GRACE))
            self._node.routing.tasks.add(task)
            task.add_done_callback(self._node.routing.tasks.discard)

    async def end(self, owners: Sequence[int], reason: str, grace: float) -> None:
        """End what belongs to these; those that have not been forked yet never are."""
        owned = {proc_id for owner in owners for proc_id in self.owned.pop(owner, ())}
        elsewhere: dict[int, list[int]] = {}
        for proc_id in owned & self._nameless.keys():
            agent, first = self._nameless[proc_id]
            if agent.proc_id != self._node.proc_id:
                elsewhere.setdefault(first, []).append(proc_id)
        asked = {proc_id for group in elsewhere.values() for proc_id in group}
        await asyncio.gather(
            self._end(owned - asked, reason, grace),
            *(self._ask(first, group, reason, grace) for first, group in elsewhere.items()),
        )

    async def _end(self, proc_ids: set[int], reason: str, grace: float) -> None:
        agent = self._agent
        agent.launcher.give_up(proc_ids)
        for proc_id in proc_ids:
            self.detached.discard(proc_id)
            self._nameless.pop(proc_id, None)
            self._decide(proc_id, False)
        live = proc_ids & agent.launcher.live().keys()
        starting = live & agent.ready.keys()  # no actor lives there that would clean up
        agent.stopping.update(dict.fromkeys(starting, reason))
        running = [list(live - starting), reason, grace, True]
        await asyncio.gather(
            agent.launcher.stop(starting, 0), agent.stop(self._node, self._node.peer(self._node.proc_id), running, b"")
        )

    # detached ones

    async def _ask(self, first: int, proc_ids: list[int], reason: str, grace: float) -> None:
        """The spawner of a mesh has ended: its first host knows whether it had got its name."""
        self.owned.setdefault(self._node.proc_id, set()).update(proc_ids)
        agent = self._nameless[proc_ids[0]][0]
        try:
            async with asyncio.timeout(LEASE):
                kept = await request(self._node, agent, "is kept", first)
        except (TimeoutError, RoostError) as error:
            logger.warning("%s does not say whether a detached mesh has its name, which ends: %s", agent.name, error)
            kept = False
        if kept:
            self.keep(proc_ids)
        else:
            await self._end(set(proc_ids), reason, grace)

    async def is_kept(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> bool:
        """[first process]: whether a detached mesh that begins here has got its name, once that is decided."""
        decision = self._decisions.get(arguments[0])
        return self._agent.names.knows(arguments[0]) if decision is None else await asyncio.shield(decision)

    def keep_detached(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> bool:
        """[processes]: their mesh has got its name."""
        self.keep(arguments[0])
        return True

    def keep(self, proc_ids: Sequence[int]) -> None:
        """From now on they belong to this host, and live until they are stopped."""
        for proc_id in proc_ids:
            if self._nameless.pop(proc_id, None) is not None:
                for owned in self.owned.values():
                    owned.discard(proc_id)
                self.owned.setdefault(self._node.proc_id, set()).add(proc_id)
                self._decide(proc_id, True)

    def _decide(self, proc_id: int, kept: bool) -> None:
        decision = self._decisions.pop(proc_id, None)
        if decision is not None and not decision.done():
            decision.set_result(kept)
