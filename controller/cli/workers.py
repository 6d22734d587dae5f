"""The workers of a job: as its agents tell, or, where an agent does not answer, as its files do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .found import Agent, Job
from .processes import Process, look

ANSWER = 2.0  # seconds for an agent's answer


@dataclass(frozen=True, slots=True)
class Worker:
    """One process of a mesh; `actors` is None where nobody has told."""

    proc_id: int
    name: str
    pid: int
    host: str
    output: Path
    actors: list[dict[str, Any]] | None

    @property
    def mesh(self) -> str:
        return split_name(self.name)[0]

    @property
    def rank(self) -> int:
        return split_name(self.name)[1]

    @property
    def process(self) -> Process | None:
        """What /proc says of it."""
        return look(self.pid)


def split_name(name: str) -> tuple[str, int]:
    """The mesh and the rank in a process's name.

    >>> split_name("trainer-3")
    ('trainer', 3)
    """
    mesh, _, rank = name.rpartition("-")
    return (mesh, int(rank)) if mesh and rank.isdigit() else (name, 0)


@dataclass(frozen=True, slots=True)
class Host:
    """One agent and its workers; `silence` says why it did not answer, or is empty."""

    agent: Agent
    workers: list[Worker]
    silence: str = ""


def hosts_of(job: Job) -> list[Host]:
    """The hosts of a job that are here."""
    hosts = [_ask(agent) for agent in job.agents]
    for host in hosts:
        host.workers.sort(key=lambda worker: (worker.mesh, worker.rank))
    return hosts


def _ask(agent: Agent) -> Host:
    from .ask import Asker, NoAnswer

    process = agent.process
    if process is None:
        return Host(agent, [], "it has ended")
    if process.state in "Tt":
        return Host(agent, _from_files(agent), "it is stopped")
    try:
        with Asker(agent) as asker:
            told = asker.ask("ps", timeout=ANSWER)
    except NoAnswer as error:
        return Host(agent, _from_files(agent), str(error))
    host = str(agent.card["host"])
    workers = [
        Worker(each["proc_id"], each["name"], each["pid"], host, Path(each["output"]), each["actors"]) for each in told
    ]
    return Host(agent, workers)


def _from_files(agent: Agent) -> list[Worker]:
    """Each worker has begun its file for stacks with its pid and name."""
    logs = agent.logs()
    found = []
    for path in sorted(agent.run_dir.glob("*.stacks")):
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                pid, _, name = file.readline().rstrip("\n").partition(" ")
            proc_id, number = int(path.stem, 16), int(pid)
        except (OSError, ValueError):
            continue  # it is ending
        if look(number) is not None:
            found.append(Worker(proc_id, name, number, str(agent.card["host"]), logs.get(proc_id, Path()), None))
    return found


def selects(name: str | None, ranks: frozenset[int] | None) -> Callable[[str], bool]:
    """Whether a process, by its name, is among those that `--name` and `--rank` mean."""

    def is_meant(process: str) -> bool:
        mesh, rank = split_name(process)
        return (name is None or mesh == name or process == name) and (ranks is None or rank in ranks)

    return is_meant
