"""Where the console writes in a script: to whatever `sys.stdout` is at that moment."""

from __future__ import annotations

import io
import select
import sys
from typing import Any

PIECE = 4096  # bytes a pipe takes without blocking when it is writable
LOOK = 0.2  # seconds between looks whether the console was closed meanwhile


class Screen:
    """Standard output. It is written to only when it can take something, so that nothing waits inside its lock."""

    def __init__(self) -> None:
        self._closed = False

    def write(self, text: str, cell: Any) -> None:
        """Write whole lines; gives up when it is closed."""
        for piece in pieces(text):
            stream = sys.stdout
            if stream is None or not self._writable(stream):
                return
            stream.write(piece)
            stream.flush()

    def _writable(self, stream: Any) -> bool:
        """Wait until a stream that stands on a descriptor of its own can be written to; False when closed meanwhile."""
        if type(stream) is not io.TextIOWrapper:
            return True
        try:
            poll = select.poll()
            poll.register(stream.fileno(), select.POLLOUT)
        except (OSError, ValueError):
            return not stream.closed
        while not poll.poll(LOOK * 1000):
            if self._closed:
                return False
        return True

    def close(self) -> None:
        """Wait no longer."""
        self._closed = True


def notebook_shell() -> Any:
    """The IPython shell of a notebook's kernel, or None; IPython is not imported for it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell if hasattr(shell, "kernel") else None


def pieces(text: str) -> list[str]:
    """Lines together in pieces of about PIECE characters.

    >>> pieces("")
    []
    """
    found: list[str] = []
    at = 0
    while at < len(text):
        end = text.rfind("\n", at, at + PIECE) + 1
        if not end:
            end = min(at + PIECE, len(text))
        found.append(text[at:end])
        at = end
    return found
