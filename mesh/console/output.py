"""The console: workers' lines on their way to the program's standard output.

Lines come in on the I/O thread, which only puts them into a bounded queue. A thread of their own filters, folds and
writes them: a terminal that is stopped (Ctrl-S), or a pipe that nobody reads, holds that thread up and nothing else.
What does not fit the queue is dropped, the oldest first, and counted; it is in the workers' files.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from ...actors.peer import Peer
from .fold import Folder
from .screen import Screen

QUEUE = 4 << 20  # bytes that wait to be written
WINDOW = 0.5  # seconds in which equal lines are shown as one
PAUSE = 2.0  # after work the thread rests this many times as long while there is more: calls need the interpreter too
STOP_TIMEOUT = 2.0

_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b")
_LEVELS = {"WARN": logging.WARNING, "FATAL": logging.CRITICAL}
_HEAD = 160  # characters in which a line's level is looked for


@dataclass(frozen=True, slots=True)
class Options:
    """What is shown of one process, and how: the part of `ProcMesh.logging_option` that is done here."""

    window: float | None = WINDOW
    level: int = logging.NOTSET
    regex: re.Pattern[str] | None = None

    @classmethod
    def from_wire(cls, wire: list[Any]) -> Options:
        """Inverse of what `logging_option` sends."""
        window, level, regex = wire
        return cls(window, level, re.compile(regex) if regex else None)

    def wants(self, line: str) -> bool:
        """Whether a line is shown: of a level that is high enough, or of none, and matched by the regex.

        >>> [Options(level=logging.WARNING).wants(line) for line in ("INFO:root:hm", "2026 ERROR no", "loss 0.3")]
        [False, True, True]
        """
        if self.level > logging.NOTSET and (found := _LEVEL.search(line, 0, _HEAD)) is not None:
            number = _LEVELS.get(found[1]) or getattr(logging, found[1])
            if number < self.level:
                return False
        return self.regex is None or self.regex.search(line) is not None


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Lines of one process, read at once; `text` is None where `options` are what came."""

    proc_id: int
    name: str
    text: str | None
    dropped: int
    path: str
    cell: Any
    options: Options | None = None


class Cells(Protocol):
    """Tells which notebook cell has caused what a process writes."""

    def of(self, proc_id: int) -> Any:
        """What `Screen.write` is told of it."""

    def close(self) -> None:
        """Look at cells no more."""


class Console:
    """Shows workers' output. `arrived` and `configure` are the handlers of the agents' events, on the I/O thread."""

    def __init__(self, screen: Screen, cells: Cells | None = None) -> None:
        self._screen = screen
        self._cells = cells
        self._folder = Folder()
        self._options: dict[int, Options] = {}
        self._queue: deque[_Chunk] = deque()
        self._bytes = 0
        self._lost: dict[str, int] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._busy = False
        self._flushing = 0
        self._last_cell: Any = None
        self.closed = False

    def __repr__(self) -> str:
        return f"<Console: {self._bytes} bytes wait{', closed' if self.closed else ''}>"

    # from the I/O thread

    def arrived(self, peer: Peer, proc_id: int, name: str, text: str, dropped: int, path: str) -> None:
        """An agent has read lines of a worker."""
        cell = self._cells.of(proc_id) if self._cells is not None else None
        self._put(_Chunk(proc_id, name, text, dropped, path, cell))

    def configure(self, peer: Peer, proc_ids: list[int], wire: list[Any]) -> None:
        """From here on the lines of these processes are treated otherwise."""
        options = Options.from_wire(wire)
        for proc_id in proc_ids:
            self._put(_Chunk(proc_id, "", None, 0, "", None, options))

    def _put(self, chunk: _Chunk) -> None:
        with self._changed:
            if self.closed:
                return
            self._queue.append(chunk)
            self._bytes += len(chunk.text or "")
            while self._bytes > QUEUE and len(self._queue) > 1:
                self._drop_oldest()
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="roost-output", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _drop_oldest(self) -> None:
        chunk = self._queue.popleft()
        if chunk.options is not None:
            self._options[chunk.proc_id] = chunk.options
            return
        self._bytes -= len(chunk.text or "")
        self._lost[chunk.name] = self._lost.get(chunk.name, 0) + len(chunk.text or "") + chunk.dropped

    # from any thread

    def flush(self, timeout: float = STOP_TIMEOUT) -> bool:
        """Show all that has arrived, also what is held for others; False when that took longer than `timeout`."""
        with self._changed:
            if self._thread is None:
                return True
            self._flushing += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: not (self._queue or self._busy or self._folder.due()), timeout)
            finally:
                self._flushing -= 1

    def close(self) -> None:
        """Show what has arrived, within two seconds, and stop."""
        self.flush()
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        self._screen.close()
        if self._cells is not None:
            self._cells.close()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT)

    # the thread

    def _main(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(self._is_due, self._time_left())
                if self.closed:
                    return
                chunk = self._queue.popleft() if self._queue else None
                lost, self._lost = self._lost, {}
                self._busy = True
                if chunk is not None:
                    self._bytes -= len(chunk.text or "")
                hurry = bool(self._flushing)
                more = bool(self._queue)
            begin = time.monotonic()
            try:
                self._show(chunk, lost, hurry and not more)
            except (BrokenPipeError, ValueError):
                continue  # nobody reads it any more, or it has been closed
            except Exception:
                logging.getLogger("roost").warning("workers' output could not be written", exc_info=True)
            if more and not hurry:
                time.sleep(min(PAUSE * (time.monotonic() - begin), 0.1))

    def _is_due(self) -> bool:
        due = self._folder.due()
        return bool(self.closed or self._queue or (due is not None and (self._flushing or time.monotonic() >= due)))

    def _time_left(self) -> float | None:
        due = self._folder.due()
        return None if due is None else max(due - time.monotonic(), 0)

    def _show(self, chunk: _Chunk | None, lost: dict[str, int], flushing: bool) -> None:
        now = time.monotonic()
        lines = [f"[{name}] ({count} bytes were dropped here: {_SLOW})" for name, count in lost.items()]
        if chunk is not None and chunk.options is not None:
            self._options[chunk.proc_id] = chunk.options
            chunk = None
        if chunk is not None and chunk.cell is not self._last_cell:
            self._screen.write(_joined(self._folder.flush(now, everything=True)), self._last_cell)
            self._last_cell = chunk.cell
        lines += self._folder.flush(now)
        if chunk is not None:
            lines += self._shown(chunk, now)
        if flushing:
            lines += self._folder.flush(now, everything=True)
        self._screen.write(_joined(lines), self._last_cell)

    def _shown(self, chunk: _Chunk, now: float) -> list[str]:
        options = self._options.get(chunk.proc_id, _DEFAULT)
        mesh, _, number = chunk.name.rpartition("-")
        rank = int(number) if mesh and number.isdigit() else 0
        name = mesh if mesh and number.isdigit() else chunk.name
        lines: list[str] = []
        if chunk.dropped:
            lines.append(
                f"[{chunk.name}] ({chunk.dropped} bytes were dropped here: it writes too fast; see {chunk.path})"
            )
        for line in (chunk.text or "").split("\n"):
            if options is _DEFAULT or options.wants(line):
                lines += self._folder.feed(now, name, rank, line, options.window)
        return lines


_SLOW = "this program's standard output took them too slowly; they are in its file"
_DEFAULT = Options()


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
