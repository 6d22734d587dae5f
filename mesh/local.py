"""This machine: the controller's runtime and its local agent, started at first use and ended with the program.

Nothing outlives the program: the agent dies with the thread that started it, and its workers with the agent.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import msgpack

from ..actors.errors import ActorDied, RoostError
from ..actors.link.address import parse
from ..actors.link.io import IoThread
from ..actors.link.readers import install_interrupt_handler, restore_interrupt_handler
from ..actors.node import Node
from ..actors.peer import Peer
from ..actors.refs import ProcRef, new_id
from ..actors.runtime import Runtime, current_runtime, set_runtime
from .homes import Homes
from .hostmesh import HostMesh, HostRef, default_preload, import_path, remember_environment
from .identity import identity_of
from .launch import on_user_fork
from .life import watch_exits
from .procmesh import Processes, ProcMesh
from .shape import Extent

logger = logging.getLogger("roost")

START_TIMEOUT = 60.0  # seconds for an agent to say where it listens, while it lives
STOP_TIMEOUT = 8.0
ISOLATED = (
    "ROOST_RUN_DIR"  # where run directories are made; default: the user's runtime directory, else the temp folder
)


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

    def __init__(self) -> None:
        self.secret = os.urandom(32)
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
        proc_id, self.node_id = new_id(), f"{new_id():x}"
        address = f"unix://{self.run_dir}/{proc_id:x}.sock"
        self.node = Node(identity_of(proc_id, self.node_id, "controller", "controller", address), self.secret, self.io)
        self.runtime = Runtime(self.node)
        self.homes = Homes(self.runtime, use_main_thread=False)
        self.agents: list[AgentProcess] = []
        self._lock = threading.Lock()
        self.closed = False
        watch_exits(self.runtime)
        self.runtime.events["output"] = show_output
        self.runtime.events["note"] = show_note
        self.node.gate.listen(parse(address))
        self.undo_fork = on_user_fork(self._forked)
        self.local = self.start_agent(self.node_id, ["tcp://127.0.0.1:0"])
        host = self.local.host
        self.node.ref = ProcRef(
            proc_id, "controller", self.node_id, self.node.host, address, host.agent_id, host.agent_address, 0
        )

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
            "preload": default_preload(),
            "sys_path": import_path(),
        }
        future = self.io.submit(_popen(msgpack.packb(config)))
        process = future.result(START_TIMEOUT)
        try:
            answer = _read_ready(process)
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
        shutil.rmtree(agent.run_dir, ignore_errors=True) if agent is not self.local else None
        for peer in list(self.node.peers.values()):
            where = peer.where
            if where is not None and where.agent_id == agent.host.agent_id and peer.dead is None:
                error = ActorDied(f"{peer.name}: {sentence}", mesh_name=peer.name)
                self.runtime.supervisor._fail_owners(peer.proc_id, error)
                self.node.bury(peer, error)

    def close(self) -> None:
        """End every agent and everything under it; bounded; idempotent."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
        self.runtime.end()
        for failure in self.runtime.supervisor.settle():
            sys.stderr.write(f"Roost: a failure that nobody handled\n{failure.report()}\n")
        for agent in self.agents:  # all at once, then one after the other
            agent.expected = True
            if agent.process.poll() is None:
                agent.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + STOP_TIMEOUT
        for agent in self.agents:
            agent.end(max(until - time.monotonic(), 0.1))
        self._drain_output()
        shutil.rmtree(self.run_dir, ignore_errors=True)
        self.io.stop()
        self.undo_fork()
        restore_interrupt_handler()
        set_runtime(None)

    def _drain_output(self) -> None:
        """What the agents said last is still in the sockets."""

        async def drain() -> None:
            self.node.close()

        try:
            self.io.submit(drain()).result(2)
        except FutureTimeout:
            logger.warning("the I/O thread did not close its links in time")


async def _popen(config: bytes) -> subprocess.Popen[bytes]:
    """Started on the I/O thread, because the death signal of a child follows the thread that made it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "roost.mesh.agent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(config)
    process.stdin.close()
    return process


def _read_ready(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    data = b""
    until = time.monotonic() + START_TIMEOUT
    while True:
        ready, _, _ = select.select([process.stdout], [], [], max(until - time.monotonic(), 0))
        if not ready:
            raise RoostError(f"the host agent did not say where it listens within {START_TIMEOUT:g} s")
        chunk = os.read(process.stdout.fileno(), 65536)
        if not chunk:
            break
        data += chunk
    process.stdout.close()
    if not data:
        raise RoostError(
            f"the host agent ended at its start with exit code {process.wait()}; what it said stands above"
        )
    answer: dict[str, Any] = msgpack.unpackb(data)
    return answer


def make_run_dir() -> str:
    """A new folder for sockets and logs, readable by this user only."""
    base = os.environ.get(ISOLATED) or os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    if not os.path.isdir(base) or not os.access(base, os.W_OK):
        base = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="roost-", dir=base)


def show_output(peer: Peer, name: str, text: str, dropped: int) -> None:
    """Workers' output, each line with its process."""
    lost = f"[{name}] ({dropped} bytes were dropped here; they are in its file)\n" if dropped else ""
    sys.stdout.write(lost + "".join(f"[{name}] {line}\n" for line in text.split("\n")))
    sys.stdout.flush()


def show_note(peer: Peer, text: str) -> None:
    """What an agent wants the user to know."""
    logger.warning("%s: %s", peer.name, text)


_controller: list[Controller] = []
_start_lock = threading.Lock()


def ensure_runtime() -> Runtime:
    """This process's runtime; in a program that has none yet, the controller's is started (150 ms)."""
    runtime = current_runtime()
    if runtime is not None:
        return runtime
    with _start_lock:
        runtime = current_runtime()
        if runtime is None:
            install_interrupt_handler()
            controller = Controller()
            _controller.append(controller)
            atexit.register(shutdown)
            runtime = controller.runtime
            set_runtime(runtime)
    return runtime


def controller() -> Controller:
    """The controller of this program; started when there is none."""
    ensure_runtime()
    if not _controller:
        raise RoostError("this process is a worker: only the controller's program has agents of its own")
    return _controller[0]


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
    host = HostRef.of_process(ref)
    return HostMesh([host], Extent([], []).region)


def this_proc() -> ProcMesh:
    """The mesh of this process alone: in an actor its process, in the program the controller's own."""
    runtime = ensure_runtime()
    ref = runtime.node.ref
    assert ref is not None
    return ProcMesh(Processes(ref.name, [ref]), Extent([], []).region)
