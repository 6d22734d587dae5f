"""How exceptions travel: with their type, text, traceback, cause and notes, whatever they are.

An exception is pickled beside a record of plain values that tells of it, so that one which does not pickle arrives as
its text. At the caller it is of a generated subclass of its own type and ActorError.
"""

from __future__ import annotations

import traceback
from typing import Any

from .errors import ActorError
from .policy import policy

OWN_FILES = tuple(
    f"actors/{name}.py" for name in ("cell", "asynccell", "running", "streaming", "batching", "interrupt", "lanes")
)


def failure_record(error: BaseException, actor: str, endpoint: str, host: str, pid: int) -> dict[str, Any]:
    """What tells of a failure on its way to the caller, in plain values; the exception itself goes beside it."""
    kind = type(error)
    frames = traceback.TracebackException(kind, error, error.__traceback__)
    _drop_own_frames(frames)
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001 - a user's __str__ may do anything
        text = f"(its __str__ raised {type(broken).__name__})"
    return {
        "type": f"{kind.__module__}.{kind.__qualname__}",
        "text": text,
        "traceback": "".join(frames.format()),
        "actor": actor,
        "endpoint": endpoint,
        "host": host,
        "pid": pid,
    }


def _drop_own_frames(frames: traceback.TracebackException) -> None:
    """Leave out the frames of Roost's own dispatch, which say nothing to a user."""
    own = [i for i, frame in enumerate(frames.stack) if frame.filename.endswith(OWN_FILES)]
    for index in reversed(own):
        if len(frames.stack) > 1:
            del frames.stack[index]


_UNRAISABLE = (StopIteration, StopAsyncIteration, GeneratorExit, SystemExit, KeyboardInterrupt)
_kinds: dict[type[BaseException], type[ActorError]] = {}


def _joint_type(kind: type[BaseException]) -> type[ActorError]:
    """A subclass of both ActorError and the remote type, made once a type."""
    import asyncio

    found = _kinds.get(kind)
    if found is not None:
        return found
    joint: type[ActorError] = ActorError
    unraisable = (*_UNRAISABLE, asyncio.CancelledError, ActorError)
    if policy().joint_exceptions and issubclass(kind, Exception) and not issubclass(kind, unraisable):
        try:
            joint = type(
                kind.__name__, (ActorError, kind), {"__module__": kind.__module__, "__reduce__": _reduce_joint}
            )
            joint.__qualname__ = kind.__qualname__
        except TypeError:  # layouts that cannot be joined: the original is still there as `.original`
            joint = ActorError
    _kinds[kind] = joint
    return joint


def _reduce_joint(self: ActorError) -> Any:
    state = {k: v for k, v in self.__dict__.items() if k != "original"}
    return _rebuild_joint, (portable(self.original), state)


def _rebuild_joint(original: Any, state: dict[str, Any]) -> ActorError:
    error = join(from_portable(original) or RemoteException())
    error.__dict__.update(state)
    return error


def join(original: BaseException) -> ActorError:
    """An ActorError that is also of `original`'s type, with its arguments, attributes and notes."""
    kind = _joint_type(type(original))
    try:
        error = kind.__new__(kind, *original.args)
    except TypeError:
        try:  # MemoryError's own makes no subclass, though one may be made
            error = Exception.__new__(kind, *original.args)
        except TypeError:
            error = ActorError.__new__(ActorError)
    try:
        error.args = original.args
    except (TypeError, AttributeError):
        pass
    error.__dict__.update({k: v for k, v in original.__dict__.items() if not k.startswith("_roost")})
    for name in _slots(type(original)):
        try:
            setattr(error, name, getattr(original, name))
        except (AttributeError, TypeError):
            continue
    error.original = original
    error.__cause__ = original.__cause__
    error.__suppress_context__ = True
    return error


def _slots(kind: type) -> list[str]:
    """Members that built-in exceptions keep outside `__dict__` (OSError.errno, UnicodeError.start …)."""
    return [
        name
        for base in kind.__mro__
        if base not in (object, BaseException, Exception)
        for name, member in vars(base).items()
        if type(member).__name__ in ("member_descriptor", "getset_descriptor") and not name.startswith("__")
    ]


def from_record(record: dict[str, Any], rank: int, original: BaseException | None) -> ActorError:
    """Build the exception to raise at the caller; `original` is None when it did not pickle."""
    if original is None:
        original = RemoteException(f"{record['type']}: {record['text']}")
    if isinstance(original, ActorError):  # from an actor that this one called: it keeps where it began
        original.add_note(
            f"passed on by {record['actor']}.{record['endpoint']} on {record['host']} (pid {record['pid']})"
        )
        return original
    error = join(original)
    error.remote_traceback = record["traceback"]
    error.actor, error.endpoint = record["actor"], record["endpoint"]
    error.host, error.pid, error.rank = record["host"], record["pid"], rank
    return error


def portable(error: BaseException | None) -> Any:
    """What to pickle for an exception so that it arrives with its type, whatever its `__init__` asks for.

    By default an exception is unpickled by calling its type with `args`, which fails where `__init__` takes others.
    Where nothing but such an `__init__` is special about a type, its state travels instead: args and attributes.
    """
    if error is None:
        return None
    kind = type(error)
    special = any(
        getattr(kind, name, None) is not getattr(BaseException, name, None) and name in _own_names(kind)
        for name in ("__reduce__", "__reduce_ex__", "__setstate__", "__new__")
    )
    return error if special or "__init__" not in _own_names(kind) else (kind, error.args, dict(error.__dict__))


def _own_names(kind: type) -> set[str]:
    """Names defined by Python classes below the built-in exceptions."""
    return {name for base in kind.__mro__ if base.__module__ != "builtins" for name in vars(base)}


def from_portable(value: Any) -> BaseException | None:
    """The exception again."""
    if not isinstance(value, tuple):
        error: BaseException | None = value
        return error
    kind, args, state = value
    made: BaseException = kind.__new__(kind, *args)
    made.args = args
    made.__dict__.update(state)
    return made


class RemoteException(Exception):
    """Stands in for an exception that did not pickle: its type's name and its text."""
