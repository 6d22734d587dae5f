"""Sending calls of actor meshes: credit, numbering, and what is due when a rank is known dead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from . import bodies
from .calls import OneCall
from .errors import Busy, MeshFailure
from .future import _FAILED
from .node import Node
from .peer import Peer
from .requests import body_for, is_near
from .wire import frame as f
from .wire import pickling
from .wire.delivery import BUSY, SEND


class Many(Protocol):
    """A call to several ranks, as what sends it sees it."""

    def rank_lost(self, rank: int, error: Exception) -> None: ...


def busy(peer: Peer, actor: int) -> Busy:
    """What a call is refused with whose actor grants no credit while as many wait here as may."""
    now = peer.credit_for(actor).statistics()
    return Busy(
        f"{peer.name} has {now.outstanding_messages} unread messages from here and {now.parked_messages} more wait for "
        "it in this process, which is the bound: wait for answers before sending more"
    )


class Sender:
    """Sends calls of one actor mesh: credit, numbering, and what is due when a rank is known dead."""

    @staticmethod
    def small(node: Node, call: OneCall, peer: Peer, actor: int, rank: int, envelope: bytes, data: bytes) -> None:
        """`one` for a body that is a pickle alone: the hot path."""
        call.actor = actor
        with peer.lock:
            account = peer.credit.get(actor) or peer.credit_for(actor)
            if peer.dead is None and account.admit(len(data)) == SEND:
                try:
                    call.seq = node.post_small(peer, f.CALL, envelope, data, rank, len(node.pending) > 1)
                except MeshFailure as error:
                    call.lost(peer, error)
                call.nbytes = len(data)
                return
        Sender.one(node, call, peer, actor, rank, envelope, bodies.Body(None, [data], len(data)))

    @staticmethod
    def one(
        node: Node, call: OneCall | None, peer: Peer, actor: int, rank: int, envelope: bytes, body: bodies.Body
    ) -> None:
        """Send to one rank, or wait for credit, or fail with Busy."""
        defer = call is not None and len(node.pending) > 1
        if call is not None:
            call.actor = actor
        with peer.lock:  # credit and number are taken together, so that nothing that waits is overtaken
            account = peer.credit_for(actor)
            # What is refused by the dead takes no credit: they give none back, and calls would wait for it for ever.
            decision = SEND if peer.dead is not None else account.admit(body.nbytes)
            if decision == SEND:
                Sender._post(node, call, peer, rank, envelope, body, defer)
                return
            if decision != BUSY:

                def send() -> None:
                    Sender._post(node, call, peer, rank, envelope, body, True)

                if call is not None:
                    call.parked = send
                account.park(send, body.nbytes)
                return
        error = busy(peer, actor)
        if call is None:
            raise error
        call._unregister()
        call._settle(_FAILED, error)

    @staticmethod
    def _post(
        node: Node, call: OneCall | None, peer: Peer, rank: int, envelope: bytes, body: bodies.Body, defer: bool
    ) -> None:
        try:
            seq = node.post(peer, f.CALL, envelope, body, rank=rank, defer=defer)
        except MeshFailure as error:
            if call is None:
                raise
            call.lost(peer, error)
            return
        if call is not None:
            call.seq, call.nbytes = seq, body.nbytes

    @staticmethod
    def many(
        node: Node,
        call: Many | None,
        targets: Sequence[tuple[Peer, int]],
        actor: int,
        envelope: Callable[[Any], bytes],
        packed: pickling.Packed,
    ) -> None:
        """Send to many ranks, pickled once, copied at most once a host; ranks without credit wait for it on their own.

        `envelope(layout)` makes the envelope; it differs only where some get a pool segment and others the bytes.
        """
        near = [target for target in targets if packed.buffers and is_near(node, target[0])]
        local = body_for(node, packed, [peer for peer, _ in near]) if near else None
        if local is None or local.segment is None:
            Sender._group(node, call, targets, actor, envelope, local or bodies.inline(packed))
            return
        Sender._group(node, call, near, actor, envelope, local)
        far = [target for target in targets if target not in near]
        if far:
            Sender._group(node, call, far, actor, envelope, bodies.inline(packed))

    @staticmethod
    def _group(
        node: Node,
        call: Many | None,
        targets: Sequence[tuple[Peer, int]],
        actor: int,
        envelope: Callable[[Any], bytes],
        body: bodies.Body,
    ) -> None:
        encoded = envelope(body.layout)
        ready: list[tuple[Peer, int]] = []
        failed: list[tuple[int, Exception]] = []
        for peer, rank in targets:
            with peer.lock:
                dead = peer.dead is not None
                decision = SEND if dead else peer.credit_for(actor).admit(body.nbytes)
                if decision == SEND:
                    ready.append((peer, rank))
                elif decision != BUSY:
                    peer.credit_for(actor).park(_parked(node, call, peer, rank, encoded, body), body.nbytes)
                else:
                    failed.append((rank, busy(peer, actor)))
        failed += node.cast(ready, encoded, body)
        for rank, error in failed:
            if call is None:
                raise error
            call.rank_lost(rank, error)


def _parked(
    node: Node, call: Many | None, peer: Peer, rank: int, envelope: bytes, body: bodies.Body
) -> Callable[[], None]:
    def send() -> None:
        try:
            node.post(peer, f.CALL, envelope, body, rank=rank, defer=True)
        except MeshFailure as error:
            if call is not None:
                call.rank_lost(rank, error)

    return send
