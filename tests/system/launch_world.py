"""What the launcher's tests share: a launcher whose end is checked, and a channel to its workers."""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from roost.mesh.launch import ExitReport, Launched, Launcher, LaunchError, ProcSpec, linux

PATIENCE = 30.0
"""A bound for waits that take milliseconds on a quiet machine."""


class Channel:
    """Lines from workers to the test through a named pipe; workers open it by path (`say` in SAY)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._data = b""

    async def line(self) -> str:
        deadline = time.monotonic() + PATIENCE
        while b"\n" not in self._data:
            loop = asyncio.get_running_loop()
            readable = asyncio.Event()
            loop.add_reader(self._fd, readable.set)
            try:
                await asyncio.wait_for(readable.wait(), deadline - time.monotonic())
            finally:
                loop.remove_reader(self._fd)
            self._data += os.read(self._fd, 65536)
        line, _, self._data = self._data.partition(b"\n")
        return line.decode()

    async def lines(self, count: int) -> list[str]:
        return [await self.line() for _ in range(count)]

    def pending(self) -> bytes:
        """What has been said and not read yet."""
        try:
            self._data += os.read(self._fd, 65536)
        except BlockingIOError:
            pass
        return self._data

    def close(self) -> None:
        os.close(self._fd)


SAY = """
import os, sys, signal, time
def say(*words):
    fd = os.open({path!r}, os.O_WRONLY)
    os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    os.close(fd)
def forever():
    while True:
        signal.pause()
"""


class World:
    """A launcher under test, with what it reported."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tmp: Path, **options: object) -> None:
        self.tmp = tmp
        self.channel = Channel(tmp / "channel")
        self.exits: asyncio.Queue[ExitReport] = asyncio.Queue()
        self.order: list[int] = []
        if callable(evidence := options.pop("evidence", None)):
            options["evidence"] = evidence()  # it opens a descriptor, so not before the count
        self.launcher = Launcher(loop, tmp, self._exited, host="hostX", node_id="n1", **options)
        self.launcher.adopt()
        self.progress: list[str] = []

    def _exited(self, proc_id: int, report: ExitReport) -> None:
        assert report.proc_id == proc_id
        self.order.append(proc_id)
        self.exits.put_nowait(report)

    def spec(self, proc_id: int, source: str, **changes: object) -> ProcSpec:
        head = SAY.format(path=str(self.channel.path))
        values: dict[str, object] = {
            "proc_id": proc_id,
            "name": f"trainer-{proc_id}",
            "entry": "launch_entry:run_source",
            "payload": (head + source).encode(),
            "output": str(self.tmp / f"{proc_id}.out"),
            "sys_path": (os.path.dirname(__file__),),
        }
        return ProcSpec(**(values | changes))

    async def launch(self, *specs: ProcSpec) -> list[Launched]:
        answers = await self.try_launch(*specs)
        for answer in answers:
            assert isinstance(answer, Launched), answer
        return answers

    async def try_launch(self, *specs: ProcSpec) -> list[Launched | LaunchError]:
        return await asyncio.wait_for(self.launcher.launch(specs, self.progress.append), PATIENCE)

    async def exit(self) -> ExitReport:
        return await asyncio.wait_for(self.exits.get(), PATIENCE)

    def output(self, proc_id: int) -> str:
        return (self.tmp / f"{proc_id}.out").read_text()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def nothing_left() -> Iterator[None]:
    """No child, adopted or own, and no descriptor more than before."""
    before = _descriptors()
    try:
        yield
    finally:
        linux.set_child_subreaper(False)  # else what later tests orphan would be left to us
    assert linux.children(os.getpid()) == []
    assert _descriptors() == before


uvloop.new_event_loop().close()  # libuv opens a pipe of its own once and for all
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def run_world(tmp: Path, body: Callable[[World], Awaitable[None]], loop: str = "uvloop", **options: object) -> None:
    """Run `body` on a fresh loop with a launcher, close it, and check that nothing is left."""

    async def main() -> None:
        world = World(asyncio.get_running_loop(), tmp, **options)
        try:
            await asyncio.wait_for(body(world), 2 * PATIENCE)
        finally:
            await world.launcher.close(grace=1.0)
            world.channel.close()

    with nothing_left(), asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


def await_death(pid: int) -> bool:
    """Whether `pid` ends within the patience; any process, ours or not."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], PATIENCE)[0])
    finally:
        os.close(pidfd)
