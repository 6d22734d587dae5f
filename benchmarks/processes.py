"""Process trees by /proc: who descends from a process, how much memory they hold, and how to end them.

The runner makes itself a child subreaper, so what a peer daemonises comes back to it: every descendant of the
runner was started by the benchmark, and nothing else is ever signalled.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Proc:
    """One process, told apart from a later one of the same pid by its start time (clock ticks since boot)."""

    pid: int
    started: int
    parent: int
    zombie: bool


def become_subreaper() -> None:
    """Adopt orphaned descendants of this process from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def read_proc(pid: int) -> Proc | None:
    """The process of this pid, or None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name, in brackets, may hold spaces and brackets
    return Proc(pid=pid, started=int(fields[19]), parent=int(fields[1]), zombie=fields[0] == "Z")


def descendants(root: int) -> list[Proc]:
    """Every live process below `root`, zombies and `root` itself left out."""
    children: dict[int, list[Proc]] = defaultdict(list)
    for entry in os.listdir("/proc"):
        proc = read_proc(int(entry)) if entry.isdigit() else None
        if proc is not None:
            children[proc.parent].append(proc)
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += [proc for proc in below if not proc.zombie]
        todo += [proc.pid for proc in below]
    return found


def command_of(pid: int) -> str:
    """The first 60 characters of a process's command line, for telling what was left behind."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return "?"
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()[:60]


def pss_bytes(pids: Iterable[int]) -> int:
    """Proportional set size summed: each shared page counts once over the processes that map it."""
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


def reap_adopted(known: Iterable[int] = ()) -> None:
    """Collect the exit status of adopted orphans; children in `known` are left to their own waiter."""
    spared = set(known)
    for entry in os.listdir("/proc"):
        proc = read_proc(int(entry)) if entry.isdigit() else None
        if proc is not None and proc.zombie and proc.parent == os.getpid() and proc.pid not in spared:
            os.waitpid(proc.pid, os.WNOHANG)


def wait_gone(root: int, timeout: float, known: Iterable[int] = ()) -> list[Proc]:
    """Wait until nothing descends from `root`; return what still does after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        reap_adopted(known)
        left = descendants(root)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def kill(procs: Iterable[Proc]) -> None:
    """SIGKILL exactly these processes; one whose pid has been taken over by another is left alone."""
    for proc in procs:
        try:
            descriptor = os.pidfd_open(proc.pid)
        except ProcessLookupError:
            continue
        try:
            now = read_proc(proc.pid)
            if now is not None and now.started == proc.started:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)
