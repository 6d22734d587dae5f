"""Workers' output on its way to who spawned them: tailed from their files, at lower priority than control.

A worker writes to its own file and never waits for anybody, so the file is also the buffer: while the receiver is
behind, nothing is read. Only a worker whose file is more than BACKLOG ahead has lines dropped, with a count; the newest
KEPT bytes are shown then, and the rest is still in the file as far as its cap allows. What is filtered out altogether
is not even read.

    full lines           at the next look, every 50 ms
    a line without end   once it has stood for 0.25 s, as a line of its own
    a progress bar       its last state, when its line ends, and every 2 s while it changes
    a dead worker        all that remains, up to LAST bytes
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from ...actors.node import Node
from ...actors.peer import Peer
from ...actors.refs import ProcRef

PERIOD = 0.05  # seconds between looks
PER_LOOK = 256 << 10  # bytes forwarded at a look, of all files together: 5 MB/s
BEHIND = 1 << 20  # bytes the receiver may be behind before nothing more is read for it
BACKLOG = 8 << 20  # bytes a file may be ahead before some of it is dropped
KEPT = 1 << 20  # bytes that are shown of it then
LAST = 4 << 20  # bytes that are read of an ended worker's file
REMEMBERED = 1000  # ended processes whose options are kept, for those that take their place
STANDS = 0.25  # seconds after which a line without end is shown
PROGRESS = 2.0  # seconds between two states of a progress bar
LINE = 64 << 10  # bytes after which a line is cut


class _Followed:
    """One worker's file: read up to `at`; `rest` is the line without end that was read last, at `since`."""

    __slots__ = (
        "at", "bar", "dropped", "name", "options", "path", "peer", "proc_id", "rest", "silent", "since", "told",
    )  # fmt: skip

    def __init__(self, proc_id: int, name: str, path: str, peer: Peer) -> None:
        self.proc_id = proc_id
        self.name = name
        self.path = path
        self.peer = peer
        self.at = _size(path) or 0
        self.rest = b""
        self.since = 0.0
        self.bar = b""  # the state of the progress bar that was shown last …
        self.told = 0.0  # … and when
        self.dropped = 0
        self.silent = False
        self.options: list[Any] | None = None

    @property
    def is_behind(self) -> bool:
        """Whether the receiver takes what it is sent too slowly."""
        link = self.peer.link
        return self.peer.outbox.kept_bytes > BEHIND or (link is not None and link.queued_bytes > BEHIND)


class OutputTail:
    """Follows the output files of the live workers of one host."""

    def __init__(self, node: Node, folder: Path) -> None:
        self._node = node
        self._folder = folder
        self._files: dict[int, _Followed] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._turn = 0
        self._set_for: dict[str, tuple[bool, list[Any]]] = {}  # by name: what was set for processes that have ended
        node.system.update(
            {"flush output": self.flush, "output options": self.set_options, "log files": self.log_files}
        )

    def start(self) -> None:
        """Begin to look."""
        self._timer = self._node.io.loop.call_later(PERIOD, self._look)

    def stop(self) -> None:
        """Forward what is left, and stop."""
        if self._timer is not None:
            self._timer.cancel()
        for proc_id in list(self._files):
            self.last(proc_id)

    def path(self, name: str, proc_id: int) -> str:
        """The file of a process."""
        return str(self._folder / f"{name}-{proc_id:x}.log")

    def follow(self, ref: ProcRef, peer: Peer) -> None:
        """Forward the output of a worker to `peer`; to where the peer's own goes, if that is a worker here.

        What was set for a process that this one takes the place of is set for it too.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.path(ref.name, ref.proc_id)
        parent = self._files.get(peer.proc_id)
        followed = _Followed(ref.proc_id, ref.name, path, parent.peer if parent is not None else peer)
        self._files[ref.proc_id] = followed
        before = self._set_for.pop(ref.name, None)
        if before is not None and ref.epoch > 1:
            followed.silent, followed.options = before
            self._node.event(followed.peer, "output options", [ref.proc_id], followed.options)

    def last(self, proc_id: int) -> None:
        """A worker has ended: forward its last lines and forget it."""
        followed = self._files.pop(proc_id, None)
        if followed is not None and followed.options is not None:
            self._set_for[followed.name] = (followed.silent, followed.options)
            while len(self._set_for) > REMEMBERED:
                del self._set_for[next(iter(self._set_for))]
        if followed is None or followed.silent:
            return
        size = _size(followed.path)
        if size is None:
            return
        if size - followed.at > LAST:
            self._skip(followed, size - LAST)
        while followed.at < size and self._forward(followed, size, PER_LOOK):
            pass
        if followed.rest:
            self._send(followed, [_state(followed.rest)])

    # requests

    def flush(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> bool:
        """[]: forward at once what has been written; it arrives before the answer."""
        for followed in self._files.values():
            self._look_at(followed, PER_LOOK)
        return True

    def log_files(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> list[str]:
        """[[process, name], …]: where the output of each stands."""
        return [self.path(name, proc_id) for proc_id, name in arguments[0]]

    def set_options(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> bool:
        """[processes, silent, options]: whether their output is wanted, and what its receiver is to do with it."""
        proc_ids, silent, options = arguments
        told: dict[Peer, list[int]] = {}
        for proc_id in proc_ids:
            followed = self._files.get(proc_id)
            if followed is None:
                continue
            if followed.silent and not silent:
                followed.at, followed.rest = _size(followed.path) or 0, b""
            self._look_at(followed, PER_LOOK)  # what was written before is treated as before
            followed.silent, followed.options = silent, options
            told.setdefault(followed.peer, []).append(proc_id)
        for receiver, ids in told.items():
            node.event(receiver, "output options", ids, options)
        return True

    # looking

    def _look(self) -> None:
        left = PER_LOOK
        files = list(self._files.values())
        self._turn += 1
        for i in range(len(files)):  # another one is first each time
            left -= self._look_at(files[(i + self._turn) % len(files)], left)
        self._timer = self._node.io.loop.call_later(PERIOD, self._look)

    def _look_at(self, followed: _Followed, budget: int) -> int:
        """Forward what is new, `budget` bytes at most; returns how many were read."""
        if followed.silent:
            return 0
        size = _size(followed.path)
        if size is None:
            return 0
        if size < followed.at:  # it was cut at its limit, and begun again
            followed.at, followed.rest = 0, b""
        if size - followed.at > BACKLOG:
            self._skip(followed, size - KEPT)
        begin = followed.at
        if size > begin and budget > 0 and not followed.is_behind:
            self._forward(followed, size, budget)
        elif followed.rest:
            self._forward_rest(followed)
        return followed.at - begin

    def _skip(self, followed: _Followed, to: int) -> None:
        """Drop what stands before `to`, up to the end of the line there."""
        followed.dropped += to - followed.at + len(followed.rest)
        followed.at, followed.rest = to, b""
        data = _read(followed.path, to, LINE)
        end = data.find(b"\n") + 1
        followed.at += end
        followed.dropped += end

    def _forward(self, followed: _Followed, size: int, budget: int) -> bool:
        """Read once and send the full lines; False when there was nothing."""
        data = _read(followed.path, followed.at, min(size - followed.at, budget))
        if not data:
            return False
        followed.at += len(data)
        data = followed.rest + data.replace(b"\0", b"")  # holes punched where a file was over its limit
        full, mark, followed.rest = data.rpartition(b"\n")
        followed.since = time.monotonic()
        lines = [_state(line) for line in full.split(b"\n")] if mark else []
        while len(followed.rest) > LINE:
            lines.append(followed.rest[:LINE])
            followed.rest = followed.rest[LINE:]
        if lines:
            self._send(followed, lines)
        return True

    def _forward_rest(self, followed: _Followed) -> None:
        """Show a line without end that has stood for a while; of a progress bar its state, again and again."""
        now = time.monotonic()
        if b"\r" in followed.rest:
            state = _state(followed.rest)
            if state and state != followed.bar and now - followed.told >= PROGRESS:
                followed.bar, followed.told = state, now
                self._send(followed, [state])
            followed.rest = b"\r" + state
        elif now - followed.since >= STANDS:
            self._send(followed, [followed.rest])
            followed.rest = b""

    def _send(self, followed: _Followed, lines: list[bytes]) -> None:
        text = b"\n".join(lines).decode("utf-8", "replace")
        self._node.event(
            followed.peer, "output", followed.proc_id, followed.name, text, followed.dropped, followed.path
        )
        followed.dropped = 0


def _state(line: bytes) -> bytes:
    """What a terminal would show of a line with carriage returns: what was written last.

    >>> _state(b"\\r 10%\\r100%\\r"), _state(b"plain\\r")
    (b'100%', b'plain')
    """
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def _read(path: str, at: int, count: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(at)
            return file.read(count)
    except OSError:
        return b""
