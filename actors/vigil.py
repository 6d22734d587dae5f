"""Vigil: how a process hears that a peer which it sends to or waits for has ended, or is out of reach.

The agent of a peer tells of its end. A process that knows where a peer is asks that agent. One that waits for a peer it
could not find by itself (whoever calls it is known by a number alone), or that reaches it through its own agent, asks
its own too: that knows the processes of its host and the programs that are linked to it, and asks on, for others,
along the way that their frames take.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .errors import MeshFailure
from .peer import Peer
from .wire import frame as f

if TYPE_CHECKING:
    from .node import Node

logger = logging.getLogger("roost.routing")


class Vigil:
    """The peers of one node whose end it wants to hear of."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def heed(self, peer: Peer) -> None:
        """Something here waits for the peer from now on: it is given up when it is out of reach. From any thread."""
        with peer.lock:
            peer.heeded += 1
        self.ask(peer)

    def release(self, peer: Peer) -> None:
        """What has waited does no more."""
        with peer.lock:
            peer.heeded -= 1

    def ask(self, peer: Peer) -> None:
        """Hear of the peer's end, wherever it is; from any thread."""
        if not peer.asked and peer.proc_id != self.node.proc_id:
            peer.asked = True
            self.node.io.call(self._ask, peer)

    def _ask(self, peer: Peer) -> None:
        if peer.dead is not None or self.node.closed:
            return
        self.watch(peer)
        guide = self._guide(peer)
        if guide not in (0, peer.proc_id, self.node.proc_id):
            self._post(self.node.peer(guide), peer.proc_id)

    def _guide(self, peer: Peer) -> int:
        """Who hears of the peer's end before this process does: 0 where nobody is nearer to it."""
        if self.node.routing.parent:
            return self.node.routing.parent
        if peer.link is not None and peer.link.peer.proc_id != peer.proc_id:
            return peer.link.peer.proc_id
        return self.node.ref.agent_id if self.node.ref is not None else 0

    def watch(self, peer: Peer) -> None:
        """Ask the agent of a process that this one sends to, and knows the place of, to tell of its end."""
        from .routing import agent_ref

        where, parent = peer.where, self.node.routing.parent
        if peer.watched or where is None or where.agent_id in (peer.proc_id, self.node.proc_id):
            return
        peer.watched = True
        agent = self.node.peer(where.agent_id, f"agent of {where.host}")
        if agent.where is None and where.agent_id != parent:
            agent.where = agent_ref(where)
        self._post(agent, where.proc_id)
        if parent and where.agent_id != parent:
            self.ask(peer)  # what a worker reaches through its own agent can vanish without a link of its own breaking

    def _post(self, agent: Peer, proc_id: int) -> None:
        self.node._post_quietly(agent, f.CALL, f.packb([None, 0, "watch", 0, 0, None, None, [proc_id]]))

    def waits_for(self, peer: Peer) -> bool:
        """Whether anything here waits for the peer."""
        return peer.heeded > 0 or any(peer in call.peers for call in list(self.node.pending.values()))

    def gone(self, teller: Peer, proc_id: int, why: str, ended: bool) -> None:
        """An agent tells that a process has ended, or that it could not be reached for long. On the I/O thread."""
        peer = self.node.peers.get(proc_id)
        if peer is None or peer.dead is not None:
            return
        logger.info("%s tells that %s is gone: %s", teller.name, peer.name, why)
        if ended:
            self.node.bury(peer, MeshFailure(f"{peer.name} has left: {why}", mesh_name=peer.name))
        elif self.waits_for(peer):
            self.node.routing._give_up(peer, why)
        else:
            peer.asked = False  # it may come back: whoever waits for it later asks anew
