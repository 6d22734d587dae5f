"""The receiving end of a channel.

A `recv()` claims a message when somebody asks it: a `get`, an `await`, a callback. So futures that are dropped or
cancelled cost no message, and of two the one that is asked first gets the first message. A future that was handed a
message and is collected before anybody looked gives it back, under its old number.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from .calls import decode_answer
from .errors import CallCancelled, RoostError
from .future import _CANCELLED, _PENDING, _RAW, Future
from .node import Node
from .peer import CREDIT_BYTES, CREDIT_MESSAGES, Peer
from .wire import frame as f
from .wire.delivery import CreditReceiver

R = TypeVar("R")

Policy = Literal["block", "drop_oldest", "fail"]
EXCEPTION, COUNTED = 1, 2  # flags of a POST: the body is a remote failure; it was charged to the sender's credit


class PortClosed(RoostError):
    """The receiver was closed, and what had arrived before has been received."""


@dataclass(frozen=True, slots=True)
class PortStatistics:
    """Of one channel: messages that wait, that have come in all, that were dropped for newer ones, and how many
    `recv()` wait for one."""

    waiting: int
    received: int
    dropped: int
    readers: int


class _Item:
    """A message that has arrived: `raw` is what it is decoded from, `peer` whose credit it holds."""

    __slots__ = ("nbytes", "number", "peer", "rank", "raw")

    def __init__(self, number: int, rank: int, raw: Any, peer: Peer | None, nbytes: int) -> None:
        self.number = number
        self.rank = rank
        self.raw = raw
        self.peer = peer
        self.nbytes = nbytes

    def value(self) -> Any:
        """Unpickle it, in the thread that asks; raises an exception that was sent."""
        return self.raw._result() if isinstance(self.raw, Future) else decode_answer(*self.raw)


class _Arrival(Future[Any]):
    """The next message, once somebody asks for it."""

    __slots__ = ("_ranked", "_receiver", "_waits")

    def __init__(self, receiver: PortReceiver[Any], ranked: bool) -> None:
        super().__init__()
        self._receiver = receiver  # a channel lives as long as somebody may ask it
        self._ranked = ranked
        self._waits = False

    def _about(self) -> str:
        return "a message of a channel"

    def _flush(self) -> None:
        self._receiver._mailbox.claim(self)

    def _when_done(self, wake: Callable[[], object]) -> bool:
        self._receiver._mailbox.claim(self)
        return super()._when_done(wake)

    def done(self) -> bool:
        """Whether a message is there for it: asking is a claim, but only on what has arrived."""
        if self._state == _PENDING:
            self._receiver._mailbox.claim(self, wait=False)
        return self._state != _PENDING

    def add_done_callback(self, callback: Callable[[Future[Any]], object]) -> None:
        self._receiver._mailbox.claim(self)
        super().add_done_callback(callback)

    def _wait(self, timeout: float | None) -> bool:
        if self._receiver._mailbox.claim(self, wait=False):
            return True
        try:
            came = super()._wait(timeout)
        except BaseException:  # Ctrl-C, maybe as the message came
            self._let_go("the wait for it was interrupted")
            raise
        if not came:
            self._receiver._mailbox.withdraw(self)
        return came or self._state != _PENDING

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            return (yield from super().__await__())
        except asyncio.CancelledError:  # maybe as the message came; its traceback keeps this future
            self._let_go("the task that awaited it was cancelled")
            raise

    def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Cancel it; a message that it was handed and that nobody has looked at is given back."""
        return super().cancel(reason) or self._let_go(reason)

    def _let_go(self, reason: str) -> bool:
        """Give back a message that nobody has looked at; False where there is none."""
        with self._lock:
            if self._state != _RAW:
                return False
            item, self._value = self._value, CallCancelled(f"{self._about()}: {reason}")
            self._state = _CANCELLED
        self._receiver._mailbox.give_back(item)
        return True

    def _cancel_remote(self, reason: str) -> None:
        self._receiver._mailbox.withdraw(self)

    def _decode(self, raw: _Item) -> Any:
        value = raw.value()
        return (raw.rank, value) if self._ranked else value

    def __del__(self) -> None:
        if getattr(self, "_state", _PENDING) == _RAW:  # handed over, and nobody has looked at it
            self._receiver._mailbox.give_back(self._value)
        super().__del__()


class Mailbox:
    """What has arrived for one channel, and who waits for it."""

    def __init__(self, node: Node, port_id: int, *, once: bool, limit: int | None, policy: Policy) -> None:
        self._node = node
        self.port_id = port_id
        self._once = once
        self._limit = limit
        self._policy = policy
        self._lock = threading.Lock()
        self._arrived: deque[_Item] = deque()
        self._returned: deque[_Item] = deque()  # given back, maybe by a finaliser inside the lock
        self._readers: deque[_Arrival] = deque()
        self._senders: set[Peer] = set()
        self._received = self._dropped = 0
        self.closed = False
        node.ports[port_id] = self

    # arrivals

    def arrived(self, peer: Peer, rank: int, fields: list[Any], nbytes: int, data: Any, buffers: list[Any]) -> None:
        """A message has come, on the I/O thread or one that leads."""
        kind = f.ERROR if fields[2] & EXCEPTION else f.REPLY
        self._put(rank, (kind, rank, fields, data, buffers), peer if fields[2] & COUNTED else None, nbytes)

    def put(self, rank: int, future: Future[Any]) -> None:
        """A message from this process itself: a future that is done."""
        self._put(rank, future, None, 0)

    def _put(self, rank: int, raw: Any, peer: Peer | None, nbytes: int) -> None:
        granted: set[Peer] = set()
        with self._lock:
            if self.closed:
                return
            self._received += 1
            if peer is not None:
                self._account(peer)
            self._arrived.append(_Item(self._received, rank, raw, peer, nbytes))
            if self._readers:
                self._serve(granted)
            if self._policy == "drop_oldest" and self._limit is not None:
                while len(self._arrived) > self._limit:
                    self._dropped += 1
                    self._consumed(self._arrived.popleft(), granted)
        if granted:
            self._tell(granted)
        if self._once:
            self.close()

    def _account(self, peer: Peer) -> None:
        if peer not in self._senders:
            self._senders.add(peer)
            # Told of often enough that a small bound is felt at the sender as it is.
            messages = CREDIT_MESSAGES if self._limit is None else max(self._limit // 16, 1)
            peer.granting[self.port_id] = CreditReceiver(messages, CREDIT_BYTES)

    def _consumed(self, item: _Item, granted: set[Peer]) -> None:
        peer, item.peer = item.peer, None  # once, though it may be given back
        if peer is not None and peer.granting_for(self.port_id).consumed(item.nbytes):
            granted.add(peer)

    def _tell(self, granted: set[Peer]) -> None:
        for peer in granted:
            self._node.grant(peer, self.port_id)

    # readers

    def _serve(self, granted: set[Peer]) -> None:
        """Hand messages to those that wait, in order; under the lock."""
        self._take_back()
        while self._arrived and self._readers:
            self._hand(self._readers.popleft(), granted)

    def _hand(self, reader: _Arrival, granted: set[Peer]) -> None:
        reader._waits = False
        item = self._arrived.popleft()
        if reader.set_raw(item):
            self._consumed(item, granted)
        else:  # cancelled meanwhile
            self._arrived.appendleft(item)

    def _take_back(self) -> None:
        if self._returned:
            items = [*self._arrived]
            while self._returned:
                items.append(self._returned.popleft())
            self._arrived = deque(sorted(items, key=lambda item: item.number))

    def claim(self, reader: _Arrival, *, wait: bool = True) -> bool:
        """Give the reader the next message, or (`wait`) a place behind those that wait; True when it is settled."""
        if reader._state != _PENDING:
            return True
        granted: set[Peer] = set()
        with self._lock:
            if self._readers or self._returned:
                self._serve(granted)
            if not reader._waits and reader._state == _PENDING:
                if self._arrived:
                    self._hand(reader, granted)
                elif self.closed:
                    reader.set_exception(self._why_closed())
                elif wait:
                    reader._waits = True
                    self._readers.append(reader)
        if granted:
            self._tell(granted)
        return reader._state != _PENDING

    def withdraw(self, reader: _Arrival) -> None:
        """It waits no more."""
        with self._lock:
            if reader._waits:
                reader._waits = False
                self._readers.remove(reader)

    def give_back(self, item: _Item) -> None:
        """A message that nobody has looked at; from a finaliser, which may hold any lock."""
        self._returned.append(item)
        if self._readers and not self._node.closed:
            try:
                self._node.io.call(self._settle)
            except RuntimeError:  # the loop has ended, and who waits is told so
                return

    def _settle(self) -> None:
        granted: set[Peer] = set()
        with self._lock:
            self._serve(granted)
        self._tell(granted)

    # the end

    def _why_closed(self) -> PortClosed:
        return PortClosed("this channel is closed, and all its messages have been received")

    def close(self, *, drop: bool = False) -> None:
        """Take no more messages: senders are told, who waits fails."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            readers, senders = [*self._readers], [*self._senders]
            self._readers.clear()
            self._senders.clear()
            if drop:
                self._arrived.clear()
        self._node.ports.pop(self.port_id, None)
        for peer in senders:
            peer.granting.pop(self.port_id, None)
            self._node.event(peer, "port closed", self.port_id)
        for reader in readers:
            reader._waits = False
            reader.set_exception(self._why_closed())

    def statistics(self) -> PortStatistics:
        """Counts, for eyes and tests."""
        with self._lock:
            self._take_back()
            return PortStatistics(len(self._arrived), self._received, self._dropped, len(self._readers))


class PortReceiver(Generic[R]):
    """The receiving end of a channel; it stays in the process that opened it.

    `recv()` gives a Future of the next message; a message is claimed when the future is asked (`get`, `await`, a
    callback), so one that is dropped, cancelled or timed out loses nothing. Exceptions that were sent are raised.
    `for value in receiver` and `async for` yield messages until the channel is closed. Closes at the end of a `with`,
    and when it is collected.

    >>> with receiver:                                               # doctest: +SKIP
    ...     first = receiver.recv().get(timeout=10)
    """

    def __init__(self, mailbox: Mailbox, *, ranked: bool = False, source: PortReceiver[Any] | None = None) -> None:
        self._mailbox = mailbox
        self._is_ranked = ranked
        self._source = source  # of a ranked view: whose end is the channel's

    def __repr__(self) -> str:
        state = "closed, " if self._mailbox.closed else ""
        return f"<PortReceiver{' with ranks' if self._is_ranked else ''}, {state}{self.statistics().waiting} waiting>"

    def __reduce__(self) -> Any:
        raise TypeError("a PortReceiver stays in the process that opened it: send its Port")

    def recv(self) -> Future[R]:
        """The next message, in the order in which they arrived. Raises PortClosed when there will be none."""
        return _Arrival(self, self._is_ranked)

    def ranked(self) -> PortReceiver[tuple[int, R]]:
        """The same messages, each as (rank, value): the sender's rank in the mesh, or slice, that it was called on."""
        return PortReceiver(self._mailbox, ranked=True, source=self._source or self)

    def statistics(self) -> PortStatistics:
        """How many messages wait, have come, were dropped."""
        return self._mailbox.statistics()

    def close(self) -> None:
        """Take no more messages; what has arrived can still be received. Senders' messages are dropped from now on."""
        self._mailbox.close()

    def __iter__(self) -> Iterator[R]:
        while True:
            try:
                yield self.recv().get()
            except PortClosed:
                return

    async def __aiter__(self) -> AsyncIterator[R]:
        while True:
            try:
                value = await self.recv()
            except PortClosed:
                return
            yield value

    def __enter__(self) -> PortReceiver[R]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        mailbox = getattr(self, "_mailbox", None)
        if mailbox is not None and self._source is None and not mailbox.closed and not mailbox._node.closed:
            try:
                mailbox._node.io.call(mailbox.close)  # elsewhere: a finaliser may hold any lock
            except RuntimeError:  # the loop has ended
                return
