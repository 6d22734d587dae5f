"""The owner's end of TCP reads and writes: serves registered memory, while user code does as it likes.

One thread accepts, one serves each connection; clients pool theirs (at most four a peer), and a connection
that asks for nothing is closed after a minute. Threads spend their time in the kernel with the GIL dropped,
so a reader is slowed by a busy owner only between pieces of 8 MiB.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator

from ..actors.wire.copying import view_at
from . import tcp
from .errors import RDMAError
from .home import home
from .identity import me
from .registry import Block, Export, registry
from .staging import host_view, is_host, put_back
from .tcp import BAD, OK, READ, STALE, WRITE, Deadline

_log = logging.getLogger(__name__)
MAX_CONNECTIONS = 512
ONE_SEND = 64 << 10  # bytes up to which an answer is copied together and sent at once


class Server:
    """Listens from construction on; `address` is what handles publish."""

    def __init__(self, host: str, secret: bytes, proc_id: int) -> None:
        self._secret, self._proc_id = secret, proc_id
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=128)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._open: set[socket.socket] = set()
        self._serving: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._acceptor = threading.Thread(target=self._accept, name="roost-rdma-accept", daemon=True)
        self._acceptor.start()

    def _accept(self) -> None:
        while True:
            self._room.acquire()
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                self._room.release()
                if self._closed.wait(0.1 if error.errno in (errno.EMFILE, errno.ENFILE) else 0):
                    return
                continue  # the client hung up while queued, or there are no descriptors for now
            thread = threading.Thread(target=self._serve, args=(sock,), name="roost-rdma-serve", daemon=True)
            with self._lock:
                self._open.add(sock)
                self._serving.add(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tcp.admit(sock, self._secret, self._proc_id, Deadline(None, 10.0))
            while self._answer(sock):
                pass
        except (OSError, RDMAError) as error:
            _log.debug("data connection ended: %s", error)
        finally:
            with self._lock:
                self._open.discard(sock)
                self._serving.discard(threading.current_thread())
                sock.close()
            self._room.release()

    def _answer(self, sock: socket.socket) -> bool:
        """Serve one request; False when the client breaks the protocol."""
        wait = Deadline(None)
        kind, cookie, count, nbytes = tcp.REQUEST.unpack(tcp.receive(sock, tcp.REQUEST.size, wait))
        if kind not in (READ, WRITE) or not 0 < count <= tcp.MAX_RUNS:
            tcp.send(sock, tcp.STATUS.pack(BAD), wait)
            return False
        flat = struct.unpack(f"<{2 * count}q", tcp.receive(sock, 16 * count, wait))
        export = registry().find(cookie[:16])
        block = export.block if export is not None else None  # kept until the answer is out, whatever happens
        if block is None or export is None or not _is(export, cookie) or not block.intact():
            tcp.send(sock, tcp.STATUS.pack(STALE), wait)
            return True
        size = block.span.nbytes
        fits = all(o >= 0 and n >= 0 and o + n <= size for o, n in zip(flat[::2], flat[1::2], strict=True))
        if not fits or sum(flat[1::2]) != nbytes:
            tcp.send(sock, tcp.STATUS.pack(BAD), wait)
            return False
        if kind == READ and nbytes <= ONE_SEND and is_host(block.span):
            data = b"".join([view_at(at, n) for at, n in _runs(flat, block.span.base)])
            after = tcp.STATUS.pack(OK if _is(export, cookie) else STALE)
            tcp.send(sock, tcp.STATUS.pack(OK) + data + after, wait)
            return True
        tcp.send(sock, tcp.STATUS.pack(OK), wait)
        move = self._send if kind == READ else self._receive
        move(sock, block, flat, wait)
        tcp.send(sock, tcp.STATUS.pack(OK if _is(export, cookie) else STALE), wait)
        return True

    def _send(self, sock: socket.socket, block: Block, flat: tuple[int, ...], wait: Deadline) -> None:
        if is_host(block.span):
            tcp.send_runs(sock, _runs(flat, block.span.base), wait)
            return
        for offset, n in zip(flat[::2], flat[1::2], strict=True):
            tcp.send(sock, host_view(block.span, offset, n), wait)

    def _receive(self, sock: socket.socket, block: Block, flat: tuple[int, ...], wait: Deadline) -> None:
        if is_host(block.span):
            tcp.receive_runs(sock, _runs(flat, block.span.base), wait)
            return
        for offset, n in zip(flat[::2], flat[1::2], strict=True):
            data = bytearray(n)
            tcp.receive_into(sock, memoryview(data), wait)
            put_back(block.span, offset, data)

    def close(self, timeout: float) -> None:
        """Stop serving; transfers under way break."""
        until = time.monotonic() + timeout
        self._closed.set()
        _shut(self._listener)
        self._listener.close()
        self._acceptor.join(max(until - time.monotonic(), 0))
        with self._lock:  # nobody closes one, and no other descriptor takes its number, meanwhile
            serving = [*self._serving]
            for sock in self._open:
                _shut(sock)
        for thread in serving:
            thread.join(max(until - time.monotonic(), 0))

    def give_up(self) -> None:
        """In a forked child: close the parent's descriptors."""
        for sock in [self._listener, *self._open]:
            sock.close()


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # not connected any more


def _is(export: Export, cookie: bytes) -> bool:
    return export.open and export.cookie == cookie


def _runs(flat: tuple[int, ...], base: int) -> Iterator[tuple[int, int]]:
    return ((base + o, n) for o, n in zip(flat[::2], flat[1::2], strict=True) if n)


_server: Server | None = None
_lock = threading.Lock()


def address() -> tuple[str, int]:
    """Where this process serves its memory; starts the server on first use."""
    global _server
    if _server is None:
        with _lock:
            if _server is None:
                here = home()
                _server = Server(here.host, here.secret, me().proc_id)
    return _server.address


def stop(timeout: float) -> None:
    """Close the server and its connections; the next handle pickled starts another."""
    global _server
    with _lock:
        old, _server = _server, None
    if old is not None:
        old.close(timeout)


def _after_fork() -> None:
    global _server, _lock
    _lock = threading.Lock()
    if _server is not None:
        _server.give_up()
        _server = None


os.register_at_fork(after_in_child=_after_fork)
