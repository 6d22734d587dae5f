"""The host agent: one a host, no torch, no user code. It launches, watches and reaps the workers, relays frames
for them, and tells who asked how each ended.

Started by the controller as `python -m roost.mesh.agent`, with its configuration on standard input (the secret never
stands on a command line or in an environment) and its addresses as one line on standard output. It dies with the
process that started it, and its workers with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack

from ...actors.errors import MeshFailure
from ...actors.link.address import parse
from ...actors.link.io import IoThread
from ...actors.link.stream import Link
from ...actors.node import Node
from ...actors.peer import Peer
from ...actors.refs import ProcRef
from ...actors.requests import tell
from ...actors.runtime import Runtime, set_runtime
from ...actors.supervision import DYING_WAIT
from ..card import write_agent
from ..identity import identity_of
from ..launch import ExitReport, Launched, Launcher, ProcSpec
from ..launch.request import GIVEN_UP
from .clients import Clients
from .dumps import Dumps
from .hostnames import HostNames
from .output import OutputTail
from .owners import GRACE, Owners
from .specs import worker_spec, zygote_for
from .starting import advertised_as, listen_at
from .table import Table
from .watches import Watches

logger = logging.getLogger("roost.agent")

READY_TIMEOUT = 60.0  # seconds a worker may take from its first instruction to its link, while it lives
DETACHED_HERE = (
    "detached processes outlive the program, and the agent of {host} ends with it: spawn them on hosts of worker loops "
    "(`run_worker_loop_forever`, `attach_to_workers`)"
)
LAST_WORDS = 1.0  # seconds for the last output to leave


class Agent:
    """The agent of one host."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.run_dir = Path(config["run_dir"])
        self.io = IoThread(own_thread=False)
        identity = identity_of(config["proc_id"], config["node_id"], config["name"], "agent", "")
        self.node = Node(identity, config["secret"], self.io)
        self.node.host = config["host"]
        self.runtime = Runtime(self.node)
        set_runtime(self.runtime)
        self.launcher = Launcher(
            self.io.loop, self.run_dir, self._read_out, host=config["host"], node_id=config["node_id"]
        )
        self.output = OutputTail(self.node, Path(config.get("log_dir") or self.run_dir / "logs"))
        self.dumps = Dumps(self.run_dir, self.launcher.live)
        self.ended: dict[int, tuple[ExitReport, bool, str]] = {}
        self.stopping: dict[int, str] = {}
        self.ready: dict[int, asyncio.Future[None]] = {}
        self.over = asyncio.Event()
        self.asked = False  # to end, by a program that lives on, whose own sockets may stand in the run directory
        self._checks: list[Callable[[], None]] = []
        self.node.system.update(
            {
                "spawn": self.spawn,
                "stop": self.stop,
                "signal": self.signal,
                "warm": self.warm,
                "shutdown": self.shutdown,
                "resources": self.resources,
                "dump stacks": self.dumps.serve,
            }
        )
        self.runtime.events.update({"exited": self._ended_elsewhere, "actor failed": self._actor_failed})
        self.names = HostNames(self)
        self.node.routing.ended = self.ended.__contains__
        joined = self.node.routing.joined

        def note_joined(link: Link) -> None:
            joined(link)
            waiter = self.ready.get(link.peer.proc_id)
            if waiter is not None and not waiter.done():
                self.launcher.has_started(link.peer.proc_id)
                waiter.set_result(None)

        self.node.routing.joined = note_joined  # type: ignore[method-assign]
        self.clients = Clients(self)
        self.owners = Owners(self)
        self.watches = Watches(self)
        self.table = Table(self)

    async def run(self, ready: int) -> None:
        """Listen, say where, and work until told to stop or the controller is gone."""
        self.launcher.adopt()
        unix = self.node.gate.listen(parse(f"unix://{self.run_dir}/{self.node.proc_id:x}.sock"))
        addresses = [str(unix)]
        for wanted in self.config["listen"]:
            addresses.append(str(listen_at(self.node.gate, wanted, ready)))
        advertised = advertised_as(self.config.get("advertise"), addresses[-1])
        self.node.ref = ProcRef(
            self.node.proc_id,
            self.config["name"],
            self.node.node_id,
            self.config["host"],
            str(unix),
            self.node.proc_id,
            advertised,
            0,
        )
        self.node.gate.set_identity(
            identity_of(self.node.proc_id, self.node.node_id, self.config["name"], "agent", advertised)
        )
        write_agent(self.config, str(unix))
        os.write(ready, msgpack.packb({"addresses": addresses, "pid": os.getpid(), "ref": self.node.ref.to_wire()}))
        os.close(ready)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self.over.set)
        self.output.start()
        warm = loop.create_task(self._warm_quietly())
        await self.over.wait()
        warm.cancel()
        await self.close()

    async def _warm_quietly(self) -> None:
        """Have the zygote that the controller will most likely want, before it asks."""
        try:
            await self.launcher.warm(zygote_for(self.config["preload"], {}, self.config["sys_path"]))
        except Exception as error:  # noqa: BLE001 - it is started again, and judged, when it is needed
            logger.info("the zygote was not started ahead: %s", error)

    async def close(self) -> None:
        """End every worker and every zygote, then leave."""
        self.clients.farewell(*self._why())
        for proc_id in self.launcher.live():
            self.stopping.setdefault(proc_id, "its host agent ends")
        await self.stop(
            self.node,
            self.node.peer(self.node.proc_id),
            [list(self.launcher.live()), "its host agent ends", GRACE, True],
            b"",
        )
        await self.launcher.close(GRACE)
        self.output.stop()
        await self._drain()
        self.node.close()
        if not self.asked:  # whoever started it removes the directory then
            shutil.rmtree(self.run_dir, ignore_errors=True)

    def _why(self) -> tuple[str, bool]:
        """Why this agent ends, and whether somebody wanted that: the kernel signals it when its parent is gone."""
        host, parent = self.config["host"], self.config.get("parent")
        if parent is None or self.asked or os.getppid() == parent:
            return f"the host agent of {host} was shut down", True
        return f"the process that held the worker loop on {host} (pid {parent}) has died, and the loop with it", False

    async def _drain(self) -> None:
        """Let the last output leave."""
        until = time.monotonic() + LAST_WORDS
        await asyncio.sleep(0)
        while time.monotonic() < until and any(link.queued_bytes for link in self.node.routing.links.values()):
            await asyncio.sleep(0.001)

    # requests

    def spawn(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[common, members]: start workers; the answer is for each None, or the sentence that says why not.

        They are known here at once: what is sent to them may follow this request in the same read.
        """
        common, members = arguments
        first = common.get("detached")  # the agent and the first process of a detached mesh
        if first is not None and not self.config.get("stays"):
            return [DETACHED_HERE.format(host=self.config["host"])] * len(members)
        refused = self.owners.own(ProcRef.from_wire(common["owner"]), [member["ref"][0] for member in members], first)
        if refused is not None:
            return [refused] * len(members)
        if first is not None:
            assert node.ref is not None
            common = {**common, "owner": node.ref.to_wire(), "root": None}
        specs = []
        for member in members:
            ref = ProcRef.from_wire(member["ref"])
            node.routing.local.add(ref.proc_id)
            self.ready[ref.proc_id] = node.io.loop.create_future()
            self.watches.add(ref.proc_id, peer.proc_id)
            self.output.follow(ref, peer)
            specs.append(self._spec(ref, common, member, bytes(body)))
        return self._launch(node, peer, specs)

    async def _launch(self, node: Node, peer: Peer, specs: list[ProcSpec]) -> list[str | None]:
        wanted = all(spec.proc_id in self.owners for spec in specs)  # their owner has not ended since
        answers = await self.launcher.launch(specs) if wanted else [GIVEN_UP] * len(specs)
        results: list[str | None] = []
        for spec, answer in zip(specs, answers, strict=True):
            if isinstance(answer, Launched):
                results.append(None)
                for note in answer.notes:
                    node.event(peer, "note", note)
            else:
                self._forget(spec.proc_id)
                self.names.exited(spec.proc_id, True)
                self.owners.exited(spec.proc_id)
                self.ready[spec.proc_id].set_result(None)
                results.append(str(answer))
        waiters = [self.ready[spec.proc_id] for spec in specs if spec.proc_id in self.ready]
        if waiters:
            await asyncio.wait(waiters, timeout=READY_TIMEOUT)
        for i, spec in enumerate(specs):
            if results[i] is None:
                results[i] = self._unready(spec)
            self.ready.pop(spec.proc_id, None)
        return results

    def _unready(self, spec: ProcSpec) -> str | None:
        waiter = self.ready.get(spec.proc_id)
        if spec.proc_id in self.ended:
            report = self.ended[spec.proc_id][0]
            tail = "".join(f"\n    {line}" for line in report.stderr_tail[-8:])
            return f"{report.sentence()} before it was ready{tail}"
        if waiter is not None and not waiter.done():
            return f"worker {spec.name} did not link to its agent within {READY_TIMEOUT:g} s"
        return None

    def _spec(self, ref: ProcRef, common: dict[str, Any], member: dict[str, Any], bootstrap: bytes) -> ProcSpec:
        return worker_spec(
            common,
            member,
            bootstrap,
            secret=self.config["secret"],
            agent=f"unix://{self.run_dir}/{self.node.proc_id:x}.sock",
            output=self.output.path(ref.name, ref.proc_id),
        )

    async def warm(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[preload, env, sys_path]: have a zygote ready that has imported these modules."""
        preload, env, sys_path = arguments
        return list(await self.launcher.warm(zygote_for(preload, env, sys_path)))

    async def stop(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[processes, reason, seconds, ask]: ask them to end, then make them; the answer is how each ended.

        Without `ask` they have been asked already, behind the messages that the same sender had for them.
        """
        proc_ids, reason, grace, ask = arguments
        starting = [self.ready[proc_id] for proc_id in proc_ids if proc_id in self.ready]
        for proc_id in proc_ids:
            if proc_id in self.ready:
                self.stopping[proc_id] = reason
        if starting:
            await asyncio.wait(starting, timeout=READY_TIMEOUT)
        live = [proc_id for proc_id in proc_ids if proc_id in self.launcher.live()]
        for proc_id in live:
            self.stopping[proc_id] = reason
        gone = asyncio.Event()

        def check() -> None:
            if all(proc_id in self.ended for proc_id in live):
                gone.set()

        self._checks.append(check)
        try:
            for proc_id in live:
                if ask and proc_id in node.routing.links:
                    tell(node, node.peer(proc_id), "end", reason, grace)
            check()
            async with asyncio.timeout(max(grace, 0.05)):
                await gone.wait()
        except TimeoutError:
            logger.info("workers that did not end within %g s of being asked are killed", grace)
        except MeshFailure as error:
            logger.debug("a worker ended while it was asked to: %s", error)
        finally:
            self._checks.remove(check)
        await self.launcher.stop(live, GRACE)
        until = time.monotonic() + 2 * DYING_WAIT
        while not all(proc_id in self.ended for proc_id in live) and time.monotonic() < until:
            await asyncio.sleep(0.001)
        return [self.ended[proc_id][0].to_wire() for proc_id in live if proc_id in self.ended]

    def signal(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[process, number]: send a signal; it counts as unplanned."""
        proc_id, number = arguments
        live = self.launcher.live().get(proc_id)
        if live is None:
            return False
        os.kill(live.pid, number)  # not through the launcher, which would report it as a stop on request
        return True

    def shutdown(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """End this agent, and all that runs under it."""
        self.asked = True
        node.io.loop.call_later(0.001, self.over.set)
        return True

    def resources(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """What this host has: cores and devices."""
        from ..devices import detect

        devices = detect()
        return {"cpus": len(os.sched_getaffinity(0)), "devices": [devices.kind, list(devices.ids)]}

    # deaths

    def _read_out(self, proc_id: int, report: ExitReport, until: float | None = None) -> None:
        """A worker has ended: what it had said, and still is in its socket, is passed on before the news."""
        now = time.monotonic()
        until = now + DYING_WAIT if until is None else until
        link = self.node.routing.links.get(proc_id)
        if link is None or link.closed or now > until:
            self._exited(proc_id, report)
        else:
            self.io.loop.call_later(0.001, self._read_out, proc_id, report, until)

    def _exited(self, proc_id: int, report: ExitReport) -> None:
        reason = self.stopping.pop(proc_id, "")
        planned = bool(reason)
        self.ended[proc_id] = (report, planned, reason)
        while len(self.ended) > 10_000:
            del self.ended[next(iter(self.ended))]
        waiter = self.ready.get(proc_id)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        self.output.last(proc_id)
        files = [self.run_dir / f"{proc_id:x}.{kind}" for kind in ("sock", "stacks")]
        kept = bool(report.stderr_tail) and (self.config.get("log_dir") or not planned)
        for left in (*files, *(() if kept else (Path(report.output),))):
            with contextlib.suppress(OSError):
                left.unlink()
        self.watches.exited(proc_id, report, planned, reason)
        self._forget(proc_id)
        if proc_id in self.owners.detached and not planned:
            logger.warning("a detached process died: %s", report.sentence())
        self.names.exited(proc_id, planned)
        self.owners.exited(proc_id)
        for check in list(self._checks):
            check()

    def _ended_elsewhere(self, peer: Peer, proc_id: int, report: list[Any], planned: bool, reason: str) -> None:
        self.watches.exited(proc_id, ExitReport.from_wire(report), planned, reason)
        self.names.exited(proc_id, planned)
        self.owners.ended(proc_id)

    def _actor_failed(
        self, peer: Peer, actor_id: int, owner: int, rank: int, name: str, reason: str, record: dict[str, Any]
    ) -> None:
        """Of a detached mesh: it has no owner to tell."""
        logger.warning("a detached actor has failed: %s at rank %d: %s", name, rank, reason)

    def _forget(self, proc_id: int) -> None:
        self.node.routing.local.discard(proc_id)
        for _, nbytes in self.node.routing._waiting.pop(proc_id, ()):
            self.node.routing._waiting_bytes -= nbytes
        peer = self.node.peers.get(proc_id)
        if peer is not None:
            self.node.bury(peer, MeshFailure(f"{peer.name} has ended"))
