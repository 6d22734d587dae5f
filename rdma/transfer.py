"""The result of a one-sided read or write."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

from .errors import TransferTimeout
from .handle import Handle


@dataclass(frozen=True, slots=True)
class Moved:
    """What a finished transfer did: `backend` is "local", "cma" or "tcp"."""

    backend: str
    nbytes: int
    seconds: float

    def __str__(self) -> str:
        rate = self.nbytes / self.seconds / 1e9 if self.seconds else 0.0
        return f"{self.nbytes:,} bytes in {self.seconds * 1e3:.3f} ms ({rate:.2f} GB/s) by {self.backend}"


class Transfer:
    """A transfer that has been started; its result is None, or the RDMAError it ended with.

    May be waited for from any thread and awaited from any event loop, by several at once. Cancelling an await
    leaves the transfer running.
    """

    __slots__ = ("_callbacks", "_error", "_handle", "_lock", "_moved", "_write")

    def __init__(self, handle: Handle, write: bool) -> None:
        self._handle, self._write = handle, write
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Transfer], object]] | None = []
        self._error: Exception | None = None
        self._moved: tuple[str, int, float] | None = None

    def end(self, backend: str, nbytes: int, seconds: float, error: Exception | None) -> None:
        """Finish what was done before anyone else saw it."""
        self._callbacks = None
        self._error = error
        if error is None:
            self._moved = (backend, nbytes, seconds)

    @property
    def moved(self) -> Moved | None:
        """Bytes, seconds and backend of a transfer that has succeeded."""
        return None if self._moved is None else Moved(*self._moved)

    def done(self) -> bool:
        return self._callbacks is None

    def exception(self, timeout: float | None = 0) -> Exception | None:
        """The error of a finished transfer, else None; with a `timeout` in seconds (None: any time) wait for the end,
        else TransferTimeout.
        """
        if timeout != 0:
            try:
                self.get(timeout)
            except Exception as error:
                if not self.done():
                    raise
                return error
        return self._error

    def get(self, timeout: float | None = None) -> None:
        """Wait for the end; TransferTimeout after `timeout` seconds, and the transfer goes on."""
        if self._callbacks is not None:
            woken = threading.Event()
            self.add_done_callback(lambda _: woken.set())
            if not woken.wait(timeout):
                raise TransferTimeout(f"the {self._what()} is still running after {timeout} s of waiting")
        if self._error is not None:
            raise self._error

    result = get

    def as_asyncio(self) -> asyncio.Task[None]:
        """An asyncio task of the running loop that awaits this transfer."""

        async def wait() -> None:
            await self

        return asyncio.get_running_loop().create_task(wait())

    def add_done_callback(self, callback: Callable[[Transfer], object]) -> None:
        """Call `callback(self)` at the end, on the thread that ends it; at once, here, if it has ended."""
        with self._lock:
            if self._callbacks is not None:
                self._callbacks.append(callback)
                return
        callback(self)

    def __await__(self) -> Generator[object, None, None]:
        if self._callbacks is not None:
            loop = asyncio.get_running_loop()
            woken = loop.create_future()

            def wake(_: Transfer) -> None:
                try:
                    loop.call_soon_threadsafe(_set, woken)
                except RuntimeError:
                    pass  # the loop that waited is closed

            self.add_done_callback(wake)
            yield from woken
        self.get(0)

    def run(self, nbytes: int, work: Callable[[], str]) -> None:
        """Do `work`, which returns the backend it used, on this thread, and finish with its outcome."""
        begin = time.perf_counter()
        try:
            backend = work()
        except Exception as error:  # noqa: BLE001 - belongs to whoever waits
            self._error = error
        else:
            self._moved = (backend, nbytes, time.perf_counter() - begin)
        with self._lock:
            callbacks, self._callbacks = self._callbacks or [], None
        for callback in callbacks:
            callback(self)

    def _what(self) -> str:
        return f"{'write to' if self._write else 'read of'} {self._handle.layout} of {self._handle.owner}"

    def __repr__(self) -> str:
        if not self.done():
            state = "running"
        else:
            state = repr(self._error) if self._error is not None else str(self.moved)
        return f"<Transfer: {self._what()}: {state}>"


def _set(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
