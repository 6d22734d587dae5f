"""Restart: what an actor is told when processes of its mesh have been started anew."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .context import Message, enter

if TYPE_CHECKING:
    from .cell import Cell

Done = Callable[[BaseException | None], None]


@dataclass(frozen=True, slots=True)
class Restart:
    """One restart of a mesh, as `__restore__` and `ProcMesh.restarts` tell of it.

    Attributes:
        epoch: of the mesh from now on; the first is 1.
        ranks: those that were started anew, as ranks of the mesh that was spawned.
        fresh: whether this actor was made anew; False: it has lived on, and others were.
        reason: what was given to `respawn`, or the failure, in one sentence.

    >>> Restart(2, (3,), True, "worker trainer-3 was killed by SIGKILL").ranks
    (3,)
    """

    epoch: int
    ranks: tuple[int, ...]
    fresh: bool
    reason: str

    def to_wire(self) -> list[Any]:
        return [self.epoch, list(self.ranks), self.fresh, self.reason]

    @classmethod
    def from_wire(cls, wire: list[Any]) -> Restart:
        epoch, ranks, fresh, reason = wire
        return cls(epoch, tuple(ranks), fresh, reason)


def restore(cell: Cell, restart: Restart, done: Done) -> None:
    """Have the actor's `__restore__` run on its home thread, before messages that wait; `done(error)` is called after.

    A hook that raises fails the actor.
    """

    def ended(error: BaseException | None) -> None:
        if error is not None:
            cell.die(error, f"its __restore__ raised {type(error).__name__}: {error}")
        done(error)

    cell.urge(lambda: _run(cell, restart, ended))


def _run(cell: Cell, restart: Restart, ended: Done) -> None:
    hook = getattr(cell.instance, "__restore__", None)
    if hook is None:
        ended(None)
        return
    if inspect.iscoroutinefunction(hook):
        _run_async(cell, hook, restart, ended)
        return
    enter(Message.of_cell(cell))
    try:
        hook(restart)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's hook may raise anything
        ended(error)
        return
    ended(None)


def _run_async(cell: Cell, hook: Any, restart: Restart, ended: Done) -> None:
    """As a task of the actor's loop; messages wait for it."""

    async def run() -> None:
        enter(Message.of_cell(cell))
        try:
            await hook(restart)
        except Exception as error:  # noqa: BLE001 - a user's hook may raise anything
            ended(error)
            return
        finally:
            cell.supervising -= 1
            cell._wake()
        ended(None)

    cell.supervising += 1
    asyncio.get_event_loop().create_task(run())
