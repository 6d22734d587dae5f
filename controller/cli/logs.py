"""`roost logs`: what processes have written, and what they write."""

from __future__ import annotations

import argparse
import re
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from .found import Job, choose_job
from .parser import DONE, FAILED, CommandError
from .workers import selects, split_name

LOOK = 0.2  # seconds between looks with --follow
TAIL = 4 << 20  # bytes at the end of a file in which its last lines are looked for
CHUNK = 1 << 20


class _File:
    """One process's file, read up to `at`."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.at = 0
        self.rest = b""

    def last(self, count: int, wanted: Callable[[str], bool]) -> list[str]:
        """The last lines that are wanted; what follows them is read by `new`."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - TAIL))
                data = file.read(TAIL)
        except OSError:
            return []
        self.at = size
        lines, mark, self.rest = data.rpartition(b"\n")
        found = (text for text in _texts(lines + mark + self.rest) if wanted(text))
        self.rest = b""
        return list(deque(found, maxlen=max(count, 0)))

    def new(self) -> list[str]:
        """Lines that have been written since."""
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self.at:
                    self.at = 0  # it was cut at its limit
                file.seek(self.at)
                data = file.read(CHUNK)
        except OSError:
            return []
        self.at += len(data)
        lines, mark, self.rest = (self.rest + data).rpartition(b"\n")
        return _texts(lines) if mark else []


def _texts(data: bytes) -> list[str]:
    text = data.replace(b"\0", b"").decode("utf-8", "replace")
    return [line.rstrip("\r").rpartition("\r")[2] for line in text.removesuffix("\n").split("\n")] if text else []


def run(arguments: argparse.Namespace) -> int:
    """Print lines, each with its process; 1 when no process is meant."""
    job = choose_job(arguments.job)
    is_meant = selects(arguments.name, arguments.rank)
    grep: re.Pattern[str] | None = arguments.grep

    def wanted(text: str) -> bool:
        return grep is None or grep.search(text) is not None

    files: dict[Path, _File] = {}
    _add_new(job, files, is_meant)
    if not files and not arguments.follow:
        raise CommandError("no process that is meant has written anything; `roost ps` shows which there are")
    for file in files.values():
        _print(file, file.last(arguments.lines, wanted))
    if arguments.follow:
        _follow(job, files, is_meant, wanted)
    return DONE if files else FAILED


def _add_new(job: Job, files: dict[Path, _File], is_meant: Callable[[str], bool]) -> None:
    found = [path for agent in job.agents for path in agent.logs().values() if path not in files]
    named = [(path.stem.rpartition("-")[0], path) for path in found]
    for name, path in sorted(named, key=lambda pair: split_name(pair[0])):
        if is_meant(name):
            files[path] = _File(name, path)


def _follow(job: Job, files: dict[Path, _File], is_meant: Callable[[str], bool], wanted: Callable[[str], bool]) -> None:
    """Until the job ends."""
    while True:
        over = job.is_over
        _add_new(job, files, is_meant)
        for file in files.values():
            while lines := file.new():
                _print(file, list(filter(wanted, lines)))
        if over:
            return
        time.sleep(LOOK)


def _print(file: _File, lines: list[str]) -> None:
    if lines:
        print("\n".join(f"[{file.name}] {line}" for line in lines), flush=True)
