"""What the machine knows of the cause of a death: out-of-memory kills and GPU faults.

Three witnesses, from the strongest: the kernel log names the victim by pid (where this process may
read it, and the agent sees the kernel's own pids); the memory cgroup counts kills among its members
(v2 memory.events, v1 memory.oom_control); /proc/vmstat counts them for the whole host. Counters are
compared with their values a while before the death, since a worker's life may be weeks. Every reader
can be replaced, and every one may fail: then there is less evidence, never an error.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from .linux import read_text

ReadText = Callable[[str], str | None]
_MEMORY_SECONDS = 15.0  # a process of 100 GB takes seconds from the kill to its end
_FAULT_LINE = re.compile(
    r"CUDA error|CUDA_ERROR_|HIP error|hipError|illegal memory access|device-side assert"
    r"|uncorrectable ECC|GPU core dump|Memory access fault by GPU|HSA_STATUS_ERROR",
    re.IGNORECASE,
)
_OOM_VICTIM = re.compile(r"(?:Killed|Kill) process (\d+) \(([^)]*)\)")
_GPU_PID = re.compile(r"\bpid[ =:](\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Counter:
    """A file of a memory cgroup that counts out-of-memory kills; `place` is the cgroup for people."""

    path: str
    place: str


def counters(groups: str, read: ReadText = read_text) -> tuple[Counter, ...]:
    """The counters for a process with this /proc/<pid>/cgroup, v2 and v1, then the host's."""
    found: list[Counter] = []
    for line in groups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":
            kind, file = "cgroup2", "memory.events"
        elif "memory" in controllers.split(","):
            kind, file = "memory", "memory.oom_control"
        else:
            continue
        if (folder := _mounted(kind, group, read)) is not None and read(f"{folder}/{file}") is not None:
            found.append(Counter(f"{folder}/{file}", group))
    return (*found, Counter("/proc/vmstat", ""))


def _mounted(kind: str, group: str, read: ReadText) -> str | None:
    """Where the cgroup `group` of the hierarchy `kind` (cgroup2, or a v1 controller) is mounted."""
    for line in (read("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 5 or len(tail) < 3:
            continue
        v1 = tail[0] == "cgroup" and kind in tail[2].split(",")
        if not v1 and tail[0] != kind:
            continue
        root, mount = fields[3], fields[4]
        inside = group if root == "/" else group.removeprefix(root)
        return mount + inside.rstrip("/")
    return None


def kills_in(text: str | None) -> int | None:
    """The oom_kill count in memory.events, memory.oom_control or vmstat."""
    for line in (text or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None


class Log(Protocol):
    """Where kernel messages come from."""

    def lines(self) -> tuple[str, ...]: ...

    def close(self) -> None: ...


class KernelLog:
    """Lines the kernel wrote since this object was made; silent where the log may not be read."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._lines: deque[str] = deque(maxlen=2000)
        self._fd: int | None = None
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self.close()

    def lines(self) -> tuple[str, ...]:
        while self._fd is not None:
            try:
                record = os.read(self._fd, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # the ring overtook us: the next read goes on with the oldest record
            except OSError:
                self.close()
                break
            if not record:
                break
            text = record.decode("utf-8", "replace").partition(";")[2]
            self._lines.append(text.partition("\n")[0])
        return tuple(self._lines)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


@dataclass(slots=True)
class _Readings:
    """Counter values over the last seconds, oldest first."""

    values: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now: float, value: int) -> None:
        self.values.append((now, value))
        while len(self.values) > 1 and self.values[1][0] <= now - _MEMORY_SECONDS:
            self.values.popleft()

    @property
    def baseline(self) -> int:
        return self.values[0][1]


class Evidence:
    """Follows the counters of running workers and testifies at their deaths."""

    def __init__(
        self,
        read: ReadText = read_text,
        log: Log | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._log = log or KernelLog()
        self._clock = clock
        self._of_worker: dict[int, tuple[Counter, ...]] = {}
        self._of_groups: dict[str, tuple[Counter, ...]] = {}
        self._readings: dict[Counter, _Readings] = {}

    def follow(self, pids: Iterable[int]) -> None:
        """Look up the cgroups of live workers (again: they may have moved) and read their counters.

        They must be known before the death: a v1 kernel shows a dead process in the root cgroup.
        """
        followed: set[Counter] = set()
        for pid in pids:
            groups = self._read(f"/proc/{pid}/cgroup") or ""
            if groups not in self._of_groups:
                self._of_groups[groups] = counters(groups, self._read)
            self._of_worker[pid] = self._of_groups[groups]
            followed.update(self._of_groups[groups])
        for counter in followed:
            if (value := kills_in(self._read(counter.path))) is not None:
                self._readings.setdefault(counter, _Readings()).add(self._clock(), value)

    def look_at(self, pid: int) -> None:
        """A worker may have joined another cgroup by now: know it before it dies there."""
        if (groups := self._read(f"/proc/{pid}/cgroup")) and self._of_groups.get(groups) != self._of_worker.get(pid):
            self.follow((pid,))

    def forget(self, pid: int) -> None:
        self._of_worker.pop(pid, None)
        used = {counter for found in self._of_worker.values() for counter in found}
        for counter in self._readings.keys() - used:
            del self._readings[counter]
        self._of_groups = {text: found for text, found in self._of_groups.items() if used.intersection(found)}

    def close(self) -> None:
        self._log.close()

    def out_of_memory(self, pid: int, comm: str) -> str | None:
        """The evidence that the kernel killed this worker for want of memory, as a sentence."""
        for line in reversed(self._log.lines()):
            victim = _OOM_VICTIM.search(line)
            if victim and int(victim[1]) == pid and (not comm or victim[2] == comm):
                return f"the kernel reports an out-of-memory kill: {line.strip()}"
        for counter in self._of_worker.get(pid, ()):
            value = kills_in(self._read(counter.path))
            readings = self._readings.get(counter)
            if value is None or readings is None or value <= readings.baseline:
                continue
            count = value - readings.baseline
            where = f"in its cgroup {counter.place}" if counter.place else "on this host"
            kills = "an out-of-memory kill" if count == 1 else f"{count} out-of-memory kills"
            return f"the kernel counted {kills} {where} at the time ({counter.path})"
        return None

    def gpu_fault(self, pid: int, stderr_tail: tuple[str, ...]) -> str | None:
        """The kernel's fault line for this pid (NVIDIA Xid, amdgpu), else the last one it printed."""
        for line in reversed(self._log.lines()):
            if ("NVRM" in line or "amdgpu" in line) and any(int(m) == pid for m in _GPU_PID.findall(line)):
                return f"the kernel reports a GPU fault: {line.strip()}"
        for line in reversed(stderr_tail):
            if _FAULT_LINE.search(line):
                return f"it reported a GPU fault: {line.strip()}"
        return None
