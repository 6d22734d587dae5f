"""Batched calls: many calls of one endpoint in few messages, spread over the ranks of a mesh."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..actors.calls import MANY, OneCall
from ..actors.errors import ActorError, MeshFailure
from ..actors.future import Future
from ..actors.travel import from_portable, from_record
from ..actors.wire.receivers import pack_for

if TYPE_CHECKING:
    from .endpoints import MeshEndpoint


def map_items(endpoint: MeshEndpoint[Any, Any], items: Sequence[Any], chunk: int | None) -> Future[list[Any]]:
    """What `MeshEndpoint.map` says."""
    every = list(items)
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk={chunk!r}: at least one item a message")
    for item in every[:1]:
        endpoint._definition.check((item,), {})
    return _Map(endpoint, every, chunk)


class _Map(Future[list[Any]]):
    """Sends chunks to ranks; each rank has one chunk under way, or all of its share where no size was given."""

    __slots__ = ("_chunks", "_endpoint", "_guard", "_left", "_results", "_under_way")

    def __init__(self, endpoint: MeshEndpoint[Any, Any], items: list[Any], chunk: int | None) -> None:
        super().__init__()
        self._endpoint = endpoint
        ranks = len(endpoint._mesh)
        self._results: list[Any] = [None] * len(items)
        self._guard = threading.Lock()
        self._under_way: dict[Any, OneCall] = {}
        if chunk is None:
            bounds = [len(items) * part // ranks for part in range(ranks + 1)]
            cut = list(pairwise(bounds))
        else:
            cut = [(start, min(start + chunk, len(items))) for start in range(0, len(items), chunk)]
        self._chunks = [(start, items[start:stop]) for start, stop in cut if stop > start]
        self._left = len(self._chunks)
        if not self._chunks:
            self.set_result([])
            return
        self._chunks.reverse()
        for rank in range(ranks):
            self._next(rank)

    def _about(self) -> str:
        return f"{self._endpoint._about} over {len(self._results)} items"

    def _flush(self) -> None:
        for call in list(self._under_way.values()):
            call._flush()

    def _cancel_remote(self, reason: str) -> None:
        for call in list(self._under_way.values()):
            call.cancel(reason)

    def _next(self, rank: int) -> None:
        """Send a rank its next chunk."""
        with self._guard:
            if not self._chunks or self.done():
                return
            start, part = self._chunks.pop()
        endpoint = self._endpoint
        node, peers = endpoint._ready()
        packed = pack_for([peers[rank].proc_id], [((item,), {}) for item in part], "argument")
        call = OneCall(node, endpoint._about, peers[rank], rank)
        self._under_way[start] = call
        endpoint._send_one(node, peers[rank], rank, packed, call, MANY)

        def answered() -> None:
            self._answered(rank, start, len(part), call)

        if not call._when_done(answered):
            answered()

    def _answered(self, rank: int, start: int, count: int, call: OneCall) -> None:
        self._results[start : start + count] = [(call, rank, index) for index in range(count)]
        with self._guard:
            self._under_way.pop(start, None)
            self._left -= 1
            last = self._left == 0
        if last:
            self.set_raw(None)
        elif self._chunks:
            try:
                self._next(rank)
            except Exception as error:  # noqa: BLE001 - whoever waits must learn of it
                self.set_exception(error)

    def _decode(self, raw: Any) -> list[Any]:
        values: list[Any] = []
        failures: list[tuple[int, BaseException]] = []
        for index, (call, rank, place) in enumerate(self._results):
            try:
                ok, value = call._result()[place]
                if not ok:
                    raise _failure(value, rank)
                values.append(value)
            except Exception as error:  # noqa: BLE001 - it is raised below
                failures.append((index, error))
        if not failures:
            return values
        first = failures[0][1]
        if isinstance(first, ActorError | MeshFailure):
            once = {
                id(error): (index, error) for index, error in reversed(failures)
            }  # a chunk that failed has one error
            first.others = tuple(sorted(once.values(), key=lambda item: item[0])[1:])
        raise first


def _failure(told: Any, rank: int) -> BaseException:
    record, original, cause = told
    error = from_portable(original)
    if error is not None and cause is not None:
        error.__cause__ = from_portable(cause)
    if isinstance(error, MeshFailure):
        return error
    return from_record(record, rank, error)
