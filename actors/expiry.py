"""Expiry: the deadlines of the calls that one actor has been given.

One timer stands for the earliest; when it fires, the calls without an answer are looked through. Nothing is kept for
each call, so one that is answered in time costs a comparison.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cell import Cell

NEVER = float("inf")
# Seconds past the deadline. It is the caller's own; it looks first at what runs here, then cancels, and this end acts
# by itself only when that word does not come.
GRACE = 1.5
_APART = 0.002  # seconds between two looks


class Expiry:
    """Calls `cell.expire(message)`, on the I/O thread, for each call whose deadline passes without an answer."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._armed = NEVER
        self._timer: asyncio.TimerHandle | None = None

    def note(self, deadline: float) -> None:
        """A call with this deadline has been registered; from any thread."""
        self._note(deadline + GRACE)

    def _note(self, when: float) -> None:
        if when < self._armed:
            self._armed = when
            self._cell.node.io.call(self._arm)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._armed < NEVER and not self._cell.node.closed:
            delay = max(self._armed - time.monotonic(), 0.0)
            self._timer = self._cell.node.io.loop.call_later(delay, self._look)

    def _look(self) -> None:
        cell = self._cell
        self._armed = NEVER  # first: what is registered from now on arms the timer itself
        now = time.monotonic()
        following = NEVER
        for message in list(cell.waiting.values()):
            if message.deadline is None or message.cancelled is not None:
                continue
            if message.deadline + GRACE <= now:
                cell.expire(message)
            else:
                following = min(following, message.deadline + GRACE)
        if following < NEVER:
            self._note(max(following, now + _APART))
