"""HostMesh: hosts in a shape. Processes are spawned on all of them at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..actors import bodies
from ..actors.calls import request
from ..actors.context import current_message, current_owner
from ..actors.errors import ActorDied, MeshFailure, RoostError
from ..actors.future import Future
from ..actors.node import Node
from ..actors.policy import WORKER_SETUP, policy
from ..actors.refs import ProcRef, new_id
from ..actors.runtime import current_runtime
from ..actors.supervision import Failure, Owned
from ..actors.wire import pickling
from ..actors.wire.definitions import DEFINITIONS
from .endpoints import running_node
from .gather import all_of
from .procmesh import Processes, ProcMesh, agent_peer
from .shape import Extent, MeshTrait, Shape

BINDINGS = frozenset(["cpunodebind", "membind", "physcpubind", "cpus"])


@dataclass(frozen=True, slots=True)
class HostRef:
    """A host: its agent, and where its processes listen."""

    node_id: str
    host: str
    agent_id: int
    agent_address: str  # for other hosts
    run_dir: str

    @classmethod
    def of_process(cls, ref: ProcRef) -> HostRef:
        """The host that a process runs on."""
        return cls(
            ref.node_id, ref.host, ref.agent_id, ref.agent_address, os.path.dirname(ref.address.removeprefix("unix://"))
        )

    def process(self, proc_id: int, name: str) -> ProcRef:
        """Where a process with this number will be."""
        return ProcRef(
            proc_id,
            name,
            self.node_id,
            self.host,
            f"unix://{self.run_dir}/{proc_id:x}.sock",
            self.agent_id,
            self.agent_address,
        )

    def agent(self) -> ProcRef:
        """Where the agent is."""
        address = f"unix://{self.run_dir}/{self.agent_id:x}.sock"
        return ProcRef(
            self.agent_id,
            f"agent of {self.host}",
            self.node_id,
            self.host,
            address,
            self.agent_id,
            self.agent_address,
            0,
        )


@dataclass(frozen=True, slots=True)
class BootstrapCommand:
    """A command that the workers' Python is started under, such as a profiler or a container: it gets the Python
    command line as its last arguments. `env` is added to the environment; None removes a variable."""

    program: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str | None] | None = None

    def with_env(self, env: Mapping[str, str | None]) -> BootstrapCommand:
        """The same with more variables."""
        return replace(self, env={**(self.env or {}), **env})


class HostMesh(MeshTrait):
    """Hosts in a shape. `this_host()` is the mesh of this machine alone; jobs give others."""

    def __init__(self, hosts: Sequence[HostRef], shape: Shape, python: str | None = None) -> None:
        self._hosts = tuple(hosts)
        self._shape = shape
        self._python = python

    @classmethod
    def of_hosts(cls, hosts: Sequence[HostRef], label: str = "hosts") -> HostMesh:
        """A mesh of these hosts, in order."""
        return cls(hosts, Extent([label], [len(hosts)]).region)

    def _with_shape(self, shape: Shape) -> HostMesh:
        return HostMesh(self._hosts, shape, self._python)

    def __repr__(self) -> str:
        names = ", ".join(self._hosts[rank].host for rank in self._shape.ranks()[:4])
        return f"<HostMesh {self.extent}: {names}{', …' if len(self) > 4 else ''}>"

    def __reduce__(self) -> Any:
        return HostMesh, (self._hosts, self._shape, self._python)

    def with_python_executable(self, path: str) -> HostMesh:
        """The same hosts, whose processes are started with another Python interpreter."""
        return HostMesh(self._hosts, self._shape, path)

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        bootstrap: Callable[[], Any] | None = None,
        name: str | None = None,
        proc_bind: Sequence[Mapping[str, str]] | None = None,
        bootstrap_command: BootstrapCommand | None = None,
        *,
        env: Mapping[str, str | None] | None = None,
        python: str | None = None,
        preload: Sequence[str] | None = None,
    ) -> ProcMesh:
        """Spawn processes on every host; returns at once, `initialized` tells when they run.

        Args:
            per_host: dimensions of the processes of one host, such as `{"gpus": 4}`; None is one process a host.
            bootstrap: runs in every process before any actor, sync or async.
            name: of the mesh, in logs and errors.
            proc_bind: for each process of a host, what it is bound to: `cpus` ("0-3,8"), or numactl's `cpunodebind`,
                `membind`, `physcpubind`.
            bootstrap_command: what Python is started under.
            env: variables set before anything is imported; None removes one.
            python: another interpreter; it needs Roost of the same version.
            preload: modules imported once a host and shared by all processes; torch is among them when this program
                has imported it.

        Dimensions are those of the hosts, then `per_host`. Each process gets RANK, LOCAL_RANK, WORLD_SIZE,
        LOCAL_WORLD_SIZE and GROUP_RANK as torchrun sets them. Raises ValueError for overlapping or zero dimensions.

        >>> procs = this_host().spawn_procs({"gpus": 2}, env={"OMP_NUM_THREADS": "1"})     # doctest: +SKIP
        """
        check_options(per_host, bootstrap, bootstrap_command, env, preload)
        per_host = dict(per_host or {})
        overlap = [label for label in per_host if label in self.extent.labels]
        if overlap:
            raise ValueError(
                f"per_host repeats the dimension {overlap[0]!r} of the hosts, {self.extent}: name it otherwise"
            )
        local = Extent(per_host)
        check_bindings(proc_bind, local.nelements)
        node = running_node()
        extent = Extent([*self.extent.labels, *local.labels], [*self.extent.sizes, *local.sizes])
        mesh_name = name or default_name()
        hosts = [self._hosts[rank] for rank in self._shape.ranks()]
        refs: list[ProcRef] = []
        for host in hosts:
            refs += [host.process(new_id(), f"{mesh_name}-{len(refs) + i}") for i in range(local.nelements)]
        processes = Processes(mesh_name, refs)
        owner = current_owner(node.proc_id)
        runtime = current_runtime()
        assert runtime is not None and node.ref is not None
        processes.owned = runtime.supervisor.own(
            Owned(mesh_name, owner, {ref.proc_id: i for i, ref in enumerate(refs)})
        )
        command = bootstrap_command
        common = {
            "owner": node.ref.to_wire(),
            "env": {**dict(env or {}), **dict((command.env if command else None) or {})},
            "changed": changed_environment(),
            "preload": list(preload if preload is not None else default_preload()),
            "python": python or self._python,
            "command": [command.program, *command.args] if command else None,
            "cwd": os.getcwd(),
            "sys_path": import_path(),
            "setup": list(WORKER_SETUP),
            "policy": policy().to_wire(),
        }
        packed = pickling.pack(bootstrap, "bootstrap") if bootstrap is not None else None
        if packed is not None and packed.definitions:
            common["definitions"] = [[content, DEFINITIONS.blob(content)] for content in packed.definitions]
        body = bodies.inline(packed) if packed is not None else None
        futures, news = [], News()
        for group, host in enumerate(hosts):
            mine = refs[group * local.nelements : (group + 1) * local.nelements]
            members = [
                member(ref, group, i, group * local.nelements + i, local.nelements, len(refs), proc_bind)
                for i, ref in enumerate(mine)
            ]
            futures.append(spawn_on(node, host, mine, common, members, body, news))
        processes.started = all_of(futures, make=lambda values: True)
        mesh = ProcMesh(processes, extent.region)
        message = current_message()
        if message is not None:
            message.cell.owned.append(mesh)
        return mesh

    def resources(self) -> Future[list[dict[str, Any]]]:
        """What each host has: `cpus`, `devices` as (kind, ids)."""
        node = running_node()
        hosts = [self._hosts[rank] for rank in self._shape.ranks()]
        return all_of([request(node, host.agent(), "resources") for host in hosts], make=list)

    def shutdown(self) -> Future[None]:
        """End the agents of these hosts, and all that runs under them."""
        node = running_node()
        hosts = [self._hosts[rank] for rank in self._shape.ranks()]
        return all_of([request(node, host.agent(), "shutdown") for host in hosts], ignore=(MeshFailure,))


def spawn_on(
    node: Node,
    host: HostRef,
    refs: list[ProcRef],
    common: dict[str, Any],
    members: list[dict[str, Any]],
    body: bodies.Body | None,
    news: News,
) -> Future[Any]:
    """Ask one host's agent for its share. Until a process links here, what is sent to it waits."""
    near = host.node_id == node.node_id
    for ref in refs:
        peer = node.peer_at(ref)
        peer.watched = True  # the agent tells whoever asked for a process
        peer.routing = near  # it will link to us; elsewhere its agent relays, and holds until it is there
    future = request(node, agent_peer(node, refs[0]), "spawn", common, members, body=body)

    def answered() -> None:
        node.io.call(_settle, node, refs, future, near, news)

    if not future._when_done(answered):
        answered()
    return all_of([future], make=lambda values: _check(values[0], news))


class News:
    """Of one spawn: whether somebody has heard from `initialized` what did not start, and what has become of it."""

    __slots__ = ("failures", "heard")

    def __init__(self) -> None:
        self.heard = False
        self.failures: list[Failure] = []

    def settle(self) -> None:
        """What was raised is handled; called when either has changed."""
        if self.heard:
            for failure in self.failures:
                failure.delivered()


def _settle(node: Node, refs: list[ProcRef], future: Future[Any], near: bool, news: News) -> None:
    """The agent has answered: give up those that did not start, find a route to those that did not link to us."""
    try:
        results = future._result()
    except RoostError as error:
        results = [str(error)] * len(refs)
    for ref, reason in zip(refs, results, strict=True):
        peer = node.peer_at(ref)
        if reason is not None:
            died = ActorDied(reason, mesh_name=ref.name)
            runtime = current_runtime()
            if runtime is not None and peer.dead is None:
                runtime.supervisor._fail_owners(ref.proc_id, died)
            failure = getattr(peer.dead or died, "_roost_failure", None)
            if failure is not None:
                news.failures.append(failure)
            node.bury(peer, died)
        elif near and peer.link is None and peer.dead is None:
            node.routing.begin(peer)
    news.settle()


def _check(results: list[str | None], news: News) -> None:
    wrong = [reason for reason in results if reason is not None]
    if wrong:
        news.heard = True
        news.settle()
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise ActorDied(wrong[0] + more)


def member(
    ref: ProcRef,
    group: int,
    local: int,
    rank: int,
    local_size: int,
    size: int,
    proc_bind: Sequence[Mapping[str, str]] | None,
) -> dict[str, Any]:
    """What differs between the processes of a host."""
    answer: dict[str, Any] = {
        "ref": ref.to_wire(),
        "rank_env": {
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(local_size),
            "GROUP_RANK": str(group),
        },
    }
    binding = dict(proc_bind[local]) if proc_bind else {}
    answer["cpus"] = binding.pop("cpus", None)
    if binding:
        answer["command"] = ["numactl", *(f"--{key}={value}" for key, value in sorted(binding.items()))]
    return answer


def check_bindings(proc_bind: Sequence[Mapping[str, str]] | None, count: int) -> None:
    """Refuse bindings that do not fit the mesh."""
    if proc_bind is None:
        return
    if isinstance(proc_bind, Mapping) or not all(
        isinstance(binding, Mapping) and all(isinstance(value, str) for value in binding.values())
        for binding in proc_bind
    ):
        raise TypeError(
            'proc_bind is a list with a mapping of strings for each process, such as [{"cpus": "0"}], '
            f"not {proc_bind!r}"
        )
    if len(proc_bind) != count:
        raise ValueError(f"proc_bind length ({len(proc_bind)}) must equal the processes per host ({count})")
    for binding in proc_bind:
        unknown = sorted(set(binding) - BINDINGS)
        if unknown:
            raise ValueError(f"proc_bind has no key {unknown[0]!r}; there are {', '.join(sorted(BINDINGS))}")


def check_options(per_host: Any, bootstrap: Any, command: Any, env: Any, preload: Any) -> None:
    """Refuse, at the call, options of the wrong kind."""
    if per_host is not None and not isinstance(per_host, Mapping):
        raise TypeError(f'per_host is a mapping of dimensions to sizes, such as {{"gpus": 4}}, not {per_host!r}')
    if bootstrap is not None and not callable(bootstrap):
        raise TypeError(f"bootstrap is called in every process, and {bootstrap!r} cannot be called")
    if command is not None and not isinstance(command, BootstrapCommand):
        raise TypeError(f'bootstrap_command is a BootstrapCommand("program", ("argument", …)), not {command!r}')
    if isinstance(preload, str):
        raise TypeError(f"preload is a list of modules: write [{preload!r}]")
    for name, value in dict(env or {}).items():
        if not isinstance(name, str) or not (value is None or isinstance(value, str)):
            raise TypeError(f"env maps names to strings, or to None to remove one; {name!r} has {value!r}")


def import_path() -> list[str]:
    """Where this program imports from, for its workers; relative entries made absolute."""
    return [os.path.abspath(entry) if entry else os.getcwd() for entry in sys.path if not entry.endswith(".zip")]


_first_environment = dict(os.environ)


def remember_environment() -> None:
    """What the agents are started with."""
    global _first_environment
    _first_environment = dict(os.environ)


def changed_environment() -> dict[str, str]:
    """Variables that this program has set since its agents were started; workers get them too."""
    return {name: value for name, value in os.environ.items() if _first_environment.get(name) != value}


def default_preload() -> list[str]:
    """torch and numpy where this program has imported them: a fork shares them, an import takes a second."""
    wanted = ["numpy", "torch", "torch.distributed"]
    return [module for module in wanted if module.partition(".")[0] in sys.modules]


_names = iter(range(1 << 62))


def default_name() -> str:
    """A name for a mesh that was given none."""
    return f"procs{next(_names)}"
