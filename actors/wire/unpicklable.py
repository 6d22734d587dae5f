"""What could not be pickled, told by the path to it and with what to do."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping

from .definitions import importable

_DEPTH = 24
_VISITS = 2000  # objects tried; a wider graph is told as far as it was followed

_ADVICE = {
    "lock": "make it where it is used (an actor's __init__), or leave it out in __getstate__",
    "generator": "send its items, as a list or one call each",
    "coroutine": "await it here and send its result",
    "TextIOWrapper": "send the file's path, and open it where it is read",
    "BufferedReader": "send the file's path, and open it where it is read",
    "BufferedWriter": "send the file's path, and open it where it is written",
    "socket": "send its address, and connect from there",
    "Thread": "start it where it is used",
}
_DEFAULT_ADVICE = "leave it out, or give its class a __reduce__ or __getstate__ that does"


class UnpicklableError(TypeError):
    """An object cannot be sent to another process; the message names the path to what is to blame."""


def explain(obj: object, what: str, error: Exception, dump: Callable[[object], None]) -> UnpicklableError:
    """Follow `obj` to the innermost part that `dump` refuses. Slow: only once `obj` has been refused."""
    path, culprit, cause = what, obj, error
    seen = {id(obj)}
    visits = 0
    for _ in range(_DEPTH):
        if _refuses_itself(culprit):
            return UnpicklableError(f"{path}: {cause}")
        for step, part in _parts(culprit, path == what):
            visits += 1
            if id(part) in seen or visits > _VISITS:
                continue
            seen.add(id(part))
            refused = _refused(part, dump)
            if refused is not None:
                path, culprit, cause = path + step, part, refused
                break
        else:
            break
    return UnpicklableError(f"{path}: {_reason(cause)}; {_advice(culprit)}")


def _refused(part: object, dump: Callable[[object], None]) -> Exception | None:
    try:
        dump(part)
    except Exception as error:  # noqa: BLE001  (whatever a __reduce__ of the user's raises)
        return error
    return None


def _refuses_itself(obj: object) -> bool:
    """Whether the refusal is its class's own word, which says best what to do."""
    own = next((base for base in type(obj).__mro__ if "__reduce__" in vars(base)), object)
    if own.__module__ == "builtins":
        return False
    try:
        obj.__reduce__()
    except Exception:  # noqa: BLE001 - in whatever way
        return True
    return False


def _reason(cause: Exception) -> str:
    if isinstance(cause, RecursionError):
        return "it is nested too deeply to pickle"
    text = str(cause) or type(cause).__name__
    told = isinstance(cause, TypeError) or "pickle" in text
    return text if told else f"cannot pickle it: {type(cause).__name__}: {text}"


def _advice(culprit: object) -> str:
    for kind in type(culprit).__mro__:
        for name, advice in _ADVICE.items():
            if kind.__name__ == name or kind.__name__.lower().endswith(name.lower()):
                return advice
    return _DEFAULT_ADVICE


def _parts(obj: object, top: bool) -> Iterator[tuple[str, object]]:
    """The parts of `obj`, each with how it is reached; arguments of a call by position and name."""
    if top and type(obj) is tuple and [type(part) for part in obj] == [tuple, dict]:
        yield from ((f" {at}", part) for at, part in enumerate(obj[0]))
        yield from ((f" {name!r}", part) for name, part in obj[1].items())
    elif isinstance(obj, Mapping):
        for key, value in obj.items():
            yield f"[{_short(key)}]", value
            yield f" key {_short(key)}", key
    elif isinstance(obj, list | tuple):
        yield from ((f"[{at}]", part) for at, part in enumerate(obj))
    elif isinstance(obj, set | frozenset):
        yield from ((f" item {_short(part)}", part) for part in obj)
    if isinstance(obj, types.FunctionType):
        yield from _closed_over(obj)
    elif isinstance(obj, types.MethodType):
        yield ".__self__", obj.__self__
    yield from _attributes(obj)


def _closed_over(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f" closing over {name!r}", cell.cell_contents
        except ValueError:
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f" using global {name!r}", function.__globals__[name]
    for at, value in enumerate(function.__defaults__ or ()):
        yield f" default {at}", value


def _attributes(obj: object) -> Iterator[tuple[str, object]]:
    for name, value in list(getattr(obj, "__dict__", {}).items()):
        if not (isinstance(obj, type) and name.startswith("__")):
            yield f".{name}", value
    if isinstance(obj, type):
        return
    if not importable(type(obj)):
        yield f" (its class {type(obj).__name__})", type(obj)
    for kind in type(obj).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(obj, name):
                yield f".{name}", getattr(obj, name)
    for name in ("func", "args", "keywords"):  # of functools.partial
        if type(obj).__name__ == "partial":
            yield f".{name}", getattr(obj, name)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
