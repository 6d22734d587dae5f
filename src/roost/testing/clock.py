"""The clock of a simulation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .lanes import Scheduler


class Clock:
    """Virtual time, in seconds since the simulation began.

    It stands still while anything can run; when nothing can, it jumps to the next moment somebody waits for.
    asyncio's sleeps and timeouts follow it, and so do timeouts given to Roost.

    >>> from roost import testing
    >>> with testing.simulate() as sim:
    ...     sim.clock.advance(3600)
    ...     sim.clock.now
    3600.0
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._began = time.time()

    def __repr__(self) -> str:
        return f"<Clock at {self.now:g} s>"

    @property
    def now(self) -> float:
        """Virtual seconds since the simulation began."""
        return self._scheduler.now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass; returns when all that was due by then has been done. Blocks: not for coroutines."""
        if seconds < 0:
            raise ValueError(f"the clock does not go back: advance({seconds:g})")
        scheduler = self._scheduler
        scheduler.allowed = max(scheduler.allowed, scheduler.now + seconds)
        scheduler.sleep(seconds)
        self.settle()

    def settle(self) -> None:
        """Let everything run that can run without time passing."""
        self._scheduler.wait(lambda: False, last=True, polled=False, about="everything else to come to rest")

    @contextmanager
    def patch_time(self) -> Iterator[None]:
        """`time.sleep`, `time.monotonic` and `time.time` follow the clock too, in the simulation's own threads."""
        scheduler = self._scheduler
        real: dict[str, Callable[..., Any]] = {
            name: getattr(time, name) for name in ("sleep", "monotonic", "time", "monotonic_ns", "time_ns")
        }
        began = self._began
        virtual: dict[str, Callable[..., Any]] = {
            "sleep": scheduler.sleep,
            "monotonic": lambda: scheduler.now,
            "time": lambda: began + scheduler.now,
            "monotonic_ns": lambda: int(scheduler.now * 1e9),
            "time_ns": lambda: int((began + scheduler.now) * 1e9),
        }

        def either(name: str) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                return virtual[name](*args) if scheduler.here() else real[name](*args)

            return call

        for name in real:
            setattr(time, name, either(name))
        try:
            yield
        finally:
            for name, function in real.items():
                setattr(time, name, function)
