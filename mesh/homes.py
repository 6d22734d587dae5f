"""The actors of one process: spawned and stopped by requests, each with a home thread of its own.

A worker gives its main thread to its first actor (signal handlers, CUDA contexts and GUI-like libraries expect it);
others, and all actors of a controller, get a thread each.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from typing import Any, cast

from ..actors.cell import Cell
from ..actors.errors import ActorDied, failure_record
from ..actors.node import Node
from ..actors.peer import Peer
from ..actors.refs import ActorId
from ..actors.runtime import Runtime
from ..actors.wire import pickling


class Homes:
    """Serves "spawn actor" and "stop actor" for one process."""

    def __init__(self, runtime: Runtime, *, use_main_thread: bool) -> None:
        self._runtime = runtime
        self._main: queue.SimpleQueue[Cell | None] = queue.SimpleQueue()
        self._main_free = use_main_thread
        self._ending = False
        runtime.node.system.update({"spawn actor": self.spawn, "stop actor": self.stop})

    def live_on_main_thread(self) -> None:
        """Be home to one actor after the other, until `close`."""
        while (cell := self._main.get()) is not None:
            cell.run()
            self._main_free = True

    def spawn(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[actor, name, rank, labels, sizes, owner process, owner actor, layout]; the body is (class, args, kwargs)."""
        actor_id, name, rank, labels, sizes, owner, owner_actor, layout = arguments
        if self._ending:
            raise ActorDied(f"{node.name} is ending and takes no more actors", mesh_name=name)
        data, buffers = node.open_body(layout, body)
        started: asyncio.Future[bool] = node.io.loop.create_future()

        def make() -> tuple[type, tuple[Any, ...], dict[str, Any]]:
            return cast(tuple[type, tuple[Any, ...], dict[str, Any]], pickling.unpack(data, buffers))

        def has_started(cell: Cell, error: BaseException | None) -> None:
            node.io.call(self._started, cell, error, started)

        cell = Cell(
            node, actor_id, name, rank, (labels, sizes), ActorId(owner, owner_actor), make=make, started=has_started
        )
        self._runtime.settle(cell)
        if self._main_free:
            self._main_free = False
            self._main.put(cell)
        else:
            threading.Thread(target=cell.run, name=f"roost-{name}", daemon=True).start()
        return started

    def _started(self, cell: Cell, error: BaseException | None, started: asyncio.Future[bool]) -> None:
        if error is None:
            started.set_result(True)
            return
        node = self._runtime.node
        started.set_exception(cell.gone())
        self._runtime.bury_cell(cell)
        record = failure_record(error, cell.name, "__init__", node.host, os.getpid())
        owner = node.peer(cell.owner.proc_id)
        node.event(owner, "actor failed", cell.actor_id, cell.owner.actor_id, cell.rank, cell.name, cell.reason, record)

    async def stop(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[actor, reason, seconds]: end it after the messages that wait; False when it has not ended in time."""
        actor_id, reason, timeout = arguments
        cell = node.cells.get(actor_id)
        if cell is None:
            return True
        cell.stop(reason)
        return await self._wait(cell, timeout)

    async def _wait(self, cell: Cell, timeout: float) -> bool:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        cell.when_ended(lambda: loop.call_soon_threadsafe(ended.set))
        try:
            async with asyncio.timeout(timeout):
                await ended.wait()
        except TimeoutError:
            return False
        self._runtime.bury_cell(cell)
        return True

    async def close(self, reason: str, timeout: float) -> None:
        """End every actor of the process."""
        self._ending = True
        cells = list(self._runtime.node.cells.values())
        for cell in cells:
            cell.stop(reason)
        await asyncio.gather(*(self._wait(cell, timeout) for cell in cells))
        self._main.put(None)
