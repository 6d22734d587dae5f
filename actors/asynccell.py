"""The home thread of an actor with async endpoints: an event loop of its own.

Each async call is a Task (1.1 us; without one `asyncio.timeout` and TaskGroup raise). Sync endpoints run on the same
thread with the running loop hidden, so that `asyncio.run` works in them as it does anywhere.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from asyncio.events import _set_running_loop
from collections.abc import Callable
from typing import Any

from .cell import _STOP, FAILED, STOPPED, STOPPING, Cell
from .context import Message, enter
from .endpoint import EndpointInfo
from .errors import MeshFailure
from .link.io import new_event_loop

logger = logging.getLogger("roost.actors")

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
        cell.cancel_task = home.cancel_task  # type: ignore[method-assign]
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
        self.tasks: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """From any thread: something is in the queue."""
        if not self.scheduled:
            self.scheduled = True
            try:
                self.loop.call_soon_threadsafe(self.drain)
            except RuntimeError:  # the loop is closed: the actor has ended, and refuses what comes
                return

    def cancel_task(self, message: Message) -> None:
        """From the I/O thread."""
        try:
            self.loop.call_soon_threadsafe(message.task.cancel)
        except RuntimeError:  # closed: the actor has ended
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
            message = cell.backlog.popleft() if cell.backlog and not busy else cell.queue.get_nowait()
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
        info = cell.endpoints.get(message.method)
        if info is None or not info.is_async:
            _hidden(contextvars.copy_context().run, cell.handle_sync, message)
            return
        if cell.take(message) is None:
            return
        if not info.concurrent:
            self.busy = True
        task = self.loop.create_task(self.run_endpoint(message, info))
        message.task = task
        self.tasks.add(task)
        task.add_done_callback(self.finished)

    async def run_endpoint(self, message: Message, info: EndpointInfo) -> None:
        cell = self.cell
        message.running = True
        enter(message)
        begin = time.perf_counter()
        try:
            args, kwargs = message.arguments()
            if info.explicit_port:
                args = (message.port(), *args)
            value = await info.function(cell.instance, *args, **kwargs)
            del args, kwargs
            if not info.explicit_port:
                cell.answer(message, value, info)
        except BaseException as error:  # noqa: BLE001 - every failure of user code goes to the caller
            if isinstance(error, asyncio.CancelledError) and message.cancelled is not None:
                cell._answer_cancelled(message, "its task was cancelled")
            else:
                cell.raised(message, error)
        info.seconds = time.perf_counter() - begin
        if not info.concurrent:
            self.busy = False

    def finished(self, task: asyncio.Task[None]) -> None:
        """A task has ended: the next message may start."""
        self.tasks.discard(task)
        if self.cell.state == FAILED or (self.stopping and not self.tasks):
            self.stopping = True
            self.loop.stop()
        elif not self.cell.queue.empty() or self.cell.backlog or self.cell.urgent:
            self.wake()

    def end(self) -> None:
        """The loop has stopped: cancel what runs, stop what is owned, clean up."""
        cell = self.cell
        if self.tasks:
            for task in self.tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(self.tasks, timeout=5))
        if cell.state != FAILED:
            cell.state = STOPPING
        cell.stop_owned()
        hook = getattr(cell.instance, "__cleanup__", None)
        if asyncio.iscoroutinefunction(hook):
            try:
                self.loop.run_until_complete(hook(cell.error))
            except Exception:
                logger.exception("%s: __cleanup__ raised", cell.name)
        else:
            cell.cleanup()
        if cell.state != FAILED:
            cell.state = STOPPED
        cell._end()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())


def supervise_async(
    cell: Cell, hook: Any, failure: MeshFailure, answer: Callable[[bool, BaseException | None], None]
) -> None:
    """Run an async `__supervise__` as a task of the actor's loop."""

    async def ask() -> None:
        enter(Message.of_cell(cell))
        try:
            handled = bool(await hook(failure))
        except Exception as error:  # noqa: BLE001 - a hook that raises has not handled it
            answer(False, error)
            return
        finally:
            cell.supervising -= 1
            cell._wake()
        answer(handled, None)

    cell.supervising += 1
    asyncio.get_event_loop().create_task(ask())
