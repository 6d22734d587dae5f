"""What this process has opened to one-sided access, and who may still use it.

A `Block` is a storage block, registered once however many handles lie on it. An `Export` is what one
`RDMABuffer(...)` opened: its own cookie, generation and guard cell, so that dropping one handle leaves the
others on the same storage alone.

An export lives while any of these is true, and is freed as soon as none is:

- a handle object of it lives in this process;
- a pickled handle is on its way: each pickling has a token, and the processes it was sent to (`sending_to`)
  have each still to acknowledge it. Where nobody said to whom it goes, it counts as on its way for ever;
- another process has acknowledged a token and has not said that its last handle is gone;

until `drop()` or the end of this process, which end it whatever holds it. A process that dies is struck from
all of them. Messages carry the sender's running number, so that an acknowledgement overtaken by a later
release does not bring a holder back; a handle passed on by a holder is pinned by the holder's own message,
and an acknowledgement of it that comes first is kept until that message does.

Handles are collected at any moment, also while this thread is inside the lock. So a collected handle is put
on a queue, and whoever can take the lock, or is about to leave it, empties the queue.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar
from weakref import WeakValueDictionary

from .cma import CELL
from .errors import StaleBuffer
from .home import home
from .memory import Memory, Span, extent_of, span_of

_STEP = 32  # bytes between cells
FORWARDED = 1  # bit of a token: made by a holder, not by the owner
_SLAB = 64 << 10  # bytes of cells mapped at a time: 2,048 exports


class Cells:
    """Guard cells in private pages that are never unmapped, so that looking at a freed one is no fault."""

    def __init__(self) -> None:
        self._free: list[tuple[int, memoryview]] = []
        self._slabs: list[mmap.mmap] = []

    def take(self) -> tuple[int, memoryview]:
        """Address and bytes of a zeroed cell."""
        if not self._free:
            slab = mmap.mmap(-1, _SLAB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._slabs.append(slab)
            view, base = memoryview(slab), ctypes.addressof(ctypes.c_char.from_buffer(slab))
            self._free = [(base + i, view[i : i + CELL]) for i in range(0, _SLAB, _STEP)]
        return self._free.pop()

    def give(self, cell: tuple[int, memoryview]) -> None:
        cell[1][:] = bytes(CELL)
        self._free.append(cell)


T = TypeVar("T")


class Block:
    """A registered storage block; lives as long as its exports do."""

    __slots__ = ("__weakref__", "span")

    def __init__(self, span: Span) -> None:
        self.span = span

    def intact(self) -> bool:
        """Whether the memory is still there: a torch storage may have been resized, as FSDP does to
        shards.
        """
        return extent_of(self.span.keep) in (None, (self.span.base, self.span.nbytes))


NOTHING = Block(Span(0, 0, "cpu", None))


@dataclass(slots=True, eq=False)
class Export:
    """One opened array. `key` (16 random bytes) finds it; the cell holds the key and the generation."""

    key: bytes
    cell: tuple[int, memoryview]
    block: Block
    generation: int = 0
    open: bool = True
    local: int = 0  # handle objects in this process
    waiting: dict[int, set[int] | None] = field(default_factory=dict)  # token -> who has not acknowledged it
    early: dict[int, set[int]] = field(default_factory=dict)  # token -> who has, before its pin was told
    holders: set[int] = field(default_factory=set)
    last: dict[int, int] = field(default_factory=dict)  # process -> its highest number seen

    @property
    def cookie(self) -> bytes:
        """The 24 bytes that the guard cell holds."""
        return self.key + struct.pack("<Q", self.generation)


class Registry:
    """All exports of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._collected: deque[Export] = deque()
        self._cells = Cells()
        self._exports: dict[bytes, Export] = {}
        self._blocks: WeakValueDictionary[tuple[int, int, str], Block] = WeakValueDictionary()
        self._watched: set[int] = set()
        self._buried: list[Block] = []

    def export(self, memory: Memory) -> Export:
        """Open an array; the caller holds one local count of it."""
        span = span_of(memory)
        key = (span.base, span.nbytes, span.device)

        def add() -> Export:
            block = self._blocks.get(key)
            if block is None:
                block = self._blocks[key] = Block(span)
            export = Export(secrets.token_bytes(16), self._cells.take(), block, local=1)
            export.cell[1][:] = export.cookie
            self._exports[export.key] = export
            return export

        return self._locked(add)

    def find(self, key: bytes) -> Export | None:
        return self._exports.get(key)

    def adopt(self, key: bytes, token: int, me: int) -> Export | None:
        """One more local count, for a handle that has come home; None if it is gone."""

        def count() -> Export | None:
            export = self._exports.get(key)
            if export is not None:
                export.local += 1
                self._strike(export, token, me)
            return export

        return self._locked(count)

    def collected(self, export: Export) -> None:
        """A local handle object is gone. Safe inside any finaliser."""
        self._collected.append(export)
        self._settle()

    def drop(self, export: Export) -> None:
        """Close an export: its handles everywhere are stale from now on."""
        self._locked(lambda: self._close(export))

    def advance(self, export: Export) -> int:
        """Make all handles of it stale but one that follows, which is counted here; returns the new
        generation.
        """

        def bump() -> int:
            if not export.open:
                raise StaleBuffer("the buffer was dropped: it has no next generation")
            export.generation += 1
            export.local += 1
            export.waiting.clear()  # handles on their way are of no use any more
            export.cell[1][16:] = struct.pack("<Q", export.generation)
            return export.generation

        return self._locked(bump)

    def pin(self, export: Export, token: int, receivers: Iterable[int] | None) -> None:
        """A handle was pickled under `token`, for these processes, or for nobody knows whom."""
        who = None if receivers is None else set(receivers)

        def add() -> None:
            if not export.open:
                return
            early = export.early.pop(token, set())
            if who is None or who - early:
                export.waiting[token] = None if who is None else who - early

        self._locked(add)
        for proc_id in who or ():
            self._watch(proc_id)

    def acknowledged(self, key: bytes, token: int, proc_id: int, number: int) -> None:
        """A process has unpickled a handle."""

        def note() -> None:
            export = self._exports.get(key)
            if export is None:
                return
            if number > export.last.get(proc_id, -1):
                export.last[proc_id] = number
                export.holders.add(proc_id)
            self._strike(export, token, proc_id)

        self._locked(note)
        self._watch(proc_id)

    def released(self, key: bytes, proc_id: int, number: int) -> None:
        """A process has no handle of it any more."""

        def note() -> None:
            export = self._exports.get(key)
            if export is not None and number > export.last.get(proc_id, -1):
                export.last[proc_id] = number
                export.holders.discard(proc_id)
                self._free_if_unheld(export)

        self._locked(note)

    def died(self, proc_id: int) -> None:
        """Strike a dead process from every export."""

        def strike() -> None:
            self._watched.discard(proc_id)
            for export in list(self._exports.values()):
                export.holders.discard(proc_id)
                for token in list(export.waiting):
                    self._strike(export, token, proc_id)
                self._free_if_unheld(export)

        self._locked(strike)

    def statistics(self) -> tuple[int, int, int]:
        """Exports, storage blocks, and bytes of those blocks now registered."""
        self._settle()
        blocks = list(self._blocks.values())
        return len(self._exports), len(blocks), sum(b.span.nbytes for b in blocks)

    def _watch(self, proc_id: int) -> None:
        if proc_id not in self._watched:
            self._watched.add(proc_id)
            home().on_process_death(proc_id, self.died)

    def _strike(self, export: Export, token: int, proc_id: int) -> None:
        if token not in export.waiting:
            if token & FORWARDED:
                export.early.setdefault(token, set()).add(proc_id)
            return
        who = export.waiting[token]
        if who is not None:
            who.discard(proc_id)
            if not who:
                del export.waiting[token]

    def _free_if_unheld(self, export: Export) -> None:
        if not (export.local or export.waiting or export.holders):
            self._close(export)

    def _close(self, export: Export) -> None:
        export.open = False
        if self._exports.pop(export.key, None) is None:
            return  # closed before, or of the process that this one was forked from
        self._cells.give(export.cell)  # zeroes it: a reader in flight sees that before the memory goes
        export.waiting.clear()
        export.holders.clear()
        self._buried.append(export.block)
        export.block = NOTHING

    def _locked(self, act: Callable[[], T]) -> T:
        try:
            with self._lock:
                result = act()
                buried, self._buried = self._buried, []
            del buried  # here, since what it frees may run anyone's finaliser
            return result
        finally:
            self._settle()

    def _settle(self) -> None:
        """Count what was collected; whoever holds the lock does it on leaving."""
        while self._collected and self._lock.acquire(blocking=False):
            try:
                while self._collected:
                    export = self._collected.popleft()
                    export.local -= 1
                    self._free_if_unheld(export)
                buried, self._buried = self._buried, []
            finally:
                self._lock.release()
            del buried


_registry = Registry()


def registry() -> Registry:
    return _registry


def _after_fork() -> None:
    global _registry
    _registry = Registry()  # the parent's exports are the parent's


os.register_at_fork(after_in_child=_after_fork)
