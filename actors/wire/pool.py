"""Shared memory for large payloads between processes of one host: anonymous segments, reused.

The sender takes a segment from its `Pool`, copies a message's buffers in, and lends it to the
receivers. Each has mapped the segment once, when its descriptor was passed, and opens a message as
views over the mapping; when the last view, array or tensor over them is gone it says so. Only when
all have (or have died) is the segment used again. A kill -9 at either end leaves nothing behind, for a
memfd has no name.

Why reuse, and why a kept mapping. GB/s for 64 MiB, best of 30, on 2 cores that others were using too
(a second thread pays only where a core is free, so `copying` shares the pieces out as they are taken):

    fill, fresh segment                            0.6-1.3 with 1 thread     0.6-1.3 with 2
    fill, reused segment                           6.2-11                    5.6-17
    copy out of the kept shared map                10
    copy out of a private map made anew            4.7
    write in place, shared                         20
    write in place, private (each page is copied)  1.6

Opening a message costs 6 us over the kept map and 26 us over a private one.

A single receiver takes the segment over: it sees the shared pages and may write to them in place.
Several receivers each map it privately, and anew for each message: pages that a receiver never
touched would show the next message through an old private map, those it wrote never would.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .copying import copy_into
from .headroom import headroom

ONE_RECEIVER = 128 << 10  # payload bytes from which the pool is used: 1 MiB echoed takes 490 us, 1,210 us by the stream
CAST = 64 << 10  # the same, for several receivers on this host
ALIGNMENT = 64
SMALLEST = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


class _Map:
    """A mapping, undone when its last exporter is gone. Not mmap.mmap: each of those keeps a descriptor."""

    __slots__ = ("__weakref__", "_address", "_size")

    def __init__(self, fd: int, size: int, private: bool) -> None:
        kind = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
        address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, kind, fd, 0)
        if address == _FAILED:
            raise OSError(ctypes.get_errno(), f"cannot map {size} bytes of shared memory")
        self._address, self._size = address, size
        weakref.finalize(self, _libc.munmap, address, size).atexit = False

    def export(self) -> ctypes.Array[ctypes.c_ubyte]:
        """A new object whose life is that of the views made over it."""
        exporter = (ctypes.c_ubyte * self._size).from_address(self._address)
        exporter._map = self  # type: ignore[attr-defined]
        return exporter


def size_class(nbytes: int) -> int:
    """The size of the segment for `nbytes`: a power of two or one and a half, at least 1 MiB.

    >>> [size_class(n << 20) >> 20 for n in (1, 5, 7, 33)]
    [1, 6, 8, 48]
    """
    size = max(SMALLEST, 1 << max(0, nbytes - 1).bit_length())
    return size * 3 // 4 if size > SMALLEST and nbytes <= size * 3 // 4 else size


def layout(sizes: Iterable[int]) -> tuple[list[tuple[int, int]], int]:
    """(offset, nbytes) of buffers of these sizes, one after the other, and the bytes they take in all."""
    spans, end = [], 0
    for nbytes in sizes:
        spans.append((end, nbytes))
        end += nbytes + -nbytes % ALIGNMENT
    return spans, end


class Segment:
    """A piece of shared memory that this process made. Its descriptor is passed to each receiver once."""

    __slots__ = ("fd", "holders", "id", "knows", "size", "view")

    def __init__(self, id: int, size: int) -> None:
        self.id = id
        self.size = size
        self.fd = os.memfd_create("roost", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.fd, size)
            self.view = memoryview(_Map(self.fd, size, private=False).export()).cast("B")
        except BaseException:
            os.close(self.fd)
            raise
        self.holders: set[int] = set()  # receivers that have not yet reported their last view gone
        self.knows: set[int] = set()  # receivers that it was ever lent to: they have its descriptor

    def __repr__(self) -> str:
        return f"Segment({self.id}, {self.size >> 20} MiB, held by {sorted(self.holders) or 'none'})"


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """Of one process's pool; sizes in bytes of whole segments."""

    segments: int
    held_bytes: int
    lent_bytes: int
    limit_bytes: int
    made: int
    reused: int
    refused: int


class Pool:
    """The segments of one sending process. Thread-safe; `released` also from finalizers.

    `limit_bytes` bounds all segments together; by default half of the memory that the machine and
    this process's cgroups leave free when it is first used. Whatever the bound, a new segment is
    made only while twice its size is free at that moment, for others here have pools too.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit = -1 if limit_bytes is None else limit_bytes  # -1: not asked for yet, it takes 1 ms
        self._lock = threading.Lock()  # not re-entrant: see _report
        self._segments: dict[int, Segment] = {}
        self._free: dict[int, list[Segment]] = {}  # by size; last used last, its pages warmest
        self._reports: deque[tuple[int | None, int]] = deque()
        self._retired: list[tuple[int, frozenset[int]]] = []
        self._ids = itertools.count(1)
        self._held = self._made = self._reused = self._refused = 0

    def __repr__(self) -> str:
        return f"Pool({len(self._segments)} segments, {self._held >> 20} of {self._limit >> 20} MiB)"

    def take(self, nbytes: int) -> Segment | None:
        """A segment of at least `nbytes`, for `fill` and then `lend`; None past the bound: then stream."""
        with self._lock:
            if self._limit < 0:
                self._limit = headroom() // 2
            self._apply_reports()
            size = size_class(nbytes)
            fitting = min((each for each, free in self._free.items() if free and size <= each <= 2 * size), default=0)
            if fitting:
                self._reused += 1
                return self._free[fitting].pop()
            if self._held + size > self._limit:
                self._trim(self._limit - size)
            if self._held + size > self._limit or 2 * size > headroom():
                return self._take_larger(size)
            return self._make(size)

    def fill(self, segment: Segment, buffers: Sequence[memoryview]) -> list[tuple[int, int]]:
        """Copy the buffers in, at multiples of 64: their (offset, nbytes).

        Raises ValueError if they do not fit.
        """
        spans, end = layout(buffer.nbytes for buffer in buffers)
        if end > segment.size:
            raise ValueError(f"{end} bytes do not fit into a segment of {segment.size}")
        copy_into(segment.view, spans, buffers)
        return spans

    def lend(self, segment: Segment, receivers: Iterable[int]) -> None:
        """From now on `receivers` hold it; with none it is free at once. Before they are told of it."""
        with self._lock:
            segment.holders = set(receivers)
            segment.knows |= segment.holders
            if not segment.holders:
                self._put_back(segment)

    def released(self, segment_id: int, receiver: int) -> None:
        """A receiver reports that its last view is gone. May be called from a finalizer in any thread."""
        self._report(segment_id, receiver)

    def receiver_died(self, receiver: int) -> None:
        """Whatever `receiver` held it holds no more, and it has no descriptors.

        Only for a process that is known to have ended: one that is merely unreachable may still read
        what would be written over, or be killed (SIGBUS) by reading what was given up.
        """
        self._report(None, receiver)

    def retired(self) -> list[tuple[int, frozenset[int]]]:
        """Segments given up since the last call, and for each the receivers that may drop their mapping."""
        with self._lock:
            retired, self._retired = self._retired, []
            return retired

    def trim(self, keep_bytes: int = 0) -> None:
        """Give up free segments until no more than `keep_bytes` are held."""
        with self._lock:
            self._apply_reports()
            self._trim(keep_bytes)

    def statistics(self) -> PoolStatistics:
        with self._lock:
            self._apply_reports()
            free = sum(size * len(segments) for size, segments in self._free.items())
            return PoolStatistics(
                len(self._segments),
                self._held,
                self._held - free,
                self._limit,
                self._made,
                self._reused,
                self._refused,
            )

    def close(self) -> None:
        """Give up all segments. Receivers' views stay valid: the pages live as long as a mapping of them."""
        with self._lock:
            for segment in self._segments.values():
                os.close(segment.fd)
            self._segments.clear()
            self._free.clear()
            self._reports.clear()
            self._held = self._limit = 0

    # -- holding the lock

    def _make(self, size: int) -> Segment | None:
        try:
            segment = Segment(next(self._ids), size)
        except OSError:  # no descriptors or address space left: the stream still works
            self._refused += 1
            return None
        self._segments[segment.id] = segment
        self._held += size
        self._made += 1
        return segment

    def _take_larger(self, size: int) -> Segment | None:
        larger = min((each for each, free in self._free.items() if free and each >= size), default=0)
        if larger:
            self._reused += 1
            return self._free[larger].pop()
        self._refused += 1
        return None

    def _put_back(self, segment: Segment) -> None:
        self._free.setdefault(segment.size, []).append(segment)

    def _trim(self, keep_bytes: int) -> None:
        for segments in self._free.values():
            while segments and self._held > keep_bytes:
                self._retire(segments.pop(0))

    def _retire(self, segment: Segment) -> None:
        """No view is left at any receiver, so the pages go at once, though receivers still map them."""
        os.ftruncate(segment.fd, 0)
        os.close(segment.fd)
        del self._segments[segment.id]
        self._held -= segment.size
        self._retired.append((segment.id, frozenset(segment.knows)))

    # -- reports: a finalizer may run in a thread that is anywhere, also inside this lock

    def _report(self, segment_id: int | None, receiver: int) -> None:
        self._reports.append((segment_id, receiver))
        if self._lock.acquire(blocking=False):
            try:
                self._apply_reports()
            finally:
                self._lock.release()

    def _apply_reports(self) -> None:
        while self._reports:
            id, receiver = self._reports.popleft()
            if id is not None:
                segments = [self._segments[id]] if id in self._segments else []
            else:
                segments = list(self._segments.values())
            for segment in segments:
                if id is None:
                    segment.knows.discard(receiver)
                if receiver in segment.holders:
                    segment.holders.discard(receiver)
                    if not segment.holders:
                        self._put_back(segment)


class Mappings:
    """The segments of other processes that this process has been given. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._segments: dict[tuple[int, int], _Received] = {}

    def __repr__(self) -> str:
        senders = {sender for sender, _ in list(self._segments)}
        return f"Mappings({len(self._segments)} segments of {len(senders)} senders)"

    def add(self, sender: int, segment_id: int, fd: int, size: int) -> None:
        """Take over the descriptor of a sender's segment; it is this object's to close."""
        with self._lock:
            if (sender, segment_id) in self._segments:
                os.close(fd)
            else:
                self._segments[sender, segment_id] = _Received(fd, size)

    def knows(self, sender: int, segment_id: int) -> bool:
        return (sender, segment_id) in self._segments

    def open(
        self,
        sender: int,
        segment_id: int,
        spans: Sequence[tuple[int, int]],
        private: bool,
        on_release: Callable[[], None],
    ) -> list[memoryview]:
        """Writable views of a message's (offset, nbytes) spans.

        `on_release` is called once, when the last view, array or tensor over them is gone, from
        whatever thread that happens in: it must only note it. `private` if there are several
        receivers: writes stay here, and the first to each page copies it.

        Raises KeyError for a segment that was not added, ValueError for spans outside it.
        """
        with self._lock:
            received = self._segments[sender, segment_id]
            if any(offset < 0 or nbytes < 0 or offset + nbytes > received.size for offset, nbytes in spans):
                raise ValueError(f"spans outside of a segment of {received.size} bytes")
            exporter = received.map(private).export()
        weakref.finalize(exporter, _release, os.getpid(), on_release).atexit = False
        whole = memoryview(exporter).cast("B")
        return [whole[offset : offset + nbytes] for offset, nbytes in spans]

    def drop(self, sender: int, segment_id: int) -> None:
        """The sender has given the segment up. Harmless if it is not known here."""
        with self._lock:
            received = self._segments.pop((sender, segment_id), None)
            if received is not None:
                os.close(received.fd)

    def forget(self, sender: int) -> None:
        """The sender is gone. Views that are still held stay valid."""
        with self._lock:
            for key in [key for key in self._segments if key[0] == sender]:
                os.close(self._segments.pop(key).fd)

    def close(self) -> None:
        for sender in {sender for sender, _ in list(self._segments)}:
            self.forget(sender)


class _Received:
    """A segment at a receiver. The descriptor is kept, for private maps are made anew each time."""

    __slots__ = ("_shared", "fd", "size")

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self._shared: _Map | None = None

    def map(self, private: bool) -> _Map:
        if private:
            return _Map(self.fd, self.size, private=True)
        if self._shared is None:
            self._shared = _Map(self.fd, self.size, private=False)
        return self._shared


def _release(pid: int, on_release: Callable[[], None]) -> None:
    if os.getpid() == pid:  # a forked child's copies are not what the sender waits for
        on_release()
