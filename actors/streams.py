"""Streams: answers of a mesh as they arrive, and the items of streaming endpoints as they are made.

`StreamCall` hands out one future a rank. `ItemStream` hands out what generators yield; it tells each actor how much has
been taken, so an actor is never more than a window of items ahead of its caller.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from .calls import Led, _Call, about_call, decode_answer, hold
from .deadlines import not_taken
from .errors import CallCancelled
from .future import Future
from .node import Node
from .peer import Peer
from .wire import frame as f

T = TypeVar("T")


class RankFuture(Future[Any]):
    """One rank's answer within a stream; `rank` is known once it is done."""

    __slots__ = ("rank", "stream")

    def __init__(self, stream: StreamCall) -> None:
        super().__init__()
        self.stream = stream
        self.rank: int | None = None

    def _about(self) -> str:
        return self.stream.about

    def _flush(self) -> None:
        self.stream._flush()

    def _decode(self, raw: Any) -> Any:
        value = decode_answer(*raw)
        return (self.rank, value) if self.stream.with_rank else value

    def _cancel_remote(self, reason: str) -> None:
        self.stream.cancel(reason)


class StreamCall(_Call):
    """A future for each rank, completed in the order in which the answers arrive."""

    __slots__ = ("futures", "gone", "next", "with_rank")

    def __init__(self, node: Node, about: str, peers: Sequence[Peer], *, with_rank: bool = False) -> None:
        super().__init__(node, about, peers)
        self.with_rank = with_rank
        self.futures = [RankFuture(self) for _ in peers]
        self.gone: set[int] = set()
        self.next = 0

    def _silent(self) -> dict[int, Peer]:
        return {rank: peer for rank, peer in enumerate(self.peers) if rank not in self.gone}

    def _settled(self) -> None:
        super()._settled()
        if self.cancelled():  # by its deadline, or by one of its futures: nobody else will answer
            for future in self.futures[self.next :]:
                future.set_exception(self._value)

    def answered(self, peer: Peer, kind: int, rank: int, fields: list[Any], body: Any) -> None:
        if self._overtaken(kind, fields):
            return
        if 0 <= rank < len(self.peers) and rank not in self.gone and self.peers[rank] is peer:
            answer = (kind, rank, fields, *self.node.open_body(fields[0], body))
            failure = self._gone(peer, fields) if kind == f.ERROR else None
            self._arrived(rank, lambda future: future.set_raw(answer), failure)

    def lost(self, peer: Peer, error: Exception) -> None:
        for rank, member in enumerate(self.peers):
            if member is peer:
                self.rank_lost(rank, error)

    def rank_lost(self, rank: int, error: Exception) -> None:
        """A rank will never answer."""
        if rank not in self.gone:
            told = about_call(error, f"{self.about} at rank {rank}", rank)
            self._arrived(rank, lambda future: future.set_exception(told), getattr(error, "_roost_failure", None))

    def _arrived(self, rank: int, complete: Callable[[RankFuture], object], failure: Any) -> None:
        self.gone.add(rank)
        future = self.futures[self.next]
        self.next += 1
        future.rank = rank
        hold(future, failure)
        if self.next == len(self.futures):
            self._unregister()
            self.set_result(None)
        complete(future)


_END = object()


class _Next(Led):
    """The item that comes next."""

    __slots__ = ("call",)

    def __init__(self, call: ItemCall) -> None:
        super().__init__()
        self.node = call.node
        self.call = call

    def _about(self) -> str:
        return f"the next item of {self.call.about}"

    def _flush(self) -> None:
        self.call._flush()

    def _decode(self, raw: Any) -> Any:
        rank, answer, _ = raw
        if isinstance(answer, Exception):
            raise answer
        return rank, decode_answer(*answer)


class ItemCall(_Call):
    """A call of a streaming endpoint on one or several ranks: items in the order in which they arrive."""

    __slots__ = ("actor", "arrived", "ended", "guard", "read", "taken", "told", "waiting", "window")

    def __init__(self, node: Node, about: str, peers: Sequence[Peer], actor: int, window: int) -> None:
        super().__init__(node, about, peers)
        self.actor = actor
        self.window = window
        self.guard = threading.Lock()
        self.arrived: deque[Any] = deque()  # (rank, answer or exception, the failure it tells of), or the end
        self.waiting: deque[_Next] = deque()
        self.ended: set[int] = set()
        self.taken = [0] * len(peers)
        self.told = [0] * len(peers)
        self.read = time.monotonic()  # when an item was taken last

    def _silent(self) -> dict[int, Peer]:
        return {rank: peer for rank, peer in enumerate(self.peers) if rank not in self.ended}

    def _timeout_text(self, seconds: float) -> str:
        if self.waiting or not self.arrived:
            return super()._timeout_text(seconds)
        late = not_taken(time.monotonic() - self.read)
        return f"{self.about} was not read to its end within {seconds:g} s and was cancelled: {late}"

    def _settled(self) -> None:
        super()._settled()
        if self.cancelled():
            error = self._value
            self._put((0, error, None) if not isinstance(error, CallCancelled) else _END)
            self._put(_END)

    def item(self, peer: Peer, rank: int, fields: list[Any], body: Any) -> None:
        opened = self.node.open_body(fields[0], body)
        if 0 <= rank < len(self.peers) and self.peers[rank] is peer and not self.cancelled():
            self._put((rank, (f.REPLY, rank, fields, *opened), None))

    def answered(self, peer: Peer, kind: int, rank: int, fields: list[Any], body: Any) -> None:
        if not 0 <= rank < len(self.peers) or rank in self.ended or self.peers[rank] is not peer:
            return
        if self._overtaken(kind, fields):
            return
        opened = self.node.open_body(fields[0], body)
        if kind == f.ERROR and self.cancelled():
            self._note_cancelled(rank, fields)
        elif kind == f.ERROR:
            self._hold_gone(peer, fields)
            self._put((rank, (kind, rank, fields, *opened), self._gone(peer, fields)))
        self._end(rank)

    def lost(self, peer: Peer, error: Exception) -> None:
        for rank, member in enumerate(self.peers):
            if member is peer:
                self.rank_lost(rank, error)

    def rank_lost(self, rank: int, error: Exception) -> None:
        """A rank will send no more."""
        if rank not in self.ended:
            failure = getattr(error, "_roost_failure", None)
            self._hold(failure)
            self._put((rank, about_call(error, f"{self.about} at rank {rank}", rank), failure))
            self._end(rank)

    def _end(self, rank: int) -> None:
        self.ended.add(rank)
        if len(self.ended) == len(self.peers):
            self._unregister()
            self._put(_END)
            self.set_result(None)

    def _put(self, entry: Any) -> None:
        with self.guard:
            while self.waiting:
                if _hand(self.waiting.popleft(), entry):
                    return
            self.arrived.append(entry)

    def take(self) -> _Next:
        """A future of the next item. One that is cancelled takes none."""
        future = _Next(self)
        with self.guard:
            if self.arrived:
                entry = self.arrived[0]
                if entry is not _END:  # the end stays, for whoever asks again
                    self.arrived.popleft()
                _hand(future, entry)
            else:
                self.waiting.append(future)
        return future

    def took(self, rank: int) -> None:
        """An item was taken: let its actor make more, not for each but when half a window is free."""
        self.taken[rank] += 1
        self.read = time.monotonic()
        if self.taken[rank] - self.told[rank] >= max(1, self.window // 2) and rank not in self.ended:
            self.told[rank] = self.taken[rank]
            peer = self.peers[rank]
            total = self.taken[rank] + self.window
            self.node._post_quietly(peer, f.MORE, f.packb([self.call_id, self.actor, total]))


def _hand(future: _Next, entry: Any) -> bool:
    if entry is _END:
        return future.set_result(_END)
    hold(future, entry[2])
    return future.set_raw(entry)


class ItemStream(Generic[T]):
    """What a streaming endpoint yields, item by item: `for item in stream` or `async for item in stream`.

    On several ranks the items of each rank come in its order, those of different ranks as they arrive; `with_rank`
    gives (rank, item). At most a window of items of each rank is made ahead of what was taken: an actor whose caller
    is slow waits. What a generator raises is raised after its items; the other ranks' items can still be taken. A
    stream that is closed, or forgotten, ends the generators. Can be iterated once.

    >>> for token in generator.generate.stream("Once"):             # doctest: +SKIP
    ...     print(token, end="")
    """

    def __init__(self, call: ItemCall, with_rank: bool) -> None:
        self._call = call
        self._with_rank = with_rank

    def __repr__(self) -> str:
        call = self._call
        state = "cancelled" if call.cancelled() else f"{len(call.peers) - len(call.ended)} of {len(call.peers)} go on"
        return f"<ItemStream of {call.about}, {sum(call.taken)} taken, {state}>"

    def _open(self, taken: Any) -> Any:
        rank, value = taken
        self._call.took(rank)
        return (rank, value) if self._with_rank else value

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        taken = self._call.take().get()
        if taken is _END:
            raise StopIteration
        item: T = self._open(taken)
        return item

    def get(self, timeout: float | None = None) -> T:
        """The next item, waiting at most `timeout` seconds: then CallTimeout, and the stream can still be asked.

        Raises StopIteration at the end.
        """
        taken = self._call.take().get(timeout)
        if taken is _END:
            raise StopIteration
        item: T = self._open(taken)
        return item

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        taken = await self._call.take()
        if taken is _END:
            raise StopAsyncIteration
        item: T = self._open(taken)
        return item

    def close(self, reason: str = "its caller takes no more") -> None:
        """End the generators; what has arrived and was not taken is dropped."""
        self._call.cancel(reason)

    async def aclose(self) -> None:
        """The same as `close`."""
        self.close()

    def __enter__(self) -> ItemStream[T]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> ItemStream[T]:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        call = getattr(self, "_call", None)
        if call is not None and not call.done() and not call.node.closed:
            call.node.io.call(call.cancel, "its caller has forgotten it")
