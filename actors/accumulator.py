"""Accumulator: the answers of a mesh folded into one value as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from .future import Future
from .returns_future import returns_future

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")


class Streams(Protocol):
    """An endpoint of a mesh."""

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[Any]: ...


class Accumulator(Generic[P, R, A]):
    """Folds the answers of an endpoint: `combine(combine(identity, first), second)` and so on, in arrival order.

    `combine` runs where the result is asked for; one that changes its first argument in place changes `identity`.

    >>> Accumulator(counters.add, 0, lambda total, n: total + n).accumulate(1).get()      # doctest: +SKIP
    24
    """

    def __init__(self, endpoint: Streams, identity: A, combine: Callable[[A, R], A]) -> None:
        self._endpoint = endpoint
        self._identity = identity
        self._combine = combine

    def __repr__(self) -> str:
        return f"<Accumulator of {self._endpoint!r}>"

    def accumulate(self, *args: P.args, **kwargs: P.kwargs) -> Future[A]:
        """Call every actor, at once; the folded answers come as one Future. The first error that arrives is raised.

        The identity where nobody answers. What a streaming endpoint yields is folded item by item.
        """
        answers = self._endpoint.stream(*args, **kwargs)
        if not hasattr(answers, "__anext__"):
            answers = iter(list(answers))
        return _fold(answers, self._identity, self._combine)


@returns_future
async def _fold(answers: Any, value: A, combine: Callable[[A, Any], A]) -> A:
    if hasattr(answers, "__anext__"):
        async for item in answers:
            value = combine(value, item)
        return value
    for answer in answers:
        value = combine(value, await answer)
    return value
