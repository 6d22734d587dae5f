"""Every call of an endpoint passes here: it is written down, and made late, fail, or be the process's last."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import reprlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from ..actors.context import Message, current_message
from ..actors.endpoint import EndpointDefinition, EndpointInfo

if TYPE_CHECKING:
    from .simulation import Simulation
    from .world import Process

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 120

RUNNING, RETURNED, CANCELLED, DIED = "running", "returned", "cancelled", "died"


@dataclass(slots=True)
class Call:
    """One call of an endpoint, as its actor ran it.

    Attributes: `began` and `ended` in virtual seconds (`ended` is None while it runs); `sender`, the process that
    called; `actor`, the mesh's name; `rank`, within the mesh that was spawned; `args`, shortened; `outcome`:
    "running", "returned", "cancelled", "died" or "raised ValueError: text".
    """

    number: int
    began: float
    sender: str
    actor: str
    rank: int
    endpoint: str
    args: str
    outcome: str = RUNNING
    ended: float | None = None
    process: Any = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """ "actor.endpoint"."""
        return f"{self.actor}.{self.endpoint}"

    def __str__(self) -> str:
        took = "" if self.ended is None else f" after {self.ended - self.began:g} s"
        return f"{self.began:8.3f} {self.sender} -> {self.name}[{self.rank}]({self.args}): {self.outcome}{took}"


@dataclass(slots=True, eq=False)
class Rule:
    """Something that is to happen to calls of matching endpoints."""

    pattern: str
    ranks: frozenset[int] | None
    process: int | None = None  # its number, where only one is meant
    seconds: float = 0.0
    error: BaseException | None = None
    kill: Callable[[Process], None] | None = None
    where: str = "before"
    at_call: int = 0  # which call of each rank; 0: all
    times: int | None = None

    def meets(self, call: Call) -> bool:
        """Whether the call is one of those."""
        return (
            fnmatchcase(call.name, self.pattern)
            and (self.ranks is None or call.rank in self.ranks)
            and (self.process is None or call.process.proc_id == self.process)
            and (self.at_call == 0 or call.number == self.at_call)
            and (self.times is None or self.times > 0)
        )


class Watch:
    """The log of calls, and the rules."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.calls: list[Call] = []
        self.rules: list[Rule] = []
        self._counts: Counter[tuple[str, int]] = Counter()

    def info(self, definition: EndpointDefinition[Any, Any], info: EndpointInfo) -> EndpointInfo:
        """What dispatch gets instead: the same endpoint, watched."""
        function = info.function
        if inspect.isasyncgenfunction(function):
            info.function = self._watched_stream(info)
        elif inspect.isgeneratorfunction(function):
            info.function = self._watched_generator(info)
        elif inspect.iscoroutinefunction(function):
            info.function = self._watched_async(info)
        else:
            info.function = self._watched(info)
        return info

    # One for each kind of function; where no simulated actor runs, the function itself.

    def _watched(self, info: EndpointInfo) -> Callable[..., Any]:
        function = info.function

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            message = self._message()
            if message is None:
                return function(*args, **kwargs)
            with self._running(message, info, args, kwargs) as call:
                for rule in self._rules(call):
                    self._sim.scheduler.sleep(rule.seconds)
                    self._apply(rule, call)
                return function(*args, **kwargs)

        return watched

    def _watched_generator(self, info: EndpointInfo) -> Callable[..., Any]:
        function = info.function

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Iterator[Any]:
            message = self._message()
            if message is None:
                yield from function(*args, **kwargs)
                return
            with self._running(message, info, args, kwargs) as call:
                for rule in self._rules(call):
                    self._sim.scheduler.sleep(rule.seconds)
                    self._apply(rule, call)
                yield from function(*args, **kwargs)

        return watched

    def _watched_async(self, info: EndpointInfo) -> Callable[..., Any]:
        function = info.function

        @functools.wraps(function)
        async def watched(*args: Any, **kwargs: Any) -> Any:
            message = self._message()
            if message is None:
                return await function(*args, **kwargs)
            with self._running(message, info, args, kwargs) as call:
                await self._prepare(call)
                return await function(*args, **kwargs)

        return watched

    def _watched_stream(self, info: EndpointInfo) -> Callable[..., Any]:
        function = info.function

        @functools.wraps(function)
        async def watched(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            message = self._message()
            if message is None:
                async for item in function(*args, **kwargs):
                    yield item
                return
            with self._running(message, info, args, kwargs) as call:
                await self._prepare(call)
                async for item in function(*args, **kwargs):
                    yield item

        return watched

    async def _prepare(self, call: Call) -> None:
        for rule in self._rules(call):
            if rule.seconds:
                await asyncio.sleep(rule.seconds)
            self._apply(rule, call)

    def _message(self) -> Message | None:
        return current_message() if self._sim.scheduler.here() else None

    @contextmanager
    def _running(
        self, message: Message, info: EndpointInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[Call]:
        """Write the call down, and how it ends."""
        call = self._begin(message, info, args, kwargs)
        asked = self._place(message)
        try:
            yield call
        except BaseException as error:  # restored: the outcome is written down and raised again
            self._end(call, error)
            raise
        finally:
            message.rank, message.shape = asked
        self._end(call, None)

    def _begin(self, message: Message, info: EndpointInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        cell = message.cell
        key = (f"{cell.name}.{info.name}", cell.rank)
        self._counts[key] += 1
        given = args[2:] if info.explicit_port else args[1:]
        texts = [*map(_short.repr, given), *(f"{name}={_short.repr(value)}" for name, value in kwargs.items())]
        call = Call(
            self._counts[key],
            self._sim.scheduler.now,
            message.peer.name,
            cell.name,
            cell.rank,
            info.name,
            ", ".join(texts),
            process=self._sim.process(),
        )
        self.calls.append(call)
        return call

    def _place(self, message: Message) -> tuple[int, Any]:
        """An actor that stands for one rank of a larger mesh sees itself there; gives what it was asked as."""
        asked = message.rank, message.shape
        if message.cell.node.proc_id in self._sim.placed:
            message.rank, message.shape = message.cell.rank, message.cell.shape
        return asked

    def _rules(self, call: Call) -> list[Rule]:
        met = [rule for rule in self.rules if rule.meets(call)]
        for rule in met:
            if rule.times is not None:
                rule.times -= 1
        return met

    def _apply(self, rule: Rule, call: Call) -> None:
        if rule.error is not None:
            raise copy.copy(rule.error).with_traceback(None)
        kill = rule.kill
        if kill is None:
            return
        process = call.process
        if rule.where == "before":
            kill(process)
        else:
            call.process = _Doomed(process, kill)
            if rule.where == "during":
                self._sim.scheduler.current.before_block.append(lambda: self._strike(call))

    @staticmethod
    def _strike(call: Call) -> None:
        doomed = call.process
        if isinstance(doomed, _Doomed):
            call.process = doomed.process
            doomed.kill(doomed.process)

    def _end(self, call: Call, error: BaseException | None) -> None:
        if call.outcome == DIED or self._sim.scheduler.closing:
            return
        self._strike(call)
        call.ended = self._sim.scheduler.now
        if error is None:
            call.outcome = RETURNED
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            call.outcome = CANCELLED
        else:
            call.outcome = f"raised {type(error).__name__}: {error}"

    def died(self, process: Process) -> None:
        """A process has ended: what ran there will not return."""
        for call in self.calls:
            where = call.process.process if isinstance(call.process, _Doomed) else call.process
            if where is process and call.outcome == RUNNING:
                call.outcome, call.ended = DIED, self._sim.scheduler.now


@dataclass(slots=True)
class _Doomed:
    """A process that ends with the call that runs."""

    process: Process
    kill: Callable[[Process], None]

    @property
    def proc_id(self) -> int:
        return self.process.proc_id


def ranks_of(ranks: int | Iterable[int] | None) -> frozenset[int] | None:
    """Ranks as a set; None means all."""
    if ranks is None:
        return None
    return frozenset([ranks] if isinstance(ranks, int) else ranks)
