"""What stands in for threads, clocks and the current process while a simulation runs.

Everything is found by identity in the modules of Roost and put back at the end. Each stand-in acts in lanes of the
simulation only: other threads of the program get the real thing.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import importlib
import os
import pkgutil
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import actors, mesh
from ..actors import bodies, faults, future, node, port, refs, runtime
from ..actors.context import Context
from ..actors.errors import MeshFailure
from ..actors.link import io, readers
from ..mesh import hostmesh, local, spawning
from .substitutes import Controllers, Current, Environ, LaneEvent, LaneQueue, LaneThread, PerProcess, Shim
from .world import PROCESS

if TYPE_CHECKING:
    from .simulation import Simulation
    from .world import Process

_LOADED = (actors, mesh)
_SKIPPED = ("roost.mesh.agent", "roost.mesh.launch")  # they run in processes of their own
_DRAWS = ("random", "randrange", "randint", "choice", "choices", "shuffle", "sample", "uniform", "getrandbits")


class StandIns:
    """All of them; `install` and `remove`."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._undo: list[Callable[[], None]] = []
        self._pairs: list[tuple[Any, Any]] = []

    def install(self) -> None:
        """Put the stand-ins in place."""
        load_everything()
        sim, scheduler = self._sim, self._sim.scheduler
        here = scheduler.here

        def monotonic() -> float:
            return scheduler.now if here() else time.monotonic()

        def perf_counter() -> float:
            return scheduler.now if here() else time.perf_counter()

        def make_thread(*args: Any, **options: Any) -> threading.Thread:
            if not here():
                return threading.Thread(*args, **options)
            return LaneThread(sim, sim.process(), **options)

        def make_event() -> threading.Event:
            return LaneEvent(scheduler)

        def make_queue() -> Any:
            return LaneQueue(scheduler) if here() else queue.SimpleQueue()

        def block(lock: Any, timeout: float) -> bool:
            if not here():
                return readers_block(lock, timeout)
            names = sys._getframe(1).f_locals
            endless = timeout == future._SLICE and None in (names.get("timeout", 0), names.get("until", 0))
            until = None if endless else scheduler.now + timeout
            about = names.get("self") or "an answer"
            return scheduler.wait(lambda: bool(lock.acquire(blocking=False)), until, about=about)

        readers_block, numbers = readers.block, random.Random(sim.seed or 0)
        self._pairs = [
            (time, Shim(time, monotonic=monotonic, perf_counter=perf_counter)),
            (threading, Shim(threading, Thread=make_thread, Event=make_event)),
            (queue, Shim(queue, SimpleQueue=make_queue)),
            (random, Shim(random, **{name: getattr(numbers, name) for name in _DRAWS})),
            (readers.block, block),
            (io.new_event_loop, self._either(io.new_event_loop, sim.new_loop)),
            (bodies.pooled, self._either(bodies.pooled, lambda *to_pool: None)),  # buffers travel inline
            (spawning.default_name, self._either(spawning.default_name, sim.default_name)),
            (future._callback_thread, self._either(future._callback_thread, lambda: sim.callbacks)),
        ]
        self._sweep(self._pairs)
        self._set(node, "_current", Current(sim, node._current, lambda process: process.node))
        self._set(runtime, "_runtime", Current(sim, runtime._runtime, lambda process: process.runtime))
        self._set(local, "_controller", Controllers(sim, local._controller, lambda process: sim.program))
        self._set(port, "_closed", PerProcess(sim, port._closed))
        self._set(hostmesh, "_shut_down", set())
        self._set(refs, "_numbers", random.Random(sim.seed or 0))
        self._set(os, "environ", Environ(sim, os.environ))
        report = faults.Faults.report

        def report_fault(told: faults.Faults, failure: MeshFailure) -> None:
            if here():
                sim.report_fault(failure)
            else:
                report(told, failure)

        self._set(faults.Faults, "report", report_fault)
        self._own_processes()
        new_loop = self._either(asyncio.events.new_event_loop, sim.new_loop)
        self._set(asyncio.events, "new_event_loop", new_loop)
        self._set(asyncio, "new_event_loop", new_loop)

    def _own_processes(self) -> None:
        """What ends the process, or asks for its number, means the simulated one."""
        sim, here = self._sim, self._sim.scheduler.here
        getpid, leave, kill, raise_signal = os.getpid, os._exit, os.kill, signal.raise_signal
        here_pid = getpid()

        def simulated() -> Process | None:
            if getpid() != here_pid:
                return None  # a child that an endpoint has forked
            process = sim.process_or_none() if here() else None
            return process if process is not None and process is not sim.controller else None

        def own_pid() -> int:
            thread = threading.current_thread()
            process = thread.lane.process or PROCESS.get() if isinstance(thread, LaneThread) else None
            real = getpid()
            return real if process is None or process is sim.controller or real != here_pid else process.pid

        def own_exit(status: int) -> None:
            if simulated() is None:
                leave(status)
            sim.end_current(status)

        def own_kill(pid: int, number: int) -> None:
            if getpid() != here_pid or not here() or not sim.signal(pid, number):
                kill(pid, number)

        def own_raise(number: int) -> None:
            process = simulated()
            if process is None or not sim.signal(process.pid, number):
                raise_signal(number)

        cancelled = vars(Context)["cancelled"].fget

        def asked(context: Context) -> bool:
            if simulated() is not None:
                sim.scheduler.look()
            return bool(cancelled(context))

        done = future.Future.done

        def simulating_user() -> bool:
            return here() and sim.scheduler.current is not sim.io_lane

        def looked(which: future.Future[Any]) -> bool:
            asker = str(sys._getframe(1).f_globals.get("__name__"))
            if not done(which) and simulating_user() and not asker.startswith("roost."):
                sim.scheduler.look()
            return done(which)

        self._set(future.Future, "done", looked)
        self._set(Context, "cancelled", property(asked))
        self._set(os, "getpid", own_pid)
        self._set(os, "_exit", own_exit)
        self._set(os, "kill", own_kill)
        self._set(signal, "raise_signal", own_raise)

    def _either(self, real: Callable[..., Any], simulated: Callable[..., Any]) -> Callable[..., Any]:
        def choose(*args: Any) -> Any:
            return simulated(*args) if self._sim.scheduler.here() else real(*args)

        return choose

    def set(self, where: Any, name: str, value: Any) -> None:
        """Replace one attribute until the end."""
        self._set(where, name, value)

    def _set(self, where: Any, name: str, value: Any) -> None:
        before = getattr(where, name)
        setattr(where, name, value)
        self._undo.append(lambda: setattr(where, name, before))

    @staticmethod
    def _sweep(pairs: list[tuple[Any, Any]]) -> None:
        by_id = {id(real): stand_in for real, stand_in in pairs}
        for name, module in list(sys.modules.items()):
            if module is None or not name.startswith("roost.") or name.startswith("roost.testing"):
                continue
            for key, value in list(vars(module).items()):
                if id(value) in by_id:
                    setattr(module, key, by_id[id(value)])

    def remove(self, *, stuck: bool) -> None:
        """Put everything back; threads that would not end keep the process they believe to be."""
        keep = (os.getpid, os._exit)
        while self._undo:
            self._undo.pop()()
        if stuck:
            os.getpid, os._exit = keep
        self._sweep([(stand_in, real) for real, stand_in in self._pairs])
        self._pairs.clear()


_everything: list[bool] = []


def load_everything() -> None:
    """Import what is imported late, so that nothing is missed and nothing keeps a stand-in."""
    if _everything:
        return
    _everything.append(True)
    for package in _LOADED:
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.startswith(_SKIPPED) and not found.name.endswith("__main__"):
                importlib.import_module(found.name)
