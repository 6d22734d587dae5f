"""Future: the answer that will come, for scripts, notebooks, sync endpoints and any event loop.

One object a call, no chain of futures: a waiter is a bare lock that the I/O thread releases (83 us a round
trip through `concurrent.futures`, 70 us through a lock, two idle cores). What arrived is unpickled by whoever
asks for it, never on the I/O thread.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import warnings
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .errors import CallCancelled, CallTimeout
from .link.readers import block
from .policy import policy

R = TypeVar("R")

_PENDING, _RAW, _DONE, _FAILED, _CANCELLED = range(5)
_NAMES = ("pending", "done", "done", "failed", "cancelled")
# A `get` without timeout still wakes this often, so that a signal handler set by the user runs.
_SLICE = 3600.0


class Future(Generic[R]):
    """An answer that will come.

    `get(timeout)` and `await` both work, from any thread and any loop, any number of times. A `get` whose timeout
    (seconds) passes, a `cancel()`, and the cancellation of an awaiting task all cancel the call at the actor too: a
    queued call is dropped, an async endpoint's task is cancelled, a running sync endpoint is told by
    `context().cancelled`. Raises what the endpoint raised, `ActorDied`, `Unreachable`, `CallTimeout`.

    >>> from roost.actors.future import Future
    >>> future = Future.completed(3)
    >>> future.get(timeout=1), future.done()
    (3, True)
    """

    __slots__ = ("__weakref__", "_callbacks", "_failure", "_lock", "_note", "_state", "_value", "_waiters")

    def __init__(self) -> None:
        self._state = _PENDING
        self._value: Any = None
        self._waiters: list[Callable[[], object]] | None = None
        self._callbacks: list[Callable[[Future[R]], object]] | None = None
        self._lock = threading.Lock()
        self._note = ""
        self._failure: Any = None

    @classmethod
    def completed(cls, value: R) -> Future[R]:
        """A future that is done already."""
        future = Future[R]()
        future._state, future._value = _DONE, value
        return future

    @classmethod
    def failed(cls, error: BaseException) -> Future[R]:
        """A future that has failed already."""
        future = Future[R]()
        future._state, future._value = _FAILED, error
        return future

    def __repr__(self) -> str:
        about = self._about()
        note = f", {self._note}" if self._note else ""
        return f"<Future{' of ' + about if about else ''}: {_NAMES[self._state]}{note}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"a Future has no {name!r}: get() it, or await it, and ask the value that it gives")

    def __reduce__(self) -> Any:
        raise TypeError("a Future cannot be sent to another process: get() it, and send what it gives")

    # what subclasses say

    def _about(self) -> str:
        return ""

    def _flush(self) -> None:
        """Called before somebody waits."""

    def _settled(self) -> None:
        """Called once, when it has been completed."""

    def _decode(self, raw: Any) -> R:
        """Turn what arrived into the value, in the thread that asks; may raise."""
        value: R = raw
        return value

    def _cancel_remote(self, reason: str) -> None:
        """Tell the actors; called once, after the future is cancelled here."""

    def _timed_out(self, timeout: float) -> None:
        """A `get(timeout)` has waited in vain: cancel."""
        error = CallTimeout(f"{self._about() or 'the call'} gave no answer within {timeout:g} s and was cancelled")
        if self._settle(_CANCELLED, error):
            self._cancel_remote("timed out at the caller")

    # completion, on the I/O thread (or wherever the answer arises)

    def _settle(self, state: int, value: Any) -> bool:
        """Complete once; False when it was complete already."""
        with self._lock:
            if self._state != _PENDING:
                return False
            self._value = value
            self._state = state
            waiters, self._waiters = self._waiters, None
            callbacks, self._callbacks = self._callbacks, None
        if waiters:
            for wake in waiters:
                wake()
        if callbacks:
            for callback in callbacks:
                _callback_thread().put((callback, self))
        self._settled()
        return True

    def set_result(self, value: R) -> bool:
        """Complete with a value; False when it was complete already."""
        return self._settle(_DONE, value)

    def set_raw(self, raw: Any) -> bool:
        """Complete with something that `_decode` turns into the value when it is asked for."""
        return self._settle(_RAW, raw)

    def set_exception(self, error: BaseException) -> bool:
        """Complete with an exception; False when it was complete already."""
        return self._settle(_FAILED, error)

    def _when_done(self, wake: Callable[[], object]) -> bool:
        """Call `wake` on completion, in the completing thread; it must be quick. False: complete already."""
        with self._lock:
            if self._state != _PENDING:
                return False
            if self._waiters is None:
                self._waiters = [wake]
            else:
                self._waiters.append(wake)
            return True

    def _forget(self, wake: Callable[[], object]) -> None:
        with self._lock:
            if self._waiters and wake in self._waiters:
                self._waiters.remove(wake)

    # for users

    def done(self) -> bool:
        """Whether `get` would return, or raise, at once."""
        return self._state != _PENDING

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._state == _CANCELLED

    def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Cancel the call, here and at the actors; False when it was complete already.

        The future is complete at once. What became of the call at the actor (never started, ended, still running
        because a sync endpoint cannot be interrupted) is told by `repr` and `exception()` when the actor has answered.
        """
        if not self._settle(_CANCELLED, CallCancelled(f"{self._about() or 'the call'}: {reason}")):
            return False
        self._cancel_remote(reason)
        return True

    def get(self, timeout: float | None = None) -> R:
        """Wait for the answer, at most `timeout` seconds, and return it or raise.

        Works in a script, in a notebook cell, and in a sync endpoint. In a coroutine use `await`, or this blocks its
        loop. Raises CallTimeout (a TimeoutError) when the time has passed; the call is then cancelled.
        """
        if asyncio._get_running_loop() is not None and policy().warn_get_in_loop:
            warnings.warn("get() blocks the active event loop of this thread: await the future", stacklevel=2)
        if self._state == _PENDING and not self._wait(timeout):
            if not policy().timeout_cancels:
                raise CallTimeout(f"{self._about() or 'the call'} gave no answer within {timeout:g} s; it goes on")
            assert timeout is not None
            self._timed_out(timeout)
        return self._result()

    result = get

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait and return the exception instead of raising it; None when there is none."""
        try:
            self.get(timeout)
        except Exception as error:  # noqa: BLE001 - it is the answer here
            return error
        return None

    def _wait(self, timeout: float | None) -> bool:
        self._flush()
        lock = threading.Lock()
        lock.acquire()
        if not self._when_done(lock.release):
            return True
        try:
            if timeout is not None:
                return block(lock, min(max(timeout, 0), threading.TIMEOUT_MAX))
            while not block(lock, _SLICE):
                pass
            return True
        except BaseException:  # Ctrl-C: nobody waits for this call any more
            self.cancel("the wait for it was interrupted")
            raise
        finally:
            self._forget(lock.release)

    def _result(self) -> R:
        state = self._state
        if state == _RAW:
            with self._lock:
                if self._state == _RAW:
                    try:
                        self._value = self._decode(self._value)
                        self._state = _DONE
                    except Exception as error:  # noqa: BLE001 - kept, and raised below
                        self._value = error
                        self._state = _FAILED
            state = self._state
        if state == _DONE:
            value: R = self._value
            return value
        if self._failure is not None:
            self._failure.delivered()
        if self._note and state == _CANCELLED:
            noted = type(self._value)(f"{self._value.args[0]} ({self._note})")
            noted.__dict__.update(self._value.__dict__)
            raise noted
        raise self._value

    def __await__(self) -> Generator[Any, None, R]:
        if self._state == _PENDING:
            self._flush()
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()

            def set_waiter() -> None:
                if not waiter.done():
                    waiter.set_result(None)

            def wake() -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(set_waiter)

            if self._when_done(wake):
                try:
                    yield from waiter
                except asyncio.CancelledError:
                    self._forget(wake)
                    self.cancel("the task that awaited it was cancelled")
                    raise
        return self._result()

    def as_asyncio(self) -> asyncio.Task[R]:
        """An asyncio task of the running loop that awaits this future."""

        async def wait() -> R:
            return await self

        return asyncio.get_running_loop().create_task(wait())

    def add_done_callback(self, callback: Callable[[Future[R]], object]) -> None:
        """Call `callback(self)` when done, on Roost's callback thread (never on the I/O thread)."""
        with self._lock:
            if self._state == _PENDING:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        _callback_thread().put((callback, self))

    def __del__(self) -> None:
        failure = getattr(self, "_failure", None)  # a constructor may have been interrupted
        if failure is not None:
            failure.dropped()
        elif getattr(self, "_state", _PENDING) == _RAW:
            self._unseen()

    def _unseen(self) -> None:
        """It is thrown away with an answer that nobody has asked for."""


class _CallbackThread:
    """Runs users' done callbacks one after the other; errors go to the threading excepthook."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Callable[[Any], object], Any]] = queue.SimpleQueue()
        threading.Thread(target=self._main, name="roost-callbacks", daemon=True).start()

    def put(self, item: tuple[Callable[[Any], object], Any]) -> None:
        self._queue.put(item)

    def _main(self) -> None:
        while True:
            callback, future = self._queue.get()
            try:
                callback(future)
            except Exception as error:  # noqa: BLE001 - the next callback must still run
                threading.excepthook(
                    threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
                )
            del callback, future


_callbacks: _CallbackThread | None = None
_callbacks_lock = threading.Lock()


def _callback_thread() -> _CallbackThread:
    global _callbacks
    with _callbacks_lock:
        if _callbacks is None:
            _callbacks = _CallbackThread()
        return _callbacks


def reset_after_fork() -> None:
    """A forked child has none of its parent's threads."""
    global _callbacks
    _callbacks = None


def deadline(timeout: float | None) -> float | None:
    """The monotonic time at which `timeout` seconds will have passed."""
    return None if timeout is None else time.monotonic() + timeout
