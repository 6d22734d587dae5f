"""Lanes: endpoints that never wait for the home thread, and run on threads of their own.

Calls of a lane start in the order in which they came, `size` of them at once: sync ones each on a thread of the lane,
async ones as tasks on its loop. Threads and loop are made when they are first needed.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from .answers import THE_END
from .batching import Batch, Joins
from .context import Message
from .endpoint import EndpointInfo
from .link.io import new_event_loop

if TYPE_CHECKING:
    from .cell import Cell


class Lane:
    """One lane of one actor."""

    def __init__(self, cell: Cell, name: str, size: int) -> None:
        self.cell = cell
        self.name = name
        self.size = size
        self.running: set[Message] = set()
        self._waiting: deque[tuple[Message, EndpointInfo]] = deque()
        self._joins = Joins(cell, hurries=False)
        self._changed = threading.Condition(threading.Lock())
        self._threads: list[threading.Thread] = []
        self._sync = self._workers = 0  # sync calls that run, and threads for them
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<Lane {self.name} of {self.cell.name}: {len(self.running)} of {self.size} run, {len(self)} wait>"

    def __len__(self) -> int:
        return len(self._waiting)

    def statistics(self) -> dict[str, int]:
        """For eyes and tests."""
        return {"size": self.size, "waiting": len(self), "running": len(self.running)}

    def put(self, message: Message, info: EndpointInfo) -> None:
        """A call has come; where calls arrive."""
        placed = self._joins.place(message, info)
        if placed is None:
            return
        with self._changed:
            if not self._closed:
                self._waiting.append((placed, info))
                self._start()

    def open(self) -> None:
        """The actor lives: calls may start."""
        with self._changed:
            self._open = True
            self._start()

    def _start(self) -> None:
        """Start what may start, in order; under the lock."""
        while self._open and self._waiting and len(self.running) < self.size:
            message, info = self._waiting.popleft()
            self.running.add(message)
            if info.is_async:
                self._own_loop().call_soon_threadsafe(self._start_task, message, info)
                continue
            self._sync += 1
            if self._sync > self._workers:
                self._thread(self._main, f"-{self._workers}")
                self._workers += 1
            self._inbox.put(message)
        if self._waiting:
            self._hurry()

    def _hurry(self) -> None:
        """Batches that run and wait for more calls are to wait no longer."""
        for message in self.running:
            if isinstance(message, Batch):
                message.hurry()

    def _thread(self, target: Any, suffix: str, *args: Any) -> None:
        name = f"roost-{self.cell.name}-{self.name}{suffix}"
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _ended(self, message: Message, *, sync: bool) -> None:
        with self._changed:
            self.running.discard(message)
            self._sync -= sync
            self._start()
            self._changed.notify_all()

    # sync calls

    def _main(self) -> None:
        while (message := self._inbox.get()) is not None:
            try:
                self.cell.handle_sync(message)
            finally:
                self._ended(message, sync=True)
            del message

    # async calls

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = new_event_loop()
            self._thread(self._main_async, "", self._loop)
        return self._loop

    def _main_async(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    def _start_task(self, message: Message, info: EndpointInfo) -> None:
        from .asynccell import run_endpoint

        if self.cell.take(message) is None:
            self._ended(message, sync=False)
            return
        task = asyncio.get_running_loop().create_task(run_endpoint(self.cell, message, info))
        message.task = task
        task.add_done_callback(lambda task: self._ended(message, sync=False))
        if message.cancelled is not None:
            task.cancel()

    # the end

    def close(self, until: float) -> None:
        """Let what waits run, at most until then, and cancel what still does. On the home thread.

        Streams are not waited for: they may have no end.
        """
        with self._changed:
            self._hurry()
            self._changed.wait_for(self._is_drained, max(until - time.monotonic(), 0.0))
            self._closed = True
            self._waiting.clear()
            running = list(self.running)
        for message in running:
            self.cell.give_up(message, THE_END)

    def join(self, until: float) -> None:
        """End the threads, waiting for them at most until then; one whose call cannot be cancelled lives on with it."""
        with self._changed:
            self._changed.wait_for(lambda: not self.running, max(until - time.monotonic(), 0.0))
        for _ in range(self._workers):
            self._inbox.put(None)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.01))

    def _is_drained(self) -> bool:
        streams = self.cell.streams
        return not self._waiting and all(message.key in streams for message in self.running)
