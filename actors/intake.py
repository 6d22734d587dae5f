"""Intake: where a message goes that has come for an actor with lanes, batched endpoints or a bounded mailbox."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Any

from .batching import Batch, Joins
from .calls import WANTS_ANSWER
from .context import Message
from .endpoint import lanes_of
from .errors import Busy
from .lanes import Lane
from .mailbox import BoundedQueue, Mailbox, mailbox_of

if TYPE_CHECKING:
    from .cell import Cell

GRACE = 2.0  # seconds for calls of lanes that have come before the actor was stopped
JOIN = 1.0  # seconds for threads of lanes to end once their calls are cancelled
INSTALL_TIMEOUT = 10.0  # seconds; the I/O thread runs no user code, so only a process that ends takes longer


class Intake:
    """Decides for each message of one actor, where messages arrive: on the I/O thread, or on one that leads."""

    def __init__(self, cell: Cell, lanes: dict[str, int], mailbox: Mailbox | None) -> None:
        self.lanes = {name: Lane(cell, name, size) for name, size in lanes.items()}
        self.mailbox = mailbox
        self.dropped = self.refused = 0
        self._cell = cell
        self._joins = Joins(cell, hurries=True)

    def __repr__(self) -> str:
        return f"<Intake of {self._cell.name}: {self.mailbox}, {list(self.lanes.values())}>"

    def install(self) -> None:
        """Stand before the actor from now on; what has come already is placed too. On the home thread."""
        done = threading.Event()

        def install() -> None:
            cell = self._cell
            with cell.node.io.readers.dispatching:  # nothing arrives meanwhile
                early: list[Any] = []
                while not cell.queue.empty():
                    early.append(cell.queue.get_nowait())
                if self.mailbox is not None:
                    cell.queue = BoundedQueue()
                cell.intake = self
                for item in early:
                    placed = self.place(item) if isinstance(item, Message) else item
                    if placed is not None or item is None:
                        cell.queue.put(placed)
            done.set()

        self._cell.node.io.call(install)
        done.wait(INSTALL_TIMEOUT)

    def place(self, message: Message) -> Message | None:
        """What to put into the home thread's queue: the message, or a batch of it; nothing where it went elsewhere."""
        cell = self._cell
        info = cell.endpoints.get(message.method)
        if info is not None and info.lane:
            self.lanes[info.lane].put(message, info)
            return None
        if self.mailbox is not None and not self._admit(message, self.mailbox):
            return None
        return self._joins.place(message, info)

    def _admit(self, message: Message, mailbox: Mailbox) -> bool:
        """Keep the bound; False when the message has been refused."""
        cell = self._cell
        if mailbox.policy == "block":
            message.peer.narrow_granting(cell.actor_id, mailbox.limit)
            return True
        if cell.depth() < mailbox.limit:
            return True
        if mailbox.policy == "fail":
            self.refused += 1
            self._turn_away(message, "was refused")
            return False
        oldest = self._take_oldest()
        if oldest is not None:
            self.dropped += 1
            self._turn_away(oldest, "was dropped, as the oldest, for a newer one")
        return True

    def _take_oldest(self) -> Message | None:
        """Take out the message that has waited longest; the home thread takes from the same queues meanwhile."""
        for box in (self._cell.backlog, self._cell.queue):
            assert not isinstance(box, queue.SimpleQueue), "an actor with a bound has a queue that can be looked into"
            for item in list(box):
                if isinstance(item, Batch):
                    first = item.drop()
                    if first is not None:
                        return first
                elif isinstance(item, Message):
                    try:
                        box.remove(item)
                    except ValueError:  # it has just been started
                        continue
                    return item
        return None

    def _turn_away(self, message: Message, how: str) -> None:
        cell = self._cell
        limit = self.mailbox.limit if self.mailbox is not None else 0
        due = message.peer.granting_for(cell.actor_id).consumed(message.nbytes)
        if due and not message.flags & WANTS_ANSWER:
            cell.node.grant(message.peer, cell.actor_id)
        text = (
            f"{cell.name} at rank {cell.rank} has {limit} messages waiting, the limit of its mailbox: this call of "
            f"{message.method} {how}; send less, wait for answers, or raise the limit"
        )
        cell.answer_error(message, Busy(text))
        message.data, message.buffers = b"", []

    def open(self) -> None:
        """The actor lives: calls of lanes may start."""
        for lane in self.lanes.values():
            lane.open()

    def hurry(self) -> None:
        """Batches in the home thread wait for no more calls: the actor ends, or has something urgent to do."""
        self._joins.hurry()

    def end(self, *, at_once: bool) -> None:
        """The actor ends, and its lanes with it. On the home thread."""
        if not self.lanes:
            return
        until = time.monotonic() + (0.0 if at_once else GRACE)
        for lane in self.lanes.values():
            lane.close(until)
        until = time.monotonic() + JOIN
        for lane in self.lanes.values():
            lane.join(until)


def intake_of(cell: Cell, cls: type) -> Intake | None:
    """The intake that a class needs; None for most."""
    lanes = lanes_of(cls)
    mailbox = mailbox_of(cls)
    if not lanes and mailbox is None and not any(info.batch for info in cell.endpoints.values()):
        return None
    return Intake(cell, lanes, mailbox)
