"""Workers' output on its way to the controller: tailed from their files, at lower priority than control.

A worker writes to its own file and never waits for anybody. What the controller takes too slowly is dropped here, with
a count; it is still in the file.
"""

from __future__ import annotations

import asyncio
import os

from ...actors.node import Node
from ...actors.peer import Peer

PERIOD = 0.05  # seconds between looks
CHUNK = 64 << 10  # bytes of one file forwarded at a look
BEHIND = 4 << 20  # bytes the controller may be behind before output is dropped


class _Followed:
    __slots__ = ("at", "dropped", "name", "path", "peer", "rest")

    def __init__(self, name: str, path: str, peer: Peer) -> None:
        self.name = name
        self.path = path
        self.peer = peer
        self.at = 0
        self.rest = b""
        self.dropped = 0


class OutputTail:
    """Follows the output files of the live workers of one host."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._files: dict[int, _Followed] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look."""
        self._timer = self._node.io.loop.call_later(PERIOD, self._look)

    def stop(self) -> None:
        """Forward what is left, and stop."""
        if self._timer is not None:
            self._timer.cancel()
        for proc_id in list(self._files):
            self.last(proc_id)

    def follow(self, proc_id: int, name: str, path: str, peer: Peer) -> None:
        """Forward the output of a worker to `peer`."""
        self._files[proc_id] = _Followed(name, path, peer)

    def last(self, proc_id: int) -> None:
        """A worker has ended: forward its last lines and forget it."""
        followed = self._files.pop(proc_id, None)
        if followed is not None:
            self._forward(followed, last=True)

    def _look(self) -> None:
        for followed in list(self._files.values()):
            self._forward(followed)
        self._timer = self._node.io.loop.call_later(PERIOD, self._look)

    def _forward(self, followed: _Followed, *, last: bool = False) -> None:
        try:
            size = os.stat(followed.path).st_size
        except OSError:
            return
        if size < followed.at:  # it was cut at its limit
            followed.at = size
        if size == followed.at and not (last and followed.rest):
            return
        if followed.peer.outbox.kept_bytes > BEHIND:
            followed.dropped += size - followed.at
            followed.at, followed.rest = size, b""
            return
        with open(followed.path, "rb") as file:
            file.seek(followed.at)
            data = file.read(CHUNK)
        followed.at += len(data)
        data = data.replace(b"\0", b"")  # holes punched where a file was over its limit
        lines, mark, rest = (followed.rest + data).rpartition(b"\n")
        if last:
            lines, mark, rest = followed.rest + data, b"\n", b""
        followed.rest = rest
        if mark:
            text = lines.decode("utf-8", "replace").rstrip("\n")
            self._node.event(followed.peer, "output", followed.name, text, followed.dropped)
            followed.dropped = 0
