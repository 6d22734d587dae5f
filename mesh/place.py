"""Where a process is, said so that another can tell whether they share a kernel, and watch its end there.

A link that breaks says little: the network may have, and a forked child can hold a dead process's socket open. Where
both ends run under one kernel and see each other's numbers, a pidfd tells at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import cache
from typing import Any

from .launch import linux


@cache
def _kernel() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def here() -> list[Any]:
    """This process's place, in plain values: kernel and pid namespace, pid, start time."""
    pid = os.getpid()
    status = linux.stat(pid)
    return [_kernel(), pid, status.start_ticks if status is not None else 0]


def watch_end(
    place: list[Any], loop: asyncio.AbstractEventLoop, ended: Callable[[], None]
) -> Callable[[], None] | None:
    """Call `ended()` on the loop when the process at `place` has ended, at once if it has.

    Gives what ends the watch; None where the process is under another kernel. On the loop's thread.
    """
    kernel, pid, start = place
    if not kernel or kernel != _kernel() or pid == os.getpid():
        return None
    try:
        descriptor = linux.open_pidfd(pid)
    except ProcessLookupError:
        loop.call_soon(ended)
        return _nothing
    if descriptor is None:
        return None
    status = linux.stat(pid)
    if status is None or status.start_ticks != start:  # another process has the number by now
        os.close(descriptor)
        loop.call_soon(ended)
        return _nothing
    watched = [descriptor]

    def stop() -> None:
        while watched:
            loop.remove_reader(watched[0])
            os.close(watched.pop())

    def over() -> None:
        stop()
        ended()

    loop.add_reader(descriptor, over)
    return stop


def _nothing() -> None:
    pass
