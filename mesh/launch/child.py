"""The worker's side of its own birth: from a fresh fork (or exec) to the call of its entry.

A worker leads its own session. Ctrl-C in the controller's terminal, and its hang-up, then reach the
controller alone, which decides what becomes of the workers; SIGINT sent to a worker by pid is taken
by a handler that does nothing (SIG_IGN would be inherited by the programs user code starts, and a
server started from a worker could then not be interrupted).

Until the agent has recorded the pid the worker waits at the gate, a pipe of the agent's: a byte lets
it pass, end of file (the agent gave the launch up, or died) ends it. So no user code ever runs in a
process its agent does not know, and a launch that failed half-way can be repeated.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import io
import os
import random
import signal
import sys
import traceback
import types
from typing import NoReturn

from . import linux, output
from .plan import ADOPTED, WorkerPlan

_ADOPTION_TIMEOUT = 30.0
EXIT_NO_AGENT = 70
EXIT_CANNOT_EXEC = 127


def run_forked(plan: WorkerPlan, gate: int, middle_pid: int) -> NoReturn:
    """Turn the process just forked from a zygote into the worker; never returns, whatever happens."""
    code = 1
    try:
        become(plan)
        if not _adopted(plan.agent_pid, middle_pid) or os.read(gate, 1) == b"":
            os._exit(EXIT_NO_AGENT)
        os.close(gate)
        reset_signals()
        if plan.argv is not None:
            code = EXIT_CANNOT_EXEC
            _exec(plan, plan.argv)
        _leave_zygote_behind(plan)
        code = run_entry(plan)
    except BaseException:  # noqa: BLE001  (the zygote's own stack lies below: nothing may unwind into it)
        traceback.print_exc()
    leave(code)


def become(plan: WorkerPlan) -> None:
    """Session, name, output, environment, place: what a forked and an exec'd worker have in common."""
    os.setsid()
    _redirect(plan.output)
    linux.set_comm(plan.name)
    if plan.only_env:
        os.environ.clear()
    for key, value in plan.env.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
    if plan.cpus:
        os.sched_setaffinity(0, plan.cpus)
    if plan.cwd is not None:
        os.chdir(plan.cwd)


def _redirect(path: str) -> None:
    fd = output.open_append(path)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    open_streams()


class _Sink(io.FileIO):
    """A full disk must not end a training run through a `print`."""

    def write(self, data: object) -> int:
        try:
            return super().write(data) or 0  # type: ignore[arg-type]
        except OSError:
            return len(memoryview(data))  # type: ignore[arg-type]


def _line_writer(fd: int) -> io.TextIOWrapper:
    buffer = io.BufferedWriter(_Sink(fd, "w", closefd=False))
    return io.TextIOWrapper(buffer, "utf-8", errors="backslashreplace", line_buffering=True)


def open_streams() -> None:
    """Fresh sys.stdout and sys.stderr on descriptors 1 and 2, a line at a time also from C code."""
    sys.stdout = sys.__stdout__ = _line_writer(1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _line_writer(2)  # type: ignore[misc]
    linux.line_buffer_c_stdout()
    faulthandler.enable(file=2, all_threads=False)  # all threads would push the crash out of the tail


def _adopted(agent_pid: int, middle_pid: int) -> bool:
    """Wait until the agent is our parent, then tie our life to its; False if it is gone."""
    linux.set_parent_death_signal(ADOPTED)
    if os.getppid() == middle_pid:
        signal.sigtimedwait([ADOPTED], _ADOPTION_TIMEOUT)
    return tie_to(agent_pid)


def tie_to(agent_pid: int) -> bool:
    linux.set_parent_death_signal(signal.SIGKILL)
    return os.getppid() == agent_pid  # checked after: it may have died just before


def reset_signals() -> None:
    """Handlers and mask as in a fresh Python, but for SIGINT (see the top of this file)."""
    signal.signal(ADOPTED, signal.SIG_IGN)  # drops a pending one, which would kill once unblocked
    kept = {signal.SIGKILL, signal.SIGSTOP}
    for number in signal.valid_signals() - kept:
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    ignore_interrupts()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, _nothing)
    signal.siginterrupt(signal.SIGINT, False)


def _nothing(number: int, frame: types.FrameType | None) -> None:
    """The handler of SIGINT in workers."""


def _exec(plan: WorkerPlan, argv: tuple[str, ...]) -> NoReturn:
    """Become `argv` with the plan in a memory file: it never stands on a command line."""
    fd = os.memfd_create("roost-plan", 0)
    with open(fd, "wb", closefd=False) as file:
        file.write(plan.pack())
    os.lseek(fd, 0, os.SEEK_SET)
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):  # wrappers may not be Python
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(plan.program or argv[0], [*argv, str(fd)], os.environ)


def _leave_zygote_behind(plan: WorkerPlan) -> None:
    gc.enable()
    _reseed()
    _reset_multiprocessing()
    _set_torch_threads(plan)


def _reseed() -> None:
    random.seed()
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()


def _reset_multiprocessing() -> None:
    """A forked worker is nobody's multiprocessing child, and the zygote's helpers are not its own."""
    if (tracker := sys.modules.get("multiprocessing.resource_tracker")) is not None:
        fresh = tracker.ResourceTracker()
        setattr(tracker, "_resource_tracker", fresh)  # noqa: B010
        for name in ("ensure_running", "register", "unregister", "getfd"):
            setattr(tracker, name, getattr(fresh, name))
    if (server := sys.modules.get("multiprocessing.forkserver")) is not None:
        fresh = server.ForkServer()
        setattr(server, "_forkserver", fresh)  # noqa: B010
        offered = ("ensure_running", "get_inherited_fds", "connect_to_new_process", "set_forkserver_preload")
        for name in offered:
            setattr(server, name, getattr(fresh, name))
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        process._children.clear()
        process.current_process()._config.pop("tempdir", None)
        process.current_process().authkey = os.urandom(32)
    if (util := sys.modules.get("multiprocessing.util")) is not None:
        util._finalizer_registry.clear()
        util._run_after_forkers()


def _set_torch_threads(plan: WorkerPlan) -> None:
    """By call: the OpenMP library read OMP_NUM_THREADS=1 in the zygote and never looks again.

    Without OMP_NUM_THREADS a worker has one thread for each of its `cpus`, or one, as torchrun does.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    torch.set_num_threads(int(asked) if asked.isdigit() and int(asked) else max(1, len(plan.cpus)))


def run_entry(plan: WorkerPlan) -> int:
    """Call the entry in a fresh `__main__`; return the exit code."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = main
    sys.argv = [plan.name]
    sys.path[:] = [*plan.sys_path, *(p for p in sys.path if p not in plan.sys_path)]
    importlib.invalidate_caches()
    module, _, function = plan.entry.partition(":")
    try:
        getattr(importlib.import_module(module), function)(plan.payload)
    except SystemExit as leaving:
        return _code(leaving)
    except BaseException:  # noqa: BLE001  (the process ends with it, as an interpreter would)
        traceback.print_exc()
        return 1
    return 0


def _code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


def leave(code: int) -> NoReturn:
    """End at once: 3.8 ms, where finalising an interpreter that holds torch takes 208 ms."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # closed or replaced by user code
    linux.flush_c_stdout()
    os._exit(code)


def main(argv: list[str]) -> NoReturn:
    """What an exec'd worker runs: `-m roost.mesh.launch.child FD`, FD holding its plan."""
    open_streams()
    fd = int(argv[-1])
    with open(fd, "rb") as file:
        plan = WorkerPlan.unpack(file.read())
    parent = os.getppid()  # the agent, or a wrapper that forked and leads our session
    linux.set_parent_death_signal(signal.SIGKILL)
    tied = os.getppid() in (parent, plan.agent_pid)
    if not tied or (parent != plan.agent_pid and os.getsid(parent) != os.getsid(0)):
        os._exit(EXIT_NO_AGENT)
    linux.set_comm(plan.name)
    ignore_interrupts()
    leave(run_entry(plan))


if __name__ == "__main__":
    main(sys.argv)
