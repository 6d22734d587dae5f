"""Endpoints: which methods of an actor can be called from elsewhere, and how their arguments are checked there.

Arguments are checked against the signature at the caller, before anything is sent.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

if TYPE_CHECKING:
    from ..mesh.endpoints import MeshEndpoint

P = ParamSpec("P")
R = TypeVar("R")


class EndpointInfo:
    """What dispatch needs to know of one endpoint of one class."""

    __slots__ = ("concurrent", "explicit_port", "function", "is_async", "name", "seconds")

    def __init__(self, name: str, function: Callable[..., Any], *, concurrent: bool, explicit_port: bool) -> None:
        self.name = name
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.concurrent = concurrent
        self.explicit_port = explicit_port
        self.seconds = 1.0  # how long it ran last; short ones have their answers gathered


class EndpointDefinition(Generic[P, R]):
    """What `@endpoint` leaves in the class: called by `.call` and its kin on a mesh, directly on the actor itself."""

    def __init__(self, function: Callable[..., Any], *, concurrent: bool, explicit_response_port: bool) -> None:
        self.function = function
        self.concurrent = concurrent
        self.explicit_response_port = explicit_response_port
        self.name = function.__name__
        update_wrapper(self, function)  # type: ignore[arg-type]
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters:
            raise TypeError(f"endpoint {function.__qualname__} takes no `self`")
        skip = 2 if explicit_response_port else 1
        self.signature = inspect.signature(function).replace(parameters=parameters[skip:])
        self._free = (
            all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in self.signature.parameters.values())
            and len(self.signature.parameters) == 2
        )
        simple = [
            p for p in self.signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        self._plain = len(simple) == len(self.signature.parameters)
        self._most = len(simple)
        self._least = sum(p.default is p.empty for p in simple)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else self.function.__get__(instance, owner)

    def __repr__(self) -> str:
        return f"<endpoint {self.name}{self.signature}>"

    def info(self) -> EndpointInfo:
        """What dispatch needs."""
        return EndpointInfo(
            self.name, self.function, concurrent=self.concurrent, explicit_port=self.explicit_response_port
        )

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise TypeError, with the signature, when the arguments do not fit it (0.1 us where all are positional)."""
        if not kwargs and self._plain and self._least <= len(args) <= self._most:
            return
        if self._free:
            return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.function.__qualname__}{self.signature}: {error}") from None

    if TYPE_CHECKING:
        # On a mesh the attribute is a MeshEndpoint; `spawn` says it returns the actor's class, so these stand here.
        call: Callable[P, Any]
        call_one: Callable[P, Any]
        choose: Callable[P, Any]
        stream: Callable[P, Any]
        broadcast: Callable[P, None]


@overload
def endpoint(method: Callable[Concatenate[Any, P], Awaitable[R]]) -> MeshEndpoint[P, R]: ...
@overload
def endpoint(method: Callable[Concatenate[Any, P], R]) -> MeshEndpoint[P, R]: ...
@overload
def endpoint(
    method: None = None,
    *,
    concurrent: bool = ...,
    explicit_response_port: bool = ...,
    propagate: Any = ...,
    instrument: bool = ...,
) -> Callable[[Callable[Concatenate[Any, P], Any]], MeshEndpoint[P, Any]]: ...
def endpoint(
    method: Any = None,
    *,
    concurrent: bool = False,
    explicit_response_port: bool = False,
    propagate: Any = None,
    instrument: bool = True,
) -> Any:
    """Make a method callable from elsewhere. Sync and async methods may stand in one actor.

    An actor handles one message at a time, in the order in which one sender sent them; an async endpoint holds the
    actor until it returns. With `concurrent=True` (async only) each call is a task of its own: it holds nobody up,
    and does not wait for an async endpoint that holds the actor.
    With `explicit_response_port=True` the first argument is a `Port` that the answer is sent to, now or later.

    >>> from roost.actors import Actor, endpoint
    >>> class Counter(Actor):
    ...     def __init__(self, start: int = 0) -> None:
    ...         self.n = start
    ...     @endpoint
    ...     def add(self, by: int) -> int:
    ...         self.n += by
    ...         return self.n
    """
    del propagate, instrument  # accepted for scripts written for other systems

    def make(function: Callable[..., Any]) -> Any:
        if isinstance(function, EndpointDefinition):
            raise TypeError(f"{function.name} is an endpoint already")
        if not callable(function):
            raise TypeError(f"@endpoint is for methods, not for {function!r}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__qualname__} yields: endpoints return one value; return a list, or send items to a Port"
            )
        if concurrent and not inspect.iscoroutinefunction(function):
            raise ValueError(
                f"{function.__qualname__} is concurrent and must be `async def`: concurrent endpoints share a thread"
            )
        return EndpointDefinition(function, concurrent=concurrent, explicit_response_port=explicit_response_port)

    return make if method is None else make(method)


def concurrent_endpoint(method: Any = None, *, explicit_response_port: bool = False, **ignored: Any) -> Any:
    """The same as `@endpoint(concurrent=True)`."""
    decorate = endpoint(concurrent=True, explicit_response_port=explicit_response_port)
    return decorate if method is None else decorate(method)


def endpoints_of(cls: type) -> dict[str, EndpointDefinition[Any, Any]]:
    """The endpoints of a class and its bases, by name."""
    found: dict[str, EndpointDefinition[Any, Any]] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            if isinstance(member, EndpointDefinition):
                found[name] = member
            else:
                found.pop(name, None)
    return found
