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

_HOOKS = ("__cleanup__", "__supervise__", "_handle_undeliverable_message")


class EndpointInfo:
    """What dispatch needs to know of one endpoint of one class."""

    __slots__ = (
        "batch", "batch_wait", "concurrent", "explicit_port", "function", "interruptible", "is_async", "lane", "name",
        "plain", "seconds", "yields",
    )  # fmt: skip

    def __init__(self, definition: EndpointDefinition[Any, Any]) -> None:
        self.name = definition.name
        self.function = function = definition.function
        self.yields = definition.yields
        self.is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        self.concurrent = definition.concurrent
        self.explicit_port = definition.explicit_response_port
        self.lane = definition.lane
        self.batch = definition.batch
        self.batch_wait = definition.batch_wait
        self.interruptible = definition.interruptible
        self.seconds = 1.0  # how long it ran last; short ones have their answers gathered
        # Called with the arguments as they came, its value is the answer.
        self.plain = not (self.explicit_port or self.yields or self.batch or self.interruptible)

    def __repr__(self) -> str:
        return f"<EndpointInfo {self.name}>"


class EndpointDefinition(Generic[P, R]):
    """What `@endpoint` leaves in the class: called by `.call` and its kin on a mesh, directly on the actor itself."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        concurrent: bool = False,
        explicit_response_port: bool = False,
        lane: str = "",
        interruptible: bool = False,
        batch: int = 0,
        batch_wait: float = 0.0,
    ) -> None:
        self.function = function
        self.concurrent = concurrent
        self.explicit_response_port = explicit_response_port
        self.lane = lane
        self.interruptible = interruptible
        self.batch = batch
        self.batch_wait = batch_wait
        self.yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        self.name = function.__name__
        update_wrapper(self, function)  # type: ignore[arg-type]
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters:
            raise TypeError(f"endpoint {function.__qualname__} takes no `self`")
        skip = 2 if explicit_response_port else 1
        self.signature = inspect.signature(function).replace(parameters=parameters[skip:])
        if batch > 0:
            self.signature = _of_one(function, self.signature)
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
        return EndpointInfo(self)

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


def _of_one(function: Callable[..., Any], of_many: inspect.Signature) -> inspect.Signature:
    """The signature that callers of a batched endpoint see: one item, where the endpoint takes a list of them."""
    parameters = list(of_many.parameters.values())
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) != 1 or parameters[0].kind not in kinds:
        raise TypeError(f"{function.__qualname__} is batched: it takes one argument, the list of items, beside `self`")
    item = inspect.Parameter(parameters[0].name, inspect.Parameter.POSITIONAL_ONLY)
    return inspect.Signature([item])


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
    lane: str = ...,
    interruptible: bool = ...,
    batch: int = ...,
    batch_wait: float = ...,
    propagate: Any = ...,
    instrument: bool = ...,
) -> Callable[[Callable[Concatenate[Any, P], Any]], MeshEndpoint[P, Any]]: ...
def endpoint(
    method: Any = None,
    *,
    concurrent: bool = False,
    explicit_response_port: bool = False,
    lane: str = "",
    interruptible: bool = False,
    batch: int = 0,
    batch_wait: float = 0.0,
    propagate: Any = None,
    instrument: bool = True,
) -> Any:
    """Make a method callable from elsewhere. Sync and async methods, and generators, may stand in one actor.

    An actor handles one message at a time, in the order in which one sender sent them; an async endpoint holds the
    actor until it returns. The items of a generator (`def` or `async def`) are sent as they are made, to callers that
    use `stream`; others get the list of them.

    concurrent
        Async only: each call is a task of its own; it holds nobody up, and does not wait for an async endpoint that
        holds the actor.
    explicit_response_port
        The first argument is a `Port` that the answer is sent to, now or later.
    lane
        Calls never wait for the home thread: they run on threads of the lane, in the order in which one sender sent
        them, as many at once as the class says (`class A(Actor, lanes={"io": 4})`; one, if it does not say). What
        they share with other endpoints is shared between threads.
    interruptible
        Sync only: when a call is cancelled, or its deadline passes, CallCancelled is raised in it at the next line of
        Python that it runs; where it waits for another actor's answer, that call is cancelled. A call into C that
        blocks is not interrupted. Without it an endpoint must look at `context().cancelled`.
    batch, batch_wait
        The endpoint takes a list of items and returns a list as long; callers give one item and get its element. Up
        to `batch` calls that wait, of any callers, are joined; while there are fewer it waits until `batch_wait`
        seconds after the first. A call never overtakes an earlier one of the same process.

    >>> from roost.actors import Actor, endpoint
    >>> class Counter(Actor):
    ...     def __init__(self, start: int = 0) -> None:
    ...         self.n = start
    ...     @endpoint
    ...     def add(self, by: int) -> int:
    ...         self.n += by
    ...         return self.n
    ...     @endpoint
    ...     def count(self, upto: int):
    ...         while self.n < upto:
    ...             self.n += 1
    ...             yield self.n
    ...     @endpoint(lane="health")
    ...     def alive(self) -> bool:
    ...         return True
    """
    del propagate, instrument  # accepted for scripts written for other systems

    def make(function: Callable[..., Any]) -> Any:
        if isinstance(function, EndpointDefinition):
            raise TypeError(f"{function.name} is an endpoint already")
        if not callable(function):
            raise TypeError(f"@endpoint is for methods, not for {function!r}")
        definition = EndpointDefinition[Any, Any](
            function,
            concurrent=concurrent,
            explicit_response_port=explicit_response_port,
            lane=lane,
            interruptible=interruptible,
            batch=batch,
            batch_wait=batch_wait,
        )
        _check_options(definition)
        return definition

    return make if method is None else make(method)


def _check_options(definition: EndpointDefinition[Any, Any]) -> None:
    """Refuse options that do not go together."""
    name = definition.function.__qualname__
    is_async = definition.info().is_async
    if definition.concurrent and not is_async:
        raise ValueError(f"{name} is concurrent and must be `async def`: concurrent endpoints share a thread")
    if definition.concurrent and definition.lane:
        raise ValueError(f"{name}: the size of its lane says how many calls run at once; leave `concurrent` out")
    if definition.interruptible and is_async:
        raise ValueError(f"{name} is `async def`: its task is cancelled in any case; leave `interruptible` out")
    if definition.batch < 0 or definition.batch_wait < 0:
        raise ValueError(f"{name}: batch={definition.batch}, batch_wait={definition.batch_wait} must not be negative")
    if definition.batch_wait and not definition.batch:
        raise ValueError(f"{name}: batch_wait={definition.batch_wait} says how long to wait, say also batch=")
    if definition.batch and (definition.yields or definition.explicit_response_port):
        raise ValueError(f"{name} is batched: it returns a list, and neither yields nor takes a Port")
    if definition.yields and definition.explicit_response_port:
        raise ValueError(f"{name} takes a Port for its answer and yields: leave one of them out")
    if not isinstance(definition.lane, str):
        raise ValueError(f"{name}: lane={definition.lane!r} must be the lane's name")


def concurrent_endpoint(
    method: Any = None,
    *,
    explicit_response_port: bool = False,
    batch: int = 0,
    batch_wait: float = 0.0,
    propagate: Any = None,
    instrument: bool = True,
) -> Any:
    """The same as `@endpoint(concurrent=True)`."""
    decorate = endpoint(
        concurrent=True,
        explicit_response_port=explicit_response_port,
        batch=batch,
        batch_wait=batch_wait,
        propagate=propagate,
        instrument=instrument,
    )
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


def undecorated(cls: type, method: str) -> EndpointInfo | None:
    """The endpoint that a caller makes of a method without `@endpoint`: ".name", or ".name!" with a response port."""
    name = method[1:].removesuffix("!")
    if not method.startswith(".") or name.startswith("__"):
        return None
    function = inspect.getattr_static(cls, name, None)
    if isinstance(function, EndpointDefinition):
        function = function.function
    if not inspect.isfunction(function):
        return None
    return EndpointDefinition[Any, Any](function, explicit_response_port=method.endswith("!")).info()


def lanes_of(cls: type) -> dict[str, int]:
    """The lanes of a class by name, with the number of calls that run in each at once."""
    named = {definition.lane: 1 for definition in endpoints_of(cls).values() if definition.lane}
    return named | getattr(cls, "_roost_lanes", {})


def check_kind(cls: type) -> None:
    """Under the policy `mix_sync_async=False`: refuse an actor that is neither all sync nor all async."""
    from .policy import policy

    if policy().mix_sync_async:
        return
    kinds = {definition.info().is_async for definition in endpoints_of(cls).values()}
    if len(kinds) == 2:
        raise ValueError(
            f"{cls.__name__} mixes both async and sync endpoints: make all of them `def` or all of them `async def`"
        )
    is_async = kinds != {False}
    for hook in _HOOKS:
        method = getattr(cls, hook, None)
        if method is None or not kinds:
            continue
        if not is_async and inspect.iscoroutinefunction(method):
            raise ValueError(f"{cls.__name__} has sync endpoints and an async {hook}: make it `def`")
        if is_async and hook == "__cleanup__" and not inspect.iscoroutinefunction(method):
            raise ValueError(f"{cls.__name__} has async endpoints and a synchronous {hook}: make it `async def`")
