"""Which process a handle means.

A pid alone names another process in another container, on another machine, or a while later on this one; so a
handle carries the boot id, the pid namespace and the start time too, and the node id that the runtime gave.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass

from .home import Home, home


@dataclass(frozen=True, slots=True)
class Identity:
    """A process: `boot`, `pid_ns`, `pid`, `start` as the kernel tells them; `node_id`, `proc_id` as Roost
    does.
    """

    boot: bytes
    pid_ns: int
    pid: int
    start: int
    node_id: str
    proc_id: int

    def __str__(self) -> str:
        return f"process {self.proc_id:#x} (pid {self.pid} on {self.node_id})"

    def same_process(self, other: Identity) -> bool:
        return self.pid == other.pid and self.start == other.start and self.proc_id == other.proc_id

    def same_kernel(self, other: Identity) -> bool:
        """Whether a pid of the one means the same process to the other."""
        return self.boot == other.boot and self.pid_ns == other.pid_ns

    def alive(self) -> bool:
        """Whether that very process still runs; meaningful only from the same kernel and pid namespace."""
        return process_start(self.pid) == self.start


def process_start(pid: int) -> int | None:
    """Start time of a live process in clock ticks since boot (/proc/PID/stat, field 22); None if gone or a
    zombie.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            # The command name (field 2) may hold spaces and brackets: count from its last bracket.
            fields = f.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


_mine: tuple[int, Home, Identity] | None = None


def me() -> Identity:
    """This process; asked of the kernel once, and again after a fork."""
    global _mine
    pid, here = os.getpid(), home()
    if _mine is None or _mine[0] != pid or _mine[1] is not here:
        with open("/proc/sys/kernel/random/boot_id") as f:
            boot = uuid.UUID(f.read().strip()).bytes
        start = process_start(pid)
        assert start is not None, "a running process has a start time"
        namespace = os.stat("/proc/self/ns/pid").st_ino
        _mine = (pid, here, Identity(boot, namespace, pid, start, here.node_id, here.proc_id))
    return _mine[2]
