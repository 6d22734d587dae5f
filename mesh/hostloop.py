"""Worker loops: host agents that a user starts on a host himself, and that stay for one program after the other.

    # on each host                                          # in the program
    run_worker_loop_forever("tcp://10.0.0.7:4000")          hosts = attach_to_workers(["tcp://10.0.0.7:4000"])

The agent is a child of the process that calls, and ends with it, however that ends. `@` in an address tells apart what
others dial from what is bound: `tcp://gateway:4000@tcp://10.0.0.7:4000`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import msgpack

from ..actors.errors import RoostError
from ..actors.future import Future
from ..actors.link.address import parse
from ..actors.refs import ProcRef, new_id
from .agent.starting import make_run_dir, read_ready, start_agent
from .hostmesh import default_preload, import_path
from .secret import resolve_secret

END_TIMEOUT = 10.0  # seconds for the agent to end all that runs under it before it is killed
OnReady = Callable[[str], object]


def split_alias(text: str) -> tuple[str, str]:
    """What others dial, and what is bound.

    >>> split_alias("tcp://node7:4000@tcp://10.0.0.7:4000")
    ('tcp://node7:4000', 'tcp://10.0.0.7:4000')
    >>> split_alias("tcp://10.0.0.7:4000")
    ('tcp://10.0.0.7:4000', 'tcp://10.0.0.7:4000')
    """
    dial, mark, bind = text.partition("@")
    return dial, bind if mark else dial


class WorkerLoop:
    """A running worker loop: its agent, and the address to attach to."""

    def __init__(self, address: str, secret: bytes | str | None, name: str | None, log_dir: str | None) -> None:
        dial, bind = split_alias(address)
        self._run_dir = make_run_dir()
        agent_id = new_id()
        config = {
            "secret": resolve_secret(secret),
            "proc_id": agent_id,
            "node_id": f"{new_id():x}",
            "name": name or f"agent of {socket.gethostname()}",
            "host": socket.gethostname(),
            "run_dir": self._run_dir,
            "listen": [bind],
            "parent": os.getpid(),
            "log_dir": log_dir or os.environ.get("ROOST_LOG_DIR"),
            "preload": default_preload(),
            "sys_path": import_path(),
            "stays": True,
            "advertise": str(parse(dial)),
        }
        try:
            self._process = start_agent(msgpack.packb(config))
            ref = ProcRef.from_wire(read_ready(self._process)["ref"])
        except BaseException:  # restored, and raised again
            if hasattr(self, "_process"):
                self._process.kill()
                self._process.wait()
            shutil.rmtree(self._run_dir, ignore_errors=True)
            raise
        self.address = ref.agent_address

    def __repr__(self) -> str:
        state = "running" if self._process.poll() is None else "ended"
        return f"<WorkerLoop at {self.address}, pid {self._process.pid}, {state}>"

    def wait(self) -> None:
        """Until a program's `HostMesh.shutdown()`. Raises RoostError when the agent ends otherwise."""
        code = self._process.wait()
        self.end()
        if code:
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"it ended with exit code {code}"
            raise RoostError(f"the worker loop at {self.address} is gone: {how}, and its processes with it")

    def end(self) -> None:
        """End it and all that runs under it; idempotent."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(END_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._run_dir, ignore_errors=True)


def run_worker_loop_until_shutdown(
    address: str,
    *,
    secret: bytes | str | None = None,
    name: str | None = None,
    log_dir: str | None = None,
    on_ready: OnReady | None = None,
) -> None:
    """Make this host one that programs attach to, until one of them calls `HostMesh.shutdown()`; then return.

    Args:
        address: `tcp://host:port` (port 0: a free one), `unix:///path`, or `tcp://dial@tcp://bind`. Only the interface
            of that host is bound.
        secret: what a program must hold to attach; None is the one in `$ROOST_SECRET_FILE`, else `~/.roost/secret`.
        name: of the agent, in errors and logs.
        log_dir: where the output of the processes here is kept.
        on_ready: called with the address to attach to, once it is bound; by default it is printed.

    The loop ends with this process, however that ends, and everything that runs under it with it. SIGTERM and Ctrl-C
    leave by SystemExit and KeyboardInterrupt, after its end. Raises RoostError when it cannot start or is killed.

    >>> run_worker_loop_until_shutdown("tcp://10.0.0.7:4000")                    # doctest: +SKIP
    """
    with _terminable():
        loop = WorkerLoop(address, secret, name, log_dir)
        try:
            _announce(loop, on_ready)
            loop.wait()
        finally:
            loop.end()


def run_worker_loop_forever(
    address: str,
    *,
    secret: bytes | str | None = None,
    name: str | None = None,
    log_dir: str | None = None,
    on_ready: OnReady | None = None,
) -> None:
    """The same as the whole work of a process: after a program's `HostMesh.shutdown()` the process exits with code 0.

    >>> run_worker_loop_forever("tcp://10.0.0.7:4000")                           # doctest: +SKIP
    """
    run_worker_loop_until_shutdown(address, secret=secret, name=name, log_dir=log_dir, on_ready=on_ready)
    raise SystemExit(0)


def start_worker_loop_forever(
    address: str,
    *,
    secret: bytes | str | None = None,
    name: str | None = None,
    log_dir: str | None = None,
    on_ready: OnReady | None = None,
) -> Future[None]:
    """The same beside what this process does otherwise: returns when the loop listens; the future is done when it has
    ended, and fails when it was killed. Cancelling the future ends the loop.

    >>> ended = start_worker_loop_forever("tcp://10.0.0.7:4000")                 # doctest: +SKIP
    """
    started: Future[WorkerLoop] = Future()
    ended = _LoopFuture()

    def serve() -> None:  # the agent dies with the thread that has started it
        try:
            loop = WorkerLoop(address, secret, name, log_dir)
        except Exception as error:  # noqa: BLE001 - raised where it was asked for
            started.set_exception(error)
            return
        started.set_result(loop)
        try:
            loop.wait()
        except RoostError as error:
            ended.set_exception(error)
        else:
            ended.set_result(None)

    threading.Thread(target=serve, name="roost-worker-loop", daemon=True).start()
    ended.loop = started.get()
    _announce(ended.loop, on_ready)
    return ended


class _LoopFuture(Future[None]):
    __slots__ = ("loop",)

    loop: WorkerLoop

    def _about(self) -> str:
        return repr(self.loop)

    def _cancel_remote(self, reason: str) -> None:
        self.loop.end()


def _announce(loop: WorkerLoop, on_ready: OnReady | None) -> None:
    if on_ready is not None:
        on_ready(loop.address)
    else:
        print(f"Roost: attach to this host at {loop.address}", flush=True)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM leaves by SystemExit, so that what was started is ended; where nobody else handles it."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
