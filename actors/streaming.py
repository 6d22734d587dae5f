"""Streaming: endpoints that yield. Items are sent as they are made, a window of them ahead of what the caller took."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import aclosing, closing, contextmanager
from typing import TYPE_CHECKING, Any, Self

from .answers import GONE, PAST_DEADLINE, Ended
from .calls import WANTS_ITEMS
from .context import Message
from .deadlines import not_taken
from .endpoint import EndpointInfo
from .errors import CallCancelled, MeshFailure
from .travel import failure_record

if TYPE_CHECKING:
    from .cell import Cell

logger = logging.getLogger("roost.actors")


class Stream:
    """One running call of a generator: what was sent of it, and how much more the caller allows."""

    def __init__(self, cell: Cell, message: Message) -> None:
        self.cell = cell
        self.message = message
        self.sent = 0
        self.held_since: float | None = None  # monotonic time since when it waits for its caller to take items
        self._room = threading.Condition(threading.Lock())

    def __repr__(self) -> str:
        return f"<Stream of {self.message.method}: {self.sent} sent, {self.message.window} allowed>"

    def __enter__(self) -> Self:
        if self.message.task is None:
            self.message.task = self
        self.cell.streams[self.message.key] = self
        self.cell.watch(self.message.peer)
        return self

    def __exit__(self, *exc: object) -> None:
        self.cell.streams.pop(self.message.key, None)
        self.cell.unwatch(self.message.peer)

    def more(self, total: int) -> None:
        """The caller has taken some: `total` items may have been sent by now. From any thread."""
        if total > self.message.window:
            self.message.window = total
            self.wake()

    def cancel(self, message: Message) -> None:
        """Nobody waits for it any more; it has been woken, and looks itself."""

    def wake(self) -> None:
        """Something has changed for whoever waits for room. From any thread."""
        with self._room:
            self._room.notify_all()

    def wait(self) -> None:
        """Wait in this thread until the next item may be made; raises Ended when it is not wanted."""
        message = self.message
        with self._room:
            while self.is_held() and not message.over:
                self._room.wait(message.remaining)
        self.check()

    def is_held(self) -> bool:
        """Whether the next item has to wait until the caller has taken some."""
        held = self.sent >= self.message.window
        self.held_since = (self.held_since or time.monotonic()) if held else None
        return held

    def check(self) -> None:
        """Raise Ended when nobody waits for the items any more."""
        if not self.message.over:
            return
        how = f"its generator was closed after {self.sent} items"
        if self.held_since is not None and self.message.remaining == 0.0:
            how += f"; {not_taken(time.monotonic() - self.held_since)}"
        raise Ended(how)

    def send(self, item: Any) -> None:
        """Send one item."""
        try:
            self.cell.send_item(self.message, item)
        except MeshFailure:
            self.message.cancelled = self.message.cancelled or GONE
            self.check()
        self.sent += 1


class TaskStream(Stream):
    """The same on an event loop."""

    def __init__(self, cell: Cell, message: Message) -> None:
        super().__init__(cell, message)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:  # closed: the actor has ended
            return

    async def changed(self) -> None:
        """Wait until the next item may be made."""
        while self.is_held() and not self.message.over:
            self._changed.clear()
            if self.is_held():
                await self._changed.wait()
        self.check()


def run(cell: Cell, message: Message, info: EndpointInfo) -> Any:
    """Run a generator in this thread. What its caller gets in the end: all items, or what it returned."""
    args, kwargs = message.arguments()
    generator = info.function(cell.instance, *args, **kwargs)
    with _last_words(cell, message), closing(generator), Stream(cell, message) as stream:
        del args, kwargs
        items: list[Any] = []
        wanted = message.flags & WANTS_ITEMS
        while True:
            if wanted:
                stream.wait()
            else:
                stream.check()
            try:
                item = next(generator)
            except StopIteration as end:
                return end.value if wanted else items
            if wanted:
                stream.send(item)
            else:
                items.append(item)
            del item


async def run_async(cell: Cell, message: Message, info: EndpointInfo) -> Any:
    """The same for an `async def` generator, in the task of its call."""
    args, kwargs = message.arguments()
    generator = info.function(cell.instance, *args, **kwargs)
    del args, kwargs
    with _last_words(cell, message):
        async with aclosing(generator):
            if not message.flags & WANTS_ITEMS:
                return [item async for item in generator]
            with TaskStream(cell, message) as stream:
                await stream.changed()
                async for item in generator:
                    stream.send(item)
                    del item
                    await stream.changed()
    return None


@contextmanager
def _last_words(cell: Cell, message: Message) -> Iterator[None]:
    """What a generator raises when it is closed, and nobody waits for its answer any more, is logged."""
    try:
        yield
    except (CallCancelled, asyncio.CancelledError):
        raise
    except Exception as error:
        if message.over:
            _forget_close(error)
            text = "%s.%s raised after it was cancelled (%s), and its caller does not hear of it:\n%s"
            trace = failure_record(error, cell.name, message.method, "", 0)["traceback"].rstrip()
            logger.warning(text, cell.name, message.method, message.cancelled or PAST_DEADLINE, trace)
        raise


def _forget_close(error: BaseException) -> None:
    """That Roost has closed the generator is not what went wrong in it."""
    while error.__context__ is not None:
        if isinstance(error.__context__, CallCancelled | asyncio.CancelledError):
            error.__context__ = None
            return
        error = error.__context__
