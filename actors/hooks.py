"""Hooks: `__supervise__` and `__cleanup__`, sync or async, run on an actor's home thread."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .context import Message, enter
from .errors import MeshFailure

if TYPE_CHECKING:
    from .cell import Cell

logger = logging.getLogger("roost.actors")

Answer = Callable[[bool, BaseException | None], None]


def supervise(cell: Cell, failure: MeshFailure, answer: Answer) -> None:
    """Ask the actor about a failure; `answer(handled, error)` is called after."""
    hook = getattr(cell.instance, "__supervise__", None)
    if inspect.iscoroutinefunction(hook):
        _supervise_async(cell, hook, failure, answer)
        return
    enter(Message.of_cell(cell))
    try:
        handled = bool(hook(failure)) if hook is not None else False
    except Exception as error:  # noqa: BLE001 - a hook that raises has not handled it
        answer(False, error)
        return
    answer(handled, None)


def _supervise_async(cell: Cell, hook: Any, failure: MeshFailure, answer: Answer) -> None:
    """As a task of the actor's loop; messages wait for it."""

    async def ask() -> None:
        enter(Message.of_cell(cell))
        try:
            handled = bool(await hook(failure))
        except Exception as error:  # noqa: BLE001 - a hook that raises has not handled it
            answer(False, error)
            return
        finally:
            cell.supervising -= 1
            cell._wake()
        answer(handled, None)

    cell.supervising += 1
    asyncio.get_event_loop().create_task(ask())


def cleanup(cell: Cell, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Tell the actor that it ends; an async hook runs on `loop`, which is the home thread's own."""
    hook = getattr(cell.instance, "__cleanup__", None)
    if hook is None or cell.killed:
        return
    enter(Message.of_cell(cell))
    try:
        told = hook(cell.error)
        if loop is not None and inspect.iscoroutine(told):
            loop.run_until_complete(told)
    except Exception:
        logger.exception("%s: __cleanup__ raised", cell.name)
