"""Which link a peer's frames take, and what an agent passes on.

To a process on this host: its own unix socket. To one elsewhere: a worker gives its frames to its agent; agents and
controllers link to the other host's agent. A relay learns the way back from what passes through it. Routing loses
nothing, because it holds nothing: frames are kept by their sender until the receiver has acknowledged them, and go
again over whatever route comes next.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import bodies
from .errors import ActorDied, Unreachable
from .link.address import AddressError, parse
from .link.gate import DialError, DialRefused
from .link.stream import Link
from .peer import Kept, Peer
from .wire import frame as f
from .wire.delivery import expand
from .wire.pickling import Packed
from .wire.pool import CAST as CAST_THRESHOLD
from .wire.pool import Segment

if TYPE_CHECKING:
    from .node import Node

logger = logging.getLogger("roost.routing")

LINK_TIMEOUT = float(os.environ.get("ROOST_LINK_TIMEOUT", "30"))  # seconds without a route until Unreachable
DIAL_TIMEOUT = 5.0
BACKOFF = (0.001, 0.5)  # first and longest pause between dials, seconds
KEEPALIVE = 5.0  # seconds of silence before a ping; after three a link is given up
TICK = 1.0
LOST_PAUSE = 0.05  # seconds before a frame that a relay could not pass on goes again
RELAY_HOLD = 64 << 20  # bytes a relay holds for a worker that is still starting


class Routing:
    """The routes of one node. Everything here runs on the I/O thread, but for `begin`."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.open: set[Link] = set()  # all of them: two processes that dial each other at once have two
        self.links: dict[int, Link] = {}  # direct links, by the process at the other end
        self.ways: dict[int, Link] = {}  # by process: the link a relay's traffic for it takes
        self.agents: dict[int, tuple[int, str]] = {}  # by process: (agent, its address)
        self.parent = 0  # a worker's agent
        self.local: set[int] = set()  # an agent's own workers, linked or still starting
        self.kept_up: set[int] = set()  # processes whose link is made anew whenever it breaks
        self.inbound: set[int] = set()  # agents and controllers that dial this process and that it cannot dial
        self.via: dict[int, int] = {}  # agents that are reached through another one, a gateway
        self.tasks: set[asyncio.Task[Any]] = set()
        self._waiting: dict[int, list[tuple[list[Any], int]]] = {}
        self._waiting_bytes = 0
        self._dialing: dict[str, asyncio.Task[Link]] = {}
        self._progress: dict[int, tuple[int, float]] = {}  # by peer: acknowledged, since when no further
        self._retrying: set[int] = set()
        self.ended: Callable[[int], bool] = lambda proc_id: False  # whether a process of this host is known to be gone
        self._ticker: asyncio.TimerHandle | None = None
        node.io.call(self._tick)

    # routes of this process's own frames

    def begin(self, peer: Peer) -> None:
        """Find a route for a peer that has none; from any thread, under the peer's lock."""
        peer.routing = True
        self.node.io.call(self._start, peer)

    def _start(self, peer: Peer) -> None:
        if self.node.closed:
            return
        peer.silent_since = self.node.io.loop.time()
        task = self.node.io.loop.create_task(self._find(peer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _find(self, peer: Peer) -> None:
        loop = self.node.io.loop
        pause, why = BACKOFF[0], "it has no address and nobody relays to it"
        while peer.dead is None and not self.node.closed:
            if peer.link is not None and not peer.link.closed:
                peer.routing = False
                return
            try:
                link = await self._link_for(peer)
                if link is not None:
                    self.attach(peer, link)
                    return
            except DialRefused as error:  # another secret or version: it will not change its mind
                self._give_up(peer, str(error))
                return
            except (DialError, AddressError) as error:
                why = str(error)
                self.node.vigil.watch(peer)  # its agent knows if it has ended
            if loop.time() - peer.silent_since > LINK_TIMEOUT:
                self._give_up(peer, why)
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, BACKOFF[1])

    def _give_up(self, peer: Peer, why: str) -> None:
        text = (
            f"{peer.name} could not be reached for {LINK_TIMEOUT:g} s ({why}); "
            "it may live, and what it was asked may have run"
        )
        lost = Unreachable(text, mesh_name=peer.name)
        self.node.on_unreachable(peer, lost)
        self.node.bury(peer, lost)

    async def _link_for(self, peer: Peer) -> Link | None:
        where = peer.where
        if direct := self.links.get(peer.proc_id):
            return direct
        if where is not None and where.node_id == self.node.node_id:
            return await self._dial(where.address)
        relay = self.parent or (self.via.get(where.agent_id) if where is not None else None)
        if relay:
            link = self.links.get(relay)
            if link is not None and where is not None:
                self._teach(link, where.proc_id, where.agent_id, where.agent_address)
            return link
        if where is not None and where.agent_id in self.inbound:
            return self.links.get(where.agent_id) or self.ways.get(where.agent_id)
        if where is not None:
            link = self.links.get(where.agent_id) or await self._dial(where.agent_address)
            if link.peer.proc_id != where.agent_id:
                raise DialRefused(f"{link.peer.name} answers at {where.agent_address} now, what was there has ended")
            return link
        return self.ways.get(peer.proc_id)

    async def _dial(self, address: str) -> Link:
        """One dial an address at a time; whoever asks meanwhile gets the same link."""
        task = self._dialing.get(address)
        if task is None:
            task = self.node.io.loop.create_task(self.node.gate.dial(parse(address), DIAL_TIMEOUT))
            self._dialing[address] = task
            task.add_done_callback(lambda done: self._dialed(address, done))
        return await asyncio.shield(task)

    def _dialed(self, address: str, done: asyncio.Task[Link]) -> None:
        self._dialing.pop(address, None)
        if not done.cancelled() and done.exception() is not None:
            logger.debug("%s was not reached: %s", address, done.exception())

    def attach(self, peer: Peer, link: Link) -> None:
        """Give a peer its route, and send again everything it has not acknowledged."""
        node = self.node
        with peer.lock:
            if peer.dead is not None:
                return
            peer.routing = False
            peer.link = link
            peer.segments.clear()
            for _, kept in peer.outbox.unacked():
                assert isinstance(kept, Kept | bytes)
                node._transmit(peer, link, kept, False)
        if peer.inbox.next_seq > 1:
            node._acknowledge(peer)
            for actor in list(peer.granting):
                node.grant(peer, actor)
        self.node.vigil.watch(peer)

    def learn(self, peer: Peer, link: Link) -> None:
        """A frame came from a peer that has no route: answer the way it came."""
        if link.peer.proc_id == peer.proc_id or peer.where is None or peer.where.node_id != self.node.node_id:
            self.attach(peer, link)

    # links

    def joined(self, link: Link) -> None:
        """A link has proved the secret."""
        proc_id = link.peer.proc_id
        self.open.add(link)
        self.links[proc_id] = link
        self.ways[proc_id] = link
        peer = self.node.peer(proc_id, link.peer.name)
        peer.name = link.peer.name
        if peer.link is None or peer.link.closed or peer.link.peer.proc_id != proc_id:
            self.attach(peer, link)
        for parts, nbytes in self._waiting.pop(proc_id, ()):
            self._waiting_bytes -= nbytes
            link.send(parts, nbytes)

    def broken(self, link: Link, why: str) -> None:
        """A link is gone: find its peers another way, if anything is kept or awaited."""
        logger.debug("%s lost %r: %s", self.node.name, link, why)
        self.open.discard(link)
        for table in (self.links, self.ways):
            for proc_id in [p for p, used in table.items() if used is link]:
                del table[proc_id]
        awaited = {peer for call in list(self.node.pending.values()) for peer in call.peers}
        for peer in list(self.node.peers.values()):
            if peer.link is not link:
                continue
            with peer.lock:
                peer.link = None
                peer.segments.clear()
                needed = peer.outbox.kept or peer in awaited or peer.proc_id in self.kept_up or peer.heeded
                wanted = peer.dead is None and not peer.routing and needed
                if wanted and (peer.where is not None or self.parent or peer.heeded):
                    self.begin(peer)

    # relaying

    def relay(self, link: Link, header: tuple[int, ...], envelope: Any, body: Any) -> None:
        """Pass a frame on to its destination."""
        dst, src = header[5], header[6]
        if src not in self.links:
            self.ways[src] = link
        parts = [f.HEADER.pack(*header) + envelope]
        if len(body):
            parts.append(body)
        self._forward(dst, src, parts, f.HEADER_SIZE + header[3] + header[4])

    def _forward(self, dst: int, src: int, parts: list[Any], nbytes: int) -> None:
        link = self.links.get(dst) or self.ways.get(dst)
        if link is not None:
            link.send(parts, nbytes)
            return
        known = self.agents.get(dst)
        if (dst in self.local or known) and self._waiting_bytes + nbytes <= RELAY_HOLD:
            waiting = self._waiting.setdefault(dst, [])
            waiting.append((parts, nbytes))
            self._waiting_bytes += nbytes
            if known and len(waiting) == 1:
                task = self.node.io.loop.create_task(self._open_way(dst, *known))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
            return
        back = self.links.get(src) or self.ways.get(src)
        if back is not None:
            self.node._control(back, f.LOST, src, [dst, f"{self.node.name} knows no way to it", self.ended(dst)])

    async def _open_way(self, dst: int, agent: int, address: str) -> None:
        try:
            link = self.links.get(self.via.get(agent, agent)) or self.ways.get(agent)
            if link is None and (agent in self.inbound or agent in self.via):
                raise DialError("it dials this host, or is behind a gateway, and no link is there now")
            link = link or await self._dial(address)
            if agent in self.via:
                self._teach(link, dst, agent, address)
        except (DialError, AddressError) as error:
            logger.info("%s cannot pass frames on to %s: %s", self.node.name, address, error)
            for _, nbytes in self._waiting.pop(dst, ()):
                self._waiting_bytes -= nbytes
            return
        self.ways[dst] = link
        for parts, nbytes in self._waiting.pop(dst, ()):
            self._waiting_bytes -= nbytes
            link.send(parts, nbytes)

    def _teach(self, link: Link, proc_id: int, agent: int, address: str) -> None:
        """Tell a relay where a process is that frames will go to, and where its agent is."""
        self.node._control(link, f.ROUTE, link.peer.proc_id, [proc_id, agent, address])
        self.node._control(link, f.ROUTE, link.peer.proc_id, [agent, agent, address])

    def taught(self, fields: list[Any]) -> None:
        """A worker tells its agent where a process elsewhere is."""
        proc_id, agent, address = fields
        self.agents[proc_id] = (agent, address)

    def fan_out(self, peer: Peer, fields: list[Any], body: Any) -> None:
        """A cast has come to this host: one frame to each of its ranks here, all with the same envelope and body.

        Large buffers are copied once, into this relay's pool, however many ranks take them.
        """
        kind, envelope, epoch, destinations, seqs, acks, ranks = fields
        count = len(destinations)
        segment = None
        near = [dst for dst in destinations if (link := self.links.get(dst)) is not None and link.same_host_socket]
        if len(near) == count:
            envelope, body, segment = self._pooled(near, envelope, body)
        size = len(body)
        for dst, seq, ack, rank in zip(destinations, expand(seqs, count), expand(acks, count), ranks, strict=True):
            head = f.HEADER.pack(
                f.MAGIC, f.VERSION, kind, len(envelope), size, dst, peer.proc_id, seq, ack, epoch, rank
            )
            parts = [head + envelope, body] if size else [head + envelope]
            if segment is not None:
                self.node.announce(self.node.peer(dst), self.links[dst], segment)
            self._forward(dst, peer.proc_id, parts, len(parts[0]) + size)

    def _pooled(self, receivers: list[int], envelope: bytes, body: Any) -> tuple[bytes, Any, Segment | None]:
        """The cast's envelope and body with its buffers in a segment of this relay's pool, where that pays."""
        if len(body) < CAST_THRESHOLD:
            return envelope, body, None
        inner = f.unpack_envelope(envelope)
        if inner[0] is None:
            return envelope, body, None
        data, buffers = bodies.cut(inner[0], body)
        pooled = bodies.pooled(Packed(bytes(data), buffers, ()), self.node.pool, self.node.proc_id, receivers)
        self.node.forget_retired()
        if pooled is None or pooled.segment is None:
            return envelope, body, None
        inner[0] = pooled.layout
        return f.packb(inner), pooled.parts[0], pooled.segment

    def lost(self, fields: list[Any]) -> None:
        """A relay could not pass a frame on: its route is learned anew when the frame goes again."""
        peer = self.node.peers.get(fields[0])
        if peer is None or peer.dead is not None:
            return
        logger.info("a frame for %s was not delivered: %s", peer.name, fields[1])
        if fields[2] and not peer.watched:  # where it is watched a report of its end is on its way
            self.node.bury(peer, ActorDied(f"{peer.name} has ended", mesh_name=peer.name))
        elif peer.proc_id not in self._retrying:
            self._retrying.add(peer.proc_id)
            self.node.io.loop.call_later(LOST_PAUSE, self._again, peer, peer.acked)

    def _nudge(self, peer: Peer, link: Link) -> None:
        """Send the oldest frame again, which is acknowledged or closes a gap: a signal handler of the user's may have
        raised between keeping a frame and sending it."""
        with peer.lock:
            kept = peer.outbox.unacked()[:1]
            if kept and not link.queued_bytes:
                frame = kept[0][1]
                assert isinstance(frame, Kept | bytes)
                self.node._transmit(peer, link, frame, False)

    def _again(self, peer: Peer, acked: int) -> None:
        """Send again what a relay lost, unless that has happened."""
        self._retrying.discard(peer.proc_id)
        link = peer.link
        if link is not None and not link.closed and peer.outbox.kept and peer.acked == acked and not self.node.closed:
            self.attach(peer, link)

    # time

    def _tick(self) -> None:
        """Once a second: keep-alives on tcp links, and frames again to peers behind relays that make no progress."""
        node = self.node
        if node.closed:
            return
        now = time.monotonic()
        for link in list(self.links.values()):
            silent = now - link.heard
            if not link.same_host_socket and silent > KEEPALIVE:
                if silent > 3 * KEEPALIVE + TICK:
                    link.close(f"nothing was heard for {silent:.0f} s")
                else:
                    node._control(link, f.PING, link.peer.proc_id, [])
        for peer in list(node.peers.values()):
            if peer.link is None or not peer.outbox.kept:
                self._progress.pop(peer.proc_id, None)
                continue
            acked, since = self._progress.get(peer.proc_id, (0, now))
            if acked != peer.acked:
                self._progress[peer.proc_id] = (peer.acked, now)
            elif now - since > LINK_TIMEOUT:
                self._give_up(peer, f"it has acknowledged nothing through {peer.link.peer.name}")
            elif peer.link.peer.proc_id == peer.proc_id:
                self._nudge(peer, peer.link)
            elif not peer.link.queued_bytes:
                self.attach(peer, peer.link)
        self._ticker = node.io.loop.call_later(TICK, self._tick)

    def close(self) -> None:
        """Close every link."""
        if self._ticker is not None:
            self._ticker.cancel()
        for task in list(self.tasks):
            task.cancel()
        for link in list(self.open):
            link.close("this process is ending")


def agent_ref(where: Any) -> Any:
    """Where the agent of a process is."""
    from .refs import ProcRef

    return ProcRef(
        where.agent_id,
        f"agent of {where.host}",
        "",
        where.host,
        where.agent_address,
        where.agent_id,
        where.agent_address,
        0,
    )
