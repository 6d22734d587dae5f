"""The jobs of this user on this host, as their run directories tell of them."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .parser import CommandError
from .processes import Process, at, before_boot, is_here


@dataclass(slots=True)
class Agent:
    """A host agent: its run directory and card."""

    run_dir: Path
    card: dict[str, Any]

    @property
    def process(self) -> Process | None:
        """Its process, while it lives."""
        return at(self.card["place"])

    @property
    def socket(self) -> str:
        return str(self.card["address"])

    def logs(self) -> dict[int, Path]:
        """Output files by the number of the process, also of processes that have ended."""
        folder = Path(self.card.get("log_dir") or self.run_dir / "logs")
        found = {}
        for path in folder.glob("*.log"):
            number = path.stem.rpartition("-")[2]
            try:
                found[int(number, 16)] = path
            except ValueError:
                continue  # not one of ours
        return found


@dataclass(slots=True)
class Job:
    """A program and its agents here, or a worker loop. `card` is the program's, None for a loop."""

    name: str
    card: dict[str, Any] | None
    folders: list[Path] = field(default_factory=list)
    agents: list[Agent] = field(default_factory=list)

    @property
    def program(self) -> Process | None:
        """The process that the job stands and falls with, while it lives: the program, or the loop's agent."""
        if self.card is not None:
            return at(self.card["place"])
        loops = [agent.process for agent in self.agents if agent.card.get("stays")]
        return next((process for process in loops if process is not None), None)

    @property
    def is_over(self) -> bool:
        """Whether it has ended; a program may live on, and has removed its run directory then."""
        return self.program is None or (self.card is not None and not (self.folders[0] / "job.json").exists())

    @property
    def pid(self) -> int | None:
        """Of the program, or of the loop's agent."""
        card = self.card or (self.agents[0].card if self.agents else None)
        return int(card["place"][1]) if card is not None else None

    @property
    def title(self) -> str:
        """The command line of the program."""
        if self.card is not None:
            return " ".join(self.card["argv"]) or "python"
        return "worker loop" if any(agent.card.get("stays") for agent in self.agents) else "a program that has ended"


def find_jobs() -> list[Job]:
    """All jobs, the youngest last; those of other hosts that share a folder with this one are left out."""
    jobs: dict[str, Job] = {}
    agents: list[Agent] = []
    for folder in _run_dirs():
        card, agent = _read(folder / "job.json"), _read(folder / "agent.json")
        if not _is_ours(card or agent):
            continue
        if card is not None:
            jobs[str(folder)] = Job(_name(folder), card, [folder])
        if agent is not None:
            agents.append(Agent(folder, agent))
    for found in agents:
        of = os.path.realpath(found.card.get("job") or found.run_dir)
        job = jobs.setdefault(of, Job(_name(Path(of)), None))
        job.agents.append(found)
        if found.run_dir not in job.folders:
            job.folders.append(found.run_dir)
    for job in jobs.values():
        job.agents.sort(key=lambda agent: float(agent.card["started"]))
    return sorted(jobs.values(), key=_started)


def _started(job: Job) -> float:
    card = job.card or (job.agents[0].card if job.agents else {})
    return float(card.get("started", 0))


def _name(folder: Path) -> str:
    return folder.name.removeprefix("roost-")


def _run_dirs() -> Iterator[Path]:
    """Folders where a run directory may be made, and of those in them this user's."""
    bases = (os.environ.get("ROOST_RUN_DIR"), os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir())
    for base in dict.fromkeys(os.path.realpath(base) for base in bases if base):
        try:
            entries = [entry for entry in os.scandir(base) if entry.name.startswith("roost-")]
        except OSError:
            continue
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
                yield Path(entry.path)


def _is_ours(card: dict[str, Any] | None) -> bool:
    """Whether a folder is a run directory of this machine: it has a card that says so."""
    if card is None:
        return False
    place = card["place"]
    return is_here(place) or before_boot(place, card.get("host", os.uname().nodename))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return card if isinstance(card, dict) and isinstance(card.get("place"), list) else None


def choose_job(text: str | None, *, live: bool = True) -> Job:
    """The job that is meant; the only one where none is named. Raises CommandError."""
    jobs = [job for job in find_jobs() if not live or job.program is not None]
    if text is not None:
        named = [job for job in jobs if job.name == text or str(job.pid) == text]
        jobs = named or [job for job in jobs if job.name.startswith(text)]
    if len(jobs) == 1:
        return jobs[0]
    if not jobs:
        which = f"is named {text!r} or has that pid" if text is not None else "runs here"
        raise CommandError(f"no job of yours {which}; `roost ps --all` shows what there is")
    names = ", ".join(f"{job.name} (pid {job.pid}, {job.title})" for job in jobs)
    raise CommandError(f"there are {len(jobs)} jobs, name one: {names}")
