"""The worker's output file: written by the worker itself, kept small from outside.

The worker holds one O_APPEND descriptor as stdout and stderr, so Python and C code write to it
directly: no pipe that fills, no reader whose death or stop blocks training, no line lost to SIGKILL.
The cap cannot be the writer's business then (C code knows nothing of it), and RLIMIT_FSIZE would
kill. So the agent looks at the file now and then and gives back the *middle* of what is over the
limit by punching a hole: head and tail stay, offsets stay valid for whoever follows the file, and
the writer notices nothing. A hole reads as NUL bytes; `tail_lines` skips them. Where a file system
cannot punch holes (some NFS) the tail is copied to `<path>.1` and the file truncated: O_APPEND then
goes on at 0. Between two looks a flood may overrun the limit by what the disk takes in that time.
"""

from __future__ import annotations

import os

from .linux import punch_hole

_BLOCK = 4096
_LINE_LIMIT = 500


def create(path: str) -> int:
    """Make the file and its folder; return its size, where the new worker's own output begins."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    fd = open_append(path)
    try:
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def open_append(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def hole(size: int, limit: int) -> tuple[int, int]:
    """(offset, length) to give back: a quarter of the limit stays at the head, half at the tail.

    >>> hole(size=1 << 20, limit=64 << 10)
    (16384, 999424)
    """
    start = -(-(limit // 4) // _BLOCK) * _BLOCK
    end = (size - limit // 2) // _BLOCK * _BLOCK
    return start, max(0, end - start)


def enforce_limit(path: str, limit: int) -> bool:
    """Bring the disk use of the file under the limit; True when something was given back."""
    try:
        seen = os.stat(path)
        if seen.st_blocks * 512 <= limit:
            return False
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        offset, length = hole(seen.st_size, limit)
        if length == 0:
            return False
        return punch_hole(fd, offset, length) or _rotate(fd, path, seen.st_size, limit)
    finally:
        os.close(fd)


def _rotate(fd: int, path: str, size: int, limit: int) -> bool:
    tail = os.pread(fd, limit // 2, max(0, size - limit // 2))
    try:
        with open(f"{path}.1", "wb") as old:
            old.write(tail)
    except OSError:
        pass  # a full disk: what counts is to give space back
    os.ftruncate(fd, 0)
    return True


def tail_lines(path: str, count: int, start: int = 0) -> tuple[str, ...]:
    """The last `count` lines written at or after offset `start`, each cut at 500 characters."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = max(start if start <= size else 0, size - 65536)
            file.seek(begin)
            data = file.read(65536)
    except OSError:
        return ()
    text = data.rpartition(b"\0")[2].decode("utf-8", "replace")
    lines = [line.rstrip() for line in text.splitlines()]
    return tuple(line[:_LINE_LIMIT] for line in lines if line)[-count:]
