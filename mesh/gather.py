"""Futures of many futures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..actors.future import Future


class _All(Future[Any]):
    __slots__ = ("_futures", "_ignore", "_left", "_make")

    def __init__(
        self, futures: Sequence[Future[Any]], ignore: tuple[type[BaseException], ...], make: Callable[[list[Any]], Any]
    ) -> None:
        super().__init__()
        self._futures = futures
        self._ignore = ignore
        self._make = make
        self._left = len(futures)
        lock = threading.Lock()

        def one() -> None:
            with lock:
                self._left -= 1
                last = self._left == 0
            if last:
                self.set_raw(None)

        for future in futures:
            if not future._when_done(one):
                one()
        if not futures:
            self.set_raw(None)

    def _flush(self) -> None:
        for future in self._futures:
            future._flush()

    def _decode(self, raw: Any) -> Any:
        values: list[Any] = []
        first: Exception | None = None
        for future in self._futures:  # all are asked, so that each failure counts as told
            try:
                values.append(future._result())
            except self._ignore as error:
                values.append(error)
            except Exception as error:  # noqa: BLE001 - raised below
                first = first or error
        if first is not None:
            raise first
        return self._make(values)


def all_of(
    futures: Sequence[Future[Any]],
    *,
    ignore: tuple[type[BaseException], ...] = (),
    make: Callable[[list[Any]], Any] = lambda values: None,
) -> Future[Any]:
    """Done when all are: `make(values)`, or the first failure in order; errors of types `ignore` count as values.

    >>> all_of([Future.completed(1), Future.completed(2)], make=sum).get()
    3
    """
    return _All(futures, ignore, make)
