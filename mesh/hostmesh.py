"""HostMesh: hosts in a shape. Processes are spawned on all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

from ..actors.context import current_message, current_owner
from ..actors.errors import ActorStopped, MeshFailure
from ..actors.future import Future
from ..actors.policy import policy
from ..actors.refs import ProcRef, new_id
from ..actors.requests import request
from ..actors.runtime import current_runtime
from ..actors.supervision import Owned
from .attached import AttachedHosts
from .commands import BootstrapCommand, Command, check_bindings, check_options, commands_of
from .detached import current_root, is_detached
from .endpoints import running_node
from .gather import all_of
from .hostref import HostRef
from .procmesh import Processes, ProcMesh, stop_processes
from .respawn import Respawner
from .restart import RestartPolicy
from .shape import Extent, MeshTrait, Shape
from .spawning import (
    Starter,
    common_options,
    default_name,
    default_preload,
    end_agent,
    import_path,
    member,
    remember_environment,
    with_bootstrap,
)

__all__ = ["BootstrapCommand", "HostMesh", "HostRef", "default_preload", "import_path", "remember_environment"]

_spawned: WeakSet[Processes] = WeakSet()  # by this process
_shut_down: set[int] = set()  # agents that this process has ended


class HostMesh(MeshTrait):
    """Hosts in a shape. `this_host()` is the mesh of this machine alone; jobs give others.

    At the end of a `with` (or `async with`) what this program spawned on the hosts is stopped; the hosts stay.
    """

    def __init__(self, hosts: Sequence[HostRef], shape: Shape, python: str | None = None) -> None:
        self._hosts = hosts if isinstance(hosts, AttachedHosts) else tuple(hosts)
        self._shape = shape
        self._python = python
        self._started: Future[Any] = Future.completed(True)

    @classmethod
    def of_hosts(cls, hosts: Sequence[HostRef], label: str = "hosts") -> HostMesh:
        """A mesh of these hosts, in order."""
        return cls(hosts, Extent([label], [len(hosts)]).region)

    def _with_shape(self, shape: Shape) -> HostMesh:
        mesh = HostMesh(self._hosts, shape, self._python)
        mesh._started = self._started
        return mesh

    def __repr__(self) -> str:
        if isinstance(self._hosts, AttachedHosts) and not self._hosts.known:
            return f"<HostMesh {self.extent}: {self._hosts!r}>"
        names = ", ".join(self.host_names[:4])
        gone = ", shut down" if self._gone() else ""
        return f"<HostMesh {self.extent}: {names}{', …' if len(self) > 4 else ''}{gone}>"

    def __reduce__(self) -> Any:
        return HostMesh, (self._hosts, self._shape, self._python)

    def __enter__(self) -> HostMesh:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop().get()

    async def __aenter__(self) -> HostMesh:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    def _members(self) -> list[HostRef]:
        return [self._hosts[rank] for rank in self._shape.ranks()]

    def _gone(self) -> list[HostRef]:
        return [host for host in self._members() if host.agent_id in _shut_down]

    def _usable(self) -> list[HostRef]:
        """The hosts; raises when some of them have been shut down."""
        gone = self._gone()
        if gone:
            names = ", ".join(host.host for host in gone)
            raise ActorStopped(f"HostMesh has already been shut down (hosts {names}): take the hosts of another job")
        return self._members()

    @property
    def initialized(self) -> Future[bool]:
        """Done when every host has been reached; fails with the sentence that says why one was not."""
        return self._started

    @property
    def region(self) -> Shape:
        """The ranks of these hosts among those that the mesh was cut from."""
        return self._shape

    @property
    def host_names(self) -> list[str]:
        """The names of the hosts, in rank order."""
        return [host.host for host in self._members()]

    @property
    def stream_logs(self) -> bool:
        """Whether what processes spawned from here print appears in this program."""
        return policy().forward_output

    def with_python_executable(self, path: str) -> HostMesh:
        """The same hosts, whose processes are started with another Python interpreter."""
        mesh = HostMesh(self._hosts, self._shape, path)
        mesh._started = self._started
        return mesh

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        bootstrap: Callable[[], Any] | None = None,
        name: str | None = None,
        proc_bind: Sequence[Mapping[str, str]] | None = None,
        bootstrap_command: Command | None = None,
        *,
        env: Mapping[str, str | None] | None = None,
        python: str | None = None,
        preload: Sequence[str] | None = None,
        restart: RestartPolicy | None = None,
        lifetime: str | None = None,
    ) -> ProcMesh:
        """Spawn processes on every host; returns at once, `initialized` tells when they run.

        Args:
            per_host: dimensions of the processes of one host, such as `{"gpus": 4}`; None is one process a host.
            bootstrap: runs in every process before any actor, sync or async.
            name: of the mesh, in logs and errors.
            proc_bind: for each process of a host, what it is bound to: `cpus` ("0-3,8"), or numactl's `cpunodebind`,
                `membind`, `physcpubind`.
            bootstrap_command: what Python is started under, or a function that gives it for each Point of the new
                mesh; its variables are those of that process alone.
            env: variables set before anything is imported; None removes one.
            python: another interpreter; it needs Roost of the same version.
            preload: modules imported once a host and shared by all processes; torch is among them when this program
                has imported it.
            restart: processes that die, and actors that fail, are started anew by themselves, so often and so soon as
                it says (`ProcMesh.respawn`); None: only when asked.
            lifetime: "job" for detached processes, which outlive the program, on hosts of worker loops: once all
                run they belong to the hosts' agents, and a later program that has attached finds them by their `name`
                (`find`); if this one ends before, they do too.

        Dimensions are those of the hosts, then `per_host`. Each process gets RANK, LOCAL_RANK, WORLD_SIZE,
        LOCAL_WORLD_SIZE and GROUP_RANK as torchrun sets them. Raises ValueError for overlapping or zero dimensions,
        ActorStopped when the hosts have been shut down.

        >>> procs = this_host().spawn_procs({"gpus": 2}, env={"OMP_NUM_THREADS": "1"})     # doctest: +SKIP
        """
        from .local import revived
        from .naming import claim

        check_options(per_host, bootstrap, bootstrap_command, env, preload)
        hosts = revived(self._usable())
        detached = is_detached(lifetime, name, restart, hosts)
        local, extent = self._with_procs(per_host)
        check_bindings(proc_bind, local.nelements)
        commands = commands_of(bootstrap_command, extent)
        node = running_node()
        mesh_name = name or default_name()
        refs: list[ProcRef] = []
        for host in hosts:
            refs += [host.process(new_id(), f"{mesh_name}-{len(refs) + i}") for i in range(local.nelements)]
        members = [
            member(ref, *divmod(rank, local.nelements), rank, local.nelements, len(refs), commands[rank], proc_bind)
            for rank, ref in enumerate(refs)
        ]
        processes = Processes(mesh_name, refs, detached)
        mesh = ProcMesh(processes, extent.region)
        owner = current_owner(node.proc_id)
        runtime = current_runtime()
        assert runtime is not None and node.ref is not None
        common = common_options(env, preload, python or self._python)
        common["root"] = root.to_wire() if (root := current_root()) is not None else None
        common["detached"] = [hosts[0].agent().to_wire(), refs[0].proc_id] if detached else None
        body = with_bootstrap(common, bootstrap)
        starter = Starter(node, hosts, local.nelements, common, members, body)
        if detached:
            started = starter.start(list(enumerate(refs)))
            named = claim(node, mesh_name, mesh, started)
            processes.started = all_of([named, started], make=lambda values: True)
            return mesh
        _spawned.add(processes)
        processes.respawner = Respawner(node, processes, starter.start, starter.place, restart)
        processes.owned = runtime.supervisor.own(
            Owned(mesh_name, owner, {ref.proc_id: i for i, ref in enumerate(refs)}, keeper=processes.keeper)
        )
        processes.started = starter.start(list(enumerate(refs)))
        message = current_message()
        if message is not None:
            message.cell.own(mesh)
        return mesh

    def _with_procs(self, per_host: Mapping[str, int] | None) -> tuple[Extent, Extent]:
        """The extent of one host's processes, and that of all."""
        local = dict(per_host or {})
        overlap = [label for label in local if label in self.extent.labels]
        if overlap:
            raise ValueError(
                f"per_host repeats the dimension {overlap[0]!r} of the hosts, {self.extent}: name it otherwise"
            )
        return Extent(local), Extent([*self.extent.labels, *local], [*self.extent.sizes, *local.values()])

    def resources(self) -> Future[list[dict[str, Any]]]:
        """What each host has: `cpus`, `devices` as (kind, ids)."""
        node = running_node()
        return all_of([request(node, host.agent(), "resources") for host in self._usable()], make=list)

    def stop(self, reason: str = "its hosts are given back") -> Future[None]:
        """Stop the processes that this program has spawned on these hosts; the hosts stay, for it or for others.

        Starts at once. Of a mesh that lies on other hosts too only the processes here are stopped.
        """
        node = running_node()
        here = {host.agent_id for host in self._members()} - _shut_down
        futures: list[Future[None]] = []
        for processes in list(_spawned):
            refs = [ref for ref in processes.refs if ref.agent_id in here]
            if len(refs) == len(processes.refs):
                futures.append(ProcMesh(processes, Extent(["rank"], [len(refs)]).region).stop(reason))
            elif refs:
                futures.append(stop_processes(node, refs, reason))
        return all_of(futures, ignore=(MeshFailure,))

    def shutdown(self) -> Future[None]:
        """End the agents of these hosts, and all that runs under them; done when they have ended.

        The mesh cannot be used after; shutting it down again does nothing. `this_host()` gives a new one of this
        machine.
        """
        node = running_node()
        hosts = [host for host in self._members() if host.agent_id not in _shut_down]
        _shut_down.update(host.agent_id for host in hosts)
        return all_of([end_agent(node, host) for host in hosts])
