"""Ports: one-way channels whose sending end travels in messages.

`Channel.open()` gives a `Port`, which can be sent to any actor and used by many, and a `PortReceiver`, which stays in
the process that opened it. Messages of one sender arrive in order.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Generic, TypeVar

from . import bodies
from .calls import body_for, decode_answer
from .context import Message
from .errors import MeshFailure, RoostError, failure_record, portable
from .future import Future
from .node import Node, current_node
from .refs import ProcRef, new_id
from .wire import frame as f
from .wire import pickling
from .wire.receivers import pack_for

R = TypeVar("R")

_EXCEPTION = 1


def _node() -> Node:
    node = current_node()
    if node is None:
        raise RoostError("Roost does not run in this process yet: call this_host() first")
    return node


class Port(Generic[R]):
    """The sending end of a channel; picklable, usable from any process and thread.

    `send(value)` and `exception(error)` do not wait. What the receiver's process no longer wants is dropped there;
    raises ActorDied or Unreachable when that process is gone.
    """

    def __init__(self, where: ProcRef, port_id: int, rank: int = 0) -> None:
        self._where = where
        self._port_id = port_id
        self._rank = rank

    def __repr__(self) -> str:
        return f"<Port to {self._where.name}>"

    def __reduce__(self) -> Any:
        return Port, (self._where, self._port_id, self._rank)

    def send(self, value: R) -> None:
        """Send a value; what it is now is what arrives."""
        node = _node()
        peer = node.peer_at(self._where)
        packed = pack_for((peer.proc_id,), value, "message")
        body = body_for(node, packed, (peer,))
        node.post(peer, f.POST, f.packb([body.layout, self._port_id, 0]), body, rank=self._rank)

    def exception(self, error: BaseException) -> None:
        """Send an exception: `recv()` raises it."""
        node = _node()
        record = failure_record(error, "port", "", node.host, node.identity.pid)
        body = bodies.inline(pickling.pack((portable(error), portable(error.__cause__)), "exception"))
        envelope = f.packb([body.layout, self._port_id, _EXCEPTION, 0, 0, record])
        node.post(node.peer_at(self._where), f.POST, envelope, body, rank=self._rank)


class _Arrived(Future[Any]):
    __slots__ = ()

    def _decode(self, raw: Any) -> Any:
        return decode_answer(*raw)


class PortReceiver(Generic[R]):
    """The receiving end. `recv()` gives a Future of the next message; exceptions that were sent are raised by it."""

    def __init__(self, node: Node, port_id: int, *, once: bool) -> None:
        self._node = node
        self._port_id = port_id
        self._once = once
        self._lock = threading.Lock()
        self._arrived: deque[Any] = deque()
        self._waiting: deque[_Arrived] = deque()
        node.ports[port_id] = self

    def __repr__(self) -> str:
        return f"<PortReceiver, {len(self._arrived)} waiting>"

    def arrived(self, rank: int, fields: list[Any], data: Any, buffers: list[Any]) -> None:
        """A message has come. On the I/O thread."""
        kind = f.ERROR if fields[2] & _EXCEPTION else f.REPLY
        raw = (kind, rank, fields, data, buffers)
        with self._lock:
            while self._waiting:
                future = self._waiting.popleft()
                if future.set_raw(raw):
                    break
            else:
                self._arrived.append(raw)
        if self._once:
            self.close()

    def recv(self) -> Future[R]:
        """The next message, in the order in which they arrived."""
        future = _Arrived()
        with self._lock:
            if self._arrived:
                future.set_raw(self._arrived.popleft())
            else:
                self._waiting.append(future)
        return future

    def close(self) -> None:
        """Take no more messages; what has arrived can still be received."""
        self._node.ports.pop(self._port_id, None)


class Channel:
    """Opens channels.

    >>> port, receiver = Channel.open()          # doctest: +SKIP
    >>> port.send(3); receiver.recv().get()      # doctest: +SKIP
    3
    """

    @staticmethod
    def open(once: bool = False) -> tuple[Port[Any], PortReceiver[Any]]:
        """A new channel; with `once` it takes one message."""
        node = _node()
        if node.ref is None:
            raise RoostError("this process has no address yet")
        port_id = new_id()
        receiver: PortReceiver[Any] = PortReceiver(node, port_id, once=once)
        return Port(node.ref, port_id), receiver


class _AnswerPort(Port[Any]):
    """The port of one call: what is sent to it is the call's answer."""

    def __init__(self, message: Message) -> None:
        self._message = message

    def __repr__(self) -> str:
        return f"<Port for the answer of {self._message.method}>"

    def __reduce__(self) -> Any:
        cell = self._message.cell
        node = cell.node
        if node.ref is None:
            raise RoostError("this process has no address yet")
        port_id = new_id()
        node.ports[port_id] = _Relay(self, node, port_id)
        return Port, (node.ref, port_id, 0)

    def send(self, value: Any) -> None:
        cell = self._message.cell
        cell.answer(self._message, value, cell.endpoints[self._message.method])

    def exception(self, error: BaseException) -> None:
        self._message.cell.answer_error(self._message, error)


class _Relay:
    """Receives at the actor what another process sent to the port of one of its calls."""

    def __init__(self, port: _AnswerPort, node: Node, port_id: int) -> None:
        self._port = port
        self._node = node
        self._port_id = port_id

    def arrived(self, rank: int, fields: list[Any], data: Any, buffers: list[Any]) -> None:
        self._node.ports.pop(self._port_id, None)
        raw = (f.ERROR if fields[2] & _EXCEPTION else f.REPLY, rank, fields, data, buffers)
        message = self._port._message

        def answer() -> None:
            try:
                value = decode_answer(*raw)
            except MeshFailure as error:
                self._port.exception(error)
            except Exception as error:  # noqa: BLE001 - it is the answer
                self._port.exception(error)
            else:
                self._port.send(value)

        message.cell.urgent.append(answer)
        message.cell.queue.put(None)
        message.cell._wake()


def answer_port(message: Message) -> Port[Any]:
    """The port that an endpoint with an explicit response port gets."""
    return _AnswerPort(message)
