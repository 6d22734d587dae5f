"""Dispatch by a named dim: each rank gets its part of the batch, and nothing else.

Cutting and joining are pure (`cut`, `join`); numpy and torch are recognised without importing them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..actors.calls import NO_VALUE, WANTS_ANSWER
from ..actors.future import Future
from ..actors.wire.receivers import pack_for
from .shape import Extent
from .valuemesh import ValueMesh

if TYPE_CHECKING:
    from .endpoints import MeshEndpoint

Merge = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class Replicate:
    """Marks an argument of `dispatch` that goes whole to every rank, though it could be cut.

    >>> Replicate([1, 2, 3])
    Replicate(value=[1, 2, 3])
    """

    value: Any


def dispatch(
    endpoint: MeshEndpoint[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any], dim: str, merge: Merge | bool
) -> Future[Any]:
    """What `MeshEndpoint.dispatch` says."""
    extent = endpoint._mesh.extent
    if dim not in extent.labels:
        raise ValueError(f"split={dim!r}: {endpoint._members.name!r} has no such dim, it has {extent}")
    if not (endpoint._direct).isdisjoint(kwargs):
        endpoint = endpoint._with(kwargs)
    count = extent.sizes[extent.labels.index(dim)]
    parts = cut((args, kwargs), count)
    for part_args, part_kwargs in parts:
        endpoint._definition.check(part_args, part_kwargs)
    groups: list[list[int]] = [[] for _ in range(count)]
    for point in extent.points():
        groups[point[dim]].append(point.rank)
    node, peers = endpoint._ready()
    over = Extent([dim], [count])

    def gather(values: list[Any]) -> Any:
        firsts = [values[group[0]] for group in groups]
        if merge is False:
            return ValueMesh(over, firsts)
        return join(firsts) if merge is True else merge(firsts)

    call = endpoint._mesh_call(node, peers, gather)
    for group, part in zip(groups, parts, strict=True):
        packed = pack_for([peers[rank].proc_id for rank in group], part, "argument")
        first, rest = group[:1], group[1:]
        endpoint._send_many(node, call, [(rank, peers[rank]) for rank in first], packed, call.call_id, WANTS_ANSWER)
        if rest:
            quiet = WANTS_ANSWER | NO_VALUE
            endpoint._send_many(node, call, [(rank, peers[rank]) for rank in rest], packed, call.call_id, quiet)
    return call


def cut(arguments: tuple[tuple[Any, ...], dict[str, Any]], count: int) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments of each of `count` groups. Raises ValueError when batches differ in length or are too short.

    >>> cut((([1, 2, 3], "x"), {"lr": 0.1}), 2)
    [(([1], 'x'), {'lr': 0.1}), (([2, 3], 'x'), {'lr': 0.1})]
    """
    args, kwargs = arguments
    named = [(f"argument {i}", value) for i, value in enumerate(args)] + [(repr(k), v) for k, v in kwargs.items()]
    lengths: dict[str, int] = {}
    for name, value in named:
        _measure(name, value, lengths)
    if not lengths:
        raise ValueError("nothing to split: no argument is a list, array or tensor, or a dict of them")
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ValueError(f"the arguments to be split differ in length: {told}; wrap what goes whole in Replicate(...)")
    length = next(iter(lengths.values()))
    if length < count:
        raise ValueError(f"a batch of {length} cannot be split over {count} groups")
    bounds = [length * part // count for part in range(count + 1)]
    return [
        (
            tuple(_part(value, start, stop) for value in args),
            {name: _part(value, start, stop) for name, value in kwargs.items()},
        )
        for start, stop in pairwise(bounds)
    ]


def _measure(name: str, value: Any, lengths: dict[str, int]) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _measure(f"{name}[{key!r}]", inner, lengths)
    elif (length := _length(value)) is not None:
        lengths[name] = length


def _length(value: Any) -> int | None:
    if isinstance(value, list):
        return len(value)
    if _is_array(value) and value.ndim > 0:
        return int(value.shape[0])
    return None


def _is_array(value: Any) -> bool:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return (numpy is not None and isinstance(value, numpy.ndarray)) or (
        torch is not None and isinstance(value, torch.Tensor)
    )


def _part(value: Any, start: int, stop: int) -> Any:
    if isinstance(value, Replicate):
        return value.value
    if isinstance(value, dict):
        return {key: _part(inner, start, stop) for key, inner in value.items()}
    return value if _length(value) is None else value[start:stop]


def join(parts: Sequence[Any]) -> Any:
    """One value again: lists and tuples one after the other, arrays and tensors along their first axis, dicts by key.

    Raises TypeError for what cannot be joined.

    >>> join([{"x": [1, 2]}, {"x": [3]}])
    {'x': [1, 2, 3]}
    """
    first = parts[0]
    if isinstance(first, dict):
        return {key: join([part[key] for part in parts]) for key in first}
    if isinstance(first, list):
        return [item for part in parts for item in part]
    if isinstance(first, tuple):
        return tuple(item for part in parts for item in part)
    if _is_array(first):
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(first, numpy.ndarray):
            return numpy.concatenate(list(parts))
        return sys.modules["torch"].cat(list(parts))
    raise TypeError(f"parts of type {type(first).__name__} cannot be joined: give merge= a function of the parts")
