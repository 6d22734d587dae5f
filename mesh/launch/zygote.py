"""The zygote: a process that has imported what workers need, runs nothing, and forks on request.

It must stay single-threaded. Were a pool of OpenMP ever started here, every child would hang in its
first parallel operation; so the thread variables are 1 in this environment (the children get the
user's own back), imports are followed by a look at /proc/self/task, and so is every request.

It forks twice: an intermediate process forks the workers of a request and ends, which makes them
children of the agent, the subreaper; only then does the zygote answer with their pids. 32 workers
with torch preloaded run their first operation about 70 ms after the request.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
import time
from typing import Any, NoReturn

import msgpack

from . import child, frames, linux
from .plan import ADOPTED, WorkerPlan

_ACCELERATORS = ("/dev/nvidia", "/dev/kfd")


def unfit_to_fork() -> str | None:
    """Why this process must not be forked now, or None."""
    tasks = os.listdir("/proc/self/task")
    if len(tasks) != 1:
        names = {(linux.read_text(f"/proc/self/task/{task}/comm") or "?").strip() for task in tasks}
        return f"it started threads ({len(tasks)} tasks: {', '.join(sorted(names))})"
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith(_ACCELERATORS):
            return f"it opened {target}"
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        return "it initialised CUDA"
    return None


class Zygote:
    """One connection to the agent, served until it closes."""

    def __init__(self, sock: socket.socket, agent_pid: int) -> None:
        self._sock = sock
        self._agent_pid = agent_pid

    def serve(self) -> None:
        (preload, sys_path), _ = frames.receive(self._sock)
        sys.path[:] = [*sys_path, *(p for p in sys.path if p not in sys_path)]
        for module in preload:
            self._preload(module)
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)
        gc.collect()
        gc.disable()
        gc.freeze()  # else the children's collector writes to every page it looks at
        frames.send(self._sock, ["ready"])
        while True:
            plans, (gate,) = frames.receive(self._sock)
            try:
                self._sock.sendall(self._fork_all([WorkerPlan.from_wire(wire) for wire in plans], gate))
            finally:
                os.close(gate)

    def _preload(self, module: str) -> None:
        frames.send(self._sock, ["importing", module])
        began = time.monotonic()
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001  (any error of foreign import code is its report)
            frames.send(self._sock, ["failed", module, f"{type(error).__name__}: {error}"])
            return
        if (reason := unfit_to_fork()) is not None:
            frames.send(self._sock, ["unfit", module, reason])
            sys.exit(0)
        frames.send(self._sock, ["imported", module, time.monotonic() - began])

    def _fork_all(self, plans: list[WorkerPlan], gate: int) -> bytes:
        """The answer: a pid for each plan, or the reason why there is none."""
        if (reason := unfit_to_fork()) is not None:
            return frames.pack(["refused", reason])
        sys.stdout.flush()
        sys.stderr.flush()
        reading, writing = os.pipe()
        try:
            middle = os.fork()
        except OSError as error:
            os.close(reading)
            os.close(writing)
            return frames.pack(["forked", [f"the kernel refused to fork: {error}"] * len(plans)])
        if middle == 0:
            os.close(reading)
            self._fork_workers(plans, gate, writing)
        os.close(writing)
        with open(reading, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(middle, 0)
        return frames.pack(["forked", msgpack.unpackb(answer) if answer else []])

    def _fork_workers(self, plans: list[WorkerPlan], gate: int, writing: int) -> NoReturn:
        """The intermediate process."""
        try:
            self._sock.close()
            answer: list[Any] = []
            middle = os.getpid()
            for plan in plans:
                try:
                    pid = os.fork()
                except OSError as error:
                    answer.append(f"the kernel refused to fork: {error}")
                    continue
                if pid == 0:
                    os.close(writing)
                    child.run_forked(plan, gate, middle)
                answer.append(pid)
            with open(writing, "wb") as pipe:
                pipe.write(msgpack.packb(answer))
        finally:
            os._exit(0)


def main(argv: list[str]) -> None:
    """`-m roost.mesh.launch.zygote FD AGENT_PID`, started by the agent with SIGINT and SIGUSR1 blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, ADOPTED])
    agent_pid = int(argv[2])
    os.setsid()  # so that none of our descendants is ever in the agent's own session
    linux.set_comm("roost-zygote")
    if not child.tie_to(agent_pid):
        return
    channel = int(argv[1])
    os.closerange(channel + 1, os.sysconf("SC_OPEN_MAX"))  # what whoever started the agent let slip in
    sock = socket.socket(fileno=channel)
    sock.set_inheritable(False)
    try:
        Zygote(sock, agent_pid).serve()
    except (EOFError, ConnectionError):
        pass  # the agent closed it
    finally:
        sock.close()


if __name__ == "__main__":
    main(sys.argv)
