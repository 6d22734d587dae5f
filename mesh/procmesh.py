"""ProcMesh: processes in a shape. Actors are spawned on all of them at once."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..actors.actor import Actor
from ..actors.context import current_message, current_owner
from ..actors.endpoint import check_kind
from ..actors.errors import ActorStopped, MeshFailure, RoostError
from ..actors.future import Future
from ..actors.node import Node
from ..actors.refs import SYSTEM_ACTOR, ActorId, ProcRef, new_id
from ..actors.requests import body_for, request, tell
from ..actors.restart import Restart
from ..actors.routing import agent_ref
from ..actors.runtime import current_runtime
from ..actors.supervision import Owned
from ..actors.wire.definitions import DEFINITIONS
from ..actors.wire.receivers import pack_for
from .actormesh import ActorMesh, Members
from .endpoints import running_node
from .gather import all_of
from .logs import LogFile, Shown, log_files, show
from .respawn import ActorPlan, Respawner, renewing
from .shape import Extent, MeshTrait, Shape
from .stacks import stacks_of
from .valuemesh import ValueMesh

if TYPE_CHECKING:
    from .hostmesh import HostMesh

A = TypeVar("A", bound=Actor)

STOP_GRACE = 5.0  # seconds for `__cleanup__` and the last messages before a process is killed


class Processes:
    """What all slices of one process mesh share."""

    __slots__ = (
        "__weakref__", "_prune_at", "detached", "members", "name", "owned", "refs", "respawner", "services", "started",
        "stopped", "stopping",
    )  # fmt: skip

    def __init__(self, name: str, refs: Sequence[ProcRef], detached: bool = False) -> None:
        self.name = name
        self.refs = tuple(refs)
        self.detached = detached  # they belong to their hosts' agents, and outlive the program
        self.started: Future[Any] = Future.completed(True)
        self.stopped = ""
        self.stopping: Future[None] | None = None
        self.owned: Owned | None = None
        self.respawner: Respawner | None = None  # in the process that spawned them
        self.members: list[Members] = []  # of the actor meshes that were spawned on them here
        self._prune_at = 16
        self.services: dict[Any, Any] = {}  # meshes of helper actors, by what they are for

    @property
    def keeper(self) -> Respawner | None:
        """What restarts them by policy, if anything does."""
        return self.respawner if self.respawner is not None and self.respawner.policy is not None else None

    def remember(self, members: Members) -> None:
        """Note actors that were spawned on them, and forget those that have been stopped since."""
        if len(self.members) >= self._prune_at:
            self.members = [known for known in self.members if not known.stopped]
            self._prune_at = 2 * len(self.members) + 16
        self.members.append(members)

    def __reduce__(self) -> Any:
        return Processes, (self.name, self.refs, self.detached)


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
    def _stopped(self) -> str:
        return self._processes.stopped

    @property
    def host_mesh(self) -> HostMesh:
        """The hosts that its processes live on, in order: the dimension `hosts`, none where it is one host."""
        from .hostmesh import HostMesh, HostRef

        hosts = list({ref.node_id: HostRef.of_process(ref) for ref in self._members()}.values())
        return HostMesh.of_hosts(hosts) if len(hosts) > 1 else HostMesh(hosts, Extent([], []).region)

    @property
    def initialized(self) -> Future[bool]:
        """Done when every process has started; fails with the sentence that says why one did not."""
        return self._processes.started

    def spawn(self, name: str, Class: type[A], *args: Any, **kwargs: Any) -> A:
        """Spawn one `Class(*args, **kwargs)` on each process; returns the ActorMesh, typed as the class, at once.

        A constructor that raises fails the actors' calls, and the owner hears of it. On detached processes the actors
        are detached too, and have the name "processes/name". Raises TypeError when `Class` is no Actor or the arguments
        do not fit its `__init__`.
        """
        from .naming import claim

        check_class(Class, args, kwargs)
        processes = self._processes
        if processes.stopped:
            raise ActorStopped(
                f"cannot spawn {name!r}: `ProcMesh` has already been stopped (mesh {processes.name!r}: "
                f"{processes.stopped})"
            )
        node = running_node()
        shape = self.extent.region
        DEFINITIONS.refresh(Class)
        owner = current_owner(node.proc_id)
        runtime = current_runtime()
        keeper = processes.keeper
        with renewing:
            refs = self._members()
            members = Members(name, new_id(), Class, refs)
            members.home = node
            processes.remember(members)
            if processes.detached:
                owner = ActorId(refs[0].agent_id, SYSTEM_ACTOR)
            elif runtime is not None:
                ranks = {ref.proc_id: rank for rank, ref in enumerate(refs)}
                members.owned = runtime.supervisor.own(Owned(name, owner, ranks, members.actor_id, keeper))
        packed = pack_for((ref.proc_id for ref in refs), (Class, args, kwargs), f"argument of {name!r}")
        with renewing:  # a respawn since then has put others in the place of some
            body = body_for(node, packed, [node.peer_at(ref) for ref in members.refs])
            members.plan = ActorPlan.keep(owner, shape.extent, packed, body, keeper is not None)
            futures = members.plan.send(node, members, range(len(refs)), body)
        mesh = ActorMesh(members, shape)
        message = current_message()
        if processes.detached:
            futures.insert(0, claim(node, f"{processes.name}/{name}", mesh, processes.started))
        elif message is not None:
            message.cell.own(mesh)
        members.started = all_of(futures, make=lambda values: True)
        return cast(A, mesh)

    def stacks(self, timeout: float = 2.0) -> Future[ValueMesh[str]]:
        """The stacks of all threads and asyncio tasks of each process, as text, within `timeout` seconds.

        Also of processes that hang in C code; of one that is stopped or has ended a sentence says so. Never fails.

        >>> print(procs.stacks().get().item(gpus=3))                     # doctest: +SKIP
        """
        found = stacks_of(running_node(), self._members(), timeout)
        return all_of([found], make=lambda values: ValueMesh(self.extent, values[0].values()))

    def logging_option(
        self,
        stream_to_client: bool = True,
        aggregate_window_sec: float | None = 0.5,
        level: int = logging.INFO,
        *,
        ranks: Collection[int] | None = None,
        regex: str | None = None,
    ) -> Future[None]:
        """Change what is shown of these processes' output, from now on; their files have all of it anyway.

        Args:
            stream_to_client: False shows nothing, at no cost: the output is not even read.
            aggregate_window_sec: seconds in which equal lines are shown as one, with a count; None shows each as it is.
            level: lines of the `logging` module below it are left out; they are known by their level's name. Until this
                is called all are shown.
            ranks: of this mesh, whose lines are shown; None is all.
            regex: only lines that it is found in are shown.

        What a call leaves out is as its default says. Done when it holds; what was written before is shown as before.
        Processes that take the place of dead ones inherit it. Raises ValueError.

        >>> await procs.logging_option(level=logging.WARNING, ranks=[0])              # doctest: +SKIP
        """
        shown = Shown(stream_to_client, aggregate_window_sec, level, ranks, regex)
        return show(running_node(), self._members(), shown)

    def log_files(self) -> Future[ValueMesh[LogFile]]:
        """Where each process's output stands in full: a path on its host. Removed with the job, but where
        ROOST_LOG_DIR names a folder to keep them in.

        >>> procs.log_files().get().item(gpus=3)                                      # doctest: +SKIP
        LogFile(host='hostX', path='/run/user/1000/roost-ab12/logs/trainer-3-5f0.log')
        """
        return log_files(running_node(), self._members(), self.extent)

    def respawn(
        self, ranks: Sequence[int] | int | None = None, *, reason: str = "respawned by its owner", force: bool = False
    ) -> Future[ProcMesh]:
        """Start dead processes anew: on the same hosts, at the same ranks, as `spawn_procs` was told; at once.

        Every actor mesh that was spawned on them from this process is spawned again on the new ones, with the arguments
        as they were at its spawn. Meshes of this process, and their slices, work again: what is called right after
        waits for the new processes. The mesh is of a new epoch then; calls with a mesh that others were given before
        are refused. Actors' `__restore__` is called, on the new ranks and on those that have lived on.

        Args:
            ranks: of this mesh, None for all that are dead. A death is known once a call has failed of it.
            reason: what `__restore__` and `restarts` tell.
            force: ranks that live are killed first, without `__cleanup__`; nobody hears of it as of a failure.

        The future gives this mesh when the new processes run, and their actors' `__init__` and `__restore__` have
        returned. It fails where one does not: then the mesh is as dead as before. Several at once run one after the
        other. Raises ValueError for ranks that live, RoostError where the arguments were too large to be kept (16 MiB
        a mesh, all with a restart policy) or the mesh is another process's, ActorStopped after `stop`.

        >>> try:                                                      # doctest: +SKIP
        ...     trainers.step.call().get()
        ... except ActorDied:
        ...     procs.respawn()
        ...     trainers.step.call().get()
        """
        respawner = self._respawner("respawned")
        if isinstance(ranks, int):
            ranks = [ranks]
        if ranks is not None:
            wrong = [rank for rank in ranks if not 0 <= rank < len(self)]
            if wrong:
                raise ValueError(f"a mesh of {len(self)} has no rank {wrong[0]}")
            ranks = [self._shape.ranks()[rank] for rank in ranks]
        return all_of([respawner.respawn(ranks, self._shape.ranks(), reason, force)], make=lambda values: self)

    def _respawner(self, what: str) -> Respawner:
        found = self._processes.respawner
        if found is None:
            raise RoostError(f"mesh {self.name!r} was spawned by another process: only there it can be {what}")
        return found

    @property
    def epoch(self) -> int:
        """1, and one more for each respawn."""
        return max(ref.epoch for ref in self._processes.refs)

    @property
    def restarts(self) -> list[Restart]:
        """The restarts so far, asked for or by policy, the oldest first; in the process that spawned the mesh."""
        return list(self._respawner("asked for its restarts").restarts)

    def on_restart(self, callback: Callable[[Restart], object]) -> None:
        """Call `callback` with each restart from now on, once it has begun; on Roost's callback thread."""
        self._respawner("watched").listeners.append(callback)

    def stop(self, reason: str = "stopped by its owner") -> Future[None]:
        """Stop the processes: actors end after the messages that wait, then the processes do, within seconds.

        Starts at once, whether or not anybody waits for it.
        """
        processes = self._processes
        with renewing:
            if processes.stopping is None:
                processes.stopped = reason
                for members in processes.members:
                    members.stopped = members.stopped or reason
                if processes.owned is not None:
                    processes.owned.stopping = reason
                if processes.respawner is not None:
                    processes.respawner.stop()
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
    futures = [  # first, so that no agent takes an end that was asked for for a death
        request(node, agent_peer(node, group[0]), "stop", [ref.proc_id for ref in group], reason, STOP_GRACE, False)
        for group in by_agent.values()
    ]
    for ref in refs:
        try:
            # By this process, so that it stands behind its calls.
            tell(node, node.peer_at(ref), "end", reason, STOP_GRACE)
        except MeshFailure:
            continue  # it has ended already
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
    check_kind(cls)
    if cls.__init__ is object.__init__:
        if args or kwargs:
            raise TypeError(f"{cls.__qualname__}() takes no arguments")
        return
    signature = inspect.signature(cls)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{cls.__qualname__}{signature}: {error}") from None
