"""Futures of coroutines on the I/O thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ..actors.future import Future
from ..actors.node import Node

T = TypeVar("T")


class Background(Future[T]):
    """What a coroutine on the I/O thread brings, made into the value by `make`, in the thread that asks for it.

    The coroutine runs no user code; it is cancelled with the future, and when the process leaves its job.
    """

    __slots__ = ("_make", "_task", "_text")

    def __init__(self, node: Node, about: str, coroutine: Coroutine[Any, Any, Any], make: Callable[[Any], T]) -> None:
        super().__init__()
        self._text = about
        self._make = make
        self._task: asyncio.Task[Any] | None = None
        node.io.call(self._begin, node, coroutine)

    def _about(self) -> str:
        return self._text

    def _decode(self, raw: Any) -> T:
        return self._make(raw)

    def _begin(self, node: Node, coroutine: Coroutine[Any, Any, Any]) -> None:
        if node.closed or self.done():
            coroutine.close()
            self.set_exception(node.left())
            return

        def over(task: asyncio.Task[Any]) -> None:
            node.routing.tasks.discard(task)
            if task.cancelled():
                self.set_exception(node.left())
            elif (error := task.exception()) is not None:
                self.set_exception(error)
            else:
                self.set_raw(task.result())

        self._task = node.io.loop.create_task(coroutine)
        node.routing.tasks.add(self._task)
        self._task.add_done_callback(over)

    def _cancel_remote(self, reason: str) -> None:
        task = self._task
        if task is not None and not task.get_loop().is_closed():
            task.get_loop().call_soon_threadsafe(task.cancel)
