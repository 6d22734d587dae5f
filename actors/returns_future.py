"""`@returns_future`: async library functions that scripts, sync endpoints and coroutines all can call.

The body runs in whoever asks first: as a task of the loop that awaits it, or on a loop of its own in the thread that
calls `get()`. So it needs no thread where somebody waits, and its context is the caller's.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, ParamSpec, TypeVar

from .errors import CallCancelled, CallTimeout
from .future import _CANCELLED, _PENDING, Future

P = ParamSpec("P")
R = TypeVar("R")

Body = Callable[[], Coroutine[Any, Any, R]]


class _Lazy(Future[R]):
    """A body that has not begun before somebody asks for its result."""

    __slots__ = ("_body", "_claim", "_name", "_stop")

    def __init__(self, name: str, body: Body[R]) -> None:
        super().__init__()
        self._name = name
        self._body: Body[R] | None = body
        self._claim = threading.Lock()
        self._stop: Callable[[], object] | None = None  # cancels the body, from any thread

    def _about(self) -> str:
        return self._name

    def _begin(self) -> Body[R] | None:
        """The body, for the first who asks."""
        with self._claim:
            body, self._body = self._body, None
        return body if self._state == _PENDING else None

    def _ended(self, task: asyncio.Task[R]) -> None:
        self._stop = None
        if task.cancelled():
            self._settle(_CANCELLED, CallCancelled(f"{self._name} was cancelled"))
        elif (error := task.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(task.result())

    def _cancel_remote(self, reason: str) -> None:
        stop = self._stop
        if stop is not None:
            stop()

    # who asks first

    def __await__(self) -> Generator[Any, None, R]:
        body = self._begin() if self._state == _PENDING else None
        if body is not None:
            loop = asyncio.get_running_loop()
            task = loop.create_task(body())
            self._stop = functools.partial(_call_soon, loop, task.cancel)
            task.add_done_callback(self._ended)
        return (yield from super().__await__())

    def _wait(self, timeout: float | None) -> bool:
        body = self._begin()
        if body is None:
            return super()._wait(timeout)
        if asyncio._get_running_loop() is not None:  # this thread's loop stands still anyway
            self._in_thread(body)
            return super()._wait(timeout)
        _run(self, body, timeout)
        return True

    def _flush(self) -> None:
        """Somebody waits for it together with others."""
        body = self._begin()
        if body is not None:
            self._in_thread(body)

    def add_done_callback(self, callback: Callable[[Future[R]], object]) -> None:
        super().add_done_callback(callback)
        self._flush()

    def _in_thread(self, body: Body[R]) -> None:
        context = contextvars.copy_context()
        threading.Thread(
            target=context.run, args=(_run, self, body, None), name=f"roost-{self._name}", daemon=True
        ).start()


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(function)


def _run(future: _Lazy[R], body: Body[R], timeout: float | None) -> None:
    """Run the body in this thread to its end, at most `timeout` seconds; Ctrl-C and the timeout cancel it."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(body())
    future._stop = functools.partial(_call_soon, loop, task.cancel)
    try:
        loop.run_until_complete(asyncio.wait({task}, timeout=timeout))
        if not task.done():
            _cancel(loop, task)
            error = CallTimeout(f"{future._name} did not end within {timeout:g} s and was cancelled")
            future._settle(_CANCELLED, error)
    except BaseException:  # Ctrl-C: restored, and raised again
        _cancel(loop, task)
        raise
    finally:
        if task.done():
            future._ended(task)
        rest = asyncio.all_tasks(loop)
        for left in rest:
            left.cancel()
        if rest:
            loop.run_until_complete(asyncio.wait(rest, timeout=5))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    task.cancel()
    loop.run_until_complete(asyncio.wait({task}, timeout=5))


def returns_future(function: Callable[P, Awaitable[R]]) -> Callable[P, Future[R]]:
    """Make an `async def` function return a `Future`: to be awaited, or asked with `get()` where there is no loop.

    The body begins when the future is first asked, once: awaited, it is a task of that loop; asked with `get()`, it
    runs in that thread. A `get` whose timeout passes, Ctrl-C, `cancel()` and the cancellation of a task that awaits
    cancel it. A future that is never asked runs nothing. Arguments are checked at the call.

    >>> @returns_future
    ... async def add(a: int, b: int) -> int:
    ...     return a + b
    >>> add(1, 2).get()
    3
    """
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"returns_future is for `async def` functions, not for {function!r}")
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Future[R]:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{function.__qualname__}{signature}: {error}") from None
        return _Lazy(function.__qualname__, lambda: function(*args, **kwargs))

    return call
