"""The link of a process to itself, so that actors of one process call each other as any others do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .wire import frame as f

if TYPE_CHECKING:
    from .node import Node


class LoopLink:
    """The link of a process to itself: the same frames, handed to the I/O thread."""

    same_host_socket = False
    closed = False
    deferred = queued_bytes = 0

    def __init__(self, node: Node) -> None:
        self._node = node
        self.peer = node.identity

    def send(self, parts: Sequence[Any], nbytes: int, *, defer: bool = False) -> None:
        """Hand a frame over."""
        self._node.io.call(self._arrive, b"".join(parts))

    def send_frame(self, frame: bytes, defer: bool) -> None:
        """The same for a frame in one buffer."""
        self._node.io.call(self._arrive, frame)

    def _arrive(self, data: bytes) -> None:
        header = f.HEADER.unpack_from(data)
        body_at = f.HEADER_SIZE + header[3]
        with self._node.io.readers.dispatching:
            self._node._on_frame(self, header, data[f.HEADER_SIZE : body_at], data[body_at:])  # type: ignore[arg-type]

    def flush(self) -> None:
        """Nothing is ever deferred."""

    def close(self, why: str = "") -> None:
        """It lives as long as its node."""
