"""The programs that have attached to this agent, and what ends with each of them.

A program says goodbye, or its link breaks. Under the same kernel a pidfd tells at once that it has died; elsewhere
what it spawned runs on until nothing has been heard of it for `LEASE` seconds. That is a little longer than the
program itself waits before it gives this host up, so that it never starts again what still runs.

The same is due to agents: what a process of another host has spawned here ends when that host's agent is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...actors.errors import MeshFailure
from ...actors.link.address import parse
from ...actors.link.gate import DialError, DialRefused
from ...actors.link.stream import Link
from ...actors.node import Node
from ...actors.peer import Peer
from ...actors.refs import ProcRef
from ...actors.requests import request, tell
from ...actors.routing import LINK_TIMEOUT
from ..place import here, watch_end

if TYPE_CHECKING:
    from .agent import Agent

logger = logging.getLogger("roost.agent")

LEASE = LINK_TIMEOUT * 1.1  # seconds without a link until what a program has spawned here ends
LEAVE_GRACE = 0.3  # seconds between asking and killing when a program leaves


class Clients:
    """Attached programs and the agents on their hosts, by process."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._node = agent.node
        self._stays = bool(agent.config.get("stays"))
        self._attached: dict[int, Callable[[], None] | None] = {}  # by process: what ends the watch of its pid
        self._leases: dict[int, asyncio.TimerHandle] = {}
        self._relayed: dict[int, int] = {}  # attached through another agent, their gateway
        self._reached: dict[int, set[int]] = {}  # by program whose gateway this is: the agents it has attached to
        routing = self._node.routing
        self._joined, self._broken = routing.joined, routing.broken
        routing.joined, routing.broken = self.joined, self.broken  # type: ignore[method-assign]
        self._node.system.update(
            {"attach": self.attach, "leave": self.leave, "link": self.link, "reach": self.reach, "left": self.left}
        )

    def __contains__(self, proc_id: int) -> bool:
        return proc_id in self._attached

    # requests

    def attach(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[place]: a program, or the agent of its host, will spawn here; the answer describes this host."""
        if self._stays and peer.proc_id not in self._attached:
            peer.where = None  # it dials us: whatever address it has is another job's
            node.routing.inbound.add(peer.proc_id)
            proc_id = peer.proc_id
            link = peer.link
            if link is not None and link.peer.proc_id != proc_id:
                self._relayed[proc_id] = link.peer.proc_id
                node.routing.ways[proc_id] = link
            self._attached[proc_id] = watch_end(
                arguments[0], node.io.loop, lambda: self._gone(proc_id, "its process has ended")
            )
        assert node.ref is not None
        return {"ref": node.ref.to_wire(), "run_dir": str(self._agent.run_dir), "place": here(), "stays": self._stays}

    async def leave(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[reason, for good, its agents]: end what this program and its processes elsewhere have spawned here."""
        reason, for_good, agents = arguments
        owners = [peer.proc_id, *(owner for agent_id in agents for owner in self._owners_under(agent_id))]
        await self._agent.owners.end(owners, reason, LEAVE_GRACE)
        if for_good:
            node.io.loop.call_soon(self._gone, peer.proc_id, reason)  # once it has been answered
        return True

    async def link(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[agent, address, secret, gateway or 0]: link to an agent that a program has attached to, for its processes
        here."""
        ref, address, secret, gateway = ProcRef.from_wire(arguments[0]), *arguments[1:]
        if gateway:
            node.routing.via[ref.proc_id] = gateway
        node.gate.learn(parse(ref.agent_address), secret, parse(address))
        other = node.peer(ref.proc_id, where=ref)
        other.watched = True
        if not gateway:
            node.routing.kept_up.add(ref.proc_id)
        await request(node, other, "attach", here())
        return True

    async def reach(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[address, secret]: dial another agent for a program whose gateway this is; the answer describes its host, or
        is [whether it is of no use to try again, why not]."""
        address, secret = arguments
        node.gate.learn(parse(address), secret)
        try:
            link = await node.routing._dial(address)
        except DialError as error:
            return [isinstance(error, DialRefused), str(error)]
        other = node.peer(link.peer.proc_id, link.peer.name)
        answer = await request(node, other, "attach", here())
        other.where, other.watched = ProcRef.from_wire(answer["ref"]), True
        node.routing.kept_up.add(other.proc_id)
        self._reached.setdefault(peer.proc_id, set()).add(other.proc_id)
        return answer

    def left(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[process]: its gateway tells that a program has gone."""
        if self._relayed.get(arguments[0]) == peer.proc_id:
            self._gone(arguments[0], f"its gateway {peer.name} says so")
        return True

    # links

    def joined(self, link: Link) -> None:
        """A link has come: whose it is, is heard of again."""
        proc_id = link.peer.proc_id
        lease = self._leases.pop(proc_id, None)
        if lease is not None:
            lease.cancel()
        self._joined(link)
        peer = self._node.peers.get(proc_id)
        if peer is not None and peer.dead is not None and link.peer.role != "worker":
            link.close("what this process had spawned here has ended, because nothing was heard of it")

    def broken(self, link: Link, why: str) -> None:
        """A link is gone; from now on its other end has `LEASE` seconds to come back."""
        self._broken(link, why)
        proc_id = link.peer.proc_id
        known = proc_id in self._attached or any(self._owners_under(proc_id))
        if self._stays and known and proc_id not in self._node.routing.links and proc_id not in self._leases:
            self._leases[proc_id] = self._node.io.loop.call_later(
                LEASE, self._gone, proc_id, f"nothing was heard of it for {LEASE:g} s"
            )

    def keep_up(self, agent_id: int) -> None:
        """Something here belongs to a process of that agent's host: mind the link to it."""
        if self._stays and agent_id not in self._node.routing.inbound:
            self._node.routing.kept_up.add(agent_id)

    # ends

    def _owners_under(self, agent_id: int) -> list[int]:
        """The owners of workers here that live on the host of an agent."""
        peers = self._node.peers
        return [
            owner
            for owner in self._agent.owners.owned
            if owner in peers and (where := peers[owner].where) is not None and where.agent_id == agent_id
        ]

    def _gone(self, proc_id: int, why: str) -> None:
        """A program, or an agent, is gone, and with it everything it has spawned here."""
        lease = self._leases.pop(proc_id, None)
        if lease is not None:
            lease.cancel()
        stop_watch = self._attached.pop(proc_id, None)
        if stop_watch is not None:
            stop_watch()
        self._relayed.pop(proc_id, None)
        for relayed in [known for known, gateway in self._relayed.items() if gateway == proc_id]:
            self._gone(relayed, f"its gateway is gone: {why}")
        for agent_id in self._reached.pop(proc_id, ()):
            self._tell_left(agent_id, proc_id)
        routing = self._node.routing
        routing.inbound.discard(proc_id)
        routing.kept_up.discard(proc_id)
        for owner in [*self._owners_under(proc_id), proc_id]:
            self._agent.owners.ended(owner)
        peer = self._node.peers.get(proc_id)
        if peer is not None and peer.dead is None:
            logger.info("%s has left: %s", peer.name, why)
            self._node.bury(peer, MeshFailure(f"{peer.name} has left: {why}"))

    def _tell_left(self, agent_id: int, proc_id: int) -> None:
        try:
            tell(self._node, self._node.peer(agent_id), "left", proc_id)
        except MeshFailure as error:
            logger.info("an agent was not told that a program has left: %s", error)

    def farewell(self, reason: str, planned: bool) -> None:
        """This agent ends: tell whoever is attached."""
        for lease in self._leases.values():
            lease.cancel()
        for proc_id, stop_watch in self._attached.items():
            if stop_watch is not None:
                stop_watch()
            self._node.event(self._node.peer(proc_id), "agent ends", reason, planned)
        self._attached.clear()
