"""Stacks of a process that does not answer: it writes them itself, in C, when a signal tells it to.

`faulthandler` walks the threads without the GIL, so this works while C code keeps it. The signal goes to the process's
I/O thread alone, where no system call of the user's can be interrupted by it. It is sent only to a process that is
known to have a handler for it: without one it would kill.
"""

from __future__ import annotations

import faulthandler
import io
import os
import re
import signal
from pathlib import Path

from . import linux

SIGNAL = signal.SIGRTMIN + 8
IO_THREAD = "roost-io"  # the name of the thread that takes the signal, as the kernel knows it
FILE_LIMIT = 1 << 20  # bytes after which the file is begun again
FIRST_LINE = 4096

_STATES = {
    "T": "is stopped by a signal (state T); SIGCONT lets it go on",
    "t": "is stopped by a debugger (state t)",
    "D": "waits within the kernel (state D), where no signal reaches it",
    "Z": "has ended (state Z)",
    "X": "has ended (state X)",
}
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?+) in (.*)')
_kept: list[io.FileIO] = []


def answer_dumps(path: str, name: str) -> None:
    """Write the stacks of all threads to `path` whenever SIGNAL comes; in the process itself, on any thread.

    The file appears under its name once the handler stands; its first line is the pid and the name of the process.
    """
    fresh = f"{path}.new"
    file = io.FileIO(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "w")
    file.write(f"{os.getpid()} {name}\n".encode())
    faulthandler.register(SIGNAL, file=file.fileno(), all_threads=True, chain=False)
    _kept[:] = [file]
    os.rename(fresh, path)


def begin_again(path: Path) -> int:
    """Cut a file after its first line; gives its length then."""
    with path.open("rb") as file:
        length = len(file.readline(FIRST_LINE))
    os.truncate(path, length)
    return length


def obstacle(pid: int) -> str | None:
    """Why this process cannot write its stacks now, as the rest of a sentence; None when it can."""
    found = linux.stat(pid)
    if found is None:
        return "has ended"
    if found.state in _STATES:
        where = (linux.read_text(f"/proc/{pid}/wchan") or "").strip("0 \n") if found.state == "D" else ""
        return _STATES[found.state] + (f", in {where}" if where else "")
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", linux.read_text(f"/proc/{pid}/status") or "", re.MULTILINE)
    if caught is None or not int(caught[1], 16) >> (SIGNAL - 1) & 1:
        return "has no handler for requests to show its stacks: it has not begun, or runs another program"
    return None


def ask(pid: int) -> None:
    """Have it write its stacks; `obstacle` has just said that it can."""
    for name in _threads(pid):
        if (linux.read_text(f"/proc/{pid}/task/{name}/comm") or "").strip() == IO_THREAD:
            linux.signal_thread(pid, int(name), SIGNAL)
            return
    os.kill(pid, SIGNAL)


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def is_whole(text: str) -> bool:
    """Whether a dump that has begun may be at its end: the process writes it in one go, line after line."""
    return text.endswith("\n") and "most recent call first" in text


def threads_of(text: str) -> list[list[tuple[str, str, str]]]:
    """(file, line, function) of each thread's frames, the main thread first and the innermost frame last.

    >>> threads_of('Thread 0x1 (most recent call first):\\n  File "b.py", line 2 in f\\n  File "a.py", line 1 in g\\n')
    [[('a.py', '1', 'g'), ('b.py', '2', 'f')]]
    """
    threads: list[list[tuple[str, str, str]]] = []
    for line in text.splitlines():
        match = _FRAME.fullmatch(line)
        if match is not None and threads:
            threads[-1].insert(0, (match[1], match[2], match[3]))
        elif "most recent call first" in line:
            threads.append([])
    return threads[::-1]  # the oldest thread is written last
