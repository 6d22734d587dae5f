"""Length-prefixed msgpack frames on a socket pair, read and written blocking (the zygote's side)."""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgpack

LENGTH = struct.Struct("!I")


def pack(message: list[Any]) -> bytes:
    body = bytes(msgpack.packb(message))
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> list[Any]:
    message = msgpack.unpackb(body)
    if not isinstance(message, list):
        raise ValueError("a launch frame is a list")
    return message


def send(sock: socket.socket, message: list[Any]) -> None:
    sock.sendall(pack(message))


def receive(sock: socket.socket) -> tuple[list[Any], list[int]]:
    """The next message and the descriptors that came with it; raises EOFError at the end."""
    head, fds, _, _ = socket.recv_fds(sock, LENGTH.size, 1)
    if not head:
        raise EOFError
    head += _exactly(sock, LENGTH.size - len(head))
    return unpack(_exactly(sock, LENGTH.unpack(head)[0])), fds


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = sock.recv_into(view)
        if got == 0:
            raise EOFError
        view = view[got:]
    return bytes(data)
