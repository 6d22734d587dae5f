"""This machine: the controller's runtime and its local agent, started at first use and ended with the program.

Nothing outlives the program: the agent dies with the thread that started it, and its workers with the agent.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import TimeoutError as FutureTimeout

import msgpack

from ..actors.errors import ActorDied, RoostError
from ..actors.link.address import parse
from ..actors.link.io import IoThread
from ..actors.link.readers import install_interrupt_handler, restore_interrupt_handler
from ..actors.node import Node
from ..actors.peer import Peer
from ..actors.port import STARTERS
from ..actors.refs import ProcRef, new_id
from ..actors.runtime import Runtime, current_runtime, set_runtime
from .agent.starting import START_TIMEOUT, make_run_dir, read_ready, start_agent
from .attaching import Attachments
from .card import write_job
from .console import console
from .homes import Homes
from .hostmesh import HostMesh, HostRef, default_preload, import_path, remember_environment
from .identity import identity_of
from .launch import on_user_fork
from .life import agent_lost, watch_exits
from .nametable import has_actor
from .naming import ProgramNames
from .procmesh import Processes, ProcMesh
from .shape import Extent
from .stacks import REQUESTS

logger = logging.getLogger("roost")

STOP_TIMEOUT = 8.0
LAST_WORDS = 1.5  # seconds for what the agents said last to be read


class AgentProcess:
    """A host agent that this program started, and its addresses."""

    def __init__(self, process: subprocess.Popen[bytes], host: HostRef, run_dir: str) -> None:
        self.process = process
        self.host = host
        self.run_dir = run_dir
        self.expected = False

    def end(self, timeout: float = 8.0) -> None:
        """End the agent and all that runs under it; killed when it takes longer than `timeout` seconds."""
        self.expected = True
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            logger.warning("%r did not end in time and is killed", self)
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def __repr__(self) -> str:
        return f"<agent of {self.host.host}, pid {self.process.pid}>"


class Controller:
    """The program's own process: its runtime and the agents it has started."""

    def __init__(self, secret: bytes | None = None) -> None:
        self.secret = secret or os.urandom(32)
        remember_environment()
        self.io = IoThread()
        self.run_dir = make_run_dir()
        try:
            self._start()
        except BaseException:  # restored, and raised again: a start that failed leaves nothing
            for agent in self.agents:
                agent.end(1.0)
            if hasattr(self, "node"):
                self._drain_output()
            shutil.rmtree(self.run_dir, ignore_errors=True)
            self.io.stop()
            set_runtime(None)
            raise

    def _start(self) -> None:
        write_job(self.run_dir)
        proc_id, self.node_id = new_id(), f"{new_id():x}"
        address = f"unix://{self.run_dir}/{proc_id:x}.sock"
        self.node = Node(identity_of(proc_id, self.node_id, "controller", "controller", address), self.secret, self.io)
        self.runtime = Runtime(self.node)
        self.homes = Homes(self.runtime, use_main_thread=False)
        self.agents: list[AgentProcess] = []
        self._lock = threading.Lock()
        self._reviving = threading.Lock()
        self.closed = False
        self.names = ProgramNames(self.node)
        self.attachments = Attachments(self.runtime, lambda: [agent.host for agent in self.agents])
        self.node.system["has actor"] = has_actor
        self.node.system.update(REQUESTS)
        watch_exits(self.runtime)
        self.output = console(self.node, lambda: [agent.host.agent() for agent in self.agents])
        self.runtime.events["output"] = self.output.arrived
        self.runtime.events["output options"] = self.output.configure
        self.runtime.events["note"] = show_note
        self.node.gate.listen(parse(address))
        self.undo_fork = on_user_fork(self._forked)
        self._start_local(proc_id, address)

    def _start_local(self, proc_id: int, address: str) -> None:
        self.local = self.start_agent(self.node_id, ["tcp://127.0.0.1:0"])
        host = self.local.host
        self.node.ref = ProcRef(
            proc_id, "controller", self.node_id, self.node.host, address, host.agent_id, host.agent_address, 0
        )

    def local_host(self) -> HostRef:
        """This machine. Where its agent has died there is a new one from now on; what ran under the old stays dead."""
        with self._reviving:
            if self.local.process.poll() is not None and not self.local.expected and not self.closed:
                assert self.node.ref is not None
                self._start_local(self.node.proc_id, self.node.ref.address)
            return self.local.host

    def _forked(self) -> None:
        """In a child that user code forked: let go of Roost."""
        self.node.abandon()
        set_runtime(None)
        _controller.clear()

    def start_agent(
        self, node_id: str, listen: list[str], name: str = "agent", host: str | None = None
    ) -> AgentProcess:
        """Start a host agent as a child of this program. Raises RoostError when it does not come up."""
        run_dir = self.run_dir if node_id == self.node_id else make_run_dir()
        agent_id = new_id()
        config = {
            "secret": self.secret,
            "proc_id": agent_id,
            "node_id": node_id,
            "name": name,
            "host": host or socket.gethostname(),
            "run_dir": run_dir,
            "listen": listen,
            "parent": os.getpid(),
            "log_dir": os.environ.get("ROOST_LOG_DIR"),
            "job": self.run_dir,
            "preload": default_preload(),
            "sys_path": import_path(),
        }
        process = self.io.submit(_popen(msgpack.packb(config))).result(START_TIMEOUT)
        try:
            answer = read_ready(process)
        except BaseException:  # restored, and raised again
            process.kill()
            process.wait()
            shutil.rmtree(run_dir, ignore_errors=True)
            raise
        ref = ProcRef.from_wire(answer["ref"])
        agent = AgentProcess(process, HostRef(node_id, ref.host, agent_id, ref.agent_address, run_dir), run_dir)
        with self._lock:
            self.agents.append(agent)
        peer = self.node.peer(agent_id, f"agent of {ref.host}")
        peer.where = agent.host.agent()
        peer.watched = True
        self.io.call(self._watch, agent)
        self.attachments.introduce_all(agent.host)
        return agent

    def _watch(self, agent: AgentProcess) -> None:
        """Hear of an agent's own death from the kernel."""
        descriptor = os.pidfd_open(agent.process.pid)

        def ended() -> None:
            self.io.loop.remove_reader(descriptor)
            os.close(descriptor)
            agent.process.wait()
            if not agent.expected and not self.closed:
                self._agent_died(agent)

        self.io.loop.add_reader(descriptor, ended)

    def _agent_died(self, agent: AgentProcess) -> None:
        code = agent.process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        sentence = f"the host agent of {agent.host.host} (pid {agent.process.pid}) {how}, and its processes with it"
        if agent.run_dir != self.run_dir:
            shutil.rmtree(agent.run_dir, ignore_errors=True)
        agent_lost(self.runtime, agent.host.agent_id, lambda name: ActorDied(f"{name}: {sentence}", mesh_name=name))

    def close(self) -> None:
        """End every agent and everything under it; bounded; idempotent."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
        self.runtime.end()
        for failure in self.runtime.supervisor.settle():
            sys.stderr.write(f"Roost: a failure that nobody handled\n{failure.report()}\n")
        self.runtime.supervisor.ending = True
        for agent in self.agents:  # all at once, then one after the other
            agent.expected = True
            if agent.process.poll() is None:
                agent.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + STOP_TIMEOUT
        for agent in self.agents:
            agent.end(max(until - time.monotonic(), 0.1))
        self._drain_output()
        self.output.close()
        shutil.rmtree(self.run_dir, ignore_errors=True)
        self.io.stop()
        self.undo_fork()
        restore_interrupt_handler()
        set_runtime(None)

    def _drain_output(self) -> None:
        """What the agents said last is still in the sockets."""

        async def drain() -> None:
            ids = {agent.host.agent_id for agent in self.agents}
            until = time.monotonic() + LAST_WORDS
            while time.monotonic() < until and any(link.peer.proc_id in ids for link in self.node.routing.open):
                await asyncio.sleep(0.001)  # until its end has been read
            self.node.close()

        try:
            self.io.submit(drain()).result(2)
        except FutureTimeout:
            logger.warning("the I/O thread did not close its links in time")


async def _popen(config: bytes) -> subprocess.Popen[bytes]:
    """On the I/O thread, which lives as long as the program's runtime does."""
    return start_agent(config)


def show_note(peer: Peer, text: str) -> None:
    """What an agent wants the user to know."""
    logger.warning("%s: %s", peer.name, text)


_controller: list[Controller] = []
_start_lock = threading.Lock()


def ensure_runtime(secret: bytes | None = None) -> Runtime:
    """This process's runtime; in a program that has none yet the controller's is started, with this secret."""
    runtime = current_runtime()
    if runtime is not None:
        return runtime
    with _start_lock:
        runtime = current_runtime()
        if runtime is None:
            install_interrupt_handler()
            controller = Controller(secret)
            _controller.append(controller)
            atexit.register(shutdown)
            runtime = controller.runtime
            set_runtime(runtime)
    return runtime


STARTERS[:] = [lambda: ensure_runtime().node]  # a channel may be the first thing that a program opens


def controller(secret: bytes | None = None) -> Controller:
    """The controller of this program; started, with this secret, when there is none."""
    ensure_runtime(secret)
    if not _controller:
        raise RoostError("this process is a worker: only the controller's program has agents of its own")
    return _controller[0]


def own_agents() -> set[int]:
    """The agents that end with this program."""
    return {agent.host.agent_id for agent in _controller[0].agents} if _controller else set()


def revived(hosts: list[HostRef]) -> list[HostRef]:
    """The same hosts; for this machine, where its agent has died, with the new one."""
    if not _controller or all(host.node_id != _controller[0].node_id for host in hosts):
        return hosts
    local = _controller[0].local_host()
    return [local if host.node_id == local.node_id else host for host in hosts]


def shutdown() -> None:
    """End everything that this program has spawned; a later `this_host()` starts afresh. Also runs at exit."""
    if _controller:
        _controller[0].close()
        _controller.clear()
        atexit.unregister(shutdown)


def this_host() -> HostMesh:
    """The mesh of this machine alone. In a worker: the host it runs on.

    >>> from roost.mesh import this_host
    >>> procs = this_host().spawn_procs({"gpus": 4})                  # doctest: +SKIP
    """
    runtime = ensure_runtime()
    ref = runtime.node.ref
    assert ref is not None
    host = _controller[0].local_host() if _controller else HostRef.of_process(ref)
    return HostMesh([host], Extent([], []).region)


def this_proc() -> ProcMesh:
    """The mesh of this process alone: in an actor its process, in the program the controller's own."""
    runtime = ensure_runtime()
    ref = runtime.node.ref
    assert ref is not None
    return ProcMesh(Processes(ref.name, [ref]), Extent([], []).region)
