"""The few Linux calls the launcher needs and the standard library lacks, each a small function.

`/proc` is read, never parsed by shelling out; everything that can race with a death returns None
instead of raising, because in a process tree "it has just gone" is the ordinary case.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2
_CLD_EXITED, _CLD_DUMPED = 1, 3


@cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: object) -> None:
    if libc().prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def set_parent_death_signal(sig: int) -> None:
    """Ask for `sig` when the *thread* that is our parent ends; cleared by fork, kept over exec."""
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(sig))


def set_child_subreaper(on: bool = True) -> None:
    """Make orphans among our descendants our own children, or no longer."""
    _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(on))


def set_comm(name: str) -> None:
    """The name `ps` and the kernel log show for this thread; the kernel keeps 15 bytes."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


def signal_thread(pid: int, tid: int, sig: int) -> None:
    """Signal one thread of a process. Raises OSError."""
    if not hasattr(libc(), "tgkill"):  # glibc before 2.30: any thread of it, then
        os.kill(pid, sig)
    elif libc().tgkill(pid, tid, sig) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"tgkill({pid}, {tid}, {sig}): {os.strerror(code)}")


def punch_hole(fd: int, offset: int, length: int) -> bool:
    """Give back the blocks of a byte range, keeping the size; False where the file system cannot."""
    call = libc().fallocate64 if hasattr(libc(), "fallocate64") else libc().fallocate
    mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
    return bool(call(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)) == 0)


def line_buffer_c_stdout() -> None:
    """C code's stdout is block buffered on a file: a SIGKILL or os._exit would lose its last lines."""
    line_buffered = 1  # _IOLBF of glibc and musl
    try:
        stream = ctypes.c_void_p.in_dll(libc(), "stdout")
    except ValueError:
        return
    libc().setvbuf(stream, None, line_buffered, ctypes.c_size_t(0))


def flush_c_stdout() -> None:
    """Only stdout: fflush(NULL) waits for every stream's lock, and another thread may hold one for ever."""
    try:
        libc().fflush(ctypes.c_void_p.in_dll(libc(), "stdout"))
    except ValueError:
        return


@dataclass(frozen=True, slots=True)
class ProcStat:
    """What `/proc/<pid>/stat` says of one process; `start_ticks` (field 22) tells a reused pid apart."""

    pid: int
    comm: str
    state: str
    ppid: int
    session: int
    start_ticks: int


def read_text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def stat(pid: int) -> ProcStat | None:
    text = read_text(f"/proc/{pid}/stat")
    if not text:
        return None
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    comm = head.partition("(")[2]
    return ProcStat(pid, comm, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def children(pid: int) -> list[int]:
    """Direct children of every thread of `pid`, zombies included."""
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    for task in tasks:
        text = read_text(f"/proc/{pid}/task/{task}/children")
        if text is None and os.path.exists(f"/proc/{pid}/task/{task}"):
            return [child.pid for child in _all_processes() if child.ppid == pid]  # no CONFIG_PROC_CHILDREN
        found.extend(int(word) for word in (text or "").split())
    return found


def _all_processes() -> Iterator[ProcStat]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := stat(int(name))) is not None:
            yield found


def descendants(pid: int) -> list[ProcStat]:
    """The whole tree below `pid`, parents before children."""
    found: list[ProcStat] = []
    seen = {pid}
    queue = children(pid)
    while queue:
        child = queue.pop(0)
        if child in seen:
            continue
        seen.add(child)
        if (entry := stat(child)) is not None:
            found.append(entry)
            queue.extend(children(child))
    return found


def open_pidfd(pid: int) -> int | None:
    """A descriptor readable at the death of `pid`; None where the kernel or a sandbox has no pidfd."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
            return None
        raise


def kill_exactly(target: ProcStat, sig: int = signal.SIGKILL) -> bool:
    """Signal that very process, never a later one with its pid; False when it has gone."""
    try:
        pidfd = open_pidfd(target.pid)
    except ProcessLookupError:
        return False
    try:
        now = stat(target.pid)
        if now is None or now.start_ticks != target.start_ticks:
            return False
        if pidfd is None:
            os.kill(target.pid, sig)
        else:
            signal.pidfd_send_signal(pidfd, sig)
    except ProcessLookupError:
        return False
    finally:
        if pidfd is not None:
            os.close(pidfd)
    return True


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a child ended. Both None: somebody else in this process took its status."""

    code: int | None
    signal: int | None
    core_dumped: bool
    comm: str


def collect(pid: int) -> ExitStatus | None:
    """Reap our child `pid` without waiting; None while it runs."""
    seen = stat(pid)  # a zombie still has its name, and after waitid it has not
    comm = "" if seen is None else seen.comm
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return ExitStatus(None, None, False, comm)
    if result is None:
        return None
    if result.si_code == _CLD_EXITED:
        return ExitStatus(result.si_status, None, False, comm)
    return ExitStatus(None, result.si_status, result.si_code == _CLD_DUMPED, comm)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if number >= signal.SIGRTMIN else f"signal {number}"
