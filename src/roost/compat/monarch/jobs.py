"""`monarch.job`: hosts for a program on this machine. Jobs of clusters arrive later."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...controller import jobs as native
from ...mesh.hostmesh import HostMesh
from ...mesh.local import this_host
from .later import NotOffered
from .names import ABSENT

DEFAULT_JOB_PATH = ".monarch/job_state.pkl"
SERVICE_PROC_IDS_ENV = "MONARCH_SERVICE_PROC_IDS"
SERVICE_PROC_RANK_ENV = "MONARCH_SERVICE_PROC_RANK"
CURRENT_JOB = "ROOST_MONARCH_JOB"


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """Accepted by `enable_telemetry`."""

    retention_secs: int = 3600
    include_dashboard: bool = False
    dashboard_port: int = 8265
    snapshot_interval_secs: float = 30.0


@dataclass(frozen=True, slots=True)
class MeshAdminConfig:
    """Accepted by `enable_admin`."""

    admin_addr: str | None = None


class JobState:
    """The host meshes of a job, as attributes; what Monarch's telemetry would add is None."""

    query_engine = query_engine_client = telemetry_url = dashboard_url = admin_url = None

    def __init__(self, hosts: Mapping[str, HostMesh]) -> None:
        self._hosts = dict(hosts)

    def __getattr__(self, name: str) -> HostMesh:
        hosts: dict[str, HostMesh] = self.__dict__.get("_hosts", {})
        if name not in hosts:
            raise AttributeError(f"{name!r} is not a valid host mesh name. Available names: {', '.join(sorted(hosts))}")
        return hosts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._hosts)

    def __repr__(self) -> str:
        return f"<JobState: {', '.join(f'{name} {mesh.extent}' for name, mesh in self._hosts.items())}>"


class JobTrait(ABC):
    """A job: `apply` makes its hosts, `state` gives them, `kill` ends them.

    A subclass says how: `_create`, `_state`, `can_run`, `_kill`. Nothing is written into the working directory; hosts
    do not outlive the program.
    """

    def __init__(self) -> None:
        self._applied = ""

    @abstractmethod
    def _create(self, client_script: str | None) -> None: ...

    @abstractmethod
    def _state(self) -> JobState: ...

    @abstractmethod
    def can_run(self, spec: JobTrait) -> bool:
        """Whether the hosts of this job serve for another one."""

    @abstractmethod
    def _kill(self) -> None: ...

    @property
    def active(self) -> bool:
        """Whether its hosts have been made, and not been ended."""
        return bool(getattr(self, "_applied", ""))

    @property
    def apply_id(self) -> str | None:
        """Names one making of the hosts."""
        return getattr(self, "_applied", "") or None

    def apply(self, client_script: str | None = None) -> None:
        """Make the hosts; nothing when there are some. With a script: run it against them."""
        if not self.active:
            self._create(client_script)
            self._applied = uuid.uuid4().hex

    def state(self, cached_path: str | None = DEFAULT_JOB_PATH) -> JobState:
        """The host meshes; made at the first call. `cached_path` is accepted: there is no cache to read or write."""
        self.apply()
        return self._state()

    def kill(self) -> None:
        """End the hosts, and everything on them."""
        if self.active:
            self._applied = ""
            self._kill()

    def dumps(self) -> bytes:
        """What the job asks for, to be read by `job_loads`; not its hosts."""
        return json.dumps({"job": type(self).__name__, "spec": self._spec()}).encode()

    def dump(self, filename: str) -> None:
        """The same, into a file."""
        folder = os.path.dirname(filename)
        if folder:
            os.makedirs(folder, exist_ok=True)
        with open(filename, "wb") as file:
            file.write(self.dumps())

    def _spec(self) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__} cannot be written down: only ProcessJob and LocalJob can")

    def enable_telemetry(self, config: Any = None, *, mesh_admin_config: Any = None, **settings: Any) -> JobTrait:
        """Accepted; `roost ps` and `roost logs` tell of a job."""
        return self

    def enable_admin(self, config: Any = None, **settings: Any) -> JobTrait:
        """Accepted; there is no admin server."""
        return self

    def remote_mount(self, source: str, *args: Any, **settings: Any) -> Any:
        """Not offered."""
        raise NotOffered(f"remote_mount({source!r}): {ABSENT['monarch.remotemount']}")

    def gather_mount(self, remote_mount_point: str, *args: Any, **settings: Any) -> Any:
        """Not offered."""
        raise NotOffered(f"gather_mount({remote_mount_point!r}): {ABSENT['monarch.gather_mount']}")

    def profile(self, *, on_trace_ready: Any = None) -> Any:
        """Not offered."""
        raise NotOffered(f"profile: {ABSENT['monarch.distributed_telemetry']}")

    def telemetry_query_client(self) -> Any:
        """Not offered."""
        raise NotOffered(f"telemetry_query_client: {ABSENT['monarch.distributed_telemetry']}")


class ProcessJob(JobTrait):
    """Hosts that are processes of this machine: `ProcessJob({"trainers": 1, "generators": 2})`.

    `env` is set in this program, and so in all that is spawned from it.
    """

    def __init__(self, meshes: dict[str, int], env: dict[str, str] | None = None) -> None:
        super().__init__()
        self._meshes = dict(meshes)
        self._env = dict(env or {})
        native.ProcessJob(meshes)  # refuses here what it cannot make
        self._job: native.ProcessJob | None = None

    def _create(self, client_script: str | None) -> None:
        os.environ.update(self._env)
        self._job = native.ProcessJob(self._meshes)
        if client_script is not None:
            _run_client(client_script)

    def _state(self) -> JobState:
        assert self._job is not None
        state = self._job.state()
        return JobState({name: getattr(state, name) for name in self._meshes})

    def can_run(self, spec: JobTrait) -> bool:
        """Whether the other asks for the same hosts."""
        return isinstance(spec, ProcessJob) and (spec._meshes, spec._env) == (self._meshes, self._env)

    def _kill(self) -> None:
        if self._job is not None:
            self._job.kill()
            self._job = None

    def _spec(self) -> dict[str, Any]:
        return {"meshes": self._meshes, "env": self._env}


class LocalJob(JobTrait):
    """Host meshes that are all this machine: `LocalJob(("trainers", "generators"))`."""

    def __init__(self, hosts: Sequence[str] = ("hosts",)) -> None:
        super().__init__()
        self._names = tuple(hosts)
        self.process: subprocess.Popen[bytes] | None = None

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            self.process = _run_client(client_script)

    def _state(self) -> JobState:
        return JobState({name: this_host() for name in self._names})

    def can_run(self, spec: JobTrait) -> bool:
        """Whether the other asks for the same names."""
        return isinstance(spec, LocalJob) and spec._names == self._names

    def _kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()

    def _spec(self) -> dict[str, Any]:
        return {"hosts": list(self._names)}


def _run_client(script: str) -> subprocess.Popen[bytes]:
    """Run a client's script in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "roost.compat.monarch", script])


_KINDS: dict[str, type[JobTrait]] = {"ProcessJob": ProcessJob, "LocalJob": LocalJob}


def job_loads(data: bytes) -> JobTrait:
    """The job that `dumps` wrote down, not yet applied. ValueError for anything else; nothing is unpickled.

    >>> job_loads(LocalJob(("a", "b")).dumps()).active
    False
    """
    try:
        record = json.loads(data)
        return _KINDS[record["job"]](**record["spec"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"this is no job that Roost wrote ({error}); pickled jobs of Monarch are not read") from None


def job_load(filename: str = DEFAULT_JOB_PATH) -> JobTrait:
    """The job that `dump` wrote into a file."""
    with open(filename, "rb") as file:
        return job_loads(file.read())


def set_current_job(module_path: str) -> None:
    """Name the job of this program: "module.attribute"."""
    os.environ[CURRENT_JOB] = module_path


def load_current_job() -> JobTrait:
    """The job that was named; RuntimeError when none was."""
    path = os.environ.get(CURRENT_JOB)
    if not path:
        raise RuntimeError('no job has been named: call set_current_job("module.attribute") first')
    module, _, attribute = path.rpartition(".")
    job: JobTrait = getattr(importlib.import_module(module), attribute)
    return job


def hosts_from_config(name: str) -> HostMesh:
    """Two hosts on this machine; Monarch reads no configuration here either."""
    mesh: HostMesh = getattr(ProcessJob({name: 2}).state(), name)
    return mesh
