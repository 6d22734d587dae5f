"""What makes two functions the same one: their code, and all they close over, if none of it can change.

`fingerprint` gives a hashable key: equal keys are functions that do the same wherever they are run.
It refuses (NotConstant) a function that holds anything mutable or writes to a global or a cell, for
such a function is not told by what it was when it was first seen.
"""

from __future__ import annotations

import dis
import enum
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cloudpickle import cloudpickle as _cloudpickle

NameClass = Callable[[type], object]

_WRITES = {"STORE_GLOBAL", "DELETE_GLOBAL"}
_EXACT = (bool, int, str, bytes, type(None), type(...), type(NotImplemented), range)
_absent = ("absent",)


class NotConstant(Exception):
    """The function holds or writes state, so it must be sent as it is at each call."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """Of a code object and those nested in it: the globals it reads; whether it writes outside itself."""

    reads: tuple[str, ...]
    writes: bool


_facts_of: weakref.WeakKeyDictionary[types.CodeType, _Facts] = weakref.WeakKeyDictionary()


def fingerprint(function: types.FunctionType, name_class: NameClass) -> object:
    """The key of a function that peers cannot import. Raises NotConstant.

    `name_class` gives a hashable name for each class it refers to, which differs for each version.
    """
    return _function(function, name_class, {})


def _function(function: types.FunctionType, name_class: NameClass, seen: dict[int, int]) -> object:
    if id(function) in seen:
        return seen[id(function)]
    seen[id(function)] = len(seen)
    facts = _facts(function.__code__)
    if facts.writes:
        raise NotConstant(f"{function.__qualname__} writes to a global or to a cell")
    parts: list[object] = [function.__code__, function.__module__, function.__qualname__]
    for part, value in _held(function, facts):
        parts.append((part, _absent if value is _absent else _value(value, name_class, seen)))
    for part, value in function.__annotations__.items():
        parts.append((part, name_class(value) if isinstance(value, type) else repr(value)))
    return tuple(parts)


def _held(function: types.FunctionType, facts: _Facts) -> Iterator[tuple[str, object]]:
    """All that a function closes over."""
    for name in facts.reads:
        yield name, function.__globals__.get(name, _absent)
    yield "defaults", function.__defaults__
    yield from (function.__kwdefaults__ or {}).items()
    yield from function.__dict__.items()
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            raise NotConstant(f"{name} has no value yet") from None


def _value(value: object, name_class: NameClass, seen: dict[int, int]) -> object:
    kind = type(value)
    if kind in _EXACT:
        return kind, value
    if kind is float or kind is complex:
        return kind, repr(value)  # tells -0.0 from 0.0, and finds nan again
    if kind is tuple:
        return kind, tuple(_value(each, name_class, seen) for each in _as_tuple(value))
    if kind is frozenset:
        return kind, frozenset(_value(each, name_class, seen) for each in _as_tuple(value))
    if isinstance(value, type):
        return type, name_class(value)
    if isinstance(value, enum.Enum):
        return enum.Enum, name_class(kind), value.name
    return _named(value, kind, name_class, seen)


def _as_tuple(value: object) -> tuple[object, ...]:
    return tuple(value)  # type: ignore[arg-type]


def _named(value: object, kind: type, name_class: NameClass, seen: dict[int, int]) -> object:
    """Modules and functions by name where a peer finds them by it; torch's constants by theirs."""
    if isinstance(value, types.FunctionType):
        if _cloudpickle._should_pickle_by_reference(value):
            return kind, value.__module__, value.__qualname__
        return _function(value, name_class, seen)
    if isinstance(value, types.ModuleType) and _cloudpickle._should_pickle_by_reference(value):
        return kind, value.__name__
    if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType | None):
        return kind, value.__module__, value.__qualname__
    if kind.__module__ == "torch" and kind.__name__ in ("dtype", "device", "layout", "memory_format"):
        return kind, str(value)
    raise NotConstant(f"a {kind.__name__} may change")


def _facts(code: types.CodeType) -> _Facts:
    facts = _facts_of.get(code)
    if facts is None:
        facts = _facts_of[code] = _read(code)
    return facts


def _read(code: types.CodeType) -> _Facts:
    reads: dict[str, None] = {}
    writes = False
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            reads[step.argval] = None
        elif step.opname in _WRITES or (step.opname == "STORE_DEREF" and step.argval in code.co_freevars):
            writes = True
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            inner = _read(const)
            reads.update(dict.fromkeys(inner.reads))
            # A cell of ours that an inner function writes lives for one call of ours only; one of
            # those around us lives on, and is in our co_freevars too.
            writes = writes or inner.writes
    return _Facts(tuple(reads), writes)
