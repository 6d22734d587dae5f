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

from ..actors.cell import FAILED, Cell
from ..actors.errors import ActorDied, SupervisionError
from ..actors.node import Node
from ..actors.peer import Peer
from ..actors.refs import ActorId
from ..actors.restart import Restart, restore
from ..actors.runtime import Runtime
from ..actors.travel import failure_record
from ..actors.wire import pickling


class Homes:
    """Serves "spawn actor", "stop actor" and "restored" for one process."""

    def __init__(self, runtime: Runtime, *, use_main_thread: bool) -> None:
        self._runtime = runtime
        self._main: queue.SimpleQueue[Cell | None] = queue.SimpleQueue()
        self._main_free = use_main_thread
        self._main_lock = threading.Lock()
        self._resident: Cell | None = None  # on the main thread
        self._ending = False
        runtime.node.system.update({"spawn actor": self.spawn, "stop actor": self.stop, "restored": self.restored})

    def live_on_main_thread(self) -> None:
        """Be home to one actor after the other, until `close`."""
        while (cell := self._main.get()) is not None:
            self._resident = cell
            cell.run()
            with self._main_lock:
                self._resident = None
                self._main_free = self._main.empty()

    def spawn(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[actor, name, rank, labels, sizes, owner process, owner actor, layout, restart or None].

        The body is (class, args, kwargs). One that was restarted has its `__restore__` run before any message.
        """
        actor_id, name, rank, labels, sizes, owner, owner_actor, layout, wire = arguments
        if self._ending:
            error = ActorDied(f"{node.name} is ending and takes no more actors", mesh_name=name)
            self._runtime.unborn(actor_id, error)
            raise error
        before = node.cells.get(actor_id)
        if before is not None and before.state != FAILED and not before.ended.is_set():
            raise SupervisionError(f"{name} at rank {rank} lives, and is not spawned anew", mesh_name=name)
        data, buffers = node.open_body(layout, body)
        started: asyncio.Future[bool] = node.io.loop.create_future()

        def make() -> tuple[type, tuple[Any, ...], dict[str, Any]]:
            return cast(tuple[type, tuple[Any, ...], dict[str, Any]], pickling.unpack(data, buffers))

        def constructed(cell: Cell, error: BaseException | None) -> None:
            if error is not None or wire is None:
                node.io.call(self._started, cell, error, started)

        cell = Cell(
            node, actor_id, name, rank, (labels, sizes), ActorId(owner, owner_actor), make=make, started=constructed
        )
        if wire is not None:
            restore(
                cell,
                Restart.from_wire(wire),
                lambda error: node.io.call(self._restored, cell, error, started),
            )
        self._runtime.settle(cell)
        if before is None:
            self._move_in(cell, None)
        else:  # not before it has cleaned up
            before.when_ended(lambda: node.io.call(self._move_in, cell, before))
        return started

    def _move_in(self, cell: Cell, before: Cell | None) -> None:
        """Give the actor its home thread; that of the one whose place it takes, if it is the main one."""
        with self._main_lock:
            on_main = self._main_free or (before is not None and before is self._resident)
            if on_main:
                self._main_free = False
                self._main.put(cell)
        if not on_main:
            threading.Thread(target=cell.run, name=f"roost-{cell.name}", daemon=True).start()

    def _restored(self, cell: Cell, error: BaseException | None, started: asyncio.Future[bool]) -> None:
        if error is None:
            started.set_result(True)
        else:  # its owner has been told, as of any failure
            started.set_exception(cell.gone())

    def restored(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[restart, actor]: ranks of the mesh were started anew: this process is of its new epoch, and its actors
        (or the one that is named, for a restart of actors alone) are told before messages that wait."""
        wire, actor_id = arguments
        restart = Restart.from_wire(wire)
        for cell in list(node.cells.values()):
            if actor_id in (0, cell.actor_id) and cell.state != FAILED and not cell.ended.is_set():
                restore(cell, restart, lambda error: None)
        node.epochs.advance(restart.epoch)
        return True

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
        ended = True
        if cell is not None:
            cell.stop(reason)
            ended = await self._wait(cell, timeout)
        if ended:
            self._runtime.close_accounts(actor_id)
        return ended

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
