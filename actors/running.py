"""How an endpoint runs that is more than a method whose value is the answer.

With a response port, as a generator, in batches, interruptible, called many times by one message, or made of a method
without `@endpoint`. Plain ones are run where their message is taken, in `cell.py` and `asynccell.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from . import batching, streaming
from .answers import Ended
from .calls import MANY, WANTS_ANSWER
from .context import Message
from .endpoint import EndpointInfo
from .errors import CallCancelled
from .interrupt import Interrupt

if TYPE_CHECKING:
    from .cell import Cell

Call = tuple[tuple[Any, ...], dict[str, Any]]


def run_special(cell: Cell, message: Message, info: EndpointInfo) -> None:
    """Run it in this thread, and answer; raises what it raises."""
    if info.is_async:  # a method without `@endpoint` of an actor that has no loop
        asyncio.run(_with_task(cell, message, info))
    elif info.interruptible:
        message.task = guard = Interrupt(cell.node.io)
        if message.over:
            guard.cancel(message)
        guard.run(_run, cell, message, info)
    else:
        _run(cell, message, info)


def _run(cell: Cell, message: Message, info: EndpointInfo) -> None:
    if isinstance(message, batching.Batch):
        batching.run(message)
    elif info.explicit_port:
        args, kwargs = _with_port(message)
        info.function(cell.instance, *args, **kwargs)
    elif message.flags & MANY:
        cell.answer(message, _run_many(cell, message, info), info)
    elif info.yields:
        cell.answer(message, streaming.run(cell, message, info), info)
    else:
        args, kwargs = message.arguments()
        value = info.function(cell.instance, *args, **kwargs)
        del args, kwargs
        cell.answer(message, value, info)


async def run_special_async(cell: Cell, message: Message, info: EndpointInfo) -> None:
    """Run it in this task, and answer; raises what it raises."""
    if isinstance(message, batching.Batch):
        await batching.run_async(message)
    elif info.explicit_port:
        args, kwargs = _with_port(message)
        await info.function(cell.instance, *args, **kwargs)
    elif message.flags & MANY:
        cell.answer(message, await _run_many_async(cell, message, info), info)
    elif info.yields:
        cell.answer(message, await streaming.run_async(cell, message, info), info)
    else:
        args, kwargs = message.arguments()
        value = await info.function(cell.instance, *args, **kwargs)
        del args, kwargs
        cell.answer(message, value, info)


async def _with_task(cell: Cell, message: Message, info: EndpointInfo) -> None:
    message.task = asyncio.current_task()
    await run_special_async(cell, message, info)


def _with_port(message: Message) -> Call:
    if message.flags & MANY:
        raise TypeError(f"{message.method} answers through a Port, one call at a time: call it for each item")
    args, kwargs = message.arguments()
    return (message.port(), *args), kwargs


# Many calls in one message


def _calls(message: Message, info: EndpointInfo) -> Iterator[tuple[int, Call]]:
    """The calls of a message one by one, or as many at once as are batched, each with their number."""
    calls = cast(list[Call], message.arguments())
    step = info.batch or 1
    for start in range(0, len(calls), step):
        if message.over:
            raise Ended(f"it ended after {start} of {len(calls)} calls")
        if info.batch:
            items = [args[0] for args, _ in calls[start : start + step]]
            yield len(items), ((items,), {})
        else:
            yield 1, calls[start]


def _run_many(cell: Cell, message: Message, info: EndpointInfo) -> list[Any]:
    results: list[Any] = []
    for count, (args, kwargs) in _calls(message, info):
        try:
            value = info.function(cell.instance, *args, **kwargs)
            results += _values(list(value) if info.yields else value, info, count)
        except Exception as error:  # noqa: BLE001 - the caller gets it in the place of the value
            results += _failed(cell, message, error) * count
    return results


async def _run_many_async(cell: Cell, message: Message, info: EndpointInfo) -> list[Any]:
    results: list[Any] = []
    for count, (args, kwargs) in _calls(message, info):
        try:
            value = info.function(cell.instance, *args, **kwargs)
            found = [item async for item in value] if info.yields else await value
            results += _values(found, info, count)
        except Exception as error:  # noqa: BLE001 - the caller gets it in the place of the value
            results += _failed(cell, message, error) * count
    return results


def _values(value: Any, info: EndpointInfo, count: int) -> list[Any]:
    if not info.batch:
        return [(True, value)]
    return [(True, one) for one in batching.checked(value, count, info.name)]


def _failed(cell: Cell, message: Message, error: Exception) -> list[Any]:
    cell.leave_fork(error)
    if not message.flags & WANTS_ANSWER or (isinstance(error, CallCancelled) and message.over):
        raise error
    cell.failed += 1
    return [(False, cell.failure(error, message.method))]
