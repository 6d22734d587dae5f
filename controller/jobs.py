"""Jobs: where the hosts of a script come from.

`ProcessJob` makes hosts of agent processes on this machine, each with a node id of its own: between them everything
goes over tcp, as it does between machines. It is what a script is tried with before it runs on an allocation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType

from ..actors.errors import RoostError
from ..actors.future import Future
from ..actors.refs import new_id
from ..mesh.hostmesh import HostMesh
from ..mesh.local import AgentProcess, controller


class JobState:
    """The host meshes of a job, as attributes."""

    def __init__(self, meshes: Mapping[str, HostMesh]) -> None:
        self._meshes = dict(meshes)

    def __getattr__(self, name: str) -> HostMesh:
        meshes: dict[str, HostMesh] = self.__dict__.get("_meshes", {})
        if name not in meshes:
            raise AttributeError(f"the job has no host mesh {name!r}; it has {', '.join(sorted(meshes)) or 'none'}")
        return meshes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._meshes)

    def __repr__(self) -> str:
        return f"<JobState: {', '.join(f'{name} {mesh.extent}' for name, mesh in self._meshes.items())}>"


class ProcessJob:
    """Hosts that are processes of this machine; they end with the program, or with `kill()`.

    >>> with ProcessJob({"trainers": 1, "generators": 2}) as job:           # doctest: +SKIP
    ...     job.state().generators.spawn_procs({"gpus": 2})
    """

    def __init__(self, meshes: Mapping[str, int]) -> None:
        if not isinstance(meshes, Mapping):
            raise TypeError(f'ProcessJob takes the meshes it is to make, such as {{"hosts": 2}}, not {meshes!r}')
        for name, count in meshes.items():
            if not isinstance(count, int) or count < 1:
                raise ValueError(f"mesh {name!r} of {count!r} hosts: a mesh has at least one")
        self._wanted = dict(meshes)
        self._agents: list[AgentProcess] = []
        self._state: JobState | None = None
        self._killed = False

    def __repr__(self) -> str:
        state = "killed" if self._killed else "running" if self._state else "not started"
        return f"<ProcessJob {self._wanted}, {state}>"

    def state(self) -> JobState:
        """The host meshes; their agents are started at the first call."""
        if self._killed:
            raise RoostError("this job has been killed; make a new one")
        if self._state is None:
            meshes = {}
            for name, count in self._wanted.items():
                agents = [self._start(f"{name}{i}") for i in range(count)]
                meshes[name] = HostMesh.of_hosts([agent.host for agent in agents])
            self._state = JobState(meshes)
        return self._state

    def _start(self, host: str) -> AgentProcess:
        agent = controller().start_agent(f"{new_id():x}", ["tcp://127.0.0.1:0"], name=f"agent-{host}", host=host)
        self._agents.append(agent)
        return agent

    def kill(self) -> Future[None]:
        """End the hosts and everything on them."""
        self._killed = True
        for agent in self._agents:
            agent.end()
        return Future.completed(None)

    def __enter__(self) -> ProcessJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
