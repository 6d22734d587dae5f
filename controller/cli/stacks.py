"""`roost stacks`: what the threads and tasks of a job's processes do now."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
from pathlib import Path

from .found import Agent, choose_job
from .parser import DONE, CommandError
from .workers import Host, Worker, hosts_of, selects


def run(arguments: argparse.Namespace) -> int:
    """Print the stacks of each process that is meant."""
    job = choose_job(arguments.job)
    is_meant = selects(arguments.name, arguments.rank)
    texts: list[str] = []
    for host in hosts_of(job):
        workers = [worker for worker in host.workers if is_meant(worker.name)]
        if workers:
            texts += _native(workers, arguments.timeout) if arguments.native else _of(host, workers, arguments.timeout)
    if not texts:
        raise CommandError("no process is meant; `roost ps` shows which there are")
    print("\n\n".join(texts))
    return DONE


def _of(host: Host, workers: list[Worker], timeout: float) -> list[str]:
    from .ask import Asker, NoAnswer

    if not host.silence:
        try:
            with Asker(host.agent) as asker:
                named = [[worker.proc_id, worker.name] for worker in workers]
                return list(asker.ask("stacks of", named, timeout, timeout=timeout + 1))
        except NoAnswer:
            return _without_agent(host.agent, workers, timeout)
    return _without_agent(host.agent, workers, timeout)


def _without_agent(agent: Agent, workers: list[Worker], timeout: float) -> list[str]:
    """Signal the workers from here, as their agent would."""
    from ...mesh.agent.dumps import Dumps
    from ...mesh.launch import Launched

    live = {worker.proc_id: Launched(worker.proc_id, worker.name, worker.pid, 0.0, 0) for worker in workers}
    dumps = Dumps(Path(agent.run_dir), lambda: live)
    return asyncio.run(dumps.take(list(live), timeout))


def _native(workers: list[Worker], timeout: float) -> list[str]:
    from ...mesh.agent.dumps import find_py_spy

    program = find_py_spy()
    if program is None:
        raise CommandError("--native needs py-spy: pip install py-spy")
    texts = []
    for worker in workers:
        command = [program, "dump", "--native", "--pid", str(worker.pid)]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            texts.append(f"{worker.name} (pid {worker.pid}): py-spy took longer than {timeout:g} s")
            continue
        said = answer.stdout if answer.returncode == 0 else answer.stderr
        texts.append(f"{worker.name} (pid {worker.pid})\n{said.strip()}")
    return texts
