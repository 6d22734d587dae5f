"""Starts, watches and ends the worker processes of one host, inside its agent.

Everything runs on the agent's loop, in its main thread (the death signal of the children follows
that thread). A worker is forked from a zygote; what needs another interpreter or a wrapper command
is forked from a zygote that imported nothing, then exec'd: one way to start, adopt, watch and end.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from . import linux, output
from .evidence import Evidence
from .inquest import Worker, inquire
from .nursery import Unfit, ZygoteDied, ZygoteHandle, merged_env
from .orphans import Strays
from .plan import OWNER_VARIABLE, WorkerPlan
from .pool import Progress, ZygotePool
from .reaper import Reaper
from .report import ExitReport
from .request import GIVEN_UP, Request, prepare_output
from .spec import (
    BARE,
    CHILD,
    KEPT_VARIABLES,
    THREAD_VARIABLES,
    Launched,
    LaunchError,
    ProcSpec,
    ZygoteKey,
    check_cpus,
    parse_cpus,
    zygote_key,
)

OnExit = Callable[[int, ExitReport], None]
_TICK_SECONDS = 1.0
_KILL_SECONDS = 5.0


def _silent(sentence: str) -> None:
    """The progress callback of who wants none."""


class Launcher:
    """The process tree of one host.

    `on_exit(proc_id, report)` is called on the loop once for every launched worker, also for one
    that is stopped; possibly before `launch` has returned to its caller. Programs that the agent
    starts for itself must stay in its session: other children are taken for orphans of workers.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        run_dir: Path,
        on_exit: OnExit,
        *,
        host: str | None = None,
        node_id: str | None = None,
        evidence: Evidence | None = None,
        use_pidfd: bool = True,
    ) -> None:
        self._loop = loop
        self._run_dir = run_dir
        self._on_exit = on_exit
        self._host = host or socket.gethostname()
        self._node_id = node_id
        self._evidence = evidence or Evidence()
        self._reaper = Reaper(loop, use_pidfd)
        self._pool = ZygotePool(loop, self._reaper, run_dir)
        self._strays = Strays(self._reaper, self._sweep)
        self._workers: dict[int, Worker] = {}
        self._reserved: set[int] = set()
        self._sessions: dict[int, int] = {}
        self._just_died: set[int] = set()
        self._in_flight = 0
        self._launches: set[asyncio.Task[None]] = set()
        self._requests: set[Request] = set()
        self._tick: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "closed" if self._closing else "open"
        return f"<Launcher on {self._host}: {state}, {len(self._workers)} workers, {len(self._pool)} zygotes>"

    def adopt(self) -> None:
        """Make this process the subreaper of all that descends from it; once, before any launch."""
        linux.set_child_subreaper()

    def live(self) -> dict[int, Launched]:
        return {proc_id: worker.launched for proc_id, worker in self._workers.items()}

    async def warm(self, key: ZygoteKey, progress: Progress = _silent) -> tuple[str, ...]:
        """Start the zygote for `key` (see `zygote_key`) ahead of need; the notes on its preloads.

        Raises ZygoteDied when it cannot be started.
        """
        return tuple((await self._pool.ready(key, progress)).notes)

    async def launch(self, specs: Sequence[ProcSpec], progress: Progress = _silent) -> list[Launched | LaunchError]:
        """Start workers; an answer for each spec, in order. Refusals are answers, not raised.

        There is no time-out while a zygote imports: `progress` is told what it is busy with.
        Cancelled, workers that have not begun never run; those answered already go on.
        """
        request = Request(specs, progress)
        for index, spec in enumerate(specs):
            if (reason := self._objection(spec)) is None:
                reason = prepare_output(request, index)
            if reason is None:
                self._reserved.add(spec.proc_id)
            else:
                request.refuse((index,), reason)
        groups = self._grouped(request)
        tasks = [self._loop.create_task(self._launch_group(request, *group)) for group in groups]
        self._launches.update(tasks)
        for task in tasks:
            task.add_done_callback(self._launches.discard)
        self._requests.add(request)
        try:
            if tasks:
                await asyncio.wait(tasks)
        except asyncio.CancelledError:
            request.given_up = True
            raise
        finally:
            self._requests.discard(request)
        return [request.answers[index] for index in range(len(specs))]

    def give_up(self, proc_ids: Collection[int]) -> None:
        """Nobody wants these workers any more: the requests that they are of end without those not yet forked."""
        for request in self._requests:
            if any(spec.proc_id in proc_ids for spec in request.specs):
                request.given_up = True

    def _objection(self, spec: ProcSpec) -> str | None:
        """Why this spec cannot be started here, told before anything is forked."""
        if self._closing is not None:
            return "the launcher is closed"
        if spec.proc_id in self._workers or spec.proc_id in self._reserved:
            return f"a worker with proc_id {spec.proc_id} is there already"
        module, _, function = spec.entry.partition(":")
        if not module or not function:
            return f"entry={spec.entry!r} is not 'module:function'"
        if spec.cpus is not None and (reason := check_cpus(spec.cpus)) is not None:
            return reason
        if spec.cwd is not None and not os.path.isdir(spec.cwd):
            return f"the working directory {spec.cwd} does not exist on {self._host}"
        path = merged_env(os.environ, spec.env).get("PATH")
        for program in (spec.python, (spec.command or (None,))[0]):
            if program is not None and shutil.which(program, path=path) is None:
                return f"the program {program!r} is not found on {self._host}"
        return None

    def _grouped(self, request: Request) -> list[tuple[ZygoteKey, bool, list[int]]]:
        """(zygote, whether to exec, indices): which specs go together."""
        forked: dict[ZygoteKey, list[int]] = {}
        execed: list[int] = []
        for index, spec in enumerate(request.specs):
            if index in request.answers:
                continue
            python = spec.python or sys.executable
            if spec.command or not spec.inherit_env or os.path.abspath(python) != os.path.abspath(sys.executable):
                execed.append(index)
            else:
                forked.setdefault(zygote_key(spec), []).append(index)
        for key in list(forked):
            if len(forked[key]) == 1 and not self._pool.has_room(key):
                execed += forked.pop(key)  # an environment of its own does not pay for a zygote
        groups = [(key, False, indices) for key, indices in forked.items()]
        return [*groups, (BARE, True, execed)] if execed else groups

    async def _launch_group(self, request: Request, key: ZygoteKey, by_exec: bool, indices: list[int]) -> None:
        try:
            deaths = 0
            while True:
                if request.given_up:
                    return request.refuse(indices, GIVEN_UP)
                zygote = await self._pool.ready(key, request.progress)
                try:
                    return await self._fork(request, zygote, by_exec, indices)
                except Unfit as unfit:
                    await self._pool.drop_preloads(zygote, str(unfit))
                except ZygoteDied:
                    await self._pool.discard(zygote)
                    deaths += 1
                    if deaths == 2 or self._closing is not None:
                        raise
        except (ZygoteDied, OSError) as error:
            request.refuse(indices, str(error))
        finally:
            request.refuse(indices, "the launch was interrupted")
            self._reserved.difference_update(request.specs[index].proc_id for index in indices)

    async def _fork(self, request: Request, zygote: ZygoteHandle, by_exec: bool, indices: list[int]) -> None:
        """Fork, take note of the pids, then open the gate: user code runs only in known processes."""
        plans = [_plan(request.specs[index], by_exec) for index in indices]
        reading, writing = os.pipe()
        self._in_flight += 1  # until they are known, new children are not orphans
        try:
            pids = (await zygote.fork(plans, reading, lambda: not request.given_up)).pids
            if request.given_up or self._closing is not None:
                return request.refuse(indices, GIVEN_UP)
            if len(pids) != len(indices):
                return request.refuse(indices, "the process that forks the workers was killed")
            started = 0
            for index, pid in zip(indices, pids, strict=True):
                if isinstance(pid, int):
                    request.answers[index] = self._register(request, index, pid, tuple(zygote.notes))
                    started += 1
                else:
                    request.refuse((index,), pid)
            self._evidence.follow(self._pids())
            os.write(writing, b"\0" * started)
        finally:
            os.close(reading)
            os.close(writing)
            self._in_flight -= 1
            self._sweep()
            if self._tick is None:
                self._tick = self._loop.call_later(_TICK_SECONDS, self._look_around)

    def _register(self, request: Request, index: int, pid: int, notes: tuple[str, ...]) -> Launched:
        spec = request.specs[index]
        seen = linux.stat(pid)
        ticks = 0 if seen is None else seen.start_ticks
        launched = Launched(spec.proc_id, spec.name, pid, time.monotonic(), ticks, notes)
        watch = self._reaper.watch(pid, lambda status: self._died(spec.proc_id, status))
        self._workers[spec.proc_id] = Worker(spec, launched, watch, request.output_starts[index])
        self._sessions[pid] = spec.proc_id
        return launched

    def _pids(self) -> list[int]:
        return [worker.launched.pid for worker in self._workers.values()]

    def _look_around(self) -> None:
        """Once a second: moved cgroups, output over its limit, daemons that detached themselves."""
        self._tick = None
        self._evidence.follow(self._pids())
        for worker in self._workers.values():
            output.enforce_limit(worker.spec.output, worker.spec.output_limit)
        self._sweep()
        if self._workers or self._strays:
            self._tick = self._loop.call_later(_TICK_SECONDS, self._look_around)

    def _sweep(self) -> None:
        if self._in_flight:
            return  # done again when the launch has been answered
        self._strays.sweep(self._workers.keys(), self._just_died, self._sessions)
        self._just_died.clear()
        if not self._strays:
            self._sessions = {pid: who for pid, who in self._sessions.items() if who in self._workers}

    def _died(self, proc_id: int, status: linux.ExitStatus) -> None:
        worker = self._workers.pop(proc_id)
        worker.report = report = self._report(worker, status)
        self._evidence.forget(worker.launched.pid)
        output.enforce_limit(worker.spec.output, worker.spec.output_limit)
        self._just_died.add(proc_id)
        self._sweep()
        self._on_exit(proc_id, report)

    def _report(self, worker: Worker, status: linux.ExitStatus | None) -> ExitReport:
        return inquire(worker, status, self._evidence, self._host, self._node_id)

    def has_started(self, proc_id: int) -> None:
        """A worker has run its bootstrap, which may have put it into a cgroup of its own."""
        worker = self._workers.get(proc_id)
        if worker is not None:
            self._evidence.look_at(worker.launched.pid)

    def signal(self, proc_id: int, sig: int) -> bool:
        """Signal a worker; False when it is not alive (any more)."""
        worker = self._workers.get(proc_id)
        return worker is not None and self._send(worker, sig)

    def _send(self, worker: Worker, sig: int) -> bool:
        worker.sent.add(sig)
        return worker.watch.send(sig)

    async def stop(self, proc_ids: Iterable[int], grace: float) -> dict[int, ExitReport]:
        """SIGTERM, `grace` seconds, SIGKILL, and the orphans; a report for each that was alive.

        Bounded: a process the kernel does not let go within 5 s of SIGKILL is reported as such, and
        `on_exit` follows if it ever ends.
        """
        workers = [self._workers[proc_id] for proc_id in set(proc_ids) if proc_id in self._workers]
        if grace > 0:
            for worker in workers:
                self._terminate(worker)
            await _wait((worker.watch.done for worker in workers), grace)
        for worker in workers:
            if worker.report is None:
                self._send(worker, signal.SIGKILL)
        await _wait((worker.watch.done for worker in workers), _KILL_SECONDS)
        await self._orphans_gone({worker.spec.proc_id for worker in workers})
        return {w.spec.proc_id: w.report or self._report(w, None) for w in workers}

    def _terminate(self, worker: Worker) -> None:
        self._send(worker, signal.SIGTERM)
        if worker.spec.command and worker.report is None:
            try:
                os.killpg(worker.launched.pid, signal.SIGTERM)  # a wrapper may not pass it on
            except ProcessLookupError:
                pass
        worker.watch.send(signal.SIGCONT)  # a stopped process would not see it

    async def _orphans_gone(self, proc_ids: Collection[int]) -> None:
        deadline = self._loop.time() + _KILL_SECONDS
        self._sweep()
        while (left := self._strays.of(proc_ids)) and (rest := deadline - self._loop.time()) > 0:
            await _wait(left, rest)

    async def close(self, grace: float) -> None:
        """End everything: workers as `stop` does, orphans, zygotes. May be called again."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(grace))
        await asyncio.shield(self._closing)

    async def _close(self, grace: float) -> None:
        await self.stop(list(self._workers), grace)
        await self._pool.close()
        await _wait(self._launches, _KILL_SECONDS)
        await self.stop(list(self._workers), 0)
        deadline = self._loop.time() + _KILL_SECONDS
        self._sweep()
        while self._strays and (rest := deadline - self._loop.time()) > 0:
            await _wait(self._strays.all(), rest)
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        self._evidence.close()


async def _wait(futures: Iterable[asyncio.Future[Any]], timeout: float) -> None:
    if pending := {future for future in futures if not future.done()}:
        await asyncio.wait(pending, timeout=timeout)


def _plan(spec: ProcSpec, by_exec: bool) -> WorkerPlan:
    wanted = merged_env(os.environ, spec.env)
    env: dict[str, str | None] = dict(spec.env) if by_exec else {}
    if not spec.inherit_env:
        kept = {k: v for k, v in os.environ.items() if k in KEPT_VARIABLES or k.startswith("ROOST_")}
        env = dict(merged_env(kept, spec.env))
    else:
        env |= {name: wanted.get(name) for name in THREAD_VARIABLES}
    env |= spec.rank_env
    env[OWNER_VARIABLE] = str(spec.proc_id)
    argv, program = None, None
    if by_exec:
        command = tuple(spec.command or ())
        complete = command[-len(CHILD) :] == CHILD
        argv = command if complete else (*command, spec.python or sys.executable, *CHILD)
        program = argv[0]
        argv = (spec.arg0 or program, *argv[1:])
    return WorkerPlan(
        proc_id=spec.proc_id,
        name=spec.name,
        entry=spec.entry,
        payload=spec.payload,
        output=spec.output,
        agent_pid=os.getpid(),
        env=env,
        cpus=parse_cpus(spec.cpus) if spec.cpus else (),
        cwd=spec.cwd,
        sys_path=spec.sys_path,
        argv=argv,
        program=program,
        only_env=not spec.inherit_env,
    )
