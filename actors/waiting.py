"""Waiting for some of many futures: `wait` for a number of them, `as_completed` for each in turn."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Generic, TypeVar

from .errors import CallTimeout
from .future import Future, deadline
from .link.readers import block

R = TypeVar("R")

_SLICE = 3600.0  # a wait without timeout still wakes this often, so that a signal handler set by the user runs


class _Bell:
    """Counts completions; one thread waits until there are enough, where Ctrl-C may interrupt it."""

    def __init__(self) -> None:
        self._count = 0
        self._guard = threading.Lock()
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        with self._guard:
            self._count += 1
            if self._lock.locked():
                self._lock.release()

    def wait(self, count: int, until: float | None) -> bool:
        """Until it has rung `count` times in all; False when the time has passed."""
        while self._count < count:
            left = _SLICE if until is None else until - time.monotonic()
            if left <= 0 or (not block(self._lock, min(left, _SLICE)) and until is not None):
                return self._count >= count
        return True


def wait(
    futures: Iterable[Future[R]], num_returns: int | None = 1, timeout: float | None = None
) -> tuple[list[Future[R]], list[Future[R]]]:
    """Wait until `num_returns` of the futures are done (None: all), or `timeout` seconds have passed.

    Returns (done, pending), each in the order given; all that are done are among the done, so there may be more than
    asked for. Nothing is cancelled, nothing raised for a future that failed: ask it. In a coroutine use
    `async for` over `as_completed`. Raises ValueError for more than there are, or less than one.

    >>> wait([Future.completed(1), Future()], num_returns=1, timeout=1)
    ([<Future: done>], [<Future: pending>])
    """
    every = list(futures)
    wanted = len(every) if num_returns is None else num_returns
    if not every and not wanted:
        return [], []
    if not 1 <= wanted <= len(every):
        raise ValueError(f"num_returns={num_returns} of {len(every)} futures")
    bell = _Bell()
    watched: list[Future[R]] = []
    for future in every:
        future._flush()
        if future._when_done(bell.ring):
            watched.append(future)
        else:
            bell.ring()
    try:
        bell.wait(wanted, deadline(timeout))
    finally:
        for future in watched:
            future._forget(bell.ring)
    return [f for f in every if f.done()], [f for f in every if not f.done()]


class as_completed(Generic[R]):
    """The futures in the order in which they are done: `for future in ...` or `async for future in ...`.

    Raises CallTimeout (a TimeoutError) when the next is not done within `timeout` seconds of the beginning; the rest
    goes on. A future that failed is yielded like any: `get()` raises.

    >>> [future.get() for future in as_completed([Future.completed(1), Future.completed(2)])]
    [1, 2]
    """

    def __init__(self, futures: Iterable[Future[R]], timeout: float | None = None) -> None:
        self._left = list(futures)
        self._timeout = timeout
        self._until = deadline(timeout)
        self._done: deque[Future[R]] = deque()
        self._bell = _Bell()
        for future in self._left:
            future._flush()
            self._watch(future)

    def _watch(self, future: Future[R]) -> None:
        def completed() -> None:
            self._done.append(future)
            self._bell.ring()

        if not future._when_done(completed):
            completed()

    def __iter__(self) -> Iterator[Future[R]]:
        for number in range(len(self._left)):
            if not self._bell.wait(number + 1, self._until):
                raise self._too_late(number)
            yield self._done.popleft()

    async def __aiter__(self) -> AsyncIterator[Future[R]]:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Future[R]] = asyncio.Queue()
        for future in self._left:

            def completed(future: Future[R] = future) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(queue.put_nowait, future)

            if not future._when_done(completed):
                queue.put_nowait(future)
        for number in range(len(self._left)):
            try:
                async with asyncio.timeout(None if self._until is None else max(self._until - time.monotonic(), 0)):
                    future = await queue.get()
            except TimeoutError:
                raise self._too_late(number) from None
            yield future

    def _too_late(self, number: int) -> CallTimeout:
        left = len(self._left) - number
        return CallTimeout(f"{left} of {len(self._left)} futures were not done within {self._timeout:g} s; they go on")
