"""The agent's side of a zygote: start it, follow its imports, ask it for workers."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from . import frames, linux, output
from .plan import ADOPTED, OWNER_VARIABLE, WorkerPlan
from .reaper import Reaper, Watch
from .spec import THREAD_VARIABLES, ZygoteKey

_T = TypeVar("_T")
FORK_TIMEOUT = 60.0
_STILL_IMPORTING = 5.0
_LAST_WORDS = 1.0
_CHANNEL = 3  # the zygote's descriptor of its end of the socket pair


class ZygoteDied(Exception):
    """The zygote is gone; `importing` is the module it was busy with, if any."""

    def __init__(self, message: str, importing: str | None) -> None:
        super().__init__(message)
        self.importing = importing


class Unfit(Exception):
    """A preload left the zygote unfit to fork; `module` is None when it showed only later."""

    def __init__(self, module: str | None, reason: str) -> None:
        super().__init__(reason)
        self.module = module


@dataclass(frozen=True, slots=True)
class Answer:
    """A pid for each plan of a request, or the reason why there is none."""

    pids: tuple[int | str, ...]


def merged_env(base: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    env = dict(base)
    for key, value in changes.items():
        if value is None:
            env.pop(key, None)
        else:
            env[key] = value
    return env


def _spawn(sock: socket.socket, env: dict[str, str], log: Path) -> int:
    """posix_spawn, not fork: the agent may have threads."""
    fd = fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, 10)
    argv = [sys.executable, "-P", "-m", "roost.mesh.launch.zygote", str(_CHANNEL), str(os.getpid())]
    write_log = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        return os.posix_spawn(
            sys.executable,
            argv,
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), write_log, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                (os.POSIX_SPAWN_DUP2, fd, _CHANNEL),
            ],
            setsigmask=[signal.SIGINT, ADOPTED],
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, ADOPTED],
        )
    finally:
        os.close(fd)


class ZygoteHandle:
    """One running zygote. Requests are served one at a time; `notes` tell of preloads that failed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, reaper: Reaper, key: ZygoteKey, log: Path) -> None:
        self._loop = loop
        self._reaper = reaper
        self.key = key
        self.log = log
        self.notes: list[str] = []
        self.last_used = time.monotonic()
        self.in_flight = 0
        self._lock = asyncio.Lock()
        self._importing: str | None = None
        self._sock: socket.socket | None = None
        self._watch: Watch | None = None

    @property
    def pid(self) -> int | None:
        return None if self._watch is None else self._watch.pid

    @property
    def alive(self) -> bool:
        return self._watch is not None and not self._watch.done.done()

    def __repr__(self) -> str:
        state = "alive" if self.alive else "dead"
        return f"<{self.key} pid {self.pid} {state}, {self.in_flight} in flight>"

    async def start(self, preload: Sequence[str], progress: Callable[[str], None]) -> None:
        """Spawn it and wait, as long as it lives, until it has imported `preload`.

        Raises ZygoteDied, or Unfit naming the module after which it must not fork.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        changes = dict(self.key.env) | dict.fromkeys(THREAD_VARIABLES, "1")
        env = merged_env(os.environ, {OWNER_VARIABLE: None} | changes)
        try:
            pid = _spawn(theirs, env, self.log)
        except OSError as error:
            ours.close()
            raise ZygoteDied(f"the interpreter {sys.executable} cannot be started: {error}", None) from error
        finally:
            theirs.close()
        self._sock = ours
        self._watch = self._reaper.watch(pid, lambda status: None)
        first = frames.pack([list(preload), list(self.key.sys_path)])
        await self._alive(self._loop.sock_sendall(ours, first))
        began = time.monotonic()
        while (message := await self._next(progress, began))[0] != "ready":
            self._follow(message, progress)
        self._importing = None

    async def _next(self, progress: Callable[[str], None], began: float) -> list[Any]:
        reading = self._loop.create_task(self._alive(self._receive()))
        try:
            while not (await asyncio.wait({reading}, timeout=_STILL_IMPORTING))[0]:
                what = self._importing or "its own code"
                progress(f"zygote {self.pid} is still importing {what} ({time.monotonic() - began:.0f} s)")
            return reading.result()
        finally:
            reading.cancel()

    def _follow(self, message: list[Any], progress: Callable[[str], None]) -> None:
        kind, module = message[0], message[1]
        if kind == "importing":
            self._importing = module
            progress(f"zygote {self.pid} is importing {module}")
        elif kind == "failed":
            self.notes.append(f"preload {module!r} could not be imported, the worker is to try: {message[2]}")
        elif kind == "unfit":
            raise Unfit(module, message[2])

    async def fork(self, plans: Sequence[WorkerPlan], gate: int, wanted: Callable[[], bool]) -> Answer:
        """Fork the workers, if they are still `wanted` when it is their turn; each waits at `gate`.

        Raises ZygoteDied or Unfit, none having run then.
        """
        self.in_flight += 1
        try:
            async with self._lock:
                return await self._fork(plans, gate) if wanted() else Answer(())
        finally:
            self.in_flight -= 1
            self.last_used = time.monotonic()

    async def _fork(self, plans: Sequence[WorkerPlan], gate: int) -> Answer:
        if self._sock is None or not self.alive:
            raise ZygoteDied(self._epitaph(), None)
        frame = frames.pack([plan.to_wire() for plan in plans])
        head = frames.LENGTH.size
        try:
            # No request is ever outstanding here, so these few bytes always find room.
            socket.send_fds(self._sock, [frame[:head]], [gate])
            async with asyncio.timeout(FORK_TIMEOUT):
                await self._alive(self._loop.sock_sendall(self._sock, frame[head:]))
                message = await self._alive(self._receive())
        except TimeoutError as error:
            self.kill()
            reason = f"did not answer within {FORK_TIMEOUT:.0f} s"
            raise ZygoteDied(f"the zygote (pid {self.pid}) {reason}", None) from error
        except ConnectionError as error:
            raise await self._death() from error
        if message[0] == "refused":
            raise Unfit(None, message[1])
        return Answer(tuple(message[1]))

    async def _receive(self) -> list[Any]:
        assert self._sock is not None
        body = await self._exactly(frames.LENGTH.unpack(await self._exactly(frames.LENGTH.size))[0])
        return frames.unpack(body)

    async def _exactly(self, count: int) -> bytes:
        assert self._sock is not None
        data = b""
        while len(data) < count:
            got = await self._loop.sock_recv(self._sock, count - len(data))
            if not got:
                raise ConnectionResetError("the zygote closed its end")
            data += got
        return data

    async def _alive(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The result of `work`, or ZygoteDied when the process ends first."""
        assert self._watch is not None
        task = self._loop.create_task(work)
        either: set[asyncio.Future[Any]] = {task, self._watch.done}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():  # what it said before its death is still to be read, up to the end of file
                await asyncio.wait({task}, timeout=_LAST_WORDS)
            if not task.done():
                raise await self._death()
            return task.result()
        except ConnectionError as error:
            raise await self._death() from error
        finally:
            task.cancel()

    async def _death(self) -> ZygoteDied:
        """The error to raise once it is dead, or has closed its end and does not die."""
        assert self._watch is not None
        await asyncio.wait({self._watch.done}, timeout=_LAST_WORDS)
        self.kill()
        return ZygoteDied(self._epitaph(), self._importing)

    def _epitaph(self) -> str:
        """How it ended and its last words, in one sentence."""
        ending = "has not been started"
        if self._watch is not None and self._watch.done.done():
            status = self._watch.done.result()
            ending = f"ended with exit code {status.code}"
            if status.signal is not None:
                ending = f"was killed by {linux.signal_name(status.signal)}"
        elif self._watch is not None:
            ending = "closed its connection"
        tail = output.tail_lines(str(self.log), 5)
        said = f"; its last lines: {' | '.join(tail)}" if tail else ""
        return f"the zygote (pid {self.pid}) {ending}{said}"

    def kill(self) -> None:
        if self._watch is not None:
            self._watch.send(signal.SIGKILL)

    async def close(self, timeout: float) -> None:
        """Kill it (it holds nothing worth a goodbye) and wait until it is reaped."""
        self.kill()
        if self._watch is not None:
            await asyncio.wait({self._watch.done}, timeout=timeout)
        if self._sock is not None:
            self._sock.close()
            self._sock = None
