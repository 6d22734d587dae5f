"""Addresses by scheme: `unix:///path`, `tcp://host:port`; listening and dialling behind one face.

A unix path over 107 bytes does not fit a socket address: it is bound and dialled through
`/proc/self/fd/N/name` of its folder, which any length of path allows.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

UNIX_PATH_MAX = 107
SOCKET_BUFFER = 1 << 20  # of a unix socket; the default 208 KiB stalls bursts of small frames
LISTEN_BACKLOG = 1024


class AddressError(ValueError):
    """An address that cannot be understood; the text says what was wanted."""


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address. `str()` gives it back."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.scheme == "unix" else f"tcp://{self.host}:{self.port}"


def parse(text: str) -> Address:
    """Parse an address.

    >>> parse("tcp://10.0.0.1:4000")
    Address(scheme='tcp', host='10.0.0.1', port=4000, path='')
    """
    scheme, mark, rest = text.partition("://")
    if mark and scheme == "unix" and rest.startswith("/"):
        return Address("unix", path=rest)
    host, colon, port = rest.rpartition(":")
    if mark and scheme == "tcp" and colon and host and port.isdigit() and int(port) < 65536:
        return Address("tcp", host=host.strip("[]"), port=int(port))
    raise AddressError(f"{text!r} is not an address: write unix:///path or tcp://host:port")


@contextlib.contextmanager
def _short(path: str):  # type: ignore[no-untyped-def]
    if len(os.fsencode(path)) <= UNIX_PATH_MAX:
        yield path
        return
    folder = os.open(Path(path).parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{Path(path).name}"
    finally:
        os.close(folder)


def listen(address: Address) -> tuple[socket.socket, Address]:
    """Bind and listen; gives the socket and the address that was really bound (port 0 is resolved)."""
    sock = socket.socket(_family(address), socket.SOCK_STREAM)
    try:
        if address.scheme == "unix":
            with _short(address.path) as path:
                sock.bind(path)
            os.chmod(address.path, 0o600)
            bound = address
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address.host, address.port))
            bound = Address("tcp", host=sock.getsockname()[0], port=sock.getsockname()[1])
        sock.listen(LISTEN_BACKLOG)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock, bound


def _family(address: Address) -> socket.AddressFamily:
    if address.scheme == "unix":
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in address.host else socket.AF_INET


def open_socket(address: Address) -> socket.socket:
    """A non-blocking socket of the address's family, tuned, not yet connected."""
    sock = socket.socket(_family(address), socket.SOCK_STREAM)
    sock.setblocking(False)
    tune(sock)
    return sock


def tune(sock: socket.socket) -> None:
    """No Nagle delay on tcp; buffers on unix sockets that hold a burst."""
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def connect_unix(sock: socket.socket, path: str) -> None:
    """Connect a unix socket to a path of any length. Raises OSError."""
    with _short(path) as short:
        sock.connect(short)


def peer_uid(sock: socket.socket) -> int:
    """The user id of the process at the other end of a unix socket."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
