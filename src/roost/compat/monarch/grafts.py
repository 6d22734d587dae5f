"""What Monarch's objects have and Roost's do not need, put onto Roost's classes when `install` is called.

The classes stay one: `monarch.actor.ProcMesh is roost.ProcMesh`. What Roost has itself is left as it is, but for how
values are printed, for the texts that `strict` asks for, and for names that endpoints may not have in Roost alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pprint import pformat
from typing import Any

from ...actors import actor
from ...actors.context import Instance
from ...actors.errors import ActorError, MeshFailure, SupervisionError
from ...actors.port import Channel
from ...mesh.actormesh import ActorMesh
from ...mesh.endpoints import MeshEndpoint
from ...mesh.hostmesh import HostMesh
from ...mesh.procmesh import ProcMesh
from ...mesh.shape import Shape
from ...mesh.valuemesh import ValueMesh
from .later import NotOffered
from .names import ABSENT

REMOTE = "Traceback of where the remote call failed (most recent call last):"


def _message(error: ActorError) -> str:
    return f"Actor call {error.actor}.{error.endpoint} failed."


def _formatted(error: ActorError) -> str:
    return error.remote_traceback.replace("Traceback (most recent call last):", REMOTE)


def _strict_text(error: ActorError) -> str:
    return f"{_message(error)}\n {_formatted(error)}"


_values_own = ValueMesh.__repr__
_MANY = 64  # values; more are cut short, as Roost does


def _values_text(mesh: ValueMesh[Any]) -> str:
    if len(mesh) > _MANY:
        return _values_own(mesh)
    return f"ValueMesh({mesh.extent}):\n{textwrap.indent(pformat(tuple(mesh.items())), '  ')}"


def _refusing(name: str, sentence: str) -> Callable[..., Any]:
    def refuse(*args: object, **kwargs: object) -> Any:
        raise NotOffered(f"{name}: {sentence}")

    refuse.__name__, refuse.__doc__ = name, sentence
    return refuse


_TENSORS = ABSENT["monarch"]
_WORKSPACES = ABSENT["monarch.tools.config"]

ADDED: dict[type, dict[str, Any]] = {
    ActorError: {"message": property(_message), "exception_formatted": property(_formatted)},
    SupervisionError: {"endpoint": None},
    MeshFailure: {"mesh": None},
    Instance: {
        "proc_id": property(lambda self: self.proc_name),
        "spawn_tensor_engine": _refusing("spawn_tensor_engine", _TENSORS),
    },
    Channel: {"__class_getitem__": classmethod(lambda cls, item: cls)},
    HostMesh: {
        "is_fake_in_process": False,
        "sync_workspace": _refusing("sync_workspace", _WORKSPACES),
    },
    ProcMesh: {
        "activate": _refusing("activate", _TENSORS),
        "rank_tensor": _refusing("rank_tensor", _TENSORS),
        "rank_tensors": _refusing("rank_tensors", _TENSORS),
        "sync_workspace": _refusing("sync_workspace", _WORKSPACES),
        "to_table": _refusing("to_table", _TENSORS),
    },
    MeshEndpoint: {"rref": _refusing("rref", _TENSORS)},
    Shape: {
        "as_shape": lambda self: self,
        "point_of_base_rank": lambda self, rank: self.point(rank),
    },
}
TEXTS: dict[type, dict[str, Any]] = {ValueMesh: {"__repr__": _values_text}}
"""How things are printed."""
STRICT_TEXTS: dict[type, dict[str, Any]] = {ActorError: {"__str__": _strict_text}}
"""The same, with `strict` alone."""

# What an endpoint cannot be called in Monarch either; Roost has more, which give way to endpoints of their name.
RESERVED = frozenset(["stop", "slice", "split", "flatten", "rename", "size", "sizes", "extent", "initialized"])
_own: dict[tuple[type, str], Any] = {}


def graft(strict: bool) -> None:
    """Put everything onto its class; once, or again with another `strict`."""
    for cls, members in ADDED.items():
        for name, member in members.items():
            if not hasattr(cls, name):
                setattr(cls, name, member)
    for texts, wanted in ((TEXTS, True), (STRICT_TEXTS, strict)):
        for cls, members in texts.items():
            for name, member in members.items():
                own = _own.setdefault((cls, name), getattr(cls, name))
                setattr(cls, name, member if wanted else own)
    for name in actor.RESERVED - RESERVED:
        setattr(ActorMesh, name, _giving_way(name, getattr(ActorMesh, name, None)))
    actor.RESERVED = RESERVED


def _giving_way(name: str, own: Any) -> property:
    """An attribute of actor meshes that is the endpoint of that name where the actor has one."""

    def get(mesh: ActorMesh) -> Any:
        if name in mesh._members.definitions or own is None:
            return mesh.__getattr__(name)
        return own.__get__(mesh, type(mesh))

    return property(get, doc=own.__doc__)
