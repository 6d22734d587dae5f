"""Simulated processes and hosts: real nodes, runtimes and homes of actors, and an agent that launches in memory."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal as signals
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from ..actors.errors import MeshFailure
from ..actors.node import Node
from ..actors.peer import Peer
from ..actors.refs import ProcRef
from ..actors.runtime import Runtime
from ..actors.wire import pickling
from ..actors.wire.definitions import DEFINITIONS
from ..mesh.homes import Homes
from ..mesh.hostref import HostRef
from ..mesh.identity import identity_of
from ..mesh.launch import ExitReport
from ..mesh.life import watch_exits
from .lanes import Lane
from .network import LaneIo, SimRouting

if TYPE_CHECKING:
    from .simulation import Simulation

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("roost_process", default=None)
GRACE = 0.3  # virtual seconds between being asked to end and being ended


class Process:
    """One simulated process."""

    def __init__(self, sim: Simulation, host: Host, ref: ProcRef, role: str) -> None:
        self.sim = sim
        self.host = host
        self.ref = ref
        self.proc_id = ref.proc_id
        self.name = ref.name
        self.environ: dict[str, str] | None = None
        self.report: ExitReport | None = None  # how it ended
        self.listens = False
        self.born = sim.scheduler.now
        self.lanes: list[Lane] = []
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self)
        io: Any = LaneIo(sim.scheduler, sim.loop, sim.io_lane, self)
        io.quiet = True
        self.pid = os.getpid() if role == "controller" else sim.next_pid()
        identity = replace(identity_of(ref.proc_id, ref.node_id, ref.name, role, ref.address), pid=self.pid)
        self.node = Node(identity, b"", io)
        self.node.ref = ref
        self.node.host = host.name
        self.node.routing = SimRouting(self, sim.network)
        self.runtime = Runtime(self.node)
        self.homes = Homes(self.runtime, use_main_thread=False)
        watch_exits(self.runtime)
        io.quiet = False
        sim.network.processes[self.proc_id] = self

    def __repr__(self) -> str:
        return f"<Process {self.name} on {self.host.name}{', ended' if self.report else ''}>"

    def serve(self) -> None:
        """Answer what a worker is asked."""
        spawn = self.node.system["spawn actor"]

        def placed(node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
            place = self.sim.placed.get(self.proc_id)
            if place is not None:  # its rank, labels and sizes are those of a larger mesh
                arguments[2:5] = place
            return spawn(node, peer, arguments, body)

        self.node.system.update({"spawn actor": placed, "end": self._end, "statistics": self._statistics})

    async def _end(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[reason, seconds]: stop every actor, then leave."""
        reason, timeout = arguments
        await self.homes.close(reason, timeout)
        self.runtime.end()
        self.node.io.call(self.exit)
        return True

    def _statistics(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        return {
            "name": self.name,
            "pid": self.pid,
            "actors": [cell.statistics() for cell in list(node.cells.values())],
        }

    def exit(self, code: int | None = 0, signal: str | None = None, oom: str | None = None, note: str = "") -> None:
        """It ends, now: its lanes never run again, what it has sent still arrives."""
        if self.report is not None:
            return
        scheduler = self.sim.scheduler
        self.report = ExitReport(
            proc_id=self.proc_id,
            name=self.name,
            pid=self.pid,
            host=self.host.name,
            node_id=self.ref.node_id,
            code=code if signal is None else None,
            signal=signal,
            core_dumped=False,
            oom=oom,
            gpu_fault=None,
            stderr_tail=(),
            output="",
            uptime_s=scheduler.now - self.born,
            note=note or None,
        )
        self.node.closed = True
        here = scheduler.current in self.lanes
        for lane in self.lanes:
            if lane is not scheduler.current:
                scheduler.drop(lane)
        self.host.has_ended(self)
        if here:
            scheduler.vanish()


class Host:
    """One simulated host and its agent."""

    def __init__(self, sim: Simulation, name: str, agent_id: int) -> None:
        self.sim = sim
        self.name = name
        self.ref = HostRef(f"sim-{name}", name, agent_id, f"sim://{name}", f"/sim/{name}")
        self.agent = Process(sim, self, self.ref.agent(), "agent")
        self.agent.listens = True
        self.stopping: dict[int, str] = {}
        self.watchers: dict[int, set[int]] = {}
        self.owned: dict[int, set[int]] = {}
        self.agent.node.system.update(
            {
                "spawn": self.spawn,
                "stop": self.stop,
                "signal": self.signal,
                "watch": self.watch,
                "shutdown": self.shutdown,
                "resources": lambda *request: {"cpus": os.cpu_count() or 1, "devices": ["cpu", []]},
                "warm": lambda *request: [],
            }
        )
        self.agent.node.routing.ended = lambda proc_id: self._ended(proc_id) is not None
        self.agent.runtime.events["exited"] = lambda peer, proc_id, *rest: self.end_owned(proc_id)

    def __repr__(self) -> str:
        return f"<Host {self.name}, {len(self.live())} processes>"

    def live(self) -> list[Process]:
        """Its workers."""
        return [
            process
            for process in self.sim.network.processes.values()
            if process.host is self and process.report is None and process.node.role == "worker"
        ]

    def _ended(self, proc_id: int) -> ExitReport | None:
        process = self.sim.network.processes.get(proc_id)
        return process.report if process is not None else None

    # requests

    async def spawn(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> list[str | None]:
        """[common, members]: start workers; the answer is for each None, or the sentence that says why not."""
        common, members = arguments
        owner = ProcRef.from_wire(common["owner"])
        for content, blob in common.get("definitions", ()):
            DEFINITIONS.learn(content, blob)
        started = []
        for member in members:
            process = Process(self.sim, self, ProcRef.from_wire(member["ref"]), "worker")
            process.environ = environment(common, member)
            process.serve()
            process.runtime.root = self.sim.controller.ref
            self.watchers.setdefault(process.proc_id, set()).add(peer.proc_id)
            self.owned.setdefault(owner.proc_id, set()).add(process.proc_id)
            started.append(process)
        if owner.node_id != self.ref.node_id:
            node.vigil.watch(node.peer(owner.proc_id, where=owner))
        if self.sim.start_time:
            await asyncio.sleep(self.sim.start_time)
        return list(await asyncio.gather(*(self._start(process, owner, bytes(body)) for process in started)))

    async def _start(self, process: Process, owner: ProcRef, bootstrap: bytes) -> str | None:
        if bootstrap:
            error = await self._bootstrap(process, bootstrap)
            if error is not None:
                process.exit(code=1)
                assert process.report is not None
                return f"{process.report.sentence()} before it was ready\n    {type(error).__name__}: {error}"
        if process.report is not None:
            return f"{process.report.sentence()} before it was ready"
        process.listens = True
        network = self.sim.network
        network.connect(process, self.agent)
        spawner = network.processes.get(owner.proc_id)
        if spawner is not None and spawner.host is self and spawner.report is None:
            network.connect(process, spawner)
        return None

    async def _bootstrap(self, process: Process, packed: bytes) -> BaseException | None:
        done = asyncio.Event()
        outcome: list[BaseException | None] = [None]
        loop = self.sim.loop

        def run() -> None:
            try:
                answer = cast(Any, pickling.unpack(packed))()
                if hasattr(answer, "__await__"):

                    async def wait() -> None:
                        await answer

                    asyncio.run(wait())
            except Exception as error:  # noqa: BLE001 - it ends the process
                outcome[0] = error
            loop.call_soon_threadsafe(done.set)

        self.sim.start_lane(f"bootstrap of {process.name}", run, process)
        await done.wait()
        return outcome[0]

    async def stop(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[processes, reason, seconds, ask]: ask them to end, then make them."""
        proc_ids, reason, grace, ask = arguments
        mine = [process for process in self.live() if process.proc_id in proc_ids]
        for process in mine:
            self.stopping[process.proc_id] = reason
            if ask:
                process.node.io.call(self._ask, process, reason, grace)
        loop = asyncio.get_running_loop()
        until = loop.time() + max(grace, GRACE)
        pause = 0.0
        while any(process.report is None for process in mine) and loop.time() < until:
            await asyncio.sleep(pause)
            pause = min(pause * 2 or 0.001, 0.1)
        for process in mine:
            process.exit(signal="SIGKILL")
        return [process.report.to_wire() for process in mine if process.report is not None]

    @staticmethod
    def _ask(process: Process, reason: str, grace: float) -> None:
        node = process.node
        task = node.io.loop.create_task(process._end(node, node.peer(node.proc_id), [reason, grace], b""))
        node.routing.tasks.add(task)
        task.add_done_callback(node.routing.tasks.discard)

    def signal(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[process, number]: end it by a signal; it counts as unplanned."""
        proc_id, number = arguments
        found = [process for process in self.live() if process.proc_id == proc_id]
        for process in found:
            process.exit(signal=signals.Signals(number).name)
        return bool(found)

    def watch(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[processes]: tell this peer when they end; at once if they have."""
        for proc_id in arguments:
            process = self.sim.network.processes.get(proc_id)
            if process is None or process.report is None:
                self.watchers.setdefault(proc_id, set()).add(peer.proc_id)
            else:
                self._tell(peer.proc_id, process, self.stopping.get(proc_id, ""))
        return True

    def shutdown(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """End all that runs on this host."""
        for process in self.live():
            self.stopping[process.proc_id] = "its host agent ends"
            process.exit()
        return True

    # deaths

    def has_ended(self, process: Process) -> None:
        """A process of this host has ended: whoever asked hears of it."""
        self.agent.node.io.call(self._bury, process)

    def _bury(self, process: Process) -> None:
        reason = self.stopping.get(process.proc_id, "")
        for watcher in self.watchers.pop(process.proc_id, ()):
            self._tell(watcher, process, reason)
        node = self.agent.node
        node.bury(node.peer(process.proc_id, process.name), MeshFailure(f"{process.name} has ended"))
        self.end_owned(process.proc_id)

    def _tell(self, watcher: int, process: Process, reason: str) -> None:
        node = self.agent.node
        assert process.report is not None
        node.event(node.peer(watcher), "exited", process.proc_id, process.report.to_wire(), bool(reason), reason)

    def end_owned(self, owner: int) -> None:
        """What a process spawned ends with it."""
        orphans = self.owned.pop(owner, set())
        if orphans:
            node = self.agent.node
            request: list[Any] = [list(orphans), "its owner has ended", GRACE, True]
            task = node.io.loop.create_task(self.stop(node, node.peer(node.proc_id), request, b""))
            node.routing.tasks.add(task)
            task.add_done_callback(node.routing.tasks.discard)


def environment(common: dict[str, Any], member: dict[str, Any]) -> dict[str, str]:
    """The variables of one worker."""
    values = dict(os.environ)
    for changes in (common.get("changed"), common.get("env"), member.get("rank_env")):
        for name, value in (changes or {}).items():
            if value is None:
                values.pop(name, None)
            else:
                values[name] = value
    return values
