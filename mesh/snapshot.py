"""What this process does now: the stacks of its threads and of the asyncio tasks of its actors, as text.

Taken on the I/O thread, which never waits for user code: only a thread that keeps the GIL can hold it up. The frames of
other threads are looked at, never run; local variables are read of Roost's and asyncio's own frames alone, to learn
which actor and which endpoint a thread is home to. Source lines are read on a thread of their own, because the file
system may be what everybody waits for.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar

from .. import actors
from ..actors import streaming
from ..actors.cell import Cell
from ..actors.context import Message
from ..actors.future import Future
from ..actors.node import Node
from ..actors.streaming import Stream

T = TypeVar("T")

_BASE = __name__.partition(".")[0]
_OWN_MODULES = (f"{_BASE}.actors.", f"{_BASE}.mesh.")
_OWN_FOLDERS = tuple(os.path.dirname(file) + os.sep for file in (actors.__file__, __file__))  # a zygote is a `__main__`
_OWN_THREADS = ("roost-io", "roost-callbacks", "roost-copy", "roost-output", "roost-stacks", "roost-rdma")
_SCAFFOLD = ("threading", "runpy", "asyncio", "importlib", "concurrent", "selectors", "contextlib", "queue")
_WAITS = {"cr": "cr_await", "gi": "gi_yieldfrom", "ag": "ag_await"}  # coroutines, generators, async generators
_DEPTH = 128  # frames of one stack, and awaits of one task
_TASKS = 64  # tasks shown of one loop


@dataclass(slots=True)
class _Stack:
    """One thread or task: `title` says whose it is, `note` what it waits for."""

    title: str
    frames: list[traceback.FrameSummary] = field(default_factory=list)
    note: str = ""

    def text(self) -> str:
        """The stack as in a traceback, the innermost frame last."""
        lines = "".join(traceback.format_list(traceback.StackSummary.from_list(self.frames)))
        return f"{self.title}\n{lines}{self.note}".rstrip()


def snapshot(node: Node) -> asyncio.Future[str]:
    """The stacks of this process as text, soon; on the I/O thread."""
    head = f"{node.name} (pid {os.getpid()} on {node.host})"
    stacks = list(_threads())
    return on_thread(lambda: "\n".join([head, *(stack.text() for stack in stacks)]))


def on_thread(make: Callable[[], T]) -> asyncio.Future[T]:
    """`make()` on a daemon thread of its own, for what may hang in the file system; the result on this loop."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: Exception | None) -> None:
        if not result.done():
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        try:
            answer: tuple[T | None, Exception | None] = (make(), None)
        except Exception as error:  # noqa: BLE001 - told to who waits
            answer = (None, error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *answer)

    threading.Thread(target=run, name="roost-stacks", daemon=True).start()
    return result


def _threads() -> Iterator[_Stack]:
    """Home threads of actors first, then the other threads."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    homes: list[_Stack] = []
    others: list[_Stack] = []
    for ident, innermost in sys._current_frames().items():
        name = names.get(ident, f"thread {ident:x}")
        frames = _outermost_first(innermost)
        cell, message = _whose(frames)
        if cell is None and name.startswith(_OWN_THREADS):
            continue
        held, note = _held(frames)
        if held is not None:
            homes.append(_Stack(_title(cell, message, name), _summaries([held]), note))
            continue
        loops = _loops(frames)
        tasks = [stack for loop in loops for stack in _tasks(loop)]
        idle = _is_idle(frames)
        into = others if cell is None else homes
        if not idle:
            into.append(_Stack(_title(cell, message, name), _summaries(_trimmed(frames))))
        elif cell is not None and not tasks:
            into.append(_Stack(f"actor {cell.name}[{cell.rank}] ({name}) waits for messages"))
        into.extend(tasks)
    yield from homes
    yield from others


def _title(cell: Cell | None, message: Message | None, thread: str) -> str:
    if cell is None:
        return f"thread {thread}"
    doing = f" runs {message.method}" if message is not None and message.method else ""
    return f"actor {cell.name}[{cell.rank}] ({thread}){doing}"


def _outermost_first(frame: FrameType | None) -> list[FrameType]:
    found: list[FrameType] = []
    while frame is not None and len(found) < 4 * _DEPTH:
        found.append(frame)
        frame = frame.f_back
    return found[::-1]


def _module(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else ""


def _is_roost(frame: FrameType) -> bool:
    return _module(frame).startswith(_OWN_MODULES) or frame.f_code.co_filename.startswith(_OWN_FOLDERS)


def _is_scaffold(frame: FrameType) -> bool:
    """Whether a frame only carries others: Roost's, a thread's, a loop's."""
    return (
        _is_roost(frame)
        or _module(frame).partition(".")[0] in _SCAFFOLD
        or frame.f_code.co_filename.startswith("<frozen")
    )


def _is_idle(frames: list[FrameType]) -> bool:
    """Whether the thread is Roost's and runs nobody's code."""
    return all(map(_is_scaffold, frames)) and any(map(_is_roost, frames))


def _trimmed(frames: list[FrameType]) -> list[FrameType]:
    """Without what stands around user code, and what it has called of Roost; all of it where there is none."""
    shown: list[FrameType] = []
    ours = True
    for frame in frames:
        ours = _is_roost(frame) or (ours and _is_scaffold(frame))
        if not ours:
            shown.append(frame)
    return shown or frames


def _held(frames: list[FrameType]) -> tuple[FrameType | None, str]:
    """Of a generator that waits for its caller to take items: where it stands, and a sentence on that."""
    for frame in frames:
        stream = _local(frame, "stream") if _module(frame) == streaming.__name__ else None
        if isinstance(stream, Stream) and stream.held_since is not None:
            generator = _local(frame, "generator")
            stands = getattr(generator, "gi_frame", None) or getattr(generator, "ag_frame", None)
            return stands or frame, "  waits for its caller to take items"
    return None, ""


def _local(frame: FrameType, name: str) -> Any:
    """A local variable of one of Roost's or asyncio's own frames."""
    code = frame.f_code
    if name not in code.co_varnames and name not in code.co_cellvars and name not in code.co_freevars:
        return None
    return frame.f_locals.get(name)


def _whose(frames: list[FrameType]) -> tuple[Cell | None, Message | None]:
    """The actor that a thread or task is home to, and the message that it runs."""
    cell: Cell | None = None
    message: Message | None = None
    for frame in frames:
        if not _module(frame).startswith(f"{_BASE}.actors."):
            continue
        own = _local(frame, "self")
        for found in (own, _local(frame, "cell"), getattr(own, "cell", None)):
            if isinstance(found, Cell):
                cell = found
        found = _local(frame, "message")
        if isinstance(found, Message) and found.running:
            message = found
            cell = found.cell or cell
    return cell, message


def _loops(frames: list[FrameType]) -> list[asyncio.AbstractEventLoop]:
    """The event loops that a thread runs."""
    found: list[asyncio.AbstractEventLoop] = []
    for frame in frames:
        module = _module(frame)
        if module.startswith(f"{_BASE}.actors.") or module.partition(".")[0] == "asyncio":
            own = _local(frame, "self")
            for value in (own, _local(frame, "loop"), getattr(own, "loop", None), getattr(own, "_loop", None)):
                if isinstance(value, asyncio.AbstractEventLoop) and value not in found and not value.is_closed():
                    found.append(value)
    return found


def _tasks(loop: asyncio.AbstractEventLoop) -> Iterator[_Stack]:
    """The tasks of a loop that do not run now, each with what it awaits."""
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    for task in tasks[:_TASKS]:
        frames, note, running = _awaits(task.get_coro())
        if running or not frames:
            continue
        cell, message = _whose(frames)
        held, waits = _held(frames)
        shown, note = ([held], waits) if held is not None else (_trimmed(frames), note)
        title = f"task {task.get_name()}" if cell is None else f"{_title(cell, message, f'task {task.get_name()}')}"
        yield _Stack(title, _summaries(shown), note)
    if len(tasks) > _TASKS:
        yield _Stack(f"and {len(tasks) - _TASKS} more tasks")


def _awaits(coroutine: Any) -> tuple[list[FrameType], str, bool]:
    """The frames along a chain of awaits, what stands at its end, and whether it runs now."""
    frames: list[FrameType] = []
    note = ""
    while coroutine is not None and len(frames) < _DEPTH:
        kind = next((kind for kind in _WAITS if getattr(coroutine, f"{kind}_frame", None) is not None), None)
        if kind is None:
            coroutine = _generator(frames)  # what a stream awaits does not say whose next item it is
            continue
        if kind != "ag" and getattr(coroutine, f"{kind}_running"):
            return frames, "", True
        frame = getattr(coroutine, f"{kind}_frame")
        awaited = _local(frame, "self") if _is_roost(frame) else None
        if isinstance(awaited, Future):
            note = f"  awaits {awaited!r}"
        frames.append(frame)
        coroutine = getattr(coroutine, _WAITS[kind])
    return frames, note, False


def _generator(frames: list[FrameType]) -> Any:
    """The async generator whose next item the innermost frame awaits."""
    innermost = frames[-1] if frames else None
    if innermost is None or _module(innermost) != streaming.__name__:
        return None
    generator = _local(innermost, "generator")
    return generator if getattr(generator, "ag_frame", None) is not None else None


def _summaries(frames: list[FrameType]) -> list[traceback.FrameSummary]:
    """Where each frame stands now; the source lines are read later."""
    return [
        traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, lookup_line=False)
        for frame in frames[-_DEPTH:]
    ]
