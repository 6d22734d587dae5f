"""Interrupts: an exception raised in the thread that runs an `interruptible` sync endpoint.

Python raises it where that thread stands, so it must stand in the user's code: an exception in Roost's own would leave
a lock taken or a frame half sent. Where the thread waits for another actor's answer, that call is cancelled instead,
which has the same effect in the user's code. Elsewhere in Roost, it is tried again a moment later.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from .context import Message, current_message
from .errors import CallCancelled
from .future import Future
from .link.io import IoThread
from .link.readers import _torn

R = TypeVar("R")

_AGAIN = 0.001  # seconds until the next try, doubled …
_AGAIN_MOST = 0.05  # … up to this
_STALE = 0.001  # seconds after which what was seen of a thread may be true no more
_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)
_NOTHING = ctypes.py_object()  # a null pointer: takes back what has not been raised yet


class Interrupted(CallCancelled):
    """What is raised in the endpoint; its text says why."""

    def __init__(self, *args: Any) -> None:
        if not args:
            message = current_message()
            reason = (message.cancelled if message is not None else None) or "its caller no longer waits"
            args = (reason,)
        super().__init__(*args)


class Interrupt:
    """Guards one run of an endpoint: `cancel` interrupts it, once, and only while it runs."""

    def __init__(self, io: IoThread) -> None:
        self._io = io
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._begun = self._asked = self._raised = self._over = False

    def run(self, function: Callable[..., R], *args: Any) -> R:
        """`function(*args)`, which may raise Interrupted; after it, nothing of the kind comes any more."""
        self._begun = True
        try:
            return function(*args)
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._over = True
            if self._raised:
                _raise_in(self._thread, _NOTHING)  # it may not have been raised yet

    def cancel(self, message: Message) -> None:
        """From any thread."""
        if not self._asked:
            self._asked = True
            self._io.call(self._try, _AGAIN)

    def _try(self, again: float) -> None:
        """On the I/O thread, which is never the one to be interrupted."""
        future: Future[Any] | None = None
        with self._lock:
            if self._over or self._raised:
                return
            seen = time.perf_counter()
            frame = sys._current_frames().get(self._thread)
            if self._begun and not _torn(frame):
                future = _awaited(frame)
                if future is None and time.perf_counter() - seen < _STALE:
                    _raise_in(self._thread, Interrupted)
                    self._raised = True
                    return
            del frame
        if future is not None:
            future.cancel("the endpoint that waited for it was cancelled")
        self._io.loop.call_later(again, self._try, min(2 * again, _AGAIN_MOST))


def _awaited(frame: FrameType | None) -> Future[Any] | None:
    """The future whose value a thread waits for, if it stands in Roost's own wait."""
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(__package__ or "?"):
        if frame.f_code.co_name == "_wait":
            found = frame.f_locals.get("self")
            return found if isinstance(found, Future) else None
        frame = frame.f_back
    return None
