"""ActorMesh: one actor on each process of a mesh, called together, in part, or one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..actors.endpoint import endpoints_of
from ..actors.errors import RoostError
from ..actors.future import Future
from ..actors.node import Node
from ..actors.refs import ProcRef
from ..actors.requests import request
from ..actors.runtime import current_runtime
from .endpoints import MeshEndpoint, running_node
from .gather import all_of
from .respawn import ActorPlan, respawn_actors
from .shape import MeshTrait, Shape
from .valuemesh import ValueMesh

STOP_TIMEOUT = 10.0


class Members:
    """What all slices of one actor mesh share: who the members are, and whether they have been stopped."""

    __slots__ = (
        "actor_id",
        "cls",
        "definitions",
        "generation",
        "home",
        "name",
        "owned",
        "plan",
        "refs",
        "started",
        "stopped",
    )

    def __init__(self, name: str, actor_id: int, cls: type, refs: Sequence[ProcRef]) -> None:
        self.name = name
        self.actor_id = actor_id
        self.cls = cls
        self.refs = tuple(refs)
        self.generation = 0  # raised whenever `refs` change
        self.definitions = endpoints_of(cls)
        self.stopped = ""
        self.started: Future[Any] = Future.completed(True)
        self.owned: Any = None
        self.home: Node | None = None  # of the process that spawned it
        self.plan: ActorPlan | None = None  # there: how it was spawned

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

    @property
    def _stopped(self) -> str:
        return self._members.stopped

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        members = self.__dict__.get("_members")
        if members is None:
            raise AttributeError(name)
        definition = members.definitions.get(name)
        if definition is None:
            if callable(getattr(members.cls, name, None)):
                from .undecorated import NotAnEndpoint

                return NotAnEndpoint(self, name)
            raise AttributeError(_no_endpoint(members, name))
        found: MeshEndpoint[Any, Any] = MeshEndpoint(self, definition)
        self.__dict__[name] = found
        return found

    @property
    def initialized(self) -> Future[bool]:
        """Done when every `__init__` has returned; fails with the first that raised."""
        return self._members.started

    def statistics(self) -> Future[ValueMesh[dict[str, Any]]]:
        """Of each actor: its state, how many calls wait, run, were handled, failed, dropped, refused; asked for past
        the mailbox, so a busy actor answers too.

        >>> counters.statistics().get().item(gpus=0)["waiting"]       # doctest: +SKIP
        0
        """
        node = running_node()
        extent = self.extent
        members = self._members
        asked = [
            request(node, members.refs[rank], "actor statistics", members.actor_id) for rank in self._shape.ranks()
        ]
        return all_of(asked, make=lambda values: ValueMesh(extent, values))

    def respawn(
        self, ranks: Sequence[int] | None = None, *, reason: str = "respawned by its owner"
    ) -> Future[ActorMesh]:
        """Spawn actors that have failed anew, on their processes, which live; at once. Where a process is dead:
        `ProcMesh.respawn`.

        They get the arguments as they were at the spawn, and `__restore__`; so do the other actors of the mesh, with
        `fresh` false. Meshes stay as they are, those that others have too; what is called right after waits. `ranks`
        are of this mesh, None for all that have failed. The future gives this mesh when each `__init__` has returned;
        errors are as of `ProcMesh.respawn`.

        >>> trainers.respawn().get()                                  # doctest: +SKIP
        """
        own = self._shape.ranks()
        if ranks is not None:
            wrong = [rank for rank in ranks if not 0 <= rank < len(self)]
            if wrong:
                raise ValueError(f"a mesh of {len(self)} has no rank {wrong[0]}")
            ranks = [own[rank] for rank in ranks]
        return all_of([respawn_actors(self._members, ranks, own, reason)], make=lambda values: self)

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
        stopped = all_of(futures, ignore=(RoostError,))
        runtime, owned = current_runtime(), members.owned
        if runtime is not None and owned is not None:
            supervisor = runtime.supervisor

            def forget() -> None:
                node.io.call(supervisor.disown_actors, owned)

            if not stopped._when_done(forget):
                forget()
        return stopped


def _no_endpoint(members: Members, name: str) -> str:
    cls = members.cls
    known = ", ".join(f"{n}{d.signature}" for n, d in sorted(members.definitions.items()))
    return f"{cls.__qualname__} (mesh {members.name!r}) has no endpoint {name!r}; it has {known or 'none'}"
