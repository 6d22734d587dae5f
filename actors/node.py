"""The node: what every Roost process is made of. It sends frames for its threads, receives them on its I/O
thread, and keeps the end-to-end sequences that make delivery once and in order.

A message's way: the calling thread pickles it, numbers it, keeps it, and writes it to the socket itself; the
receiver's I/O thread reads it and hands it to the home thread of the actor; the home thread answers on the
socket itself; the caller's I/O thread releases the lock its waiter sleeps on. Four wakes a round trip, one pickle
a direction, no coroutine.

Routing, which decides which link a peer's frames take, is in `routing.py`; what calls do with answers in
`calls.py`.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from . import bodies
from .deadlines import Deadlines
from .epochs import EpochGate
from .errors import ActorStopped, MeshFailure
from .future import Future, reset_after_fork
from .link.gate import Gate
from .link.handshake import Identity
from .link.io import IoThread
from .link.stream import DescriptorFrame, Link
from .looplink import LoopLink
from .peer import Kept, Peer
from .refs import SYSTEM_ACTOR, ProcRef
from .routing import Routing
from .wire import frame as f
from .wire.definitions import DEFINITIONS
from .wire.delivery import run_lengths
from .wire.errors import ProtocolError
from .wire.pool import Mappings, Pool, Segment

logger = logging.getLogger("roost")

ACK_EVERY = 64  # frames received before an acknowledgement leaves on its own …
ACK_BYTES = 4 << 20  # … or bytes …
ACK_DELAY = 0.02  # … or seconds
DEAD_REMEMBERED = 1024  # processes that have ended and are remembered; who asks for an older one asks its agent anew
SMALL_FRAME = 16 << 10  # below this a frame is joined to one buffer: one `send` is cheaper than `sendmsg`

SystemHandler = Callable[["Node", Peer, list[Any], Any], Any]


# Kinds that a leading thread handles where it reads them; the rest needs the I/O thread's loop.
_ANYWHERE = frozenset(
    [
        *(f.ACK, f.CREDIT, f.SEGMENT, f.RELEASE, f.DROP, f.PONG, f.CALL, f.REPLY, f.ERROR, f.DEFINE, f.POST),
        *(f.TOMBSTONE, f.ITEM, f.MORE),
    ]
)

_HEADER_PACK = f.HEADER.pack

_Cast = tuple[Peer, int, int, int, Link]  # peer, rank, sequence, acknowledgement, link


class Node:
    """One process of a job. Made once a process, by the controller, the agent or the worker."""

    def __init__(self, identity: Identity, secret: bytes, io: IoThread) -> None:
        self.identity = identity
        self.proc_id = identity.proc_id
        self.node_id = identity.node_id
        self.name = identity.name
        self.role = identity.role
        self.host = socket.gethostname()
        self.secret = secret
        self.io = io
        self.ref: ProcRef | None = None  # where others find this process, once known
        self.peers: dict[int, Peer] = {}
        self.pending: dict[int, Any] = {}  # calls without an answer, by number
        self.cells: dict[int, Any] = {}  # actors here, by number
        self.ports: dict[int, Any] = {}  # open receivers here, by number
        self.system: dict[str, SystemHandler] = {}
        self.on_event: Callable[[Peer, list[Any]], None] = lambda peer, event: None
        self.on_unreachable: Callable[[Peer, MeshFailure], None] = lambda peer, error: None
        self.on_forgotten: Callable[[int], None] = lambda proc_id: None
        self.failure_of: Callable[[int, int], Any] = lambda actor, proc_id: None
        # (processes, seconds) to a Future of their stacks by index; set by whoever can ask for them
        self.stacks_of: Callable[[Sequence[ProcRef], float], Future[dict[int, str]]] | None = None
        self.deliver_call: Callable[..., None] | None = None
        self.closed = False
        self._lock = threading.Lock()
        self._owing: set[Peer] = set()
        self._ack_armed = False
        self._mourners: dict[int, list[Callable[[int], None]]] = {}
        self._dead: deque[int] = deque()  # peers that have ended, the oldest first
        self.pool = Pool()
        self.mappings = Mappings()
        self.gate = Gate(io, secret, identity, self._on_link, self._on_frame, self._on_broken)
        self.routing = Routing(self)
        self.deadlines = Deadlines(self)
        self.epochs = EpochGate(self)
        self.peer(self.proc_id, self.name).link = LoopLink(self)  # type: ignore[assignment]
        self._sequenced: dict[int, Callable[[Peer, int, list[Any], Any], None]] = {
            f.CALL: self._take_call,
            f.REPLY: self._take_answer,
            f.ERROR: self._take_answer,
            f.CANCEL: self._take_cancel,
            f.DEFINE: self._take_definition,
            f.POST: self._take_post,
            f.EVENT: self._take_event,
            f.TOMBSTONE: self._take_tombstone,
            f.ITEM: self._take_item,
            f.MORE: self._take_more,
        }

    def __repr__(self) -> str:
        return f"<Node {self.name} ({self.role}), {len(self.peers)} peers, {len(self.cells)} actors>"

    # peers

    def peer(self, proc_id: int, name: str = "", where: ProcRef | None = None) -> Peer:
        """The peer with this number, made on first sight."""
        peer = self.peers.get(proc_id)
        if peer is None:
            with self._lock:
                peer = self.peers.get(proc_id)
                if peer is None:
                    peer = Peer(proc_id, name or (where.name if where else f"process {proc_id:x}"))
                    peer.where = where
                    self.peers[proc_id] = peer
        elif where is not None and peer.where is None:
            peer.where = where
        return peer

    def peer_at(self, where: ProcRef) -> Peer:
        """The peer that `where` tells of; it is of the newest epoch that this process has been told of."""
        peer = self.peers.get(where.proc_id) or self.peer(where.proc_id, where=where)
        known = peer.where
        if known is not None and known.epoch < where.epoch:
            peer.where = where
        return peer

    # sending, from any thread

    def post(
        self,
        peer: Peer,
        kind: int,
        envelope: bytes,
        body: bodies.Body | None = None,
        *,
        rank: int = 0,
        defer: bool = False,
    ) -> int:
        """Send one sequenced frame to `peer`, at once if there is a route, else when there is one.

        Returns its number. Raises the peer's death.
        """
        with peer.lock:
            if peer.dead is not None or self.closed:
                raise peer.dead or self.left()
            kept = self._keep(peer, kind, envelope, body, rank)
            link = peer.link
            if link is not None:
                self._transmit(peer, link, kept, defer)
            elif not peer.routing:
                self.routing.begin(peer)
            return peer.outbox.next_seq - 1

    def post_small(self, peer: Peer, kind: int, envelope: bytes, data: bytes, rank: int, defer: bool) -> int:
        """`post` for a body that is a pickle alone, without buffers or definitions: the hot path."""
        with peer.lock:
            if peer.dead is not None or self.closed:
                raise peer.dead or self.left()
            outbox, where = peer.outbox, peer.where
            seq = outbox.next_seq
            frame = (
                _HEADER_PACK(
                    f.MAGIC,
                    f.VERSION,
                    kind,
                    len(envelope),
                    len(data),
                    peer.proc_id,
                    self.proc_id,
                    seq,
                    peer.inbox.next_seq,
                    where.epoch if where is not None else 0,
                    rank,
                )
                + envelope
                + data
            )
            peer.owed = peer.owed_bytes = 0
            outbox.push(frame, len(frame))
            link = peer.link
            if link is not None:
                link.send_frame(frame, defer)
            elif not peer.routing:
                self.routing.begin(peer)
            return seq

    def bury_frame(self, peer: Peer, seq: int, actor: int, nbytes: int) -> bool:
        """Replace a call that has not left this process by a tombstone; False when it may have left.

        Under the peer's lock.
        """
        if peer.link is not None:
            return False
        head = f.build(f.TOMBSTONE, peer.proc_id, self.proc_id, f.packb([actor, nbytes]), seq=seq)[0]
        return peer.outbox.tombstone(seq, Kept([head], len(head)))

    def _keep(self, peer: Peer, kind: int, envelope: bytes, body: bodies.Body | None, rank: int) -> Kept:
        if body is not None and body.definitions:
            self._teach(peer, body.definitions)
        size, parts = (body.nbytes, body.parts) if body is not None else (0, ())
        epoch = peer.where.epoch if peer.where is not None else 0
        head = f.HEADER.pack(
            f.MAGIC,
            f.VERSION,
            kind,
            len(envelope),
            size,
            peer.proc_id,
            self.proc_id,
            peer.outbox.next_seq,
            peer.inbox.next_seq,
            epoch,
            rank,
        )
        peer.owed = peer.owed_bytes = 0
        nbytes = f.HEADER_SIZE + len(envelope) + size
        if nbytes <= SMALL_FRAME:
            kept = Kept([b"".join((head, envelope, *parts))], nbytes, body.segment if body is not None else None)
        else:
            kept = Kept([head + envelope, *parts], nbytes, body.segment if body is not None else None)
        peer.outbox.push(kept, nbytes)
        return kept

    def _teach(self, peer: Peer, ids: Sequence[bytes]) -> None:
        """Send the classes and functions a message refers to, before it, once a peer."""
        for content in ids:
            if content not in peer.known:
                peer.known.add(content)
                blob = DEFINITIONS.blob(content)
                kept = self._keep(peer, f.DEFINE, f.packb([content]), bodies.Body(None, [blob], len(blob)), 0)
                if peer.link is not None:
                    self._transmit(peer, peer.link, kept, False)

    def _transmit(self, peer: Peer, link: Link, kept: Kept | bytes, defer: bool) -> None:
        if isinstance(kept, bytes):
            link.send_frame(kept, defer)
            return
        if kept.segment is not None:
            self.announce(peer, link, kept.segment)
        link.send(kept.parts, kept.nbytes, defer=defer)

    def announce(self, peer: Peer, link: Link, segment: Segment) -> None:
        """Pass a pool segment's descriptor, once a link."""
        if segment.id in peer.segments:
            return
        if not link.same_host_socket:
            raise ProtocolError(f"{peer.name} is reached by {link!r}, which passes no descriptors")
        peer.segments.add(segment.id)
        head = f.build(f.SEGMENT, peer.proc_id, self.proc_id, f.packb([segment.id, segment.size]))[0]
        link.send([DescriptorFrame(head, segment.fd)], len(head))

    def control(self, peer: Peer, kind: int, fields: list[Any]) -> None:
        """Send an unsequenced frame; it is lost where there is no route."""
        link = peer.link
        if link is not None:
            self._control(link, kind, peer.proc_id, fields, peer.inbox.next_seq)

    def _control(self, link: Link, kind: int, dst: int, fields: list[Any] | None = None, ack: int = 0) -> None:
        parts = f.build(kind, dst, self.proc_id, f.packb(fields) if fields is not None else b"", ack=ack)
        link.send(parts, len(parts[0]))

    def cast(
        self, targets: Sequence[tuple[Peer, int]], envelope: bytes, body: bodies.Body
    ) -> list[tuple[int, Exception]]:
        """Send one CALL to many ranks: to those on this host directly, to others one copy a host through its agent.

        Returns (rank, error) of those that are known to be dead.
        """
        lost: list[tuple[int, Exception]] = []
        hosts: dict[tuple[int, int], list[_Cast]] = {}
        for peer, rank in targets:
            with peer.lock:
                where = peer.where
                far = len(targets) > 1 and where is not None and where.node_id != self.node_id and body.segment is None
                if peer.dead is not None:
                    lost.append((rank, peer.dead))
                    continue
                ack = peer.inbox.next_seq
                kept = self._keep(peer, f.CALL, envelope, body, rank)
                seq = peer.outbox.next_seq - 1  # definitions may have gone before it
                link = peer.link
                if link is None:
                    if not peer.routing:
                        self.routing.begin(peer)
                elif far and where is not None:
                    hosts.setdefault((where.agent_id, where.epoch), []).append((peer, rank, seq, ack, link))
                else:
                    self._transmit(peer, link, kept, False)
        for (agent, epoch), group in hosts.items():
            self._cast_to_host(agent, epoch, group, envelope, body)
        return lost

    def _cast_to_host(self, agent: int, epoch: int, group: list[_Cast], envelope: bytes, body: bodies.Body) -> None:
        fields = [
            f.CALL,
            envelope,
            epoch,
            [peer.proc_id for peer, *_ in group],
            run_lengths([seq for _, _, seq, _, _ in group]),
            run_lengths([ack for _, _, _, ack, _ in group]),
            [rank for _, rank, *_ in group],
        ]
        parts = f.build(f.CAST, agent, self.proc_id, f.packb(fields), body.parts)
        group[0][4].send(parts, sum(map(len, parts)))

    # receiving, on the I/O thread

    def _on_link(self, link: Link, leftover: bytes) -> None:
        if self.closed:
            link.close("this process is ending")
            return
        self.routing.joined(link)
        link.start(leftover)

    def _on_broken(self, link: Link, why: str) -> None:
        for descriptor in link.descriptors:
            os.close(descriptor)
        link.descriptors.clear()
        if not self.closed:
            self.routing.broken(link, why)

    def _on_frame(self, link: Link, header: tuple[int, ...], envelope: Any, body: Any) -> None:
        _, _, kind, _, _, dst, src, seq, ack, epoch, rank = header
        if kind == f.SEGMENT and body == b"":  # the descriptor is taken in the order in which it came
            if not link.descriptors:
                raise ProtocolError(f"{link.peer.name} announced a segment without its descriptor")
            body = link.descriptors.popleft()
        peer = self.peers.get(src)
        inside = get_ident() == self.io.ident
        if not inside and (dst != self.proc_id or kind not in _ANYWHERE or peer is None or peer.link is None):
            self.io.call(self._later, link, header, envelope, body)  # what follows in sequence waits for it
            return
        if dst != self.proc_id:
            self.routing.relay(link, header, envelope, body)
            return
        if peer is None:
            peer = self.peer(src, link.peer.name if link.peer.proc_id == src else "")
        if peer.link is None:
            self.routing.learn(peer, link)
        if ack > peer.acked:
            peer.acked = ack
            with peer.lock:
                peer.outbox.ack(ack)
        if kind < f.SEQUENCED:
            self._unsequenced(link, peer, kind, envelope, body)
            return
        fields = f.unpack_envelope(envelope)
        if kind == f.CALL and not inside and fields[1] not in self.cells:
            self.io.call(self._later, link, header, envelope, body)
            return
        if peer.inbox.accept(seq):
            if epoch and self.ref is not None and epoch != self.ref.epoch:
                self._deliver(peer, kind, rank, epoch, fields, body)
            elif kind == f.REPLY or kind == f.ERROR:
                self._take_answer(peer, kind | rank << 8, fields, body)
            elif kind == f.CALL and fields[1] != SYSTEM_ACTOR and self.deliver_call is not None:
                self.deliver_call(peer, rank, fields, body)
            else:
                self._deliver(peer, kind, rank, epoch, fields, body)
        else:
            if seq < peer.inbox.next_seq:
                self._discard(src, kind, fields, body)
            for held in peer.inbox.offer(seq, (kind, rank, epoch, fields, body)):
                self._deliver(peer, *held)  # type: ignore[misc]
        peer.owed += 1
        peer.owed_bytes += header[4]
        if peer.owed >= ACK_EVERY or peer.owed_bytes >= ACK_BYTES:
            self._acknowledge(peer)
        elif peer.owed == 1:
            self._owing.add(peer)
            if not self._ack_armed:
                self._ack_armed = True
                self.io.call(self.io.loop.call_later, ACK_DELAY, self._acknowledge_all)

    def _later(self, link: Link, header: tuple[int, ...], envelope: Any, body: Any) -> None:
        """What a leading thread has read and only the I/O thread may handle."""
        with self.io.readers.dispatching:
            try:
                self._on_frame(link, header, envelope, body)
            except ProtocolError as error:
                link.close(str(error))

    def _discard(self, src: int, kind: int, fields: list[Any], body: Any) -> None:
        """A duplicate. A relay's segment, lent for this very frame, is given back; a sender's serves the first copy."""
        if kind in (f.CALL, f.REPLY, f.ERROR, f.POST, f.ITEM):
            spanned = bodies.segment_of(fields[0])
            if spanned is not None and spanned[0] != src:
                self.open_body(fields[0], body)

    def _deliver(self, peer: Peer, kind: int, rank: int, epoch: int, fields: list[Any], body: Any) -> None:
        if epoch and self.ref is not None and epoch != self.ref.epoch and kind == f.CALL and fields[1] != SYSTEM_ACTOR:
            self.epochs.take(peer, rank, epoch, fields, body)
            return
        take = self._sequenced.get(kind)
        if take is None:
            raise ProtocolError(f"{peer.name} sent a frame of kind {kind}, which this version does not know")
        take(peer, kind | rank << 8, fields, body)

    def _acknowledge(self, peer: Peer) -> None:
        peer.owed = peer.owed_bytes = 0
        if peer.link is not None:
            self._control(peer.link, f.ACK, peer.proc_id, None, peer.inbox.next_seq)

    def _acknowledge_all(self) -> None:
        with self.io.readers.dispatching:
            self._ack_armed = False
            owing, self._owing = self._owing, set()
        for peer in owing:
            if peer.owed:
                self._acknowledge(peer)

    def _unsequenced(self, link: Link, peer: Peer, kind: int, envelope: Any, body: Any) -> None:
        if kind == f.ACK or kind == f.PONG:
            return
        fields = f.unpack_envelope(envelope)
        if kind == f.CREDIT:
            self.credited(peer, *fields)
        elif kind == f.SEGMENT:
            self.mappings.add(peer.proc_id, fields[0], body, fields[1])
        elif kind == f.RELEASE:
            self.pool.released(fields[0], peer.proc_id)
        elif kind == f.DROP:
            self.mappings.drop(peer.proc_id, fields[0])
        elif kind == f.PING:
            self._control(link, f.PONG, peer.proc_id, [])
        elif kind == f.ROUTE:
            self.routing.taught(fields)
        elif kind == f.CAST:
            self.routing.fan_out(peer, fields, body)
        elif kind == f.LOST:
            self.routing.lost(fields)
        else:
            raise ProtocolError(f"{peer.name} sent a control frame of kind {kind}, which this version does not know")

    def credited(self, peer: Peer, actor: int, messages: int, nbytes: int) -> None:
        """Take an actor's totals of what it has consumed, and send what waited for that."""
        account = peer.credit.get(actor)
        if account is None:
            return
        with peer.lock:
            ready: list[Any] = account.granted(messages, nbytes)
            for send in ready:  # under the lock: a new call must not overtake what waited
                send()

    def release_credit(self, peer: Peer, actor: int) -> None:
        """An actor has ended and grants nothing any more: what waits for that is sent, to be refused."""
        account = peer.credit.get(actor)
        if account is not None:
            with peer.lock:
                for send in account.abandon():
                    send()  # type: ignore[operator]

    def forget_credit(self, peer: Peer, actor: int) -> None:
        """The same of one that has ended for good: its account is closed."""
        self.release_credit(peer, actor)
        peer.credit.pop(actor, None)

    def forget_retired(self) -> None:
        """Tell receivers of pool segments that were given up."""
        for segment, receivers in self.pool.retired():
            for receiver in receivers:
                peer = self.peers.get(receiver)
                if peer is not None:
                    peer.segments.discard(segment)
                    self.control(peer, f.DROP, [segment])

    def open_body(self, layout: Any, body: Any) -> tuple[Any, list[Any]]:
        """The pickle and the buffers of a received body; those of a pool segment are mapped."""
        spanned = bodies.segment_of(layout)
        if spanned is None:
            return bodies.cut(layout, body)
        owner, segment, private, spans = spanned

        def release() -> None:
            if not self.closed:
                self.io.call(self._release, owner, segment)

        return body, self.mappings.open(owner, segment, spans, private, release)

    def _release(self, owner: int, segment: int) -> None:
        peer = self.peers.get(owner)
        if peer is not None:
            self.control(peer, f.RELEASE, [segment])

    # what sequenced frames do; `marks` is kind | rank << 8

    def _take_call(self, peer: Peer, marks: int, fields: list[Any], body: Any) -> None:
        if fields[1] == SYSTEM_ACTOR:
            self._serve(peer, fields, body)
        elif self.deliver_call is not None:
            self.deliver_call(peer, marks >> 8, fields, body)

    def _take_answer(self, peer: Peer, marks: int, fields: list[Any], body: Any) -> None:
        gone = marks & 255 == f.ERROR and isinstance(fields[5], dict) and fields[5].get("gone")
        if gone:  # "stopped" is for ever, what has "failed" may be spawned anew
            (self.forget_credit if gone == "stopped" else self.release_credit)(peer, fields[2])
        elif fields[3]:  # totals are cumulative: they matter only when something waits or much is outstanding
            account = peer.credit.get(fields[2])
            if account is not None and account.wants(fields[3], fields[4]):
                self.credited(peer, fields[2], fields[3], fields[4])
        call = self.pending.get(fields[1])
        if call is None:
            if bodies.segment_of(fields[0]) is not None:
                self.open_body(fields[0], body)  # dropped at once, so that the segment is released
            return
        call.answered(peer, marks & 255, marks >> 8, fields, body)

    def _take_item(self, peer: Peer, marks: int, fields: list[Any], body: Any) -> None:
        call = self.pending.get(fields[1])
        if call is not None:
            call.item(peer, marks >> 8, fields, body)
        elif bodies.segment_of(fields[0]) is not None:
            self.open_body(fields[0], body)

    def _take_more(self, peer: Peer, marks: int, fields: list[Any], body: Any) -> None:
        cell = self.cells.get(fields[1])
        if cell is not None:
            cell.more(peer, fields[0], fields[2])

    def _take_cancel(self, peer: Peer, marks: int, fields: list[Any], body: Any) -> None:
        for cell in list(self.cells.values()):
            if cell.cancel(peer, fields[0], fields[1]):
                return

    def _take_definition(self, peer: Peer, marks: int, fields: list[Any], body: Any) -> None:
        DEFINITIONS.learn(fields[0], bytes(body))
        peer.known.add(fields[0])

    def _take_post(self, peer: Peer, marks: int, fields: list[Any], body: Any) -> None:
        port = self.ports.get(fields[1])
        if port is not None:
            port.arrived(peer, marks >> 8, fields, len(body), *self.open_body(fields[0], body))
            return
        if bodies.segment_of(fields[0]) is not None:
            self.open_body(fields[0], body)
        if fields[2] & 2:  # it was charged to the sender's credit, and nobody will ever consume it
            self.event(peer, "port closed", fields[1])

    def _take_event(self, peer: Peer, marks: int, fields: list[Any], body: Any) -> None:
        self.on_event(peer, fields)

    def _take_tombstone(self, peer: Peer, marks: int, fields: list[Any], body: Any) -> None:
        """Nothing was sent under this number; what the call had been charged counts as consumed."""
        if fields[0] == SYSTEM_ACTOR:
            return
        if peer.granting_for(fields[0]).consumed(fields[1]):
            self.grant(peer, fields[0])

    def grant(self, peer: Peer, actor: int) -> None:
        """Tell the peer what `actor` has consumed of its messages; from any thread."""
        self.control(peer, f.CREDIT, [actor, *peer.granting_for(actor).told()])

    # Roost's own requests

    def _serve(self, peer: Peer, fields: list[Any], body: Any) -> None:
        _, _, method, call, flags, _, _, arguments = fields
        handler = self.system.get(method)
        if handler is None:
            self.answer_error(peer, call, f"{self.name} has no request {method!r}")
            return
        try:
            answer = handler(self, peer, arguments, body)
        except MeshFailure as error:
            self.answer_error(peer, call, str(error), type(error).__name__)
            return
        except Exception as error:
            logger.warning("%s could not serve %r of %s", self.name, method, peer.name, exc_info=True)
            self.answer_error(peer, call, f"{method} at {self.name}: {type(error).__name__}: {error}")
            return
        if hasattr(answer, "__await__"):
            task = self.io.loop.create_task(self._serve_later(peer, call, flags, answer))
            self.routing.tasks.add(task)
            task.add_done_callback(self.routing.tasks.discard)
        elif flags & 1:
            self.answer(peer, call, answer)

    async def _serve_later(self, peer: Peer, call: int, flags: int, answer: Any) -> None:
        try:
            value = await answer
        except Exception as error:
            logger.debug("a request of %s failed", peer.name, exc_info=True)
            self.answer_error(peer, call, str(error) or type(error).__name__, type(error).__name__)
            return
        if flags & 1:
            self.answer(peer, call, value)

    def answer(self, peer: Peer, call: int, value: Any) -> None:
        """Answer a request with plain values."""
        self._post_quietly(peer, f.REPLY, f.packb([None, call, SYSTEM_ACTOR, 0, 0, value]))

    def answer_error(self, peer: Peer, call: int, text: str, kind: str = "RoostError") -> None:
        """Answer a request with the sentence that says why not, and the name of the error to raise."""
        self._post_quietly(peer, f.ERROR, f.packb([None, call, SYSTEM_ACTOR, 0, 0, {"text": text, "kind": kind}]))

    def _post_quietly(self, peer: Peer, kind: int, envelope: bytes) -> None:
        self.post_quietly(peer, kind, envelope)

    def post_quietly(
        self, peer: Peer, kind: int, envelope: bytes, body: bodies.Body | None = None, *, rank: int = 0
    ) -> None:
        """`post` to a peer that may be gone, and then needs it no more."""
        try:
            self.post(peer, kind, envelope, body, rank=rank)
        except MeshFailure as error:
            logger.debug("no answer for %s: %s", peer.name, error)

    def event(self, peer: Peer, *fields: Any) -> None:
        """Tell a peer of an event; sequenced, so it is not lost."""
        self._post_quietly(peer, f.EVENT, f.packb(list(fields)))

    # death

    def when_dead(self, proc_id: int, callback: Callable[[int], None]) -> None:
        """Call `callback(proc_id)` once, on the I/O thread, when a process is known to be gone."""
        peer = self.peer(proc_id)
        with peer.lock:
            if peer.dead is None:
                self._mourners.setdefault(proc_id, []).append(callback)
                return
        self.io.call(callback, proc_id)

    def bury(self, peer: Peer, error: Exception) -> None:
        """A peer is gone for good: every call that waits for it fails now. On the I/O thread."""
        with peer.lock:
            if peer.dead is not None:
                return
            peer.dead = error
            peer.link = None
            peer.forget()
        self.pool.receiver_died(peer.proc_id)
        self.mappings.forget(peer.proc_id)
        for callback in self._mourners.pop(peer.proc_id, ()):
            callback(peer.proc_id)
        for call in list(self.pending.values()):
            call.lost(peer, error)
        self._dead.append(peer.proc_id)
        if len(self._dead) > DEAD_REMEMBERED:
            forgotten = self._dead.popleft()
            self.peers.pop(forgotten, None)
            self.on_forgotten(forgotten)

    def left(self) -> ActorStopped:
        """The error of calls after this process has left its job."""
        return ActorStopped(f"{self.name} has been shut down, and all that it spawned")

    def flush(self) -> None:
        """Send everything that was deferred."""
        for peer in list(self.peers.values()):
            if peer.link is not None:
                peer.link.flush()

    def abandon(self) -> None:
        """In a child that user code forked: let go of the parent's sockets, without a word to anybody."""
        for link in list(self.routing.open):
            link.abandon()
        self.io.readers.abandon()
        reset_after_fork()
        self.closed = True

    def close(self) -> None:
        """Close links and listeners; idempotent. On the I/O thread."""
        if self.closed:
            return
        self.flush()
        self.closed = True
        error = self.left()
        for call in list(self.pending.values()):
            for peer in call.peers:
                call.lost(peer, error)
        for port in list(self.ports.values()):
            port.close()
        self.deadlines.close()
        self.gate.close()
        self.routing.close()
        self.mappings.close()
        self.pool.close()


_current: deque[Node] = deque(maxlen=1)


def set_node(node: Node | None) -> None:
    """Install this process's node."""
    _current.clear()
    if node is not None:
        _current.append(node)


def current_node() -> Node | None:
    """This process's node, if Roost runs here."""
    return _current[0] if _current else None
