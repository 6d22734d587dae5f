"""Ports: one-way channels whose sending end travels in messages.

`Channel.open()` gives a `Port`, which can be sent to any actor and used by many, and a `PortReceiver`, which stays in
the process that opened it. Messages of one sender arrive in order.

Each sending process has credit with each channel, as it has with each actor: what the receiver has not taken is
bounded, here and there, and one slow reader neither fills its own memory nor holds up other traffic.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from . import bodies
from .calls import decode_answer
from .context import Message, current_message
from .errors import Busy, MeshFailure, RoostError
from .future import deadline
from .link.readers import block
from .node import Node, current_node
from .peer import BOUND_BYTES, BOUND_MESSAGES, CREDIT_BYTES, CREDIT_MESSAGES, Peer
from .receiver import COUNTED, EXCEPTION, Mailbox, Policy, PortClosed, PortReceiver, PortStatistics
from .refs import ProcRef, new_id
from .requests import body_for
from .runtime import current_runtime
from .travel import failure_record, portable
from .wire import frame as f
from .wire import pickling
from .wire.delivery import BUSY, SEND, CreditSender
from .wire.receivers import pack_for

__all__ = ["Channel", "Port", "PortClosed", "PortReceiver", "PortStatistics", "answer_port"]

R = TypeVar("R")

UNCOUNTED, DEFAULT = -1, 0  # a port's limit: one-shot ports hold no credit; 0 is an actor's own
REMEMBERED = 10_000  # closed channels a sender keeps in mind
_LOOK = 0.25  # seconds between looks whether the receiver of a full channel is still there


STARTERS: list[Callable[[], Node]] = []  # what makes this process one of Roost's, where it is none yet


def _node() -> Node:
    node = current_node()
    if node is None:
        raise RoostError("Roost does not run in this process yet: call this_host() first")
    return node


class _Parked:
    """A message that waits for credit; called, under the peer's lock, when there is some."""

    __slots__ = ("_post", "_woken", "lock", "sent")

    def __init__(self, post: Callable[[], object], woken: Callable[[], object] | None) -> None:
        self._post = post
        self.lock = threading.Lock()  # what a thread sleeps on
        self.lock.acquire()
        self._woken = woken or self.lock.release
        self.sent = False

    def __call__(self) -> None:
        self.sent = True
        try:
            self._post()
        except MeshFailure:
            return  # whoever waits looks at the peer itself
        finally:
            self._woken()


class Port(Generic[R]):
    """The sending end of a channel; picklable, usable from any process and thread.

    `send(value)` and `exception(error)` do not wait, unless the channel was opened with a bound. What the receiver no
    longer wants (it was closed) is dropped. When the receiver's process is known to be gone they raise ActorDied or
    Unreachable; with `port.return_undeliverable = False` the message is dropped instead.

    A ranked receiver gets with each message the rank of the actor that sends it, in the mesh or slice that it was
    called on.
    """

    _rank = 0

    def __init__(
        self, where: ProcRef, port_id: int, limit: int = UNCOUNTED, policy: str = "fail", undeliverable: bool = True
    ) -> None:
        self._where = where
        self._port_id = port_id
        self._limit = limit
        self._policy = policy
        self.return_undeliverable = undeliverable
        message = current_message()
        if message is not None:  # what a thread of the actor sends later, outside of any message
            self._rank = message.rank

    def __repr__(self) -> str:
        return f"<Port to {self._where.name}>"

    def __reduce__(self) -> Any:
        return Port, (self._where, self._port_id, self._limit, self._policy, self.return_undeliverable)

    def send(self, value: R, *, timeout: float | None = None) -> None:
        """Send a value; what it is now is what arrives.

        Where the channel is bounded and full: with "block" this waits, at most `timeout` seconds, until the receiver
        has taken a message, and raises Busy after that, or at once in the thread of a running event loop (there:
        `await port.asend(value)`); with "fail" it raises Busy. Without a bound Busy comes when 262,144 messages or
        4 GiB of this process wait for the receiver.
        """
        parked = self._post(*self._packed(value))
        if parked is not None:
            self._wait_for_room(*parked, timeout)

    async def asend(self, value: R) -> None:
        """`send` for coroutines: where the channel is full, await room. Cancelled, the message is not sent."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(woken.set)

        waiting = self._post(*self._packed(value), wake=wake)
        if waiting is None:
            return
        peer, account, parked = waiting
        try:
            while not parked.sent and self._open(peer, account):
                try:
                    async with asyncio.timeout(_LOOK):
                        await woken.wait()
                except TimeoutError:
                    continue  # looks again whether the receiver is there
        finally:
            with peer.lock:
                account.withdraw(parked)

    def exception(self, error: BaseException) -> None:
        """Send an exception: `recv()` raises it."""
        self._send_error(error, self._message_rank())

    def _message_rank(self) -> int:
        message = current_message()
        return message.rank if message is not None else self._rank

    def _mailbox(self) -> Mailbox | None:
        """Where its messages arrive, in this process."""
        node = _node()
        return cast("Mailbox | None", node.ports.get(self._port_id)) if self._where.proc_id == node.proc_id else None

    def _send_as(self, value: R, rank: int) -> None:
        fields, body, _ = self._packed(value)
        parked = self._post(fields, body, rank)
        if parked is not None:
            self._wait_for_room(*parked, None)

    def _packed(self, value: R) -> tuple[list[Any], bodies.Body, int]:
        node = _node()
        peer = node.peer_at(self._where)
        body = body_for(node, pack_for((peer.proc_id,), value, "message"), (peer,))
        return [body.layout, self._port_id, 0], body, self._message_rank()

    def _send_error(self, error: BaseException, rank: int) -> None:
        node = _node()
        record = failure_record(error, "port", "", node.host, node.identity.pid)
        body = bodies.inline(pickling.pack((portable(error), portable(error.__cause__)), "exception"))
        parked = self._post([body.layout, self._port_id, EXCEPTION, 0, 0, record], body, rank)
        if parked is not None:
            self._wait_for_room(*parked, None)

    def _post(
        self, fields: list[Any], body: bodies.Body, rank: int, wake: Callable[[], object] | None = None
    ) -> tuple[Peer, CreditSender, _Parked] | None:
        """Send, or park; what is parked is returned where the sender is to wait for it. `wake` is called when it is
        sent; without it a lock is released."""
        node = _node()
        peer = node.peer_at(self._where)
        try:
            if self._limit == UNCOUNTED:
                node.post(peer, f.POST, f.packb(fields), body, rank=rank)
                return None
            if self._port_id in _closed:
                return None
            fields[2] |= COUNTED
            with peer.lock:  # credit and number are taken together, so that nothing that waits is overtaken
                account = peer.credit.get(self._port_id) or self._account(peer)
                decision = account.admit(body.nbytes)
                if decision == SEND:
                    node.post(peer, f.POST, f.packb(fields), body, rank=rank)
                    return None
                if peer.dead is not None:
                    raise peer.dead
                return self._park(node, peer, account, decision, f.packb(fields), body, rank, wake)
        except MeshFailure:
            if self.return_undeliverable:
                raise
            return None

    def _park(
        self,
        node: Node,
        peer: Peer,
        account: CreditSender,
        decision: int,
        envelope: bytes,
        body: bodies.Body,
        rank: int,
        wake: Callable[[], object] | None,
    ) -> tuple[Peer, CreditSender, _Parked] | None:
        """There is no credit: have the message wait, or refuse it. Under the peer's lock."""
        waits = self._policy == "block"
        loop = waits and wake is None and (asyncio._get_running_loop() is not None or node.io.inside())
        if decision == BUSY or loop:
            hint = "in a coroutine use `await port.asend(...)`" if loop else "send less, or receive faster"
            raise Busy(f"the channel to {self._where.name} is full: {self._full(account)}; {hint}")
        parked = _Parked(lambda: node.post(peer, f.POST, envelope, body, rank=rank), wake)
        account.park(parked, body.nbytes)
        return (peer, account, parked) if waits else None

    def _full(self, account: CreditSender) -> str:
        seen = account.statistics()
        return f"{seen.outstanding_messages + seen.parked_messages} messages of this process have not been received"

    def _account(self, peer: Peer) -> CreditSender:
        runtime = current_runtime()
        if runtime is not None:
            runtime.events["port closed"] = _has_closed
        if self._limit == DEFAULT:
            account = CreditSender(CREDIT_MESSAGES, CREDIT_BYTES, BOUND_MESSAGES, BOUND_BYTES)
        elif self._policy == "fail":
            account = CreditSender(self._limit, CREDIT_BYTES, self._limit, BOUND_BYTES)
        elif self._policy == "block":  # each sender that waits has one parked message
            account = CreditSender(self._limit, CREDIT_BYTES, 1 << 40, 1 << 60)
        else:  # the receiver makes room itself
            account = CreditSender(CREDIT_MESSAGES, CREDIT_BYTES, BOUND_MESSAGES, BOUND_BYTES)
        peer.credit[self._port_id] = account
        return account

    def _open(self, peer: Peer, account: CreditSender) -> bool:
        """Whether the receiver of a message that waits is still there; raises its death."""
        if peer.dead is not None and self.return_undeliverable:
            raise peer.dead
        return peer.dead is None and peer.credit.get(self._port_id) is account

    def _wait_for_room(self, peer: Peer, account: CreditSender, parked: _Parked, timeout: float | None) -> None:
        until = deadline(timeout)
        try:
            while not parked.sent and self._open(peer, account):
                left = _LOOK if until is None else until - time.monotonic()
                if left <= 0:
                    with peer.lock:
                        withdrawn = account.withdraw(parked)
                    if not withdrawn:
                        return  # there was room after all
                    told = f"the channel to {self._where.name} had no room for {timeout:g} s"
                    raise Busy(f"{told}: {self._full(account)}; receive faster, or wait longer")
                block(parked.lock, min(left, _LOOK))
        finally:
            with peer.lock:
                account.withdraw(parked)


_closed: OrderedDict[int, None] = OrderedDict()  # channels that were closed at the other end


def _has_closed(peer: Peer, port_id: int) -> None:
    """A receiver tells that it takes no more."""
    with peer.lock:
        peer.credit.pop(port_id, None)
    _closed[port_id] = None
    while len(_closed) > REMEMBERED:
        _closed.popitem(last=False)


class Channel:
    """Opens channels.

    >>> port, receiver = Channel.open()          # doctest: +SKIP
    >>> port.send(3); receiver.recv().get()      # doctest: +SKIP
    3
    """

    @staticmethod
    def open(
        once: bool = False, *, limit: int | None = None, policy: Policy | None = None
    ) -> tuple[Port[Any], PortReceiver[Any]]:
        """A new channel; with `once` it takes one message.

        `limit` bounds the messages of one sending process that have not been received; `policy` says what becomes of
        further ones: "block" (the default with a limit) makes the sender wait, "fail" raises Busy there, "drop_oldest"
        keeps the newest `limit` of all senders at the receiver and drops older ones. Without a limit 4,096 messages
        or 256 MiB of a sending process wait at the receiver, further ones in that process, and Busy comes at 262,144
        or 4 GiB. `receiver.statistics()` counts what waits and what was dropped.

        >>> port, receiver = Channel.open(limit=1, policy="drop_oldest")        # doctest: +SKIP
        """
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise ValueError(f"limit={limit!r}: a channel holds at least one message")
        if policy not in (None, "block", "drop_oldest", "fail"):
            raise ValueError(f'policy={policy!r}: there are "block", "drop_oldest" and "fail"')
        if policy is not None and limit is None:
            raise ValueError(f"policy={policy!r} needs a limit, as Channel.open(limit=100, policy={policy!r})")
        node = current_node() or (STARTERS[0]() if STARTERS else _node())
        if node.ref is None:
            raise RoostError("this process has no address yet")
        chosen: Policy = policy or ("block" if limit is not None else "fail")
        port_id = new_id()
        mailbox = Mailbox(node, port_id, once=once, limit=limit, policy=chosen)
        counted = UNCOUNTED if once else limit or DEFAULT
        return Port(node.ref, port_id, counted, chosen), PortReceiver(mailbox)

    @staticmethod
    def open_ranked(
        once: bool = False, *, limit: int | None = None, policy: Policy | None = None
    ) -> tuple[Port[Any], PortReceiver[tuple[int, Any]]]:
        """The same; the receiver yields (rank, value), the sender's rank in the mesh, or slice, it was called on.

        >>> port, receiver = Channel.open_ranked()                    # doctest: +SKIP
        >>> workers.report.broadcast(port); receiver.recv().get()     # doctest: +SKIP
        (1, 'ready')
        """
        port, receiver = Channel.open(once, limit=limit, policy=policy)
        return port, receiver.ranked()


class _AnswerPort(Port[Any]):
    """The port of one call: what is sent to it is the call's answer."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self.return_undeliverable = True

    def __repr__(self) -> str:
        return f"<Port for the answer of {self._message.method}>"

    def __reduce__(self) -> Any:
        node = self._message.cell.node
        if node.ref is None:
            raise RoostError("this process has no address yet")
        port_id = new_id()
        node.ports[port_id] = _Relay(self, node, port_id)
        return Port, (node.ref, port_id)

    def send(self, value: Any, *, timeout: float | None = None) -> None:
        cell = self._message.cell
        cell.answer(self._message, value, cell.endpoints[self._message.method])

    async def asend(self, value: Any) -> None:
        self.send(value)

    def exception(self, error: BaseException) -> None:
        self._message.cell.answer_error(self._message, error)


class _Relay:
    """Receives at the actor what another process sent to the port of one of its calls."""

    def __init__(self, port: _AnswerPort, node: Node, port_id: int) -> None:
        self._port = port
        self._node = node
        self._port_id = port_id

    def close(self) -> None:
        """The process leaves its job."""

    def arrived(self, peer: Peer, rank: int, fields: list[Any], nbytes: int, data: Any, buffers: list[Any]) -> None:
        self._node.ports.pop(self._port_id, None)
        raw = (f.ERROR if fields[2] & EXCEPTION else f.REPLY, rank, fields, data, buffers)
        message = self._port._message

        def answer() -> None:
            try:
                value = decode_answer(*raw)
            except Exception as error:  # noqa: BLE001 - it is the answer
                self._port.exception(error)
            else:
                self._port.send(value)

        message.cell.urgent.append(answer)
        message.cell.queue.put(None)
        message.cell._wake()


def answer_port(message: Message) -> Port[Any]:
    """The port that an endpoint with an explicit response port gets."""
    return cast(Port[Any], _AnswerPort(message))
