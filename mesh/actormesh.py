"""ActorMesh: one actor on each process of a mesh, called together, in part, or one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..actors.calls import request
from ..actors.endpoint import endpoints_of
from ..actors.errors import RoostError
from ..actors.future import Future
from ..actors.node import Node
from ..actors.refs import ProcRef
from .endpoints import MeshEndpoint, running_node
from .gather import all_of
from .shape import MeshTrait, Shape

STOP_TIMEOUT = 10.0


class Members:
    """What all slices of one actor mesh share: who the members are, and whether they have been stopped."""

    __slots__ = ("actor_id", "cls", "definitions", "home", "name", "owned", "refs", "started", "stopped")

    def __init__(self, name: str, actor_id: int, cls: type, refs: Sequence[ProcRef]) -> None:
        self.name = name
        self.actor_id = actor_id
        self.cls = cls
        self.refs = tuple(refs)
        self.definitions = endpoints_of(cls)
        self.stopped = ""
        self.started: Future[Any] = Future.completed(True)
        self.owned: Any = None
        self.home: Node | None = None  # of the process that spawned it

    def __reduce__(self) -> Any:
        return Members, (self.name, self.actor_id, self.cls, self.refs)

    def __repr__(self) -> str:
        return f"<{len(self.refs)} members of {self.name}>"


class ActorMesh(MeshTrait):
    """Actors of one class on the processes of a mesh. Endpoints are its attributes.

    Slices share their members: `mesh.slice(gpus=0)` calls the same actor. A mesh can be sent in messages; whoever
    gets it can call it. Made by `ProcMesh.spawn`.

    >>> from roost.mesh import this_host
    >>> procs = this_host().spawn_procs({"gpus": 2})                  # doctest: +SKIP
    >>> counters = procs.spawn("counter", Counter, 5)                 # doctest: +SKIP
    >>> counters.add.call(1).get().values()                           # doctest: +SKIP
    [6, 6]
    """

    def __init__(self, members: Members, shape: Shape) -> None:
        self._members = members
        self._shape = shape

    def _with_shape(self, shape: Shape) -> ActorMesh:
        return ActorMesh(self._members, shape)

    def __repr__(self) -> str:
        members = self._members
        state = f", stopped: {members.stopped}" if members.stopped else ""
        return f"<ActorMesh {members.name!r} of {members.cls.__qualname__}, {self.extent}{state}>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<code>{escape(repr(self))}</code>"

    def __reduce__(self) -> Any:
        return ActorMesh, (self._members, self._shape)

    @property
    def name(self) -> str:
        """The name it was spawned under."""
        return self._members.name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        members = self.__dict__.get("_members")
        if members is None:
            raise AttributeError(name)
        definition = members.definitions.get(name)
        if definition is None:
            raise AttributeError(_no_endpoint(members, name))
        found: MeshEndpoint[Any, Any] = MeshEndpoint(self, definition)
        self.__dict__[name] = found
        return found

    @property
    def initialized(self) -> Future[bool]:
        """Done when every `__init__` has returned; fails with the first that raised."""
        return self._members.started

    def stop(self, reason: str = "stopped by its owner") -> Future[None]:
        """Stop the actors after the messages that wait, meshes they spawned first. Starts at once."""
        members = self._members
        node = running_node()
        if members.stopped:
            return Future.completed(None)
        members.stopped = reason
        if members.owned is not None:
            members.owned.stopping = reason
        futures = [request(node, ref, "stop actor", members.actor_id, reason, STOP_TIMEOUT) for ref in members.refs]
        return all_of(futures, ignore=(RoostError,))


def _no_endpoint(members: Members, name: str) -> str:
    cls = members.cls
    if callable(getattr(cls, name, None)):
        return f"{cls.__qualname__}.{name} is a method but no endpoint: put @endpoint on it"
    known = ", ".join(f"{n}{d.signature}" for n, d in sorted(members.definitions.items()))
    return f"{cls.__qualname__} (mesh {members.name!r}) has no endpoint {name!r}; it has {known or 'none'}"
