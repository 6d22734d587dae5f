"""`roost clean`: end jobs of this user, and remove what jobs that have ended have left behind."""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import sys

from .found import Job, choose_job, find_jobs
from .parser import DONE, FAILED
from .processes import Process, at

END_TIMEOUT = 10.0  # seconds for a process to end after SIGTERM
KILL_TIMEOUT = 5.0


def run(arguments: argparse.Namespace) -> int:
    """End and remove; 1 when there was something that could not be."""
    if arguments.job is not None:
        jobs = [choose_job(arguments.job, live=False)]
    else:
        jobs = [job for job in find_jobs() if arguments.all or job.program is None]
    if not jobs:
        print("nothing to clean")
    done = [_clean(job, arguments.yes) for job in jobs]
    return DONE if all(done) else FAILED


def _clean(job: Job, yes: bool) -> bool:
    program = job.program
    if program is not None:
        if not yes and not _agreed(job):
            print(f"job {job.name} runs on")
            return False
        if not _end(program, "program" if job.card is not None else "worker loop"):
            return False
    for agent in job.agents:
        process = at(agent.card["place"])
        if process is not None and not _end(process, "agent"):
            return False
    for folder in job.folders:
        shutil.rmtree(folder, ignore_errors=True)
    left = [str(folder) for folder in job.folders if folder.exists()]
    if left:
        print(f"job {job.name}: could not remove {', '.join(left)}", file=sys.stderr)
        return False
    print(f"job {job.name} {'was ended' if program is not None else 'had ended'}, and is removed")
    return True


def _agreed(job: Job) -> bool:
    if not sys.stdin.isatty():
        print(f"job {job.name} (pid {job.pid}, {job.title}) runs; -y ends it", file=sys.stderr)
        return False
    return input(f"end job {job.name} (pid {job.pid}, {job.title})? [y/N] ").strip().lower() in ("y", "yes")


def _end(process: Process, what: str) -> bool:
    """SIGTERM, then SIGKILL; that very process, never a later one with its number."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        if at(["", process.pid, process.start_ticks]) is None:
            return True
        for number, seconds in ((signal.SIGTERM, END_TIMEOUT), (signal.SIGKILL, KILL_TIMEOUT)):
            signal.pidfd_send_signal(descriptor, number)
            signal.pidfd_send_signal(descriptor, signal.SIGCONT)
            if select.select([descriptor], [], [], seconds)[0]:
                return True
    except ProcessLookupError:
        return True
    except PermissionError:
        print(f"the {what} with pid {process.pid} is not yours", file=sys.stderr)
        return False
    finally:
        os.close(descriptor)
    print(f"the {what} with pid {process.pid} does not end", file=sys.stderr)
    return False
