"""The node: what every Roost process is made of. It sends frames for its threads (`carrier.py`), receives them
(`receiving.py`), serves Roost's own requests, and knows who has ended.

A message's way: the calling thread pickles it, numbers it, keeps it, and writes it to the socket itself; the
receiver's I/O thread reads it and hands it to the home thread of the actor; the home thread answers on the
socket itself; the caller's I/O thread releases the lock its waiter sleeps on. Four wakes a round trip, one pickle
a direction, no coroutine; two wakes where whoever waits reads the sockets itself (`link/readers.py`).

Routing, which decides which link a peer's frames take, is in `routing.py`; what calls do with answers in
`calls.py`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .carrier import SMALL_FRAME
from .deadlines import Deadlines
from .epochs import EpochGate
from .errors import MeshFailure
from .future import Future, reset_after_fork
from .link.gate import Gate
from .link.handshake import Identity
from .link.io import IoThread
from .looplink import LoopLink
from .peer import Peer
from .receiving import Receiving
from .refs import SYSTEM_ACTOR, ProcRef
from .routing import Routing
from .vigil import Vigil
from .wire import frame as f

__all__ = ["SMALL_FRAME", "Node", "SystemHandler", "current_node", "set_node"]

logger = logging.getLogger("roost")

DEAD_REMEMBERED = 1024  # processes that have ended and are remembered; who asks for an older one asks its agent anew

SystemHandler = Callable[["Node", Peer, list[Any], Any], Any]


class Node(Receiving):
    """One process of a job. Made once a process, by the controller, the agent or the worker."""

    def __init__(self, identity: Identity, secret: bytes, io: IoThread) -> None:
        super().__init__(identity, io)
        self.secret = secret
        self.system: dict[str, SystemHandler] = {}
        self.on_unreachable: Callable[[Peer, MeshFailure], None] = lambda peer, error: None
        self.on_forgotten: Callable[[int], None] = lambda proc_id: None
        self.failure_of: Callable[[int, int], Any] = lambda actor, proc_id: None
        # (processes, seconds) to a Future of their stacks by index; set by whoever can ask for them
        self.stacks_of: Callable[[Sequence[ProcRef], float], Future[dict[int, str]]] | None = None
        self._mourners: dict[int, list[Callable[[int], None]]] = {}
        self._dead: deque[int] = deque()  # peers that have ended, the oldest first
        self.gate = Gate(io, secret, identity, self._on_link, self._on_frame, self._on_broken)
        self.routing = Routing(self)
        self.vigil = Vigil(self)
        self.deadlines = Deadlines(self)
        self.epochs = EpochGate(self)
        self.peer(self.proc_id, self.name).link = LoopLink(self)  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Node {self.name} ({self.role}), {len(self.peers)} peers, {len(self.cells)} actors>"

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
