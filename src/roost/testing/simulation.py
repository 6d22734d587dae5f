"""A simulation: hosts, processes and actors of a program under test, in one process, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import warnings
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from .. import actors
from ..actors import routing, travel
from ..actors.endpoint import EndpointDefinition
from ..actors.errors import MeshFailure
from ..actors.faults import default_fault_hook
from ..actors.refs import new_id
from ..mesh.hostmesh import HostMesh
from ..mesh.shape import Extent
from .account import Account
from .clock import Clock
from .errors import SimulationError, UnfinishedWarning
from .lanes import Lane, Scheduler, Unwound
from .loops import Adopted, LaneLoop
from .network import Network
from .program import Program
from .stand_ins import StandIns
from .substitutes import LaneQueue, LaneThread
from .trouble import Trouble
from .watch import Watch
from .world import PROCESS, Host, Process

T = TypeVar("T")

FIRST_PID = 10_000_000
END_TIMEOUT = 30.0  # virtual seconds the actors get to end

_active: list[Simulation] = []


class Simulation(Trouble, Account):
    """What `simulate()` gives. Inside it `this_host()` and everything that comes of it is simulated."""

    def __init__(
        self,
        *,
        seed: int | None = None,
        autojump: bool = True,
        latency: float = 0.0,
        link_timeout: float | None = None,
        start_time: float = 0.0,
        patch_time: bool = False,
        patience: float = 30 * 86400.0,
        max_steps: int = 1_000_000,
    ) -> None:
        self.seed = seed
        self.start_time = start_time
        self.scheduler = Scheduler(seed, autojump=autojump, patience=patience, max_steps=max_steps)
        self.scheduler.explain = self.explain
        self.clock = Clock(self.scheduler)
        self.faults: list[MeshFailure] = []
        self.unfinished: list[str] = []
        self.placed: dict[int, list[Any]] = {}  # by process: [rank, labels, sizes] of its only actor
        self.io_lane = Lane("I/O", None)
        self._latency = latency
        self._link_timeout = link_timeout
        self._patch_time = patch_time
        self._stand_ins = StandIns(self)
        self.watch = Watch(self)
        self.all_hosts: list[Host] = []
        self._adopted: Adopted | None = None
        self._callbacks: dict[Process, LaneQueue] = {}
        self._stack = contextlib.ExitStack()
        self._meshes = self._pids = 0
        self._over = False

    def __repr__(self) -> str:
        seed = f", seed {self.seed}" if self.seed is not None else ""
        return f"<Simulation at {self.clock.now:g} s, {len(self.all_hosts)} hosts, {len(self.calls)} calls{seed}>"

    # its life

    def __enter__(self) -> Simulation:
        if _active:
            raise SimulationError("a simulation runs already; they do not nest")
        if self._over:
            raise SimulationError("a simulation runs once: make another by simulate()")
        _active.append(self)
        self._over = True
        try:
            self._begin()
        except BaseException:  # restored, and raised again
            self._end()
            raise
        return self

    def _begin(self) -> None:
        self._stand_ins.install()
        self.loop = LaneLoop(self.scheduler, self.start_lane)
        self.network = Network(self.scheduler, self.loop, self._latency)
        thread = LaneThread(self, None, target=self._run_io, name="roost-sim-io")
        thread.lane, self.io_lane.name = self.io_lane, "I/O"
        thread.start()
        watch, original = self.watch, EndpointDefinition.info
        self._stand_ins.set(EndpointDefinition, "info", lambda definition: watch.info(definition, original(definition)))
        self._stand_ins.set(travel, "OWN_FILES", (*travel.OWN_FILES, "testing/watch.py"))
        if self._link_timeout is not None:
            self._stand_ins.set(routing, "LINK_TIMEOUT", self._link_timeout)
        home = self.add_host()
        ref = home.ref.process(new_id(), "controller")
        self.controller = Process(self, home, ref, "controller")
        self.controller.listens = True
        self.program = Program(self)
        self.scheduler.client.process = self.controller
        self.controller.lanes.append(self.scheduler.client)
        if self._patch_time:
            self._stack.enter_context(self.clock.patch_time())
        self.look_at_loop()
        self.clock.settle()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._wind_up()
        finally:
            self._end()
        if kind is None and self.unfinished:
            warnings.warn(
                "calls without an answer when the simulation ended: " + "; ".join(self.unfinished),
                UnfinishedWarning,
                stacklevel=2,
            )

    async def __aenter__(self) -> Simulation:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def _wind_up(self) -> None:
        """As at the end of a program: what was sent arrives, failures that nobody saw count, actors end."""
        self.clock.settle()
        self.unfinished = self.pending()
        self.faults += self.controller.runtime.supervisor.settle()
        live = [process for host in self.all_hosts for process in host.live()]
        everybody = [*reversed(live), self.controller]
        self.scheduler.allowed = self.clock.now + END_TIMEOUT + 1
        closing = [
            process.node.io.submit(process.homes.close("the program ends", END_TIMEOUT)) for process in everybody
        ]
        for done in closing:
            with contextlib.suppress(TimeoutError):
                done.result(END_TIMEOUT)

    def _end(self) -> None:
        stuck: list[Lane] = []
        try:
            if self._adopted is not None:
                self._adopted.give_back()
            stuck = self.scheduler.close()
            loop = self.__dict__.get("loop")
            if not stuck and loop is not None and not loop.is_closed():  # its lane had not begun
                loop.close()
        finally:
            self._stack.close()
            self._stand_ins.remove(stuck=bool(stuck))
            _active.clear()
        if stuck:
            names = ", ".join(lane.name for lane in stuck)
            warnings.warn(f"threads of the simulation that did not end: {names}", UnfinishedWarning, stacklevel=3)

    def _run_io(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    # hosts

    def this_host(self) -> HostMesh:
        """The host that the test itself runs on: what `roost.this_host()` gives inside."""
        return HostMesh([self.all_hosts[0].ref], Extent([], []).region)

    def host(self, name: str | None = None) -> HostMesh:
        """A new host, without dimensions."""
        return HostMesh([self.add_host(name).ref], Extent([], []).region)

    def hosts(self, n: int, label: str = "hosts") -> HostMesh:
        """`n` new hosts, named host1, host2, …; spawn on them as on any hosts."""
        return HostMesh.of_hosts([self.add_host().ref for _ in range(n)], label)

    def add_host(self, name: str | None = None) -> Host:
        """A new host with its agent."""
        if any(host.name == name for host in self.all_hosts):
            raise ValueError(f"there is a host {name!r} already")
        host = Host(self, name or f"host{len(self.all_hosts)}", new_id())
        self.all_hosts.append(host)
        return host

    def shutdown(self) -> None:
        """End every process, as `roost.shutdown()` does."""
        for host in self.all_hosts:
            for process in host.live():
                host.stopping[process.proc_id] = "the program has shut down"
                process.exit()
        self.clock.settle()

    # what happens

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the test in virtual time, as asyncio.run does in real time."""
        with asyncio.Runner(loop_factory=self.new_loop) as runner:
            return runner.run(coroutine)

    def thread(self, function: Callable[..., object], *args: Any) -> LaneThread:
        """A thread of the test's own that takes part in the simulation, started; `join()` it."""
        thread = LaneThread(self, self.process(), target=function, args=args, name=getattr(function, "__name__", "t"))
        thread.start()
        return thread

    # for the stand-ins

    def process(self) -> Process:
        """The process whose code runs."""
        return self.process_or_none() or self.controller

    def process_or_none(self) -> Process | None:
        """The same; None for what belongs to no process."""
        current = self.scheduler.current
        return PROCESS.get() if current is self.io_lane else current.process

    def new_loop(self) -> LaneLoop:
        """An event loop in virtual time."""
        return LaneLoop(self.scheduler, self.start_lane)

    def look_at_loop(self) -> None:
        """The test's own event loop, if it runs in one, lives in virtual time too."""
        if self._adopted is None and self.scheduler.current is self.scheduler.client:
            loop = asyncio._get_running_loop()
            if loop is not None and not isinstance(loop, LaneLoop):
                self._adopted = Adopted(loop, self.scheduler, self.start_lane)

    def next_pid(self) -> int:
        """Of a simulated process; larger than any real one."""
        self._pids += 1
        return FIRST_PID + self._pids

    def end_current(self, code: int) -> None:
        """`os._exit` in a simulated process."""
        process = self.process()
        self.watch.died(process)
        process.exit(code=code)

    def signal(self, pid: int, number: int) -> bool:
        """`os.kill` of a simulated process: it ends, whatever handlers there are. False: there is none of this pid."""
        process = next((each for each in self.network.processes.values() if each.pid == pid), None)
        if process is None or process is self.controller:
            return False
        if process.report is not None:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        if number:
            self.watch.died(process)
            process.exit(signal=signal.Signals(number).name)
        return True

    def default_name(self) -> str:
        """The name of a mesh that was given none."""
        self._meshes += 1
        return f"procs{self._meshes - 1}"

    def start_lane(self, name: str, function: Callable[[], None], process: Process | None = None) -> None:
        """Run a function on a lane of its own, as a thread of the current process."""
        LaneThread(self, process or self.process(), target=function, name=name).start()

    def run_lane(self, lane: Lane, function: Callable[[], None]) -> None:
        """The life of a lane, on its thread."""
        try:
            self.scheduler.begin(lane)
            function()
        except Unwound:
            pass
        except BaseException as error:  # noqa: BLE001 - the test hears of it
            self.scheduler.crash(error)
        finally:
            self.scheduler.end(lane)

    @property
    def callbacks(self) -> LaneQueue:
        """Where done callbacks of the current process are put; a lane runs them."""
        process = self.process()
        found = self._callbacks.get(process)
        if found is None:
            found = self._callbacks[process] = LaneQueue(self.scheduler)
            self.start_lane(f"callbacks of {process.name}", lambda: self._run_callbacks(found), process)
        return found

    def _run_callbacks(self, items: LaneQueue) -> None:
        while True:
            callback, future = items.get()
            try:
                callback(future)
            except Exception as error:  # noqa: BLE001 - the test hears of it
                self.scheduler.crash(error)

    def report_fault(self, failure: MeshFailure) -> None:
        """A failure that nobody handled: kept, and told to a hook of the user's own."""
        self.faults.append(failure)
        hook = actors.unhandled_fault_hook
        if hook is not default_fault_hook:
            self.callbacks.put((lambda _: hook(failure), None))


def simulate(
    *,
    seed: int | None = None,
    autojump: bool = True,
    latency: float = 0.0,
    link_timeout: float | None = None,
    start_time: float = 0.0,
    patch_time: bool = False,
    patience: float = 30 * 86400.0,
    max_steps: int = 1_000_000,
) -> Simulation:
    """A simulation, for `with` or `async with`: actors in this process, in virtual time, one thread at a time.

    Args:
        seed: draws who runs next, and whose message arrives next; without it order is first come, first served.
        autojump: the clock jumps when everything waits; without it only `clock.advance` moves it.
        latency: virtual seconds a message takes between two hosts.
        link_timeout: seconds without a route until `Unreachable`; by default ROOST_LINK_TIMEOUT.
        start_time: virtual seconds until a spawned process runs.
        patch_time: `time.sleep`, `time.monotonic` and `time.time` follow the clock (see `Clock.patch_time`).
        patience: virtual seconds the test waits for one thing before it is called a deadlock.
        max_steps: lanes switched to while the test waits for one thing before it is called a circle.

    >>> from roost import Actor, endpoint, testing, this_host
    >>> class Counter(Actor):
    ...     def __init__(self, start): self.n = start
    ...     @endpoint
    ...     def add(self, by):
    ...         self.n += by
    ...         return self.n
    >>> with testing.simulate() as sim:
    ...     counters = this_host().spawn_procs({"gpus": 2}).spawn("counter", Counter, 5)
    ...     counters.add.call(1).get().values()
    [6, 6]
    """
    return Simulation(
        seed=seed,
        autojump=autojump,
        latency=latency,
        link_timeout=link_timeout,
        start_time=start_time,
        patch_time=patch_time,
        patience=patience,
        max_steps=max_steps,
    )


def current_simulation() -> Simulation:
    """The simulation that runs. Raises SimulationError where there is none."""
    if not _active:
        raise SimulationError("no simulation runs: use this inside `with testing.simulate():`")
    return _active[0]
