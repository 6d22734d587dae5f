"""Epochs: which calls this process takes after ranks of its mesh have been started anew.

A respawn raises the mesh's epoch. Whoever has a mesh of the older one does not know the new ranks, so its calls are
refused, also by ranks that have lived on. Answers, items, ports and Roost's own requests are taken from any epoch:
what was in flight comes to its end. A call of a newer epoch, whose caller got the mesh before this process has heard
of the respawn, waits until it has.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import bodies
from .errors import SupervisionError
from .peer import Peer
from .travel import failure_record
from .wire import frame as f
from .wire import pickling

if TYPE_CHECKING:
    from .node import Node

logger = logging.getLogger("roost")

_WANTS_ANSWER = 1  # as in `calls.py`, which imports the node


class EpochGate:
    """Calls for another epoch than this process's. On the I/O thread."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._early: list[tuple[Peer, int, int, list[Any], Any]] = []
        self.refused = 0

    def __repr__(self) -> str:
        return f"<EpochGate: {self.refused} calls refused, {len(self._early)} early>"

    def take(self, peer: Peer, rank: int, epoch: int, fields: list[Any], body: Any) -> None:
        """A call for another epoch: refuse an older one, keep a newer one until `advance`."""
        node = self._node
        assert node.ref is not None
        if epoch > node.ref.epoch:
            self._early.append((peer, rank, epoch, fields, body))
            return
        self.refused += 1
        _, actor, method, call, flags, _, _ = fields
        text = (
            f"{method} was called at {node.name} with a mesh of epoch {epoch}, but ranks of it have been started anew "
            f"and it is at epoch {node.ref.epoch}: get the mesh again from whoever respawned it"
        )
        if flags & _WANTS_ANSWER:
            error = SupervisionError(text, mesh_name=node.name)
            record = failure_record(error, node.name, method, node.host, 0)
            packed = bodies.inline(pickling.pack((error, None), "exception"))
            messages, nbytes = peer.granting_for(actor).told()
            envelope = f.packb([packed.layout, call, actor, messages, nbytes, record])
            node.post_quietly(peer, f.ERROR, envelope, packed, rank=rank)
        else:
            logger.warning("a broadcast of %s was dropped: %s", peer.name, text)
        if peer.granting_for(actor).consumed(len(body)):
            node.grant(peer, actor)

    def advance(self, epoch: int) -> None:
        """Ranks of this process's mesh have been started anew: calls of older epochs are refused from now on."""
        node = self._node
        if node.ref is None or epoch <= node.ref.epoch:
            return
        node.ref = replace(node.ref, epoch=epoch)
        early, self._early = self._early, []
        for peer, rank, wanted, fields, body in early:
            if wanted != epoch:
                self.take(peer, rank, wanted, fields, body)
            elif node.deliver_call is not None:
                node.deliver_call(peer, rank, fields, body)
