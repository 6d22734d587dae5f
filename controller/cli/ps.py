"""`roost ps`: jobs, hosts, processes and their actors."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .found import Job, choose_job, find_jobs
from .parser import DONE, FAILED
from .processes import Process
from .workers import Host, Worker, hosts_of


def run(arguments: argparse.Namespace) -> int:
    """Print the jobs; 1 when there are none."""
    if arguments.job is not None:
        jobs = [choose_job(arguments.job, live=not arguments.all)]
    else:
        jobs = [job for job in find_jobs() if arguments.all or job.program is not None]
    told = [(job, hosts_of(job)) for job in jobs]
    if arguments.json:
        print(json.dumps([_as_json(job, hosts) for job, hosts in told], indent=2))
    elif not jobs:
        print("no jobs of yours run here" + ("" if arguments.all else "; `roost ps --all` also shows what is left"))
    else:
        print("\n\n".join("\n".join(_lines(job, hosts)) for job, hosts in told))
    return DONE if jobs else FAILED


def _lines(job: Job, hosts: list[Host]) -> list[str]:
    program = job.program
    state = f"pid {job.pid}, {_age(program.age)}, {_state(program)}" if program else f"pid {job.pid} has ended"
    lines = [f"job {job.name}  {job.title}  ({state})"]
    for host in hosts:
        silence = f": {host.silence}" if host.silence else ""
        lines.append(f"  host {host.agent.card['host']}  agent pid {host.agent.card['place'][1]}{silence}")
        rows = [("PROCESS", "PID", "CPU", "RSS", "STATE", "ACTORS"), *map(_row, host.workers)]
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        for row in rows if host.workers else ():
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append(("    " + "  ".join([*cells, row[5]])).rstrip())
    return lines


def _row(worker: Worker) -> tuple[str, str, str, str, str, str]:
    process = worker.process
    cpu, rss, state = (
        (f"{process.cpu:.0%}", _size(process.rss), _state(process)) if process is not None else ("-", "-", "has ended")
    )
    if worker.actors is None:
        actors = "no answer"
    else:
        actors = ", ".join(map(_actor, worker.actors)) or "none"
    return worker.name, str(worker.pid), cpu, rss, state, actors


def _actor(actor: dict[str, Any]) -> str:
    parts = [f"runs {', '.join(actor['running'])}" if actor["running"] else ""]
    parts.append(f"{actor['waiting']} waiting" if actor["waiting"] else "")
    parts.append(actor["state"] if actor["state"] != "running" else "")
    said = "; ".join(part for part in parts if part)
    return f"{actor['name']}[{actor['rank']}]" + (f" ({said})" if said else "")


def _state(process: Process) -> str:
    states = {"R": "runs", "S": "sleeps", "D": "waits for a device", "T": "stopped", "t": "debugged", "I": "idle"}
    return states.get(process.state, process.state)


def _age(seconds: float) -> str:
    """Seconds for people.

    >>> _age(75), _age(4000)
    ('1 min', '1 h 6 min')
    """
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"


def _size(count: int) -> str:
    """Bytes for people.

    >>> _size(3 << 20), _size(5 << 30)
    ('3.0M', '5.0G')
    """
    for unit, size in (("G", 1 << 30), ("M", 1 << 20)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count >> 10}K"


def _as_json(job: Job, hosts: list[Host]) -> dict[str, Any]:
    program = job.program
    return {
        "job": job.name,
        "command": job.title,
        "pid": job.pid,
        "alive": program is not None,
        "age": round(program.age, 1) if program is not None else None,
        "folders": [str(folder) for folder in job.folders],
        "hosts": [
            {
                "host": host.agent.card["host"],
                "agent_pid": host.agent.card["place"][1],
                "silence": host.silence or None,
                "processes": [_worker_json(worker) for worker in host.workers],
            }
            for host in hosts
        ],
    }


def _worker_json(worker: Worker) -> dict[str, Any]:
    process = worker.process
    return {
        "name": worker.name,
        "mesh": worker.mesh,
        "rank": worker.rank,
        "pid": worker.pid,
        "state": process.state if process is not None else None,
        "cpu": round(process.cpu, 3) if process is not None else None,
        "rss": process.rss if process is not None else None,
        "output": str(worker.output),
        "actors": worker.actors,
    }
