"""The threads that move bytes.

Daemon threads, started on need and kept: concurrent.futures would join them at exit, and a transfer from a
stopped process would then hang the interpreter's end. A transfer that pays for it is cut into pieces which
its own thread and any idle ones claim in turn, so nobody ever waits for a thread that is not already at work.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

MAX_THREADS = 16  # transfers that wait on sockets, mostly asleep
HELPERS = min(os.cpu_count() or 1, 4) - 1  # beside the transfer's own thread: two already fill two cores' memory bus


class Pool:
    """A queue of jobs and up to `MAX_THREADS` threads; jobs catch their own exceptions."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._free = 0  # threads waiting, less jobs queued

    def submit(self, job: Callable[[], None]) -> None:
        with self._lock:
            thread = None
            if self._free <= 0 and len(self._threads) < MAX_THREADS:
                thread = threading.Thread(target=self._run, name="roost-rdma", daemon=True)
                self._threads.append(thread)
            else:
                self._free -= 1
        self._jobs.put(job)
        if thread is not None:
            thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # before waiting: it holds a handle and the caller's memory
            with self._lock:
                self._free += 1

    def stop(self, timeout: float) -> None:
        """End the threads once the jobs before are done; gives up on a busy one after `timeout` seconds."""
        until = time.monotonic() + timeout
        with self._lock:
            threads, self._threads = self._threads, []
        for _ in threads:
            self._jobs.put(None)
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0))

    def each(self, pieces: int, work: Callable[[int], None]) -> None:
        """Run `work(0)` to `work(pieces - 1)` here and on up to HELPERS other threads; raises the first
        error.
        """
        if pieces > 1 and HELPERS:
            _Shared(pieces, work).run(self)
        else:
            for i in range(pieces):
                work(i)


class _Shared:
    """One piece of work claimed by several threads."""

    def __init__(self, pieces: int, work: Callable[[int], None]) -> None:
        self._pieces, self._work = pieces, work
        self._next = itertools.count()
        self._change = threading.Condition()
        self._helping = 0
        self._closed = False
        self._error: Exception | None = None

    def run(self, pool: Pool) -> None:
        for _ in range(min(HELPERS, self._pieces - 1)):
            pool.submit(self._help)
        try:
            self._claim()
        finally:
            with self._change:
                self._closed = True
                while self._helping:
                    self._change.wait()
        if self._error is not None:
            raise self._error

    def _help(self) -> None:
        with self._change:
            if self._closed:
                return
            self._helping += 1
        self._claim()
        with self._change:
            self._helping -= 1
            self._change.notify()

    def _claim(self) -> None:
        while self._error is None and (i := next(self._next)) < self._pieces:
            try:
                self._work(i)
            except Exception as error:  # noqa: BLE001 - raised by run() in the transfer's thread
                self._error = self._error or error


_pool = Pool()


def pool() -> Pool:
    return _pool


def stop(timeout: float) -> None:
    """End this process's threads; the next transfer starts others."""
    global _pool
    old, _pool = _pool, Pool()
    old.stop(timeout)


def _after_fork() -> None:
    global _pool
    _pool = Pool()  # its threads are not in the child


os.register_at_fork(after_in_child=_after_fork)
