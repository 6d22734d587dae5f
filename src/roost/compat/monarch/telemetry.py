"""`get_meter`, `span` and `traced`: opentelemetry's where it is installed, else objects that do nothing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

_metrics: Any = None
_trace: Any = None
try:
    _metrics, _trace = import_module("opentelemetry.metrics"), import_module("opentelemetry.trace")
except ImportError:
    pass  # spans and counters then do nothing

_NAME = "roost.compat.monarch"


class Instrument:
    """A counter, histogram or gauge that nobody reads."""

    def __init__(self, name: str) -> None:
        self.name = name

    def add(self, amount: float, attributes: Any = None, context: Any = None) -> None:
        """Count nothing."""

    def record(self, amount: float, attributes: Any = None, context: Any = None) -> None:
        """Record nothing."""

    set = record


class Meter:
    """Makes instruments that nobody reads."""

    def _make(self, name: str, *args: Any, **kwargs: Any) -> Instrument:
        return Instrument(name)

    create_counter = create_up_down_counter = create_histogram = create_gauge = _make
    create_observable_counter = create_observable_up_down_counter = create_observable_gauge = _make


def get_meter() -> Any:
    """A meter of opentelemetry's, or one that does nothing where that is not installed.

    >>> get_meter().create_counter("steps").add(1)
    """
    return Meter() if _metrics is None else _metrics.get_meter(_NAME)


def span(name: str) -> AbstractContextManager[Any]:
    """A context that is traced under this name."""
    return nullcontext() if _trace is None else _trace.get_tracer(_NAME).start_as_current_span(name)


def traced(fn: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """Decorate a function, sync or async, so that each call is a span.

    >>> @traced(name="double")
    ... def double(x): return 2 * x
    >>> double(4)
    8
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        title = name or function.__qualname__

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with span(title):
                return await function(*args, **kwargs)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with span(title):
                return function(*args, **kwargs)

        return run_async if inspect.iscoroutinefunction(function) else run

    return decorate if fn is None else decorate(fn)
