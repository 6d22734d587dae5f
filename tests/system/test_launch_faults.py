"""Deaths of workers, of zygotes and of the agent, and what must never be left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launch_world import LOOPS, PATIENCE, World, await_death, nothing_left, run_world

from roost.mesh.launch import BARE, LaunchError, linux, zygote_key
from roost.mesh.launch.evidence import Evidence, KernelLog
from roost.mesh.launch.nursery import ZygoteHandle

HERE = os.path.dirname(__file__)


@pytest.fixture
def modules(tmp_path: Path) -> Callable[..., tuple[str, ...]]:
    """Write modules to preload; returns the sys_path that finds them."""
    folder = tmp_path / "modules"
    folder.mkdir()

    def write(**sources: str) -> tuple[str, ...]:
        for name, source in sources.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(source))
        return (HERE, str(folder))

    return write


# --- how a worker dies


def test_a_kill_from_outside_is_told_from_a_stop_on_request(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        first, _ = await world.launch(*(world.spec(i, "say('up'); forever()") for i in (1, 2)))
        await world.channel.lines(2)
        os.kill(first.pid, signal.SIGKILL)
        killed = await world.exit()
        stopped = (await world.launcher.stop([2, 99], grace=PATIENCE))[2]
        assert (killed.signal, killed.requested, killed.oom, killed.gpu_fault) == (
            "SIGKILL",
            False,
            None,
            None,
        )
        assert (stopped.signal, stopped.requested) == ("SIGTERM", True)
        assert "was killed by SIGKILL after" in killed.sentence()
        assert "was stopped on request by SIGTERM after" in stopped.sentence()
        assert world.order == [1, 2]

    run_world(tmp_path, body)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_segfault_leaves_its_stack_in_the_report(tmp_path: Path, loop: str) -> None:
    async def body(world: World) -> None:
        await world.launch(world.spec(1, "import ctypes\ndef train():\n    ctypes.string_at(0)\ntrain()"))
        report = await world.exit()
        assert (report.signal, report.code) == ("SIGSEGV", None)
        assert "in train" in "\n".join(report.stderr_tail)

    run_world(tmp_path, body, loop)


def test_a_core_dump_is_reported(tmp_path: Path) -> None:
    source = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20)); os.abort()"
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern.startswith("|"):
        pytest.skip(f"this host pipes core dumps to {pattern}")

    async def body(world: World) -> None:
        await world.launch(world.spec(1, source, cwd=str(tmp_path)))
        report = await world.exit()
        assert (report.signal, report.core_dumped) == ("SIGABRT", True)
        assert "SIGABRT with a core dump" in report.sentence()

    run_world(tmp_path, body)


def test_a_worker_may_leave_in_its_own_way_on_sigterm(tmp_path: Path) -> None:
    source = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); say('up'); forever()"

    async def body(world: World) -> None:
        await world.launch(world.spec(1, source))
        await world.channel.line()
        report = (await world.launcher.stop([1], grace=PATIENCE))[1]
        assert (report.code, report.signal, report.requested) == (3, None, True)

    run_world(tmp_path, body)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN); say('up'); forever()", "SIGKILL"),
        ("say('up'); os.kill(os.getpid(), signal.SIGSTOP)", "SIGTERM"),
        (
            "signal.signal(signal.SIGTERM, signal.SIG_IGN); say('up'); os.kill(os.getpid(), 19); forever()",
            "SIGKILL",
        ),
    ],
    ids=["deaf", "stopped", "stopped and deaf"],
)
def test_stop_ends_a_worker_that_does_not_cooperate(tmp_path: Path, source: str, expected: str) -> None:
    async def body(world: World) -> None:
        (launched,) = await world.launch(world.spec(1, source))
        await world.channel.line()
        report = (await world.launcher.stop([1], grace=0.2))[1]
        assert (report.signal, report.requested) == (expected, True)
        assert linux.stat(launched.pid) is None

    run_world(tmp_path, body)


def test_stop_ends_a_worker_in_an_uninterruptible_wait_and_the_child_it_waits_for(tmp_path: Path) -> None:
    fifo = tmp_path / "never-written"
    os.mkfifo(fifo)
    # The child of a vfork blocks in open; until it execs its parent is in state D.
    source = f"""
say("up")
blocked = (os.POSIX_SPAWN_OPEN, 0, {str(fifo)!r}, os.O_RDONLY, 0)
os.posix_spawn("/bin/true", ["true"], {{}}, file_actions=[blocked])
"""

    async def body(world: World) -> None:
        (launched,) = await world.launch(world.spec(1, source))
        await world.channel.line()
        deadline = time.monotonic() + PATIENCE
        while (seen := linux.stat(launched.pid)) and seen.state != "D" and time.monotonic() < deadline:
            os.sched_yield()
        assert seen is not None and seen.state == "D"
        (child,) = linux.descendants(launched.pid)
        report = (await world.launcher.stop([1], grace=0.1))[1]
        assert report.signal == "SIGKILL"
        assert linux.stat(child.pid) is None

    run_world(tmp_path, body)


# --- what a worker leaves behind

FAMILY = """
def child(then):
    pid = os.fork()
    if pid == 0:
        then()
        os._exit(0)
    return pid
def stay():
    say(os.getpid())
    forever()
def own_session():
    os.setsid()
    child(stay)
    stay()
def daemon():
    os.setsid()
    child(stay)
"""


@pytest.mark.parametrize("loop", LOOPS)
def test_orphans_of_a_dead_worker_are_killed_also_in_sessions_of_their_own(tmp_path: Path, loop: str) -> None:
    async def body(world: World) -> None:
        (launched,) = await world.launch(world.spec(1, FAMILY + "child(stay); child(own_session); stay()"))
        family = [int(line) for line in await world.channel.lines(4)]
        os.kill(launched.pid, signal.SIGKILL)
        assert (await world.exit()).signal == "SIGKILL"
        assert [pid for pid in family if not await asyncio.to_thread(await_death, pid)] == []

    run_world(tmp_path, body, loop)


def test_orphans_are_gone_when_stop_returns(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.launch(world.spec(1, FAMILY + "child(own_session); stay()"))
        family = [int(line) for line in await world.channel.lines(3)]
        await world.launcher.stop([1], grace=PATIENCE)
        assert [pid for pid in family if linux.stat(pid) is not None] == []

    run_world(tmp_path, body)


def test_a_detached_daemon_lives_as_long_as_a_worker_that_may_own_it(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        first, second = await world.launch(
            world.spec(1, FAMILY + "os.waitpid(child(daemon), 0); say('up'); forever()"),
            world.spec(2, "say('up'); forever()"),
        )
        lines = await world.channel.lines(3)
        (daemon,) = (int(line) for line in lines if line != "up")
        assert linux.stat(daemon).ppid == os.getpid()
        world.launcher._look_around()  # seen while both live: nothing on it tells whose it is
        os.kill(second.pid, signal.SIGKILL)
        await world.exit()
        assert linux.stat(daemon).state != "Z"
        os.kill(first.pid, signal.SIGKILL)
        await world.exit()
        assert await asyncio.to_thread(await_death, daemon)

    run_world(tmp_path, body)


def test_an_exec_d_daemon_names_its_worker_and_goes_with_it(tmp_path: Path) -> None:
    daemon = "import os; os.setsid(); print(os.getpid(), flush=True); import signal; signal.pause()"
    source = f"""
import subprocess
if os.fork() == 0:
    subprocess.Popen([sys.executable, "-c", {daemon!r}], stdout=open({{path!r}}, "w"))
    os._exit(0)
os.wait(); say("up"); forever()
"""

    async def body(world: World) -> None:
        program = source.replace("{path!r}", repr(str(world.channel.path)))
        first, _ = await world.launch(world.spec(1, program), world.spec(2, "say('up'); forever()"))
        lines = await world.channel.lines(3)
        (pid,) = (int(line) for line in lines if line != "up")
        world.launcher._look_around()
        os.kill(first.pid, signal.SIGKILL)
        await world.exit()
        assert await asyncio.to_thread(await_death, pid)
        assert set(world.launcher.live()) == {2}

    run_world(tmp_path, body)


@pytest.mark.parametrize("loop", LOOPS)
def test_the_agents_own_programs_are_left_alone_and_their_status_is_not_stolen(tmp_path: Path, loop: str) -> None:
    async def body(world: World) -> None:
        plain = subprocess.Popen(["sleep", "60"])
        through_loop = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "input(); raise SystemExit(7)", stdin=-1
        )
        try:
            (launched,) = await world.launch(world.spec(1, "say('up'); forever()"))
            await world.channel.line()
            os.kill(launched.pid, signal.SIGKILL)
            await world.exit()
            assert plain.poll() is None
        finally:  # a loop of uvloop that is closed with a live program waits for it for ever
            through_loop.stdin.write(b"\n")
            through_loop.stdin.close()
            status = await asyncio.wait_for(through_loop.wait(), PATIENCE)
            plain.kill()
        assert (status, plain.wait(PATIENCE)) == (7, -9)

    run_world(tmp_path, body, loop)


def test_a_forked_child_of_user_code_closes_what_it_was_asked_to(tmp_path: Path) -> None:
    source = """
import socket
from roost.mesh.launch import on_user_fork
a, b = socket.socketpair()
def broken():
    raise RuntimeError("a hook that fails does not stop the next")
undo = on_user_fork(broken)
on_user_fork(lambda: os.close(b.fileno()))
on_user_fork(lambda: say("undone hook ran"))()
if os.fork() == 0:
    a.close()
    say("closed", not os.path.exists(f"/proc/self/fd/{b.fileno()}"))
    forever()
undo()
b.close()
say("eof", a.recv(1) == b"")
forever()
"""

    async def body(world: World) -> None:
        await world.launch(world.spec(1, source))
        assert sorted(await world.channel.lines(2)) == ["closed True", "eof True"]

    run_world(tmp_path, body)


# --- output


def test_a_full_disk_does_not_stop_a_worker(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        source = "print('x' * 10000); print('y', file=sys.stderr, flush=True); say('alive')"
        await world.launch(world.spec(1, source, output="/dev/full"))
        assert await world.channel.line() == "alive"
        assert (await world.exit()).code == 0

    run_world(tmp_path, body)


def test_a_second_life_in_the_same_file_reports_its_own_lines_only(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        for proc_id, word in ((1, "first"), (2, "second")):
            await world.launch(world.spec(proc_id, f"print({word!r})", output=str(tmp_path / "same.out")))
            assert (await world.exit()).stderr_tail == (word,)

    run_world(tmp_path, body)


# --- zygotes


def test_a_dead_zygote_is_replaced_at_the_next_launch(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.launch(world.spec(1, "say(1)"))
        assert await world.channel.line() == "1"
        ((key, pid),) = world.launcher._pool.pids().items()
        os.kill(pid, signal.SIGKILL)
        await world.launch(world.spec(2, "say(2)"))
        assert await world.channel.line() == "2"
        assert world.launcher._pool.pids()[key] != pid

    run_world(tmp_path, body)


def test_a_zygote_killed_in_the_midst_of_a_launch_leads_to_one_start_of_the_worker(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        key = zygote_key(world.spec(1, ""))
        await world.launcher.warm(key)
        pid = world.launcher._pool.pids()[key]
        os.kill(pid, signal.SIGSTOP)
        launch = asyncio.create_task(world.launch(world.spec(1, "say('up'); forever()")))
        while not world.launcher._in_flight:
            await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        await launch
        assert await world.channel.line() == "up"
        await world.launcher.stop([1], grace=PATIENCE)
        assert world.channel.pending() == b""

    run_world(tmp_path, body)


def test_a_zygote_that_dies_again_is_an_error_that_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork = ZygoteHandle.fork

    async def dying(self: ZygoteHandle, *arguments: object) -> object:
        self.kill()
        return await fork(self, *arguments)

    monkeypatch.setattr(ZygoteHandle, "fork", dying)

    async def body(world: World) -> None:
        (answer,) = await world.try_launch(world.spec(1, "say('ran')"))
        assert isinstance(answer, LaunchError)
        assert "the zygote" in str(answer)
        assert "was killed by SIGKILL" in str(answer)
        assert world.launcher.live() == {}

    run_world(tmp_path, body)


def test_a_zygote_that_cannot_start_names_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.exit('no licence for this interpreter')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def body(world: World) -> None:
        (answer,) = await world.try_launch(world.spec(1, ""))
        assert isinstance(answer, LaunchError)
        assert "no licence for this interpreter" in str(answer)

    run_world(tmp_path, body)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "import threading, signal; threading.Thread(target=signal.pause, daemon=True).start()",
            "started threads",
        ),
        ("import no_such_module", "ModuleNotFoundError"),
        ("import os; os._exit(3)", "exit code 3"),
        ("import ctypes; ctypes.string_at(0)", "killed by SIGSEGV"),
        ("import sys; sys.exit('not on this host')", "not on this host"),
    ],
    ids=["thread", "import error", "exit", "segfault", "sys.exit"],
)
def test_a_preload_that_spoils_the_zygote_is_named_and_dropped(
    tmp_path: Path, modules: Callable[..., tuple[str, ...]], source: str, words: str
) -> None:
    sys_path = modules(good="", spoiler=source)

    async def body(world: World) -> None:
        (launched,) = await world.launch(
            world.spec(1, "say('good' in sys.modules)", preload=("good", "spoiler"), sys_path=sys_path)
        )
        assert await world.channel.line() == "True"
        (note,) = launched.notes
        assert "preload 'spoiler'" in note
        assert words in note

    run_world(tmp_path, body)


def test_a_preload_that_initialises_cuda_is_dropped(tmp_path: Path, modules: Callable[..., tuple[str, ...]]) -> None:
    sys_path = modules(torch="class cuda:\n    is_initialized = staticmethod(lambda: True)\n")

    async def body(world: World) -> None:
        (launched,) = await world.launch(
            world.spec(1, "say('torch' in sys.modules)", preload=("torch",), sys_path=sys_path)
        )
        assert await world.channel.line() == "False"
        assert "initialised CUDA" in launched.notes[0]

    run_world(tmp_path, body)


def test_a_thread_that_appears_after_the_imports_is_seen_before_the_next_fork(
    tmp_path: Path, modules: Callable[..., tuple[str, ...]]
) -> None:
    late = """
        import signal, threading
        def start(*_):
            threading.Thread(target=threading.Event().wait, name="late", daemon=True).start()
        signal.signal(signal.SIGUSR2, start)
    """
    sys_path = modules(late=late)

    async def body(world: World) -> None:
        options = {"preload": ("late",), "sys_path": sys_path}
        (first,) = await world.launch(world.spec(1, "say('late' in sys.modules)", **options))
        assert (await world.channel.line(), first.notes) == ("True", ())
        (zygote,) = world.launcher._pool.pids().values()
        os.kill(zygote, signal.SIGUSR2)
        deadline = time.monotonic() + PATIENCE
        while len(os.listdir(f"/proc/{zygote}/task")) == 1 and time.monotonic() < deadline:
            await asyncio.sleep(0)
        (second,) = await world.launch(world.spec(2, "say('late' in sys.modules)", **options))
        assert await world.channel.line() == "False"
        assert "preload 'late' was dropped" in second.notes[0]

    run_world(tmp_path, body)


def test_a_preload_that_used_multiprocessing_leaves_workers_their_own_helpers(
    tmp_path: Path, modules: Callable[..., tuple[str, ...]]
) -> None:
    sys_path = modules(helper="from multiprocessing import resource_tracker as t; t.ensure_running()")
    source = """
from multiprocessing import Process, Queue, resource_tracker, shared_memory, process
assert resource_tracker._resource_tracker._pid is None
block = shared_memory.SharedMemory(create=True, size=64)
block.close(); block.unlink()
tracker = resource_tracker._resource_tracker._pid
assert int(open(f"/proc/{tracker}/stat").read().rsplit(")", 1)[1].split()[1]) == os.getpid()
queue = Queue()
child = Process(target=queue.put, args=("from a child",))
child.start()
say(queue.get(), process.current_process().name)
child.join()
"""

    async def body(world: World) -> None:
        await world.launch(world.spec(1, source, preload=("helper",), sys_path=sys_path))
        assert await world.channel.line() == "from a child MainProcess"
        report = await world.exit()
        assert (report.code, report.stderr_tail) == (0, ())

    run_world(tmp_path, body)


# --- giving up, closing, the agent's own death


def test_workers_of_a_cancelled_launch_never_run(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        key = zygote_key(world.spec(1, ""))
        await world.launcher.warm(key)
        zygote = world.launcher._pool.pids()[key]
        os.kill(zygote, signal.SIGSTOP)
        launch = asyncio.create_task(world.launcher.launch([world.spec(1, "say('ran')")]))
        while not world.launcher._in_flight:
            await asyncio.sleep(0)
        launch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await launch
        os.kill(zygote, signal.SIGCONT)
        (answer,) = await world.try_launch(world.spec(2, "say('second')"))
        assert answer.proc_id == 2
        assert await world.channel.line() == "second"
        assert (await world.exit()).proc_id == 2
        await world.launch(world.spec(1, "say('free again')"))
        assert await world.channel.line() == "free again"

    run_world(tmp_path, body)


def test_close_is_idempotent_and_ends_all_also_a_zygote_that_still_imports(
    tmp_path: Path, modules: Callable[..., tuple[str, ...]]
) -> None:
    sys_path = modules(slow="import signal; signal.pause()")

    async def body(world: World) -> None:
        await world.launch(*(world.spec(i, FAMILY + "child(own_session); stay()") for i in (1, 2)))
        await world.channel.lines(6)
        slow = world.spec(3, "", preload=("slow",), sys_path=sys_path)
        pending = asyncio.create_task(world.try_launch(slow))
        while not any("importing slow" in sentence for sentence in world.progress):
            await asyncio.sleep(0.001)
        began = time.monotonic()
        await asyncio.gather(world.launcher.close(5.0), world.launcher.close(5.0))
        assert time.monotonic() - began < 10
        assert linux.children(os.getpid()) == []
        (answer,) = await pending
        assert isinstance(answer, LaunchError)
        assert sorted(world.order) == [1, 2]
        (refused,) = await world.try_launch(world.spec(4, ""))
        assert "the launcher is closed" in str(refused)

    run_world(tmp_path, body)


AGENT = """
import asyncio, sys
from pathlib import Path
import uvloop
sys.path.insert(0, {here!r})
from launch_world import World

async def main():
    world = World(asyncio.get_running_loop(), Path({tmp!r}))
    wrapper = ("sh", "-c", '"$@"; exit 0', "sh")
    await world.launch(
        world.spec(1, "say(os.getpid()); forever()"),
        world.spec(2, "say(os.getpid()); forever()", command=("nice",)),
        world.spec(3, "say(os.getpid()); forever()", command=wrapper),
    )
    workers = [int(line) for line in await world.channel.lines(3)]
    print(*workers, *(each.pid for each in world.launcher.live().values()),
          *world.launcher._pool.pids().values(), flush=True)
    await asyncio.Event().wait()

uvloop.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_agent_is_killed_its_workers_wrappers_and_zygotes_die(tmp_path: Path, how: int) -> None:
    script = tmp_path / "agent.py"
    script.write_text(AGENT.format(here=HERE, tmp=str(tmp_path)))
    with nothing_left(), subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as agent:
        try:
            pids = {int(word) for word in agent.stdout.readline().split()}
            assert len(pids) >= 6  # three workers, a wrapper that stayed, two zygotes
        finally:
            agent.send_signal(how)
        assert agent.wait(PATIENCE) == -how
        assert [pid for pid in pids if not await_death(pid)] == []
        _reap_adopted()


def _reap_adopted() -> None:
    """This process is a subreaper by now: what the dead agent left came here."""
    deadline = time.monotonic() + PATIENCE
    while linux.children(os.getpid()) and time.monotonic() < deadline:
        for pid in linux.children(os.getpid()):
            linux.collect(pid)


# --- out of memory

V1 = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup v1 with 48 MB."""
    group = V1 / f"roost-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(48 << 20))
    except OSError as error:
        pytest.skip(f"the cgroup v1 memory controller is not writable here: {error}")
    yield group
    group.rmdir()


@pytest.mark.parametrize("kernel_log", [True, False], ids=["kernel log", "cgroup only"])
def test_an_out_of_memory_kill_is_reported_with_its_evidence(
    tmp_path: Path, small_cgroup: Path, kernel_log: bool
) -> None:
    if kernel_log and not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("the kernel log is not readable here")
    wrapper = ("sh", "-c", f'echo $$ > {small_cgroup}/cgroup.procs; exec "$@"', "sh")
    source = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
say("up")
signal.sigwait([signal.SIGUSR2])
hog = bytearray(b"x") * (256 << 20)
say("survived")
"""
    path = "/dev/kmsg" if kernel_log else "/no/such/log"

    async def body(world: World) -> None:
        (launched,) = await world.launch(world.spec(1, source, command=wrapper))
        assert await world.channel.line() == "up"
        world.launcher._look_around()
        world.launcher.signal(1, signal.SIGUSR2)
        report = await world.exit()
        assert report.signal == "SIGKILL"
        assert report.oom is not None
        if kernel_log:
            assert f"rocess {launched.pid} (trainer-1)" in report.oom
        else:
            assert f"an out-of-memory kill in its cgroup /{small_cgroup.name} at the time" in report.oom
        assert report.oom in report.sentence()

    run_world(tmp_path, body, evidence=lambda: Evidence(log=KernelLog(path)))


def test_a_kill_by_hand_is_not_called_out_of_memory_whatever_the_counters_said_before(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        (launched,) = await world.launch(world.spec(1, "say('up'); forever()"))
        await world.channel.line()
        os.kill(launched.pid, signal.SIGKILL)
        assert (await world.exit()).oom is None

    run_world(tmp_path, body)


def test_the_bare_zygote_is_kept_for_what_is_exec_d(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        for proc_id in (1, 2):
            await world.launch(world.spec(proc_id, "", command=("nice",)))
            await world.exit()
        assert list(world.launcher._pool.pids()) == [BARE]
        assert [path.name for path in tmp_path.glob("zygote-*.log")] == ["zygote-1.log"]

    run_world(tmp_path, body)
