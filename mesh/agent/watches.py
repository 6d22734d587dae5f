"""Who wants to hear of the end of which process.

The end of a worker of this host the agent knows from the kernel. Of the others it hears in turn: programs that have
attached are watched by `clients.py`; of whoever is reached through another agent that agent tells, so that a request
goes from agent to agent along the way that frames take. A process that no link leads to for `LINK_TIMEOUT` seconds is
told as gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...actors.errors import MeshFailure
from ...actors.link.address import AddressError
from ...actors.link.gate import DialError, DialRefused
from ...actors.link.stream import Link
from ...actors.node import Node
from ...actors.peer import Peer
from ...actors.requests import tell
from ...actors.routing import LINK_TIMEOUT
from ..launch import ExitReport

if TYPE_CHECKING:
    from .agent import Agent

logger = logging.getLogger("roost.agent")

PAUSES = (0.01, 0.5)  # first and longest pause between looks for a way, seconds


class Watches:
    """The processes whose ends somebody has asked this agent to tell of."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._node = agent.node
        self._watchers: dict[int, set[int]] = {}
        self._hops: dict[int, tuple[int, str]] = {}  # the agent that leads to a process, or itself; its address
        self._asked: dict[int, set[int]] = {}  # agents that will tell of it
        self._searches: set[int] = set()
        routing = self._node.routing
        self._broken = routing.broken
        routing.broken = self.broken  # type: ignore[method-assign]
        self._node.system["watch"] = self.watch
        agent.runtime.events["gone"] = self._gone_elsewhere

    def add(self, proc_id: int, watcher: int) -> None:
        """Tell a peer of the end of a process of this host."""
        self._watchers.setdefault(proc_id, set()).add(watcher)

    def watch(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[processes]: tell this peer when they end; at once if they have."""
        for proc_id in arguments:
            known, other = self._agent.ended.get(proc_id), node.peers.get(proc_id)
            if known is not None:
                report, planned, reason = known
                node.event(peer, "exited", proc_id, report.to_wire(), planned, reason)
            elif self._is_here(proc_id):
                self.add(proc_id, peer.proc_id)
            elif other is not None and other.dead is not None:
                node.event(peer, "gone", proc_id, str(other.dead), True)
            else:
                self._follow(proc_id, peer.proc_id)
        return True

    def _is_here(self, proc_id: int) -> bool:
        return proc_id in self._agent.launcher.live() or proc_id in self._agent.ready

    def exited(self, proc_id: int, report: ExitReport, planned: bool, reason: str) -> None:
        """A process has ended, here or elsewhere."""
        self._tell(proc_id, "exited", report.to_wire(), planned, reason)

    def _tell(self, proc_id: int, event: str, *fields: Any) -> None:
        self._hops.pop(proc_id, None)
        self._asked.pop(proc_id, None)
        for watcher in self._watchers.pop(proc_id, ()):
            self._node.event(self._node.peer(watcher), event, proc_id, *fields)

    # processes of other hosts, and programs

    def _follow(self, proc_id: int, watcher: int) -> None:
        if proc_id not in self._watchers:
            self._node.when_dead(proc_id, self._died)
        self.add(proc_id, watcher)
        self._look(proc_id)

    def _died(self, proc_id: int) -> None:
        dead = self._node.peer(proc_id).dead
        self._tell(proc_id, "gone", str(dead), True)

    def _gone_elsewhere(self, peer: Peer, proc_id: int, why: str, ended: bool) -> None:
        self._node.vigil.gone(peer, proc_id, why, ended)
        self._tell(proc_id, "gone", why, ended)

    def _look(self, proc_id: int) -> None:
        """Find who leads to a process, and ask there; search where nobody does."""
        routing = self._node.routing
        link = routing.links.get(proc_id) or routing.ways.get(proc_id)
        if link is None:
            self._search(proc_id)
            return
        hop = link.peer.proc_id
        self._hops[proc_id] = hop, link.peer.address
        asked = self._asked.setdefault(proc_id, set())
        if hop == proc_id or hop in asked or hop in self._watchers[proc_id]:
            return
        asked.add(hop)
        try:
            tell(self._node, self._node.peer(hop, link.peer.name), "watch", proc_id)
        except MeshFailure as error:
            self._tell(proc_id, "gone", str(error), True)
            return
        self._node.when_dead(hop, self._behind(proc_id))

    def _behind(self, proc_id: int) -> Callable[[int], None]:
        """What to do when the agent that leads to a process is gone: the process is too."""

        def died(hop: int) -> None:
            if self._hops.get(proc_id, (0, ""))[0] == hop:
                self._tell(proc_id, "gone", str(self._node.peer(hop).dead), True)

        return died

    def broken(self, link: Link, why: str) -> None:
        """A link is gone: what it led to is searched for."""
        self._broken(link, why)
        if self._node.closed or link.peer.proc_id in self._node.routing.links:
            return
        for proc_id in [known for known, (hop, _) in self._hops.items() if hop == link.peer.proc_id]:
            self._search(proc_id)

    def _search(self, proc_id: int) -> None:
        if proc_id in self._searches:
            return
        self._searches.add(proc_id)
        task = self._node.io.loop.create_task(self._find(proc_id))
        self._node.routing.tasks.add(task)
        task.add_done_callback(self._node.routing.tasks.discard)
        task.add_done_callback(lambda done: self._searches.discard(proc_id))

    async def _find(self, proc_id: int) -> None:
        """Look for a way to a process until there is one, or it is given up."""
        loop, routing = self._node.io.loop, self._node.routing
        until = loop.time() + LINK_TIMEOUT
        pause, why = PAUSES[0], f"{self._node.name} has no link that leads to it"
        while proc_id in self._watchers and not self._is_here(proc_id):
            known = self._agent.ended.get(proc_id)
            if known is not None:
                self.exited(proc_id, *known)
                return
            try:
                link = routing.links.get(proc_id) or routing.ways.get(proc_id) or await self._way(proc_id)
            except DialRefused as error:
                self._tell(proc_id, "gone", str(error), True)
                return
            except (DialError, AddressError) as error:
                link, why = None, str(error)
            if link is not None:
                routing.ways.setdefault(proc_id, link)
                self._look(proc_id)
                return
            if loop.time() > until:
                self._tell(proc_id, "gone", why, False)
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSES[1])

    async def _way(self, proc_id: int) -> Link | None:
        """A link to the agent that a process is known to be behind; None where it must come from there."""
        routing = self._node.routing
        hop, address = self._hops.get(proc_id) or routing.agents.get(proc_id) or (0, "")
        link = routing.links.get(routing.via.get(hop, hop))
        if link is not None or hop in (0, proc_id) or hop in routing.inbound or hop in routing.via:
            return link  # who was linked to this host itself dials it again
        link = await routing._dial(address)
        if link.peer.proc_id != hop:
            raise DialRefused(f"{link.peer.name} answers at {address} now, what was there has ended")
        return link
