"""Deaths of our own children, each told once, by the process itself.

A pidfd becomes readable when its process is a zombie (0.8 ms after the kill); then that very pid is
reaped, never "any child", so asyncio's and uvloop's own watchers and `subprocess` keep theirs. Where
there is no pidfd (kernels before 5.3, some sandboxes) the pids are asked in turn: a SIGCHLD handler
would have to share the one slot uvloop's libuv occupies.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from . import linux

_POLL_SECONDS = 0.02


class Watch:
    """One child under watch; `done` resolves to its ExitStatus after the callback has run."""

    def __init__(self, pid: int, pidfd: int | None, done: asyncio.Future[linux.ExitStatus]) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.done = done

    def send(self, sig: int) -> bool:
        """Signal the process; False when it is dead. A pid not yet reaped cannot be another's."""
        if self.done.done():
            return False
        try:
            if self.pidfd is not None:
                signal.pidfd_send_signal(self.pidfd, sig)
            else:
                os.kill(self.pid, sig)
        except ProcessLookupError:
            return False
        return True

    def __repr__(self) -> str:
        return f"<Watch pid {self.pid} {'dead' if self.done.done() else 'alive'}>"


class Reaper:
    """Calls back once for each watched child, on the loop, after reaping it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, use_pidfd: bool = True) -> None:
        self._loop = loop
        self._use_pidfd = use_pidfd
        self._polled: dict[int, tuple[Watch, Callable[[linux.ExitStatus], None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._watched: set[int] = set()

    def __contains__(self, pid: int) -> bool:
        return pid in self._watched

    def watch(self, pid: int, on_death: Callable[[linux.ExitStatus], None]) -> Watch:
        """Watch `pid`, a child of this process that nobody has reaped (dead or alive)."""
        try:
            pidfd = linux.open_pidfd(pid) if self._use_pidfd else None
        except ProcessLookupError:
            pidfd = None  # somebody else has reaped it: asking for it says so
        watch = Watch(pid, pidfd, self._loop.create_future())
        self._watched.add(pid)
        if pidfd is None:
            self._polled[pid] = (watch, on_death)
            self._schedule()
        else:
            self._loop.add_reader(pidfd, self._look, watch, on_death)
        return watch

    def _look(self, watch: Watch, on_death: Callable[[linux.ExitStatus], None]) -> None:
        status = linux.collect(watch.pid)
        if status is None:
            return
        self._watched.discard(watch.pid)
        if watch.pidfd is None:
            self._polled.pop(watch.pid, None)
        else:
            self._loop.remove_reader(watch.pidfd)
            os.close(watch.pidfd)
            watch.pidfd = None
        watch.done.set_result(status)
        on_death(status)

    def _schedule(self) -> None:
        if self._timer is None and self._polled:
            self._timer = self._loop.call_later(_POLL_SECONDS, self._poll)

    def _poll(self) -> None:
        self._timer = None
        for watch, on_death in list(self._polled.values()):
            self._look(watch, on_death)
        self._schedule()
