"""Copies between memory addresses that let go of the interpreter's lock, on several threads if large.

Measured with 2 cores, 64 MiB into a reused segment: see pool.py.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

PARALLEL = 8 << 20  # bytes from which more than one thread copies
_PIECE = 2 << 20
_INLINE = 32 << 10  # below this a slice assignment, 0.2 us, is cheaper than a foreign call
THREADS = max(1, min(4, len(os.sched_getaffinity(0))))

_Piece = tuple[int, int, int]
_lock = threading.Lock()
_helpers: ThreadPoolExecutor | None = None


class _PyBuffer(ctypes.Structure):
    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_python = ctypes.PyDLL(None)  # of our own: argument types set on ctypes.pythonapi are seen by every other library
_get_buffer = _python.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_release_buffer = _python.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_PyBuffer)]
_release_buffer.restype = None
_view_of = _python.PyMemoryView_FromMemory
_view_of.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
_view_of.restype = ctypes.py_object
_STRIDED_READ_ONLY, _WRITE = 0x11C, 0x200


def address_of(buffer: memoryview) -> int:
    """Where element zero of a buffer lies, read-only or not, strided or not; valid while the buffer is alive."""
    held = _PyBuffer()
    _get_buffer(buffer, ctypes.byref(held), _STRIDED_READ_ONLY)
    try:
        return held.buf or 0
    finally:
        _release_buffer(ctypes.byref(held))


def view_at(address: int, nbytes: int) -> memoryview:
    """A writable byte view of this process's memory; the caller keeps that memory alive."""
    return _view_of(address, nbytes, _WRITE)  # type: ignore[no-any-return]


def copy_into(target: memoryview, at: Sequence[tuple[int, int]], buffers: Sequence[memoryview]) -> None:
    """Copy each buffer to its (offset, nbytes) of `target`."""
    base = address_of(target)
    pieces: list[_Piece] = []
    for (offset, nbytes), buffer in zip(at, buffers, strict=True):
        if nbytes < _INLINE:
            target[offset : offset + nbytes] = buffer
        else:
            pieces.extend(_split(base + offset, address_of(buffer), nbytes))
    work = iter(pieces)
    if sum(piece[2] for piece in pieces) < PARALLEL or THREADS == 1:
        _copy(work)
        return
    helpers = [_pool().submit(_copy, work) for _ in range(min(THREADS, len(pieces)) - 1)]
    _copy(work)
    for helper in helpers:
        helper.result()


def _split(target: int, source: int, nbytes: int) -> Iterator[_Piece]:
    for start in range(0, nbytes, _PIECE):
        yield target + start, source + start, min(_PIECE, nbytes - start)


def _copy(work: Iterator[_Piece]) -> None:
    for target, source, nbytes in work:  # a list's iterator may be shared by threads
        ctypes.memmove(target, source, nbytes)


def _pool() -> ThreadPoolExecutor:
    global _helpers
    with _lock:
        if _helpers is None:
            _helpers = ThreadPoolExecutor(THREADS - 1, thread_name_prefix="roost-copy")
        return _helpers


def _after_fork() -> None:
    global _helpers, _lock
    _helpers, _lock = None, threading.Lock()  # threads are not forked


os.register_at_fork(after_in_child=_after_fork)
