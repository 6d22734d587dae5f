"""A link: one authenticated byte stream between two processes, carrying frames.

Any thread writes: when the socket takes the bytes at once, the calling thread has sent them itself and
no other thread is woken (88 us a round trip against 143 us through a coroutine on the loop, two idle
cores). Only what the socket refuses is left to the I/O thread. Reads happen on the I/O thread alone, into
one reused buffer; a body that does not fit it is received straight into memory of its own.

Deferred writes are the Nagle of this design: calls issued while others are in flight, and replies while
more work is waiting, are gathered and leave together: after `COALESCE` frames, when somebody waits, or
when the I/O thread comes by, whichever is first.
"""

from __future__ import annotations

import array
import contextlib
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ..wire.errors import ProtocolError
from ..wire.frame import HEADER, HEADER_SIZE, MAGIC, VERSION, Limits, aligned, check_header
from .handshake import Identity
from .io import IoThread

logger = logging.getLogger("roost.link")

RECEIVE_BUFFER = 256 << 10
COALESCE = 16  # deferred frames that leave in one system call
IOV_MAX = 512
MUTED_WAIT = 1.0  # seconds in which a link that takes no more is read to its end
MAX_DESCRIPTORS = 64
CLOSE_ON_EXEC = socket.MSG_CMSG_CLOEXEC  # Python's own sockets have it, received descriptors do not by themselves
_ANCILLARY = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)

OnFrame = Callable[["Link", tuple[int, ...], Any, Any], None]
OnBroken = Callable[["Link", str], None]


class DescriptorFrame(bytes):
    """A small frame that carries a file descriptor beside its first byte."""

    descriptor: int

    def __new__(cls, data: bytes, descriptor: int) -> DescriptorFrame:
        frame = super().__new__(cls, data)
        frame.descriptor = descriptor
        return frame


class Link:
    """One stream to one peer process. Writing is thread-safe; reading belongs to the I/O thread."""

    __slots__ = (
        "_armed", "_body", "_buffer", "_closed", "_end", "_fill", "_flush_due", "_io", "_lock", "_muted", "_on_broken",
        "_on_frame", "_pending_header", "_queue", "_queued", "_sock", "_start", "_unix", "_view", "bytes_in",
        "bytes_out", "deferred", "descriptors", "dialer", "frames_in", "heard", "limits", "peer",
    )  # fmt: skip

    def __init__(
        self,
        sock: socket.socket,
        peer: Identity,
        io: IoThread,
        on_frame: OnFrame,
        on_broken: OnBroken,
        *,
        dialer: bool,
        limits: Limits | None = None,
    ) -> None:
        self.peer = peer
        self.dialer = dialer
        self.limits = limits or Limits()
        self.descriptors: deque[int] = deque()
        self.deferred = 0
        self.bytes_in = self.bytes_out = self.frames_in = 0
        self.heard = time.monotonic()
        self._sock = sock
        self._unix = sock.family == socket.AF_UNIX
        self._io = io
        self._on_frame = on_frame
        self._on_broken = on_broken
        self._lock = threading.Lock()
        self._queue: deque[Any] = deque()
        self._queued = 0
        self._armed = False
        self._flush_due = False
        self._closed = self._muted = False
        self._buffer = bytearray(RECEIVE_BUFFER)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._pending_header: tuple[int, ...] | None = None
        self._body: memoryview | None = None
        self._fill = 0

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._queued} bytes queued" if self._queued else "open"
        return f"<Link to {self.peer.name} over {'unix' if self._unix else 'tcp'}, {state}>"

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def queued_bytes(self) -> int:
        """Bytes accepted by `send` that the socket has not taken yet."""
        return self._queued

    @property
    def same_host_socket(self) -> bool:
        """Whether descriptors can be passed over this link."""
        return self._unix

    def start(self, leftover: bytes = b"") -> None:
        """Begin to read; `leftover` is what came behind the handshake. On the I/O thread."""
        if leftover:
            self._buffer[: len(leftover)] = leftover
            self._end = len(leftover)
            with self._io.readers.dispatching:
                self._parse()
        if not self._closed:
            self._io.readers.add(self._sock.fileno(), self._readable)

    # writing

    def _mute(self, error: OSError) -> None:
        """The other end takes no more. What it had said before is still in the socket: it is read to its end, which
        closes the link. Under the lock."""
        if self._muted:
            return
        self._muted = True
        self._queue.clear()
        self._queued = self.deferred = 0
        self._io.call(self._stop_writing, f"{type(error).__name__}: {error}")

    def _stop_writing(self, why: str) -> None:
        if not self._closed:
            self._io.loop.remove_writer(self._sock.fileno())
            self._io.loop.call_later(MUTED_WAIT, self.close, why)

    def send(self, parts: Sequence[Any], nbytes: int, *, defer: bool = False) -> None:
        """Send the buffers of one frame; they must not change until the frame is acknowledged end to end.

        Frames leave in the order of the calls. A broken link swallows the bytes: delivery keeps them.
        """
        with self._lock:
            if self._closed or self._muted:
                return
            if defer and not self._armed:
                self._queue.extend(parts)
                self._queued += nbytes
                self.deferred += 1
                if self.deferred >= COALESCE:
                    self._drain()
                elif not self._flush_due:
                    self._flush_due = True
                    self._io.call(self.flush)
                return
            if self._queue:
                self._queue.extend(parts)
                self._queued += nbytes
                if not self._armed:
                    self._drain()
                return
            try:
                if len(parts) > 1:
                    sent = self._sock.sendmsg(parts)
                elif type(parts[0]) is DescriptorFrame:
                    sent = self._sock.sendmsg(parts, _rights(parts[0]))
                else:
                    sent = self._sock.send(parts[0])
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._mute(error)
                return
            self._sent(parts, sent, nbytes)

    def _sent(self, parts: Sequence[Any], sent: int, nbytes: int) -> None:
        """Leave to the I/O thread what the socket did not take; under the lock, with nothing queued."""
        self.bytes_out += sent
        if sent < nbytes:
            self._queue.extend(_rest(parts, sent))
            self._queued = nbytes - sent
            self._arm()

    def send_frame(self, frame: bytes, defer: bool) -> None:
        """`send` for a frame in one buffer: the hot path."""
        if not defer:
            with self._lock:
                if not self._queue and not self._closed and not self._muted:
                    try:
                        sent = self._sock.send(frame)
                    except (BlockingIOError, InterruptedError):
                        sent = 0
                    except OSError as error:
                        self._mute(error)
                        return
                    self._sent((frame,), sent, len(frame))
                    return
        self.send((frame,), len(frame), defer=defer)

    def flush(self) -> None:
        """Write out deferred frames now; from any thread."""
        if not self.deferred and not self._flush_due:
            return
        with self._lock:
            self._flush_due = False
            if self._queue and not self._armed and not self._closed:
                self._drain()

    def _drain(self) -> None:
        queue = self._queue
        self.deferred = 0
        while queue:
            batch: list[Any] = []
            rights: list[Any] = []
            while queue and len(batch) < IOV_MAX:
                if type(queue[0]) is DescriptorFrame:
                    if not batch:  # it leaves alone: a descriptor marks the first byte it is sent with
                        batch.append(queue.popleft())
                        rights = _rights(batch[0])
                    break
                batch.append(queue.popleft())
            size = 0
            for part in batch:
                size += len(part)
            try:
                sent = self._sock.sendmsg(batch, rights)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._mute(error)
                return
            self.bytes_out += sent
            self._queued -= sent
            if sent < size:
                queue.extendleft(reversed(_rest(batch, sent)))
                self._arm()
                return

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._io.call(self._add_writer)

    def _add_writer(self) -> None:
        with self._lock:
            if not self._closed and not self._muted:
                self._io.loop.add_writer(self._sock.fileno(), self._writable)

    def _writable(self) -> None:
        with self._lock:
            if self._closed or self._muted:
                return
            self._armed = False
            self._drain()
            if not self._armed and not self._closed:
                self._io.loop.remove_writer(self._sock.fileno())

    # reading

    def _readable(self) -> None:
        try:
            if self._body is not None:
                self._fill_body()
                return
            space = self._view[self._end :]
            if self._unix:
                count, ancillary, _, _ = self._sock.recvmsg_into([space], _ANCILLARY, CLOSE_ON_EXEC)
                if ancillary:
                    self._take_descriptors(ancillary)
            else:
                count = self._sock.recv_into(space)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"{type(error).__name__}: {error}")
            return
        except ProtocolError as error:
            self.close(str(error))
            return
        if not count:
            self.close("the other end closed the connection")
            return
        self.bytes_in += count
        self._end += count
        self._parse()

    def _take_descriptors(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                self.descriptors.extend(numbers)

    def _parse(self) -> None:
        start, end = self._start, self._end
        buffer, view = self._buffer, self._view
        unpack, on_frame = HEADER.unpack_from, self._on_frame
        most_envelope, most_body = self.limits.envelope, self.limits.body
        self.heard = time.monotonic()
        try:
            while end - start >= HEADER_SIZE:
                header = unpack(buffer, start)
                if header[0] != MAGIC or header[1] != VERSION or header[3] > most_envelope or header[4] > most_body:
                    check_header(header, self.limits)
                envelope_at = start + HEADER_SIZE
                body_at = envelope_at + header[3]
                stop = body_at + header[4]
                if stop <= end:
                    self.frames_in += 1
                    on_frame(
                        self, header, bytes(view[envelope_at:body_at]), bytes(view[body_at:stop]) if header[4] else b""
                    )
                    if self._closed:
                        return
                    start = stop
                    continue
                if stop - start > RECEIVE_BUFFER:
                    self._begin_body(header, start + HEADER_SIZE, end)
                    start = end = 0
                break
        except ProtocolError as error:
            self.close(str(error))
            return
        except Exception as error:
            logger.exception("a frame from %s could not be handled", self.peer.name)
            self.close(f"{type(error).__name__}: {error}")
            return
        if start == end:
            self._start = self._end = 0
        elif start:
            rest = end - start
            buffer[:rest] = buffer[start:end]
            self._start, self._end = 0, rest
        else:
            self._end = end

    def _begin_body(self, header: tuple[int, ...], at: int, end: int) -> None:
        """A frame larger than the buffer: receive envelope and body straight into memory of their own."""
        self._pending_header = header
        self._body = aligned(header[3] + header[4], before=header[3])
        self._fill = end - at
        self._body[: self._fill] = self._view[at:end]

    def _fill_body(self) -> None:
        view, header = self._body, self._pending_header
        assert view is not None and header is not None
        for _ in range(16):  # bounded, so that one large message does not starve the other links
            if self._unix:
                count, ancillary, _, _ = self._sock.recvmsg_into([view[self._fill :]], _ANCILLARY, CLOSE_ON_EXEC)
                if ancillary:
                    self._take_descriptors(ancillary)
            else:
                count = self._sock.recv_into(view[self._fill :])
            if not count:
                self.close("the other end closed the connection within a message")
                return
            self.bytes_in += count
            self._fill += count
            if self._fill == len(view):
                self._body = self._pending_header = None
                self.frames_in += 1
                self.heard = time.monotonic()
                self._on_frame(self, header, bytes(view[: header[3]]), view[header[3] :])
                return

    # the end

    def close(self, why: str = "closed by this side") -> None:
        """Close the socket and tell `on_broken` once; from any thread."""
        with self._lock:
            self._break(why)

    def abandon(self) -> None:
        """In a forked child: close the copy of the parent's socket; the parent's stays as it is."""
        self._closed = True
        with contextlib.suppress(OSError):
            os.close(self._sock.detach())

    def _break(self, why: str) -> None:
        if self._closed:
            return
        self._closed = True
        self._io.readers.remove(self._sock.fileno())
        self._queue.clear()
        self._queued = 0
        if self._io.inside():
            self._finish(why)
        else:
            self._io.call(self._finish, why)

    def _finish(self, why: str) -> None:
        descriptor = self._sock.fileno()
        if descriptor >= 0:
            self._io.loop.remove_writer(descriptor)
            self._sock.close()
        self._io.loop.call_soon(self._on_broken, self, why)


def _rights(part: DescriptorFrame) -> list[Any]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [part.descriptor]))]


def _rest(parts: Sequence[Any], sent: int) -> list[Any]:
    """What is left of `parts` after `sent` bytes."""
    rest: list[Any] = []
    for part in parts:
        size = len(part)
        if sent >= size:
            sent -= size
        elif sent:
            rest.append(memoryview(part)[sent:])
            sent = 0
        else:
            rest.append(part)
    return rest
