"""The client and the running actor, by Monarch's names: who spawned it, of what class it is, and the client's end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ... import mesh
from ...actors.context import Instance
from ...actors.future import Future
from ...actors.refs import ROOT_ACTOR


@dataclass(frozen=True, slots=True)
class CreatorInstance:
    """Who spawned an actor: the program itself, or another actor."""

    name: str

    def __str__(self) -> str:
        return f"<{self.name}>"


def class_name_of(instance: Instance) -> str | None:
    """The class of an actor, with its module; None for the program itself."""
    actor = getattr(instance._cell, "instance", None)
    return None if actor is None else f"{type(actor).__module__}.{type(actor).__qualname__}"


def creator_of(instance: Instance) -> Any:
    """Who spawned an actor; None for the program itself."""
    cell = instance._cell
    if cell is None:
        return None
    if cell.owner.actor_id == ROOT_ACTOR:
        return CreatorInstance("root")
    owner = cell.node.cells.get(cell.owner.actor_id)
    return CreatorInstance(owner.name if owner is not None else f"actor {cell.owner.actor_id:x}")


def shutdown_context(host_timeout: float | None = None) -> Future[None]:
    """End everything that the program has spawned; `host_timeout` in seconds. It also happens at exit."""
    return mesh.shutdown_context(host_timeout)
