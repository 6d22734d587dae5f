"""Copies between this process's memory and another's on the same kernel: process_vm_readv and
process_vm_writev.

Called by ctypes, which drops the GIL; the owner takes no part, and may be stopped. Medians into reused memory
on 2 cores that had other work (load 6); memcpy is numpy's copyto in one process in the same run, up to 1 MiB
within the cache:

              memcpy             read_into(...).get()   write_from(...).get()
    4 KiB     0.5 us             9.8 us                 25 us
    1 MiB     23 us              91 us  = 11.6 GB/s     106 us = 9.9 GB/s
    64 MiB    5.8 ms = 11.6      6.3 ms = 10.6          6.5 ms = 10.4
    256 MiB   32 ms = 8.5        25 ms  = 10.8          35 ms  = 7.6

A second run, under more load, read 256 MiB at 6.7 GB/s where memcpy made 6.8. One thread moves 6 GB/s on
large blocks; two reach the memory's bandwidth.

Every access is guarded. A registration has a cell of 24 bytes (random cookie, generation) in the owner's
memory; a small read takes the cell, the data and the cell again as three parts of one call, in that order, a
larger one takes the cell in calls before and after. Writes check before and after. A cell that differs is
StaleBuffer.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from array import array
from collections.abc import Callable
from typing import NoReturn, Protocol

from .errors import CmaRefused, OwnerDied, RDMAError, StaleBuffer, TransferTimeout
from .layout import Runs, numpy_or_none
from .pool import pool

CELL = 24
IOV_MAX = 1024
ONE_CALL = 1 << 20  # bytes up to which a read is one guarded call: 60 us, where waking a thread costs 30-70
PIECE = 4 << 20  # bytes of a large transfer that a thread claims at a time: 1-64 MiB measure alike

_libc = ctypes.CDLL(None, use_errno=True)
_ARGS = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
_Call = Callable[[int, int, int, int, int, int], int]


def _load(name: str) -> _Call:
    function = getattr(_libc, name)
    function.restype, function.argtypes = ctypes.c_ssize_t, _ARGS
    return function  # type: ignore[no-any-return]


_readv, _writev = _load("process_vm_readv"), _load("process_vm_writev")


class Owner(Protocol):
    """The far process: `str()` of it names it in errors."""

    @property
    def pid(self) -> int: ...
    def alive(self) -> bool: ...


class _Scratch:
    """Two cell copies and two vectors of three parts, with their addresses."""

    def __init__(self) -> None:
        self.cells = bytearray(2 * CELL)
        self.vectors = (ctypes.c_uint64 * 12)()
        cells = ctypes.addressof(ctypes.c_char.from_buffer(self.cells))
        self.vectors[:] = [cells, CELL, 0, 0, cells + CELL, CELL, 0, CELL, 0, 0, 0, CELL]
        self.local = ctypes.addressof(self.vectors)
        self.remote = self.local + 48


# Taken from a list rather than kept by thread: a signal handler may read too, in the middle of a thread's own
# read.
_scratches = [_Scratch()]


def _take() -> _Scratch:
    try:
        return _scratches.pop()
    except IndexError:
        return _Scratch()


def read_small(owner: Owner, cell: int, cookie: bytes, remote: int, local: int, n: int) -> None:
    """Read up to ONE_CALL bytes between two looks at the cell, all in one call."""
    s = _take()
    v = s.vectors
    v[2], v[3], v[6], v[8], v[9], v[10] = local, n, cell, remote, n, cell
    got = _readv(owner.pid, s.local, 3, s.remote, 3, 0)
    same = s.cells == cookie + cookie
    _scratches.append(s)
    if got != n + 2 * CELL:
        _failed(owner, "read", -1 if got < 0 else 0)
    if not same:
        raise stale(owner)


def check(owner: Owner, cell: int, cookie: bytes) -> None:
    """Look at the cell once."""
    s = _take()
    s.vectors[6] = cell
    got = _readv(owner.pid, s.local, 1, s.remote, 1, 0)
    same = s.cells[:CELL] == cookie
    _scratches.append(s)
    if got != CELL:
        _failed(owner, "read", -1 if got < 0 else 0)
    if not same:
        raise stale(owner)


def move(
    owner: Owner,
    cell: int,
    cookie: bytes,
    remote: int,
    local: int,
    runs: Runs,
    deadline: float | None,
    *,
    write: bool,
) -> None:
    """Move runs between looks at the cell: `runs.src` counts from the end read, `runs.dst` from the end
    written.
    """
    check(owner, cell, cookie)
    if not runs.nbytes:
        return
    if len(runs) == 1:
        near, far = (runs.src[0], runs.dst[0]) if write else (runs.dst[0], runs.src[0])
        _move_block(owner, remote + far, local + near, runs.nbytes, deadline, write)
    else:
        _move_vectors(owner, remote, local, runs, deadline, write)
    check(owner, cell, cookie)


def _move_block(owner: Owner, remote: int, local: int, n: int, deadline: float | None, write: bool) -> None:
    call = _writev if write else _readv
    piece = PIECE if n > 2 * PIECE else n  # a smaller one is done before a second thread has woken

    def work(i: int) -> None:
        at, end = i * piece, min((i + 1) * piece, n)
        parts = (ctypes.c_uint64 * 4)()
        place = ctypes.addressof(parts)
        _in_time(owner, deadline, write)
        while at < end:
            parts[:] = [local + at, end - at, remote + at, end - at]
            got = call(owner.pid, place, 1, place + 16, 1, 0)
            if got <= 0:
                _failed(owner, "write" if write else "read", got)
            at += got

    pool().each(-(-n // piece), work)


def _move_vectors(owner: Owner, remote: int, local: int, runs: Runs, deadline: float | None, write: bool) -> None:
    call = _writev if write else _readv
    near, far = (runs.src, runs.dst) if write else (runs.dst, runs.src)
    here, there = _vector(local, near, runs.n), _vector(remote, far, runs.n)
    local_at, remote_at = here.buffer_info()[0], there.buffer_info()[0]
    starts = _batches(runs.n)

    def work(i: int) -> None:
        first, last = starts[i], starts[i + 1]
        _in_time(owner, deadline, write)
        while first < last:
            got = call(owner.pid, local_at + 16 * first, last - first, remote_at + 16 * first, last - first, 0)
            if got <= 0:
                _failed(owner, "write" if write else "read", got)
            first = _advance(here, there, first, last, got)

    pool().each(len(starts) - 1, work)


def _vector(base: int, offsets: array[int], sizes: array[int]) -> array[int]:
    """The iovec array of runs, as pairs (address, size)."""
    out = array("Q", bytes(16 * len(sizes)))
    numpy = numpy_or_none() if len(sizes) > 256 else None
    if numpy is None:
        out[0::2] = array("Q", [base + o for o in offsets])
        out[1::2] = array("Q", sizes)
    else:
        pairs = numpy.frombuffer(out, numpy.uint64).reshape(-1, 2)
        numpy.add(numpy.frombuffer(offsets, numpy.int64), base, out=pairs.view(numpy.int64)[:, 0])
        pairs[:, 1] = numpy.frombuffer(sizes, numpy.int64)
    return out


def _batches(sizes: array[int]) -> list[int]:
    """Where calls begin: at most IOV_MAX runs and about 4 PIECE bytes each (a call moves at most 2 GiB)."""
    starts, held = [0], 0
    if len(sizes) * max(sizes) <= PIECE:
        return [*range(0, len(sizes), IOV_MAX), len(sizes)]
    for i, n in enumerate(sizes):
        if i > starts[-1] and (i - starts[-1] == IOV_MAX or held + n > 4 * PIECE):
            starts.append(i)
            held = 0
        held += n
    return [*starts, len(sizes)]


def _advance(here: array[int], there: array[int], first: int, last: int, got: int) -> int:
    """The first run not finished after `got` bytes, itself cut to what is left of it."""
    while first < last and got >= here[2 * first + 1]:
        got -= here[2 * first + 1]
        first += 1
    if first < last:
        for vector in (here, there):
            vector[2 * first] += got
            vector[2 * first + 1] -= got
    return first


def _in_time(owner: Owner, deadline: float | None, write: bool) -> None:
    if deadline is not None and time.monotonic() >= deadline:
        done = "The buffer holds part of the data" if write else "The destination holds part of the data"
        raise TransferTimeout(f"the transfer with {owner} passed its deadline. {done}")


def _failed(owner: Owner, verb: str, got: int) -> NoReturn:
    code = ctypes.get_errno() if got < 0 else errno.EFAULT
    if code == errno.ESRCH or (code in (errno.EFAULT, errno.EPERM) and not owner.alive()):
        raise OwnerDied(f"{owner} is gone: its memory went with it")
    if code == errno.EFAULT:
        raise StaleBuffer(f"cannot {verb} the memory of {owner}: it is no longer mapped there (freed without drop()?)")
    if code in (errno.EPERM, errno.EACCES, errno.ENOSYS):
        raise CmaRefused(f"the kernel refuses to {verb} the memory of {owner}: {os.strerror(code)}")
    raise RDMAError(f"could not {verb} the memory of {owner}: {os.strerror(code)}")


def stale(owner: object) -> StaleBuffer:
    return StaleBuffer(
        f"the buffer of {owner} is no longer what this handle was made for: it was dropped, freed or "
        "replaced by a newer version. Ask its owner for a new handle"
    )
