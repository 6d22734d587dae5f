"""Carrying out one read or write, by the way that was chosen.

A local array is contiguous, or on a device, or in pieces; so is the far one. Pieces of some size go as runs.
Where they are small (a transposed matrix is one run an element) the far span is read whole, or the local
array packed, and the elements are put in order here. 16 MiB, every other piece of a block twice as large, ms:

    bytes a piece    by process_vm_readv: runs / span    by TCP: runs / span
    4                            3,440 / 68                  15,600 / 39
    256                             87 / 23                     150 / 65
    1024                            31 / 23                      47 / 21
    4096                            16 / 26                      14 / 21
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..actors.wire.copying import view_at
from . import cma, peer
from .client import client_of
from .errors import CmaRefused
from .handle import Handle
from .layout import Layout, Runs, fragments, matched, numpy_or_none, packed, parts
from .memory import Memory
from .peer import Way
from .registry import registry
from .staging import fill_device, host_copy

if TYPE_CHECKING:
    from types import ModuleType

    import numpy

SMALL_RUN = 2048  # bytes a run on average, below which elements are put in order here
MANY_RUNS = 64
SPARSE = 4  # do not read a span of more than this many times the data


_NO_BYTES = Runs(array("q", (0,)), array("q", (0,)), array("q", (0,)), 0)  # still looks whether the buffer is there


@dataclass(frozen=True, slots=True)
class Carrier:
    """The way to one handle's memory, and what bounds a use of it: `at` on the monotonic clock, or None."""

    handle: Handle
    way: Way
    at: float | None
    write: bool

    def carry_all(self, local: int, source: Layout, destination: Layout) -> str:
        """Move what a plan says between address `local` here and element zero there; returns the backend that
        did.
        """
        if not source.nbytes:
            return self.carry(local, _NO_BYTES)
        backend = ""
        for runs in parts(source, destination):
            backend = self.carry(local, runs)
        return backend

    def carry(self, local: int, runs: Runs) -> str:
        """Move runs between address `local` here and element zero there; returns the backend that did."""
        h = self.handle
        there = h.base + h.offset
        if self.way.backend == "local":
            _copy_here(h, there, local, runs, self.write)
            return "local"
        if self.way.backend == "cma":
            try:
                if not self.write and len(runs) == 1 and runs.nbytes <= cma.ONE_CALL:
                    cma.read_small(h.owner, h.cell, h.cookie, there + runs.src[0], local + runs.dst[0], runs.nbytes)
                else:
                    cma.move(h.owner, h.cell, h.cookie, there, local, runs, self.at, write=self.write)
                return "cma"
            except CmaRefused as error:
                peer.refuse(h.owner, str(error))
        client = client_of(h.owner, h.address)
        (client.write if self.write else client.read)(h.cookie, h.offset, local, runs, self.at)
        return "tcp"


def _copy_here(handle: Handle, there: int, local: int, runs: Runs, write: bool) -> None:
    export = registry().find(handle.key)
    block = export.block if export is not None else None  # kept until the copy is done, whatever happens
    if export is None or block is None or not export.open or not block.intact():
        raise cma.stale(handle.owner)
    if export.cookie != handle.cookie:
        raise cma.stale(handle.owner)
    src, dst = (local, there) if write else (there, local)
    for a, b, n in zip(runs.src, runs.dst, runs.n, strict=True):
        ctypes.memmove(dst + b, src + a, n)
    if export.cookie != handle.cookie or not export.open:
        raise cma.stale(handle.owner)


def carry_out(carrier: Carrier, memory: Memory) -> str:
    """One whole transfer between the handle's array and a local one, any layout, any device; the backend
    used.
    """
    if memory.device != "cpu":
        twin, tensor = host_copy(memory, fill=carrier.write)
        backend = carry_out(carrier, twin)
        if not carrier.write:
            fill_device(memory, tensor)
        return backend
    if carrier.write:
        local, remote = matched(memory.layout, carrier.handle.layout)
        return _write(carrier, memory.address, local, remote)
    remote, local = matched(carrier.handle.layout, memory.layout)
    return _read(carrier, memory.address, local, remote)


def gather(carrier: Carrier, places: Sequence[tuple[int, Memory]]) -> str:
    """Read consecutive bytes at each offset of a flat buffer into an array, as one movement of runs."""
    src, dst, size = array("q"), array("q"), array("q")
    staged = []
    for offset, memory in places:
        here = memory
        flat = packed(memory.layout.dtype, memory.layout.itemsize, memory.layout.shape)
        if memory.device != "cpu":
            here, twin = host_copy(memory, fill=False)
            staged.append((memory, twin))
        for runs in parts(flat, here.layout):
            src.extend(offset + at for at in runs.src)
            dst.extend(here.address + at for at in runs.dst)
            size.extend(runs.n)
    backend = carrier.carry(0, Runs(src, dst, size, sum(size)) if size else _NO_BYTES)
    for memory, twin in staged:
        fill_device(memory, twin)
    return backend


def _read(carrier: Carrier, address: int, local: Layout, remote: Layout) -> str:
    low, high = remote.span()
    pieces = _in_pieces(remote, local) and high - low <= SPARSE * remote.nbytes
    np = numpy_or_none() if pieces else None
    if np is None:
        return carrier.carry_all(address, remote, local)
    scratch = np.empty(high - low, np.uint8)
    start, size = array("q", (low,)), array("q", (high - low,))
    backend = carrier.carry(scratch.ctypes.data - low, Runs(start, start, size, high - low))
    np.copyto(_array(np, address, local), _array(np, scratch.ctypes.data - low, remote))
    return backend


def _write(carrier: Carrier, address: int, local: Layout, remote: Layout) -> str:
    np = numpy_or_none() if not local.contiguous and _in_pieces(local, remote) else None
    if np is None:
        return carrier.carry_all(address, local, remote)
    flat = packed(local.dtype, local.itemsize, local.shape)
    scratch = np.empty(local.nbytes, np.uint8)
    np.copyto(_array(np, scratch.ctypes.data, flat), _array(np, address, local))
    return carrier.carry_all(scratch.ctypes.data, flat, remote)


def _in_pieces(src: Layout, dst: Layout) -> bool:
    count = fragments(src, dst)
    return count > MANY_RUNS and src.nbytes < SMALL_RUN * count


def _array(np: ModuleType, address: int, layout: Layout) -> numpy.ndarray:
    """A numpy view of memory by address: of unsigned integers, or of opaque items where there are none of the
    size.
    """
    low, high = layout.span()
    kind = f"u{layout.itemsize}" if layout.itemsize in (1, 2, 4, 8) else f"V{layout.itemsize}"
    data = view_at(address + low, high - low)
    return np.ndarray(layout.shape, np.dtype(kind), data, -low, layout.strides)  # type: ignore[no-any-return]
