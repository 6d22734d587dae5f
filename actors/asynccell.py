"""The home thread of an actor with async endpoints: an event loop of its own.

Each async call is a Task (1.1 us; without one `asyncio.timeout` and TaskGroup raise). Sync endpoints run on the same
thread with the running loop hidden, so that `asyncio.run` works in them as it does anywhere.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import time
from asyncio.events import _set_running_loop
from collections.abc import Callable
from typing import Any

from .answers import PAST_DEADLINE, THE_END
from .calls import MANY, WANTS_ANSWER
from .cell import _STOP, FAILED, Cell
from .context import Message, enter
from .endpoint import EndpointInfo
from .link.io import new_event_loop
from .running import run_special_async

BURST = 64  # sync messages handled before the loop gets a turn


def run_async(cell: Cell, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The life of an actor with async endpoints; returns when it has ended."""
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    home = _AsyncHome(cell, loop)
    try:
        if not _hidden(cell.construct, cls, args, kwargs):
            return
        cell._wake = home.wake
        home.wake()
        loop.run_forever()
        home.end()
    finally:
        cell._wake = lambda: None
        asyncio.set_event_loop(None)
        loop.close()


def _hidden(function: Callable[..., Any], *args: Any) -> Any:
    """Call with no visible running loop."""
    running = asyncio._get_running_loop()
    _set_running_loop(None)
    try:
        return function(*args)
    finally:
        _set_running_loop(running)


class _AsyncHome:
    def __init__(self, cell: Cell, loop: asyncio.AbstractEventLoop) -> None:
        self.cell = cell
        self.loop = loop
        self.scheduled = False
        self.busy = False
        self.stopping = False
        self.tasks = cell.tasks

    def wake(self) -> None:
        """From any thread: something is in the queue."""
        if not self.scheduled:
            self.scheduled = True
            try:
                self.loop.call_soon_threadsafe(self.drain)
            except RuntimeError:  # the loop is closed: the actor has ended, and refuses what comes
                return

    def drain(self) -> None:
        """Start the next message, or only concurrent ones while an async endpoint holds the actor."""
        self.scheduled = False
        cell = self.cell
        for _ in range(BURST):
            self.run_urgent()
            busy = self.busy or cell.supervising
            if self.stopping or (cell.queue.empty() and (busy or not cell.backlog)):
                return
            try:
                message = cell.backlog.popleft() if cell.backlog and not busy else cell.queue.get_nowait()
            except (IndexError, queue.Empty):  # a bounded mailbox has dropped it meanwhile
                continue
            if message is None:
                continue
            if busy and not self.is_concurrent(message):
                cell.backlog.append(message)
            elif message is _STOP:
                self.stopping = True
                if not self.tasks:
                    self.loop.stop()
                return
            else:
                self.start(message)
            if cell.state == FAILED:
                self.stopping = True
                self.loop.stop()
                return
        self.wake()

    def is_concurrent(self, message: Any) -> bool:
        """Whether the message is a call that holds nobody up, and is held up by nobody."""
        if message is _STOP:
            return False
        info = self.cell.endpoints.get(message.method)
        return info is not None and info.concurrent

    def run_urgent(self) -> None:
        """Supervision first."""
        cell = self.cell
        while cell.urgent:
            cell.urgent.popleft()()
        if cell.state == FAILED and not self.stopping:
            self.stopping = True
            self.loop.stop()

    def start(self, message: Message) -> None:
        """Run a sync endpoint now, or make the task of an async one."""
        cell = self.cell
        info = cell.endpoints.get(message.method) or cell.method(message.method)
        if info is None or not info.is_async:
            cell.now = message
            _hidden(contextvars.copy_context().run, cell.handle_sync, message)
            cell.now = None
            return
        if cell.take(message) is None:
            return
        if not info.concurrent:
            self.busy = True
        task = self.loop.create_task(self.run_endpoint(message, info))
        message.task = task
        if message.cancelled is not None:
            task.cancel()
        self.tasks[task] = message
        task.add_done_callback(self.finished)

    async def run_endpoint(self, message: Message, info: EndpointInfo) -> None:
        try:
            await run_endpoint(self.cell, message, info)
        finally:
            if not info.concurrent:
                self.busy = False

    def finished(self, task: asyncio.Task[None]) -> None:
        """A task has ended: the next message may start."""
        self.tasks.pop(task, None)
        if self.cell.state == FAILED or (self.stopping and not self.tasks):
            self.stopping = True
            self.loop.stop()
        elif not self.cell.queue.empty() or self.cell.backlog or self.cell.urgent:
            self.wake()

    def end(self) -> None:
        """The loop has stopped: cancel what runs, stop what is owned, clean up."""
        cell = self.cell
        if self.tasks:
            for task, message in list(self.tasks.items()):
                message.cancelled = message.cancelled or THE_END
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(list(self.tasks), timeout=5))
        cell.finish(self.loop)
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())


async def run_endpoint(cell: Cell, message: Message, info: EndpointInfo) -> None:
    """Run one message whose endpoint is async, in the task of its own; on the home thread's loop or a lane's."""
    enter(message)
    timer: asyncio.TimerHandle | None = None
    if message.deadline is not None and not message.flags & WANTS_ANSWER:
        loop = (
            asyncio.get_running_loop()
        )  # it is in no list of calls to be answered, which is looked through for others
        timer = loop.call_later(message.remaining or 0.0, cell.give_up, message, PAST_DEADLINE)
    begin = time.perf_counter()
    try:
        if info.plain and message.flags < MANY:
            args, kwargs = message.arguments()
            value = await info.function(cell.instance, *args, **kwargs)
            del args, kwargs
            cell.answer(message, value, info)
        else:
            await run_special_async(cell, message, info)
    except BaseException as error:  # noqa: BLE001 - every failure of user code goes to the caller
        cell.raised(message, error)
    finally:
        if timer is not None:
            timer.cancel()
    if not info.lane:
        info.seconds = time.perf_counter() - begin
