"""Event loops in virtual time: asyncio's own, whose selector hands the baton on instead of sleeping."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Mapping
from typing import Any

from .errors import SimulationError
from .lanes import Lane, Scheduler, Unwound

Spawn = Callable[[str, Callable[[], None]], None]


class LaneSelector(selectors.BaseSelector):
    """Waits for the loop's next timer, or for somebody to wake it. Real descriptors are looked at when it does."""

    def __init__(self, scheduler: Scheduler, inner: selectors.BaseSelector | None = None) -> None:
        self._scheduler = scheduler
        self._inner = inner
        self.loop: Any = None
        self.offset = 0.0  # of the loop's own time before the virtual one
        self.lane: Lane | None = None

    def _real(self) -> selectors.BaseSelector:
        if self._inner is None:
            self._inner = selectors.DefaultSelector()
        return self._inner

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real().register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real().unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map() if self._inner is not None else {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        scheduler, loop = self._scheduler, self.loop
        self.lane = scheduler.current
        if self._inner is not None and (events := self._inner.select(0)):
            return events
        if timeout is not None and timeout <= 0:
            scheduler.give_way()
            return []
        ready, timers = loop._ready, loop._scheduled
        until = timers[0]._when - self.offset if timers else None
        scheduler.wait(lambda: bool(ready), until, about="its event loop", polled=False)
        return []

    def wake(self) -> None:
        """Something has been put into the loop."""
        if self.lane is not None:
            self._scheduler.wake(self.lane)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()


class LaneLoop(asyncio.SelectorEventLoop):
    """asyncio's loop on a lane: timers are virtual, and threads that it starts are lanes."""

    def __init__(self, scheduler: Scheduler, spawn: Spawn) -> None:
        self._scheduler = scheduler
        self._spawn = spawn
        self._wakes = LaneSelector(scheduler)
        super().__init__(self._wakes)
        self._wakes.loop = self

    def time(self) -> float:
        return self._scheduler.now

    @property
    def _clock_resolution(self) -> float:
        """A timer goes off at its moment, never before."""
        return math.ulp(self._scheduler.now)

    @_clock_resolution.setter
    def _clock_resolution(self, value: float) -> None:
        """Not to be chosen."""

    def _make_self_pipe(self) -> None:
        self._ssock = self._csock = None

    def _close_self_pipe(self) -> None:
        """There is none."""

    def _write_to_self(self) -> None:
        self._wakes.wake()

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        return in_lane(self, self._spawn, func, args)

    def close(self) -> None:
        if not self.is_running() and not self.is_closed():
            abandon_tasks(self)
        super().close()


def abandon_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """End the coroutines that are still suspended now, and not when the collector finds them."""
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        try:
            task.get_coro().close()
        except (Unwound, RuntimeError):  # it waits again, or will not end
            continue


def in_lane(loop: Any, spawn: Spawn, func: Callable[..., Any], args: tuple[Any, ...]) -> asyncio.Future[Any]:
    """Run a blocking function on a lane of its own, as an executor would on a thread."""
    future: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    def work() -> None:
        try:
            value = func(*args)
        except Exception as error:  # noqa: BLE001 - it is the function's outcome
            loop.call_soon_threadsafe(settle, None, error)
        else:
            loop.call_soon_threadsafe(settle, value, None)

    spawn("executor", work)
    return future


class Adopted:
    """The test's own running loop, made virtual while the simulation lasts."""

    def __init__(self, loop: Any, scheduler: Scheduler, spawn: Spawn) -> None:
        if not isinstance(loop, asyncio.SelectorEventLoop):
            raise SimulationError(
                f"the running loop is a {type(loop).__module__}.{type(loop).__qualname__}, whose clock cannot be "
                "replaced: run the test on asyncio's own loop, or a coroutine by sim.run(...)"
            )
        self.loop = loop
        self._selector = loop._selector  # type: ignore[attr-defined]
        offset = loop.time() - scheduler.now
        selector = LaneSelector(scheduler, self._selector)
        selector.loop, selector.offset, selector.lane = loop, offset, scheduler.current
        own: dict[str, Any] = {
            "_selector": selector,
            "time": lambda: scheduler.now + offset,
            "_write_to_self": selector.wake,
            "run_in_executor": lambda executor, func, *args: in_lane(loop, spawn, func, args),
        }
        for name, value in own.items():
            setattr(loop, name, value)

    def give_back(self) -> None:
        """The loop lives in real time again."""
        self.loop._selector = self._selector  # type: ignore[attr-defined]
        for name in ("time", "_write_to_self", "run_in_executor"):
            delattr(self.loop, name)
