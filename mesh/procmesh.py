"""ProcMesh: processes in a shape. Actors are spawned on all of them at once."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from ..actors.actor import Actor
from ..actors.calls import body_for, request, tell
from ..actors.context import current_message, current_owner
from ..actors.errors import ActorStopped, MeshFailure, RoostError
from ..actors.future import Future
from ..actors.node import Node
from ..actors.refs import ProcRef, new_id
from ..actors.routing import agent_ref
from ..actors.runtime import current_runtime
from ..actors.supervision import Owned
from ..actors.wire.definitions import DEFINITIONS
from ..actors.wire.receivers import pack_for
from .actormesh import ActorMesh, Members
from .endpoints import running_node
from .gather import all_of
from .shape import MeshTrait, Shape

A = TypeVar("A", bound=Actor)

STOP_GRACE = 5.0  # seconds for `__cleanup__` and the last messages before a process is killed


class Processes:
    """What all slices of one process mesh share."""

    __slots__ = ("members", "name", "owned", "refs", "services", "started", "stopped", "stopping")

    def __init__(self, name: str, refs: Sequence[ProcRef]) -> None:
        self.name = name
        self.refs = tuple(refs)
        self.started: Future[Any] = Future.completed(True)
        self.stopped = ""
        self.stopping: Future[None] | None = None
        self.owned: Owned | None = None
        self.members: list[Members] = []  # of the actor meshes that were spawned on them here
        self.services: dict[Any, Any] = {}  # meshes of helper actors, by what they are for

    def __reduce__(self) -> Any:
        return Processes, (self.name, self.refs)


class ProcMesh(MeshTrait):
    """Processes on one or several hosts, in a shape. Made by `HostMesh.spawn_procs`; slices share their processes.

    Ends with its owner: the actor, or the program, that spawned it.
    """

    def __init__(self, processes: Processes, shape: Shape) -> None:
        self._processes = processes
        self._shape = shape

    def _with_shape(self, shape: Shape) -> ProcMesh:
        return ProcMesh(self._processes, shape)

    def __repr__(self) -> str:
        refs = self._members()
        hosts = sorted({ref.host for ref in refs})
        state = f", stopped: {self._processes.stopped}" if self._processes.stopped else ""
        return f"<ProcMesh {self._processes.name!r}, {self.extent} on {', '.join(hosts)}{state}>"

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            f"<tr><td>{escape(repr(self._shape.point(rank)))}</td><td>{escape(self._processes.refs[rank].name)}</td>"
            f"<td>{escape(self._processes.refs[rank].host)}</td></tr>"
            for rank in self._shape.ranks()[:32]
        )
        head = "<tr><th>rank</th><th>process</th><th>host</th></tr>"
        return f"<p><code>{escape(repr(self))}</code></p><table>{head}{rows}</table>"

    def __reduce__(self) -> Any:
        return ProcMesh, (self._processes, self._shape)

    def __enter__(self) -> ProcMesh:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop().get()

    async def __aenter__(self) -> ProcMesh:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    def _members(self) -> list[ProcRef]:
        return [self._processes.refs[rank] for rank in self._shape.ranks()]

    @property
    def name(self) -> str:
        """The name it was spawned under."""
        return self._processes.name

    @property
    def initialized(self) -> Future[bool]:
        """Done when every process has started; fails with the sentence that says why one did not."""
        return self._processes.started

    def spawn(self, name: str, Class: type[A], *args: Any, **kwargs: Any) -> A:
        """Spawn one `Class(*args, **kwargs)` on each process; returns the ActorMesh, typed as the class, at once.

        A constructor that raises fails the actors' calls, and the owner hears of it. Raises TypeError when `Class` is
        no Actor or the arguments do not fit its `__init__`.
        """
        check_class(Class, args, kwargs)
        processes = self._processes
        if processes.stopped:
            raise ActorStopped(f"cannot spawn {name!r}: mesh {processes.name!r} has been stopped: {processes.stopped}")
        node = running_node()
        refs = self._members()
        shape = self.extent.region
        members = Members(name, new_id(), Class, refs)
        members.home = node
        DEFINITIONS.refresh(Class)
        processes.members.append(members)
        owner = current_owner(node.proc_id)
        runtime = current_runtime()
        if runtime is not None:
            members.owned = runtime.supervisor.own(
                Owned(name, owner, {ref.proc_id: rank for rank, ref in enumerate(refs)}, members.actor_id)
            )
        packed = pack_for((ref.proc_id for ref in refs), (Class, args, kwargs), f"argument of {name!r}")
        peers = [node.peer_at(ref) for ref in refs]
        body = body_for(node, packed, peers)
        labels, sizes = list(shape.extent.labels), list(shape.extent.sizes)
        futures = [
            request(
                node,
                peer,
                "spawn actor",
                members.actor_id,
                name,
                rank,
                labels,
                sizes,
                owner.proc_id,
                owner.actor_id,
                body.layout,
                body=body,
            )
            for rank, peer in enumerate(peers)
        ]
        members.started = all_of(futures, make=lambda values: True)
        mesh = ActorMesh(members, shape)
        message = current_message()
        if message is not None:
            message.cell.owned.append(mesh)
        return cast(A, mesh)

    def stop(self, reason: str = "stopped by its owner") -> Future[None]:
        """Stop the processes: actors end after the messages that wait, then the processes do, within seconds.

        Starts at once, whether or not anybody waits for it.
        """
        processes = self._processes
        if processes.stopping is None:
            processes.stopped = reason
            for members in processes.members:
                members.stopped = members.stopped or reason
            if processes.owned is not None:
                processes.owned.stopping = reason
            processes.stopping = stop_processes(running_node(), processes.refs, reason)
        return processes.stopping


def stop_processes(node: Node, refs: Sequence[ProcRef], reason: str) -> Future[None]:
    """Ask the agents of these processes to end them."""
    runtime = current_runtime()
    ids = {ref.proc_id for ref in refs}
    if runtime is not None:
        for owned in runtime.supervisor.owned:
            if set(owned.ranks) <= ids and not owned.stopping:
                owned.stopping = reason
    by_agent: dict[int, list[ProcRef]] = {}
    for ref in refs:
        by_agent.setdefault(ref.agent_id, []).append(ref)
    for ref in refs:
        try:
            # By this process, so that it stands behind its calls.
            tell(node, node.peer_at(ref), "end", reason, STOP_GRACE)
        except MeshFailure:
            continue  # it has ended already
    futures = [
        request(node, agent_peer(node, group[0]), "stop", [ref.proc_id for ref in group], reason, STOP_GRACE, False)
        for group in by_agent.values()
    ]
    stopped = all_of(futures, ignore=(MeshFailure, RoostError))
    if runtime is not None:
        supervisor = runtime.supervisor

        def forget() -> None:
            node.io.call(supervisor.disown, ids)

        if not stopped._when_done(forget):
            forget()
    return stopped


def agent_peer(node: Node, ref: ProcRef) -> Any:
    """The agent of a process, as a peer."""
    return node.peer_at(agent_ref(ref))


def check_class(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse what is no actor, and arguments that its `__init__` does not take, before anything is sent."""
    if not (isinstance(cls, type) and issubclass(cls, Actor)):
        raise TypeError(f"spawn takes a subclass of Actor, not {cls!r}")
    if cls.__init__ is object.__init__:
        if args or kwargs:
            raise TypeError(f"{cls.__qualname__}() takes no arguments")
        return
    signature = inspect.signature(cls)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{cls.__qualname__}{signature}: {error}") from None
