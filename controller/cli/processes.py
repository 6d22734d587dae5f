"""Processes of this host, from /proc, for people's eyes."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_GONE = "ZX"


@dataclass(frozen=True, slots=True)
class Process:
    """One process: `cpu` is its share of a core since it began, `rss` in bytes, `age` in seconds."""

    pid: int
    state: str
    start_ticks: int
    cpu: float
    rss: int
    age: float


@cache
def kernel() -> str:
    """What tells this kernel and pid namespace from others, as `roost.mesh.place` writes it."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def look(pid: int) -> Process | None:
    """The process with this number; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    ticks = int(fields[19])
    age = max(_uptime() - ticks / _TICK, 1e-3)
    cpu = (int(fields[11]) + int(fields[12])) / _TICK / age
    return Process(pid, fields[0], ticks, cpu, int(fields[21]) * _PAGE, age)


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def at(place: list[Any]) -> Process | None:
    """The process that wrote its place down, while it lives; it must be of this kernel."""
    _, pid, start = place
    found = look(pid)
    return found if found is not None and found.start_ticks == start and found.state not in _GONE else None


def is_here(place: list[Any]) -> bool:
    """Whether a process ran under this kernel and in this pid namespace."""
    return bool(kernel()) and place[0] == kernel()


def before_boot(place: list[Any], host: str) -> bool:
    """Whether it ran on this machine before the machine was started anew."""
    boot = str(place[0]).partition(" ")[0]
    return bool(kernel()) and host == os.uname().nodename and boot != kernel().partition(" ")[0]
