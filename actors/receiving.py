"""The receiving half of a node: frames in, in order and once each, and what each kind does."""

from __future__ import annotations

import logging
import os
from _thread import get_ident
from collections.abc import Callable
from typing import Any

from . import bodies
from .carrier import Carrier
from .epochs import EpochGate
from .link.handshake import Identity
from .link.io import IoThread
from .link.stream import Link
from .peer import Peer
from .refs import SYSTEM_ACTOR
from .wire import frame as f
from .wire.definitions import DEFINITIONS
from .wire.errors import ProtocolError

logger = logging.getLogger("roost")

ACK_EVERY = 64  # frames received before an acknowledgement leaves on its own …
ACK_BYTES = 4 << 20  # … or bytes …
ACK_DELAY = 0.02  # … or seconds

# Kinds that a leading thread handles where it reads them; the rest needs the I/O thread's loop.
_ANYWHERE = frozenset(
    [
        *(f.ACK, f.CREDIT, f.SEGMENT, f.RELEASE, f.DROP, f.PONG, f.CALL, f.REPLY, f.ERROR, f.DEFINE, f.POST),
        *(f.TOMBSTONE, f.ITEM, f.MORE),
    ]
)


class Receiving(Carrier):
    """What receives for one process, on its I/O thread or on a thread that leads the reading."""

    epochs: EpochGate

    def __init__(self, identity: Identity, io: IoThread) -> None:
        super().__init__(identity, io)
        self.pending: dict[int, Any] = {}  # calls without an answer, by number
        self.cells: dict[int, Any] = {}  # actors here, by number
        self.ports: dict[int, Any] = {}  # open receivers here, by number
        self.on_event: Callable[[Peer, list[Any]], None] = lambda peer, event: None
        self.deliver_call: Callable[..., None] | None = None
        self._owing: set[Peer] = set()
        self._ack_armed = False
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

    def _serve(self, peer: Peer, fields: list[Any], body: Any) -> None:
        """One of Roost's own requests has come."""
        raise NotImplementedError

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
        self.cancel_here(peer, fields[0], fields[1])

    def cancel_here(self, peer: Peer, call: int, reason: str) -> None:
        """Cancel a call of `peer` at whatever actor of this process has it."""
        for cell in list(self.cells.values()):
            if cell.cancel(peer, call, reason):
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
