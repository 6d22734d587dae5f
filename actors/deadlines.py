"""Deadlines of the calls of one node: a heap of numbers, and one timer for the earliest.

A call that is answered in time is simply no longer pending when its entry comes up; nothing is taken out of the heap
for it, which would cost every call a lock. When most entries are of that kind the heap is built anew.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .node import Node

INHERITED_GRACE = 1.5  # seconds
_TIDY = 1024  # entries below which nothing is tidied


def not_taken(seconds: float) -> str:
    """Why a stream is late that has waited this long for whoever reads it."""
    return f"its caller took no item for {seconds:.1f} s: the stream waits for its caller"


class Deadlines:
    """Calls `expire(seconds, inherited)` on pending calls whose time has passed, on the I/O thread."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._heap: list[tuple[float, int, float, bool]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._armed = float("inf")

    def __len__(self) -> int:
        return len(self._heap)

    def __repr__(self) -> str:
        return f"<Deadlines of {self._node.name}, {len(self)}>"

    def add(self, call: int, seconds: float, inherited: bool = False) -> None:
        """The call with this number expires in `seconds`; `inherited`: the deadline is that of whoever called us.

        An inherited one waits a little longer here: its owner looks first at what runs, and cancels from the top.
        """
        when = time.monotonic() + seconds + (INHERITED_GRACE if inherited else 0.0)
        with self._lock:
            if len(self._heap) > _TIDY and len(self._heap) > 4 * len(self._node.pending):
                self._heap = [entry for entry in self._heap if entry[1] in self._node.pending]
                heapq.heapify(self._heap)
            heapq.heappush(self._heap, (when, call, seconds, inherited))
            if when >= self._armed:
                return
            self._armed = when
        self._node.io.call(self._arm)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with self._lock:
            if not self._heap:
                self._armed = float("inf")
                return
            self._armed = self._heap[0][0]
            delay = max(self._armed - time.monotonic(), 0)
        if not self._node.closed:
            self._timer = self._node.io.loop.call_later(delay, self._fire)

    def _fire(self) -> None:
        due: list[tuple[Any, float, bool]] = []
        now = time.monotonic()
        with self._lock:
            while self._heap and self._heap[0][0] <= now:
                _, number, seconds, inherited = heapq.heappop(self._heap)
                call = self._node.pending.get(number)
                if call is not None:
                    due.append((call, seconds, inherited))
        self._arm()
        for call, seconds, inherited in due:
            call.expire(seconds, inherited)

    def close(self) -> None:
        """Forget all of them. On the I/O thread."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._heap.clear()
