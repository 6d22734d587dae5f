"""Roost's own requests to a process, and bodies for several receivers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import bodies
from .calls import WANTS_ANSWER, _Call
from .errors import ActorDied, ActorStopped, MeshFailure, RoostError, SupervisionError, Unreachable
from .node import Node
from .peer import Peer
from .refs import SYSTEM_ACTOR, ProcRef
from .wire import frame as f
from .wire import pickling

_KINDS: dict[str, type[RoostError]] = {
    kind.__name__: kind for kind in (ActorDied, ActorStopped, Unreachable, SupervisionError, MeshFailure, RoostError)
}


class Request(_Call):
    """One of Roost's own requests to a process; its arguments and answer are plain values."""

    __slots__ = ("actor",)

    def __init__(self, node: Node, about: str, peer: Peer, actor: int = 0) -> None:
        super().__init__(node, about, (peer,))
        self.actor = (
            actor  # that it is to begin: whoever hears from this future that it failed has heard of its failure
        )

    def answered(self, peer: Peer, kind: int, rank: int, fields: list[Any], body: Any) -> None:
        self._unregister()
        if kind == f.REPLY:
            self.set_result(fields[5])
        else:
            record = fields[5]
            if self.actor:
                self._hold(self.node.failure_of(self.actor, peer.proc_id))
            known = _KINDS.get(record["kind"])
            self.set_exception(known(record["text"]) if known else RoostError(f"{record['kind']}: {record['text']}"))

    def lost(self, peer: Peer, error: Exception) -> None:
        if peer is self.peers[0]:
            self._unregister()
            self._fail(error)


def request(
    node: Node, where: ProcRef | Peer, method: str, *arguments: Any, body: bodies.Body | None = None, actor: int = 0
) -> Request:
    """Ask a process for something; the answer is a Future of plain values."""
    peer = where if isinstance(where, Peer) else node.peer_at(where)
    call = Request(node, f"{method} at {peer.name}", peer, actor)
    layout = body.layout if body is not None else None
    envelope = f.packb([layout, SYSTEM_ACTOR, method, call.call_id, WANTS_ANSWER, None, None, list(arguments)])
    try:
        node.post(peer, f.CALL, envelope, body)
    except MeshFailure as error:
        call._unregister()
        call._fail(error)
    return call


def tell(node: Node, peer: Peer, method: str, *arguments: Any, body: bodies.Body | None = None) -> None:
    """The same without an answer."""
    layout = body.layout if body is not None else None
    envelope = f.packb([layout, SYSTEM_ACTOR, method, 0, 0, None, None, list(arguments)])
    node.post(peer, f.CALL, envelope, body)


def body_for(node: Node, packed: pickling.Packed, peers: Sequence[Peer]) -> bodies.Body:
    """The body for one or several receivers on this host, or for one elsewhere."""
    if packed.buffers:
        near = [peer.proc_id for peer in peers if is_near(node, peer)]
        if near and len(near) == len(peers):
            pooled = bodies.pooled(packed, node.pool, node.proc_id, near)
            node.forget_retired()
            if pooled is not None:
                return pooled
    return bodies.inline(packed)


def is_near(node: Node, peer: Peer) -> bool:
    """Whether descriptors reach the peer: it is on this host, and not this process itself."""
    if peer.link is not None:
        return peer.link.same_host_socket and peer.link.peer.proc_id == peer.proc_id
    return peer.where is not None and peer.where.node_id == node.node_id and peer.proc_id != node.proc_id
