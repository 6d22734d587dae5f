"""Stacks of workers that do not answer, taken from outside by their agent."""

from __future__ import annotations

import asyncio
import linecache
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ... import actors
from ...actors.node import Node
from ...actors.peer import Peer
from ..launch import Launched, dump
from ..snapshot import on_thread

_OWN = tuple(f"{Path(file).parent}{os.sep}" for file in (actors.__file__, Path(__file__).parent))
_LIBRARY = f"{os.path.dirname(os.__file__)}{os.sep}"
_SCAFFOLD = ("threading", "runpy", "asyncio", "importlib", "concurrent", "selectors", "contextlib", "queue")

LOOK = 0.01  # seconds between looks at a file that is being written
ALWAYS = 0.25  # of the time that is left: what py-spy is left with, at least


class Dumps:
    """Serves "dump stacks" for the workers of one host."""

    def __init__(self, run_dir: Path, live: Callable[[], dict[int, Launched]]) -> None:
        self._run_dir = run_dir
        self._live = live
        self._busy: dict[int, asyncio.Task[str]] = {}

    async def serve(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> list[str]:
        """[processes, seconds]: the stacks of each as text, or a sentence that says why there are none."""
        return await self.take(*arguments)

    async def take(self, proc_ids: list[int], seconds: float) -> list[str]:
        """The same, within this process."""
        until = time.monotonic() + seconds
        return list(await asyncio.gather(*(self._shared(proc_id, until) for proc_id in proc_ids)))

    async def _shared(self, proc_id: int, until: float) -> str:
        """One dump of a process at a time; who asks meanwhile gets the same."""
        task = self._busy.get(proc_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._dump(proc_id, until))
            self._busy[proc_id] = task
            task.add_done_callback(lambda done: self._busy.pop(proc_id, None))
        return await asyncio.shield(task)

    async def _dump(self, proc_id: int, until: float) -> str:
        launched = self._live().get(proc_id)
        if launched is None:
            return "the process has ended"
        who = f"{launched.name} (pid {launched.pid})"
        obstacle = dump.obstacle(launched.pid)
        if obstacle is None:
            text = await self._by_signal(proc_id, launched.pid, until - ALWAYS * (until - time.monotonic()))
            if text:
                return f"{who}, which does not answer\n{text}"
            obstacle = "has written no stacks in time"
        text = await by_py_spy(launched.pid, until - time.monotonic())
        return f"{who}, which does not answer, by py-spy\n{text}" if text else f"{who} {obstacle}"

    async def _by_signal(self, proc_id: int, pid: int, until: float) -> str:
        path = self._run_dir / f"{proc_id:x}.stacks"
        try:
            begin = path.stat().st_size
            if begin > dump.FILE_LIMIT:
                begin = dump.begin_again(path)
            dump.ask(pid)
        except OSError:
            return ""
        written = ""
        while time.monotonic() < until:
            await asyncio.sleep(LOOK)
            before, written = written, _from(path, begin)
            if written == before and dump.is_whole(written):
                break
        if not written:
            return ""
        try:
            async with asyncio.timeout(max(until - time.monotonic(), LOOK)):
                return await on_thread(lambda: readable(written))
        except TimeoutError:  # the file system hangs: without source lines
            return written.rstrip()


def _from(path: Path, begin: int) -> str:
    with path.open("rb") as file:
        file.seek(begin)
        return file.read(dump.FILE_LIMIT).decode("utf-8", "replace")


def readable(written: str) -> str:
    """A dump as tracebacks with source lines, without Roost's own threads and what stands around user code."""
    shown = []
    for number, frames in enumerate(dump.threads_of(written)):
        user = _users(frames)
        if not user and number:
            continue
        title = "main thread" if number == 0 else f"thread {number + 1}"
        shown.append("\n".join([title, *(_frame(*frame) for frame in user or frames[-1:])]))
    return "\n".join(shown)


def _users(frames: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """The frames of user code, and of what it calls that is not Roost's."""
    shown = []
    ours = True
    for frame in frames:
        ours = frame[0].startswith(_OWN) or (ours and _is_scaffold(frame[0]))
        if not ours:
            shown.append(frame)
    return shown


def _is_scaffold(path: str) -> bool:
    module = path.removeprefix(_LIBRARY).partition(os.sep)[0].removesuffix(".py")
    return path.startswith("<frozen") or (path.startswith(_LIBRARY) and module in _SCAFFOLD)


def _frame(path: str, line: str, name: str) -> str:
    source = linecache.getline(path, int(line)).strip() if line.isdigit() else ""
    return f'  File "{path}", line {line}, in {name}' + (f"\n    {source}" if source else "")


def find_py_spy() -> str | None:
    """The program `py-spy`, where it is installed: on the path, or beside this Python."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(sys.executable))


async def by_py_spy(pid: int, seconds: float) -> str:
    """What `py-spy dump` says of a process, where it is installed and may look; else nothing."""
    program = find_py_spy()
    if program is None or seconds <= 0:
        return ""
    process = await asyncio.create_subprocess_exec(
        program, "dump", "--pid", str(pid), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(seconds):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return ""
    return out.decode("utf-8", "replace").rstrip() if process.returncode == 0 else ""
