"""Who reads the sockets: the I/O thread, or the thread that waits for what comes.

A thread that only waits for an answer, or an actor's home thread that is idle, may *lead*: it waits on the sockets
itself and dispatches what it reads, and the I/O thread keeps its hands off meanwhile. That saves a wake, two changes of
the GIL's owner and a futex a direction: a round trip is 2 wakes instead of 4. While nobody leads, that is while user
code runs, the I/O thread reads.

    inner epoll: the sockets of all links, and an eventfd that wakes the leader
    outer epoll: the inner one; the event loop watches the outer, and a leader disarms the inner in it (0.4 us)

Dispatch holds one lock, whichever thread it runs on, so there is one reader at a time. On the main thread it must not
be torn by a signal handler that raises: there a thread leads only under Roost's own SIGINT handler, which lets a Ctrl-C
come again a millisecond later where it would.
"""

from __future__ import annotations

import _thread
import asyncio
import functools
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import Any

IN = select.EPOLLIN
_MAIN = threading.main_thread().ident


class Readers:
    """The readable side of one process's links."""

    def __init__(self) -> None:
        self._inner = select.epoll()
        self._outer = select.epoll()
        self._outer.register(self._inner.fileno(), IN)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._inner.register(self._bell, IN)
        self._links: dict[int, Callable[[], None]] = {}
        self._lead = threading.Lock()
        self._bell_lock = threading.Lock()  # the bell is rung only while somebody leads, and silenced by who leads
        self._rung = False
        self._closed = False
        self.dispatching = threading.RLock()
        self.leader: object | None = None  # on whose behalf a thread leads
        self._leader_thread = 0
        self.led = 0  # how often a thread has led

    def __repr__(self) -> str:
        return f"<Readers of {len(self._links)} links{', led' if self.leader is not None else ''}>"

    def fileno(self) -> int:
        """What the event loop watches."""
        return self._outer.fileno()

    @property
    def closed(self) -> bool:
        """Whether the process has left its job."""
        return self._closed

    def add(self, fd: int, readable: Callable[[], None]) -> None:
        """Read a socket from now on; from any thread."""
        self._links[fd] = readable
        self._inner.register(fd, IN)

    def remove(self, fd: int) -> None:
        """Read it no more; from any thread; harmless when it is not read."""
        if self._links.pop(fd, None) is not None and not self._closed:
            try:
                self._inner.unregister(fd)
            except OSError:  # closed already: the kernel has forgotten it
                return

    def ready(self) -> None:
        """The loop says that something can be read: read it, unless a leader does."""
        if self._closed or self.leader is not None:
            return
        self._read(self._inner.poll(0, 64))

    def _read(self, events: list[tuple[int, int]]) -> None:
        links = self._links
        for fd, _ in events:
            readable = links.get(fd)
            if readable is not None:
                with self.dispatching:
                    readable()

    def _silence(self) -> None:
        """Under the bell's lock, by who leads."""
        if self._rung:
            self._rung = False
            os.eventfd_read(self._bell)

    def wait(self, who: object, over: Callable[[], bool], timeout: float | None) -> bool:
        """Lead until `over()`, or for `timeout` seconds; False when this thread cannot lead now, or time is up.

        What makes `over()` true on another thread must then call `wake(who)`.
        """
        if self._closed or not self._lead.acquire(blocking=False):
            return False
        main = threading.get_ident() == _MAIN
        if main and not interrupts_wait():
            self._lead.release()
            return False
        until = None if timeout is None else time.monotonic() + timeout
        try:
            self.leader, self._leader_thread = who, threading.get_ident()
            self._outer.modify(self._inner.fileno(), 0)
            self.led += 1
            while not over():
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return False
                events = _poll(self._inner, left)
                if self._rung:
                    with self._bell_lock:
                        self._silence()
                self._read(events)
                if self.closed:
                    return over()
            return True
        finally:
            with self._bell_lock:
                self.leader = None
                if not self._closed:
                    self._silence()
            if not self._closed:
                self._outer.modify(self._inner.fileno(), IN)
            self._lead.release()

    def wake(self, who: object) -> None:
        """Something that `who` waits for has happened on this thread."""
        if self.leader is not who or threading.get_ident() == self._leader_thread:
            return
        with self._bell_lock:
            if self.leader is who and not self._closed and not self._rung:
                self._rung = True
                os.eventfd_write(self._bell, 1)

    def abandon(self) -> None:
        """In a forked child: the epolls are the parent's, let go of them."""
        self._closed = True
        for fd in (self._inner.fileno(), self._outer.fileno(), self._bell):
            os.close(fd)

    def close(self) -> None:
        """Close the epolls; a leader returns."""
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._bell, 1)
        if self._lead.acquire(timeout=1.0):
            self._outer.close()
            self._inner.close()
            os.close(self._bell)
            self._lead.release()


# Waiting, and Ctrl-C


def block(lock: threading.Lock, timeout: float) -> bool:
    """Wait for a lock; a signal handler may raise here."""
    return lock.acquire(timeout=timeout)


def _poll(poll: select.epoll, timeout: float | None) -> list[tuple[int, int]]:
    """Wait for sockets; a signal handler may raise here."""
    return poll.poll(timeout, 64)


_WAITING = frozenset([block.__code__, _poll.__code__])
_OWN = __name__.partition(".")[0]
# Code of the library that Roost's own calls: an interrupt in it is one in Roost.
_HELPERS = frozenset(
    [
        "asyncio",
        "concurrent",
        "contextlib",
        "ctypes",
        "enum",
        "importlib",
        "logging",
        "os",
        "pathlib",
        "queue",
        "random",
        "secrets",
        "selectors",
        "shutil",
        "socket",
        "subprocess",
        "tempfile",
        "threading",
        "traceback",
        "uuid",
        "weakref",
    ]
)
_RETRY = 0.001  # seconds until a Ctrl-C that came at a bad moment comes again
_ending: list[BaseException] = []  # what the next interrupt raises instead of KeyboardInterrupt …
_ended: list[bool] = []  # … once
_getsignal = import_module("_signal").getsignal  # signal.getsignal turns numbers into enums, for 4 us a call
_SIGINT = int(signal.SIGINT)


def _torn(frame: FrameType | None) -> bool:
    """Whether an exception raised at this point of the main thread would tear Roost's own state.

    It would anywhere in Roost's code but where it waits: a frame that is kept and not sent, a lock that is taken and
    not given back, leave a program that hangs later. In user code, also where Roost calls it, nothing of that is
    going on.
    """
    while frame is not None:
        module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if module == _OWN:
            return frame.f_code not in _WAITING
        if module not in _HELPERS:
            return False
        frame = frame.f_back
    return False


def _on_interrupt(number: int, frame: FrameType | None) -> Any:
    """SIGINT: KeyboardInterrupt, but never where it would tear Roost's state; then it comes again a moment later."""
    if _torn(frame):
        _thread.start_new_thread(_interrupt_again, (bool(_ending),))
        return
    if _ending:
        raise _ending.pop()
    signal.default_int_handler(number, frame)


def interrupt_with(error: BaseException) -> None:
    """Interrupt the main thread, which raises `error`; from any thread. Under a user's handler that is called instead.

    By a real signal: `_thread.interrupt_main` does not end a wait for a lock, such as `Future.get`.
    """
    main = threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    if not main.is_alive() or main.ident is None or not callable(handler):
        return
    loop = _loop_of(handler)
    if handler is _on_interrupt or loop is not None:
        if _ended:
            return
        _ended.append(True)
    if loop is not None:
        loop.call_soon_threadsafe(_raise, error)
        return
    if handler is _on_interrupt:
        _ending[:] = [error]
    signal.pthread_kill(main.ident, signal.SIGINT)


def _loop_of(handler: Any) -> asyncio.AbstractEventLoop | None:
    """The loop of the `asyncio.run` whose own SIGINT handler this is: it makes a KeyboardInterrupt of any signal."""
    task = handler.keywords.get("main_task") if isinstance(handler, functools.partial) else None
    return task.get_loop() if isinstance(task, asyncio.Task) else None


def _raise(error: BaseException) -> None:
    raise error


def _interrupt_again(ending: bool) -> None:
    time.sleep(_RETRY)
    main = threading.main_thread()
    if main.is_alive() and main.ident is not None and (_ending or not ending):
        signal.pthread_kill(main.ident, signal.SIGINT)


def install_interrupt_handler() -> None:
    """Replace Python's own SIGINT handler by one that spares Roost's state; a user's own handler is left alone."""
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):
        signal.signal(signal.SIGINT, _on_interrupt)


def restore_interrupt_handler() -> None:
    """Python's own handler again."""
    _ending.clear()
    _ended.clear()
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is _on_interrupt:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_quiet_handlers: set[Any] = {_on_interrupt, signal.SIG_IGN, signal.SIG_DFL}


def is_quiet(handler: Any) -> None:
    """A SIGINT handler that never raises: under it the main thread may lead."""
    _quiet_handlers.add(handler)


def interrupts_wait() -> bool:
    """Whether Ctrl-C cannot tear a dispatch on the main thread."""
    return _getsignal(_SIGINT) in _quiet_handlers
