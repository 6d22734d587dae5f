"""Batching: calls of a batched endpoint that wait are joined, and run as one.

They are joined where they arrive. A batch stands in the mailbox at the place of its first call; a later call joins it
unless its process has another message behind that place, which it would overtake.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

from .calls import MANY
from .context import Message
from .endpoint import EndpointInfo

if TYPE_CHECKING:
    from .cell import Cell


class Batch(Message):
    """Calls that run as one. It waits and runs as a message itself, one that wants no answer."""

    __slots__ = ("_closed", "_filled", "_full", "_hurried", "_loop", "info", "members", "passed", "until")

    def __init__(self, cell: Cell, info: EndpointInfo, first: Message) -> None:
        fields = [None, cell.actor_id, info.name, 0, 0, cell.shape, None]
        super().__init__(cell, None, cell.rank, fields, b"", [], 0)  # type: ignore[arg-type]
        self.info = info
        self.members = [first]
        self.passed: set[int] = set()  # processes that have other messages behind it
        self.until = first.arrived + info.batch_wait
        self._filled = threading.Condition(threading.Lock())
        self._full: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = self._hurried = False
        first.task = self

    @property
    def key(self) -> tuple[int, int]:
        return 0, 0

    def join(self, message: Message) -> bool:
        """Take one more call in; False when it has been started, or is full. Where calls arrive."""
        with self._filled:
            if self._closed or self.is_full():
                return False
            self.members.append(message)
            message.task = self
            if self.is_full():
                self._notify()
            return True

    def hurry(self) -> None:
        """Wait for no more calls: that holds something up, or nobody wants those that are here. From any thread."""
        with self._filled:
            if not self._hurried:
                self._hurried = True
                self._notify()

    def _notify(self) -> None:
        """Wake whoever waits for it to fill; under the lock."""
        self._filled.notify_all()
        if self._loop is not None and self._full is not None:
            try:
                self._loop.call_soon_threadsafe(self._full.set)
            except RuntimeError:  # closed: the actor has ended
                return

    def drop(self) -> Message | None:
        """Take its oldest call out, to make room; None when it has been started."""
        with self._filled:
            return self.members.pop(0) if self.members and not self._closed else None

    def is_full(self) -> bool:
        return len(self.members) >= self.info.batch

    def is_ready(self) -> bool:
        """Whether it is full, or may wait no longer."""
        return self._hurried or self.is_full()

    def wait(self) -> None:
        """Wait in this thread until it is full, has waited long enough, or must not wait."""
        with self._filled:
            self._filled.wait_for(self.is_ready, max(self.until - time.monotonic(), 0.0))

    async def filled(self) -> None:
        """The same on an event loop."""
        with self._filled:
            left = self.until - time.monotonic()
            if left <= 0 or self.is_ready():
                return
            self._loop, self._full = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with asyncio.timeout(left):
                await self._full.wait()
        except TimeoutError:
            return
        finally:
            with self._filled:
                self._loop = None

    def begin(self) -> list[Any]:
        """Take no more calls in; the items of those that are still wanted."""
        with self._filled:
            self._closed = True
            members, self.members = self.members, []
        items = []
        for member in members:
            if self.cell.take(member) is None:
                continue
            member.task = self
            try:
                args, _ = member.arguments()
                items.append(args[0])
                self.members.append(member)
            except Exception as error:  # noqa: BLE001 - what a user sent may fail to unpickle in any way
                self.cell.raised(member, error)
        return items

    def cancel(self, message: Message) -> None:
        """One of its calls is not wanted any more: the others are; without any, what runs is cancelled."""
        if not message.running:
            self.cell.answer_cancelled(message, "")
            message.data, message.buffers = b"", []
            with self._filled:
                wanted = any(member.cancelled is None for member in self.members)
            if not wanted:
                self.hurry()
            return
        self.cell.answer_cancelled(message, "it ran on with the others of its batch")
        if all(member.cancelled is not None for member in self.members):
            self.cell.give_up(self, message.cancelled or "")

    def answer(self, values: Any, items: int) -> None:
        """Each call gets its element of what the endpoint returned."""
        try:
            found = checked(values, items, f"{self.cell.name}.{self.method}")
        except (TypeError, ValueError) as error:
            self.fail(error)
            return
        for member, value in zip(self.members, found, strict=True):
            try:
                self.cell.answer(member, value, self.info)
            except Exception as error:  # noqa: BLE001 - the value may fail to pickle in any way
                self.cell.raised(member, error)

    def fail(self, error: BaseException) -> None:
        """Each call gets the exception."""
        for member in self.members:
            member.cancelled = member.cancelled or self.cancelled
            self.cell.raised(member, error)


def checked(values: Any, items: int, name: str) -> list[Any]:
    """What a batched endpoint returned, if it is as long as it must be."""
    try:
        found = list(values)
    except TypeError:
        raise TypeError(f"{name} is batched and returned {type(values).__name__}, not a list") from None
    if len(found) != items:
        raise ValueError(f"{name} is batched and returned {len(found)} values for {items} items")
    return found


def run(batch: Batch) -> None:
    """Run a batch in this thread."""
    batch.wait()
    items = batch.begin()
    if not items:
        return
    try:
        values = batch.info.function(batch.cell.instance, items)
    except BaseException as error:  # noqa: BLE001 - every failure of user code goes to the callers
        batch.fail(error)
        return
    batch.answer(values, len(items))


async def run_async(batch: Batch) -> None:
    """Run a batch in its task."""
    await batch.filled()
    items = batch.begin()
    if not items:
        return
    try:
        values = await batch.info.function(batch.cell.instance, items)
    except BaseException as error:  # noqa: BLE001 - every failure of user code goes to the callers
        batch.fail(error)
        return
    batch.answer(values, len(items))


class Joins:
    """Joins calls of batched endpoints as they come to one line of messages: the home thread's, or a lane's.

    A batch in a line of one (`hurries`) waits for no more calls once there is a message behind it.
    """

    def __init__(self, cell: Cell, *, hurries: bool) -> None:
        self._cell = cell
        self._hurries = hurries
        self._open: dict[str, Batch] = {}

    def place(self, message: Message, info: EndpointInfo | None) -> Message | None:
        """What to put in line: the message, a new batch that begins with it, or nothing, when it has joined one."""
        batched = info is not None and info.batch > 0 and not message.flags & MANY
        found = self._open.get(message.method) if batched else None
        sender = message.peer.proc_id
        if found is not None and sender not in found.passed and found.join(message):
            self._pass(sender, found)
            return None
        self._pass(sender, None)
        if self._hurries:
            self.hurry()
        if not batched or info is None:
            return message
        batch = self._open[message.method] = Batch(self._cell, info, message)
        return batch

    def hurry(self) -> None:
        """Something waits behind the batches of this line. Concurrent ones hold nobody up."""
        for batch in list(self._open.values()):
            if not batch.info.concurrent:
                batch.hurry()

    def _pass(self, sender: int, joined: Batch | None) -> None:
        for batch in self._open.values():
            if batch is not joined:
                batch.passed.add(sender)
