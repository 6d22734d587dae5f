"""The sending half of a node: peers, and frames that are kept until their receiver has acknowledged them."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import bodies
from .errors import ActorStopped, MeshFailure
from .link.handshake import Identity
from .link.io import IoThread
from .link.stream import DescriptorFrame, Link
from .peer import Kept, Peer
from .refs import ProcRef
from .wire import frame as f
from .wire.definitions import DEFINITIONS
from .wire.delivery import run_lengths
from .wire.errors import ProtocolError
from .wire.pool import Mappings, Pool, Segment

if TYPE_CHECKING:
    from .routing import Routing

logger = logging.getLogger("roost")

SMALL_FRAME = 16 << 10  # below this a frame is joined to one buffer: one `send` is cheaper than `sendmsg`

_HEADER_PACK = f.HEADER.pack

_Cast = tuple[Peer, int, int, int, Link]  # peer, rank, sequence, acknowledgement, link


class Carrier:
    """What sends for the threads of one process."""

    routing: Routing

    def __init__(self, identity: Identity, io: IoThread) -> None:
        self.identity = identity
        self.proc_id = identity.proc_id
        self.node_id = identity.node_id
        self.name = identity.name
        self.role = identity.role
        self.host = socket.gethostname()
        self.io = io
        self.ref: ProcRef | None = None  # where others find this process, once known
        self.peers: dict[int, Peer] = {}
        self.closed = False
        self.pool = Pool()
        self.mappings = Mappings()
        self._lock = threading.Lock()

    def left(self) -> ActorStopped:
        """The error of calls after this process has left its job."""
        return ActorStopped(f"{self.name} has been shut down, and all that it spawned")

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
