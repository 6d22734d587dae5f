"""The reader's end of TCP reads and writes: pooled connections to one owner, straight into the caller's
memory.

A connection that breaks says little: the owner may have hung up an idle one, or be gone. So a broken transfer
is begun again on a fresh connection (a read or write done twice is one done once); an owner that the kernel
or the runtime knows dead, or whose port refuses, is `OwnerDied`.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial

from . import tcp
from .cma import stale
from .errors import OwnerDied, RDMAError, TransferTimeout
from .home import home
from .identity import Identity, me
from .layout import Runs
from .tcp import OK, READ, STALE, WRITE, Deadline, Refused

KEPT = 4  # idle connections
ATTEMPTS = 3


class Client:
    """Connections to the data server of one process."""

    def __init__(self, owner: Identity, address: tuple[str, int]) -> None:
        self.owner, self.address = owner, address
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._busy: set[socket.socket] = set()
        self._died = threading.Event()
        self._watched = False

    def died(self, _proc_id: int) -> None:
        """The runtime knows the owner dead: end what is under way at once."""
        self._died.set()
        self.abort()

    def abort(self) -> None:
        """Close every connection; transfers under way fail at once."""
        self.close()
        with self._lock:
            busy = [*self._busy]
        for sock in busy:
            _shut(sock)  # the thread that waits on it closes it

    def read(
        self, cookie: bytes, offset: int, local: int, runs: Runs, at: float | None, pause: float = tcp.IDLE
    ) -> None:
        """Read `runs.src` (from `offset` in the owner's block) to `runs.dst` (from address `local`)."""
        deadline = Deadline(at, pause)
        self._operate(partial(self._read, cookie, offset, local, runs, deadline), deadline)

    def write(
        self, cookie: bytes, offset: int, local: int, runs: Runs, at: float | None, pause: float = tcp.IDLE
    ) -> None:
        """Write `runs.src` (from address `local`) to `runs.dst` (from `offset` in the owner's block)."""
        deadline = Deadline(at, pause)
        self._operate(partial(self._write, cookie, offset, local, runs, deadline), deadline)

    def _read(
        self, cookie: bytes, offset: int, local: int, runs: Runs, deadline: Deadline, sock: socket.socket
    ) -> None:
        self._ask(sock, READ, cookie, tcp.merged(runs.src, runs.n, offset), runs.nbytes, deadline)
        tcp.receive_runs(sock, tcp.merged(runs.dst, runs.n, local), deadline)
        self._status(sock, deadline)

    def _write(
        self, cookie: bytes, offset: int, local: int, runs: Runs, deadline: Deadline, sock: socket.socket
    ) -> None:
        self._ask(sock, WRITE, cookie, tcp.merged(runs.dst, runs.n, offset), runs.nbytes, deadline)
        tcp.send_runs(sock, tcp.merged(runs.src, runs.n, local), deadline)
        self._status(sock, deadline)

    def _ask(
        self,
        sock: socket.socket,
        kind: int,
        cookie: bytes,
        runs: Iterator[tcp.Run],
        nbytes: int,
        deadline: Deadline,
    ) -> None:
        table = tcp.table(runs)
        request = tcp.REQUEST.pack(kind, cookie, len(table) // 16, nbytes)
        tcp.send(sock, request + table, deadline)
        self._status(sock, deadline)

    def _status(self, sock: socket.socket, deadline: Deadline) -> None:
        (status,) = tcp.STATUS.unpack(tcp.receive(sock, 1, deadline))
        if status == STALE:
            raise stale(self.owner)
        if status != OK:
            raise RDMAError(f"{self.owner} refused the request: it reaches outside the registered memory")

    def _operate(self, work: Callable[[socket.socket], None], deadline: Deadline) -> None:
        for attempt in range(ATTEMPTS):
            sock = self._connection(deadline)
            try:
                work(sock)
            except ConnectionError as error:
                self._discard(sock)
                # A dying process closes its sockets a moment before the kernel counts it as dead.
                self._died.wait(min(0.02 * attempt, deadline.left()))
                self._raise_if_dead()
                if attempt == ATTEMPTS - 1:
                    raise RDMAError(f"the connection to {self.owner} broke {ATTEMPTS} times: {error}") from error
            except TransferTimeout as error:
                self._discard(sock)
                raise TransferTimeout(f"{error}: {self.owner} at {self._where()} did not answer in time") from None
            except BaseException:
                self._discard(sock)  # what is still on its way belongs to no one
                raise
            else:
                self._keep(sock)
                return

    def _raise_if_dead(self) -> None:
        if self._died.is_set() or (self.owner.same_kernel(me()) and not self.owner.alive()):
            raise OwnerDied(f"{self.owner} is gone: its memory went with it")

    def _connection(self, deadline: Deadline) -> socket.socket:
        if self._died.is_set():
            self._raise_if_dead()
        with self._lock:
            if self._idle:
                sock = self._idle.pop()
                self._busy.add(sock)
                return sock
            watch, self._watched = not self._watched, True
        if watch:
            home().on_process_death(self.owner.proc_id, self.died)
        return self._dial(deadline)

    def _dial(self, deadline: Deadline) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        with self._lock:
            self._busy.add(sock)
        try:
            deadline.arm(sock)  # SO_SNDTIMEO bounds connect() too
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect(self.address)
            tcp.greet(sock, home().secret, self.owner.proc_id, deadline)
        except BaseException as error:
            self._discard(sock)
            self._explain(error)
            raise
        return sock

    def _explain(self, error: BaseException) -> None:
        """Raise what a failed dial means; return if it means nothing better than itself."""
        where = self._where()
        if isinstance(error, ConnectionRefusedError):
            raise OwnerDied(f"{self.owner} is gone: nothing listens at {where} any more") from None
        if isinstance(error, BlockingIOError | TransferTimeout):
            raise TransferTimeout(f"{self.owner} at {where} did not answer in time") from None
        if isinstance(error, Refused):
            raise RDMAError(f"no data connection to {self.owner} at {where}: {error}") from None
        if isinstance(error, OSError):
            self._raise_if_dead()
            raise RDMAError(f"cannot reach {self.owner} at {where}: {error}") from error

    def _where(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def _keep(self, sock: socket.socket) -> None:
        with self._lock:
            self._busy.discard(sock)
            if len(self._idle) < KEPT and not self._died.is_set():
                self._idle.append(sock)
                return
        sock.close()

    def _discard(self, sock: socket.socket) -> None:
        with self._lock:
            self._busy.discard(sock)
        sock.close()

    def close(self) -> None:
        """Close idle connections; those in use end with their transfer."""
        with self._lock:
            idle, self._idle = self._idle, []
        for sock in idle:
            sock.close()


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # closed or not yet connected


_made: dict[tuple[Identity, tuple[str, int]], Client] = {}


def client_of(owner: Identity, address: tuple[str, int]) -> Client:
    """This process's connections to that one."""
    key = (owner, address)
    found = _made.get(key)
    if found is None:
        found = _made.setdefault(key, Client(owner, address))
    return found


def stop() -> None:
    """Close this process's connections; transfers under way fail, later ones dial again."""
    clients = list(_made.values())
    _made.clear()
    for client in clients:
        client.died(client.owner.proc_id)


def _after_fork() -> None:
    for client in list(_made.values()):
        for sock in [*client._idle, *client._busy]:
            sock.close()
    _made.clear()


os.register_at_fork(after_in_child=_after_fork)
