"""`monarch.experimental.thread_timeout`: an exception in a thread that takes too long."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any


class ThreadTimeoutError(BaseException):
    """The block took longer than it may."""


class ThreadTimeout:
    """Raises ThreadTimeoutError in the thread that runs the block, or the decorated function, when `seconds` pass.

    It is raised between two bytecodes: a thread that waits in C code, such as `time.sleep`, notices afterwards.

    >>> with ThreadTimeout(5.0):
    ...     1 + 1
    2
    """

    def __init__(self, seconds: float) -> None:
        if seconds <= 0:
            raise ValueError(f"a timeout is more than 0 seconds, not {seconds!r}")
        self.seconds = seconds
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with ThreadTimeout(self.seconds):
                return function(*args, **kwargs)

        return run

    def __enter__(self) -> ThreadTimeout:
        if self._timer is not None:
            raise RuntimeError("this ThreadTimeout has been entered already; make another")
        thread = threading.get_ident()
        self._timer = threading.Timer(self.seconds, self._expire, (thread,))
        self._timer.daemon = True
        self._timer.start()
        return self

    def _expire(self, thread: int) -> None:
        with self._lock:  # not while the block is being left
            if self._timer is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(ThreadTimeoutError))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
