"""What every process of a job sets up around its node: mailboxes, supervision, events."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

from .calls import WANTS_ANSWER
from .cell import Cell
from .context import Message
from .errors import ActorStopped, MeshFailure
from .node import Node, set_node
from .peer import Peer
from .refs import ProcRef
from .supervision import Supervisor
from .wire.errors import ProtocolError

logger = logging.getLogger("roost")

ORPHAN_WAIT = 30.0  # seconds a call waits for an actor whose spawning has not arrived yet
GRAVES = 4096  # actors that have ended and are remembered, so that late calls learn why


class Runtime:
    """The node of this process and what stands around it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.supervisor = Supervisor(node)
        self.root: ProcRef | None = None  # the program's own process; None in it, and where there is none to ask
        self.graves: dict[int, MeshFailure] = {}
        self.events: dict[str, Callable[..., None]] = {
            "actor failed": self._actor_failed,
            "actor ended": node.release_credit,
            "actor stopped": node.forget_credit,
            "gone": node.vigil.gone,
        }
        self.at_end: list[Callable[[], None]] = []  # run when the process leaves the job, while it can still send
        self._early: dict[int, list[Message]] = {}
        node.deliver_call = self.deliver
        node.on_event = self._event
        node.on_unreachable = self.supervisor.unreachable
        node.on_forgotten = self.supervisor.forget
        node.failure_of = self.supervisor.failure_of
        node.system["actor statistics"] = self._statistics
        set_node(node)

    def __repr__(self) -> str:
        return f"<Runtime of {self.node.name}>"

    def end(self) -> None:
        """Let what stands on the runtime end in order, the youngest first."""
        while self.at_end:
            try:
                self.at_end.pop()()
            except Exception:
                logger.exception("%s: an end handler raised", self.node.name)

    # calls

    def deliver(self, peer: Peer, rank: int, fields: list[Any], body: Any) -> None:
        """A call has come, on the I/O thread: into the mailbox of its actor."""
        if len(fields) != 7:
            raise ProtocolError(f"{peer.name} sent a call of {len(fields)} fields instead of 7")
        cell = self.node.cells.get(fields[1])
        data, buffers = self.node.open_body(fields[0], body)
        message = Message(cell, peer, rank, fields, data, buffers, len(body))  # type: ignore[arg-type]
        if cell is not None:
            cell.deliver(message)
            return
        grave = self.graves.get(fields[1])
        if grave is not None:
            self._refuse(message, fields[1], grave)
            if isinstance(grave, ActorStopped):
                peer.granting.pop(fields[1], None)
            return
        waiting = self._early.setdefault(fields[1], [])
        waiting.append(message)
        if len(waiting) == 1:
            self.node.io.loop.call_later(ORPHAN_WAIT, self._expire, fields[1])

    def _expire(self, actor_id: int) -> None:
        for message in self._early.pop(actor_id, ()):
            self._refuse(message, actor_id, ActorStopped(f"{self.node.name} has no such actor (any more)"))

    def _refuse(self, message: Message, actor_id: int, error: MeshFailure) -> None:
        """Answer a call whose actor is not there."""
        cell = Cell.__new__(Cell)  # a cell that never lived: only its way of answering is wanted
        cell.node, cell.actor_id, cell.name, cell.rank = self.node, actor_id, error.mesh_name or "the actor", 0
        cell.waiting = {message.key: message}
        if message.flags & WANTS_ANSWER:
            cell.answer_error(message, error, gone="stopped" if isinstance(error, ActorStopped) else "failed")

    def _statistics(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> dict[str, Any]:
        """[actor]: what waits and runs at it, and counts."""
        cell = node.cells.get(arguments[0])
        if cell is None:
            raise self.graves.get(arguments[0]) or ActorStopped(f"{node.name} has no such actor (any more)")
        return cast(dict[str, Any], cell.statistics())

    def settle(self, cell: Cell) -> None:
        """An actor begins to live here: what came before it is delivered. One that failed in its place is forgotten."""
        before = self.graves.pop(cell.actor_id, None) or self.node.cells.get(cell.actor_id)
        self.node.cells[cell.actor_id] = cell
        if before is not None:
            for peer in list(self.node.peers.values()):
                if peer.revived(cell.actor_id):
                    self.node.grant(peer, cell.actor_id)
        cell.when_ended(lambda: self._cell_ended(cell))
        for message in self._early.pop(cell.actor_id, ()):
            message.cell = cell
            cell.deliver(message)

    def _cell_ended(self, cell: Cell) -> None:
        """It grants no credit any more: whoever has calls that wait for some sends them, to be refused."""
        if self.node.cells.get(cell.actor_id) is cell:
            for peer in list(self.node.peers.values()):
                if cell.actor_id in peer.granting:
                    self.node.event(peer, "actor ended", cell.actor_id)

    def close_accounts(self, actor_id: int) -> None:
        """An actor has been stopped, and will not be spawned anew: nobody counts what it is sent any more."""
        for peer in list(self.node.peers.values()):
            if peer.granting.pop(actor_id, None) is not None:
                self.node.event(peer, "actor stopped", actor_id)

    def bury_cell(self, cell: Cell) -> None:
        """An actor has ended; late calls learn why."""
        if self.node.cells.get(cell.actor_id) is not cell:
            return  # another has been spawned in its place
        del self.node.cells[cell.actor_id]
        while len(self.graves) >= GRAVES:
            del self.graves[next(iter(self.graves))]
        self.graves[cell.actor_id] = cell.gone()

    def unborn(self, actor_id: int, error: MeshFailure) -> None:
        """An actor could not even begin: calls that came before it, and later ones, learn why, at once."""
        self.graves[actor_id] = error
        for message in self._early.pop(actor_id, ()):
            self._refuse(message, actor_id, error)

    # events

    def _event(self, peer: Peer, fields: list[Any]) -> None:
        handler = self.events.get(fields[0])
        if handler is None:
            logger.debug("%s told of %r, which means nothing here", peer.name, fields[0])
            return
        handler(peer, *fields[1:])

    def _actor_failed(
        self, peer: Peer, actor_id: int, owner: int, rank: int, name: str, reason: str, record: dict[str, Any]
    ) -> None:
        self.supervisor.actor_failed(actor_id, rank, name, reason, record, peer.proc_id)


_runtime: list[Runtime] = []


def set_runtime(runtime: Runtime | None) -> None:
    """Install this process's runtime."""
    _runtime.clear()
    if runtime is not None:
        _runtime.append(runtime)
    else:
        set_node(None)


def current_runtime() -> Runtime | None:
    """This process's runtime, if Roost runs here."""
    return _runtime[0] if _runtime else None
