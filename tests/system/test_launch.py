"""Workers as they are born: what they find in their process, whatever way they were started."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import types
from pathlib import Path

import pytest
from launch_world import LOOPS, World, run_world

from roost.mesh.launch import BARE, LaunchError, ZygoteKey, linux, output, zygote_key
from roost.mesh.launch.pool import MAX_ZYGOTES
from roost.mesh.launch.spec import THREAD_VARIABLES


@pytest.mark.parametrize("use_pidfd", [True, False], ids=["pidfd", "polled"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_worker_runs_and_its_exit_code_is_reported(tmp_path: Path, loop: str, use_pidfd: bool) -> None:
    async def body(world: World) -> None:
        (launched,) = await world.launch(world.spec(7, "say(os.getppid()); sys.exit(5)"))
        assert await world.channel.line() == str(os.getpid())
        report = await world.exit()
        assert (report.code, report.signal, report.pid, report.host) == (5, None, launched.pid, "hostX")
        assert report.sentence().startswith(f"worker trainer-7 (pid {launched.pid} on hostX) ended with exit code 5")
        assert world.launcher.live() == {}

    run_world(tmp_path, body, loop, use_pidfd=use_pidfd)


def test_a_batch_is_answered_in_order_with_pids_that_are_the_agents_own_children(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        launched = await world.launch(*(world.spec(i, "say(os.getpid()); forever()") for i in range(6)))
        assert [each.proc_id for each in launched] == list(range(6))
        pids = {each.pid for each in launched}
        assert {int(line) for line in await world.channel.lines(6)} == pids
        assert pids <= set(linux.children(os.getpid()))
        for each in launched:
            seen = linux.stat(each.pid)
            assert seen is not None
            assert (seen.start_ticks, seen.session, seen.comm) == (each.start_ticks, each.pid, each.name)
        assert world.launcher.live() == {each.proc_id: each for each in launched}
        assert len(world.launcher._pool.pids()) == 1

    run_world(tmp_path, body)


@pytest.mark.parametrize(
    ("source", "code", "printed"),
    [
        ("return_value = 1", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('no data')", 1, "no data"),
        ("raise ValueError('bad shard')", 1, "ValueError: bad shard"),
        ("import threading; threading.Thread(target=forever).start()", 0, ""),
        ("os.write(1, b'from C'); print(end='no newline'); os._exit(9)", 9, "from C"),
    ],
)
def test_how_an_entry_ends_is_how_its_worker_ends(tmp_path: Path, source: str, code: int, printed: str) -> None:
    async def body(world: World) -> None:
        await world.launch(world.spec(1, source))
        report = await world.exit()
        assert report.code == code
        assert printed in "\n".join(report.stderr_tail)

    run_world(tmp_path, body)


CLEAN = """
import random, json, __main__
fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))
open_fds = [fd for fd in fds if os.path.exists(f"/proc/self/fd/{fd}")]
stuck = [s for s in signal.valid_signals() if signal.getsignal(s) not in (signal.SIG_DFL, None)]
say(json.dumps(dict(
    fds=open_fds, stdin=os.readlink("/proc/self/fd/0"), out=os.readlink("/proc/self/fd/1"),
    err=os.readlink("/proc/self/fd/2"), blocked=list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    handled=stuck, main=sorted(vars(__main__)), argv=sys.argv, cwd=os.getcwd(), path=sys.path[0],
    cpus=sorted(os.sched_getaffinity(0)), sid=os.getsid(0), pid=os.getpid(), rank=os.environ.get("RANK"),
    owner=os.environ["ROOST_PROC_ID"], omp=[os.environ.get(v) for v in %r], user=os.environ.get("USER_VAR"),
    gone=os.environ.get("TO_REMOVE"), draw=random.random(), tasks=len(os.listdir("/proc/self/task")),
)))
""" % (THREAD_VARIABLES,)  # noqa: UP031  (the braces are the worker's)


@pytest.mark.parametrize("way", ["fork", "command"])
def test_a_worker_starts_clean(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TO_REMOVE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    cpu = max(os.sched_getaffinity(0))

    async def body(world: World) -> None:
        common = {
            "env": {"USER_VAR": "x", "TO_REMOVE": None, "OPENBLAS_NUM_THREADS": "2"},
            "cwd": str(tmp_path),
            "cpus": str(cpu),
            "command": ("nice", "-n", "1") if way == "command" else None,
        }
        await world.launch(*(world.spec(i, CLEAN, rank_env={"RANK": str(i)}, **common) for i in (1, 2)))
        found = [json.loads(line) for line in await world.channel.lines(2)]
        for one in found:
            output = str(tmp_path / f"{one['owner']}.out")
            assert one["fds"] == [0, 1, 2]
            assert (one["stdin"], one["out"], one["err"]) == ("/dev/null", output, output)
            assert one["blocked"] == []
            assert one["handled"] == [
                2,
                13,
                25,
            ]  # SIGINT: our own that does nothing, the others as in any Python
            assert set(one["main"]) == set(vars(types.ModuleType("m"))) | {"__builtins__"}
            assert one["argv"] == [f"trainer-{one['owner']}"]
            assert one["rank"] == one["owner"]
            assert (one["cwd"], one["path"]) == (str(tmp_path), os.path.dirname(__file__))
            assert (one["cpus"], one["sid"]) == ([cpu], one["pid"])
            assert one["omp"] == ["3", "2", None]  # the user's own, not the zygote's 1
            assert (one["user"], one["gone"], one["tasks"]) == ("x", None, 1)
        assert found[0]["draw"] != found[1]["draw"]

    run_world(tmp_path, body)


def test_sigint_does_nothing_to_a_worker_and_is_not_ignored_in_what_it_starts(tmp_path: Path) -> None:
    source = """
import subprocess
say("ready")
signal.signal(signal.SIGUSR2, lambda *_: None)
signal.sigtimedwait([signal.SIGRTMIN], 0)
while signal.SIGUSR2 != signal.sigwait([signal.SIGUSR2]): pass
status = subprocess.run([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), 2); signal.pause()"],
                        stderr=subprocess.DEVNULL).returncode
say(status)
"""
    source = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])\n" + source
    source = source.replace("status =", "signal.pthread_sigmask(signal.SIG_SETMASK, [])\nstatus =")

    async def body(world: World) -> None:
        await world.launch(world.spec(1, source))
        assert await world.channel.line() == "ready"
        assert world.launcher.signal(1, 2)
        assert world.launcher.signal(1, 12)
        assert await world.channel.line() == "-2"
        assert (await world.exit()).code == 0
        assert not world.launcher.signal(1, 2)

    run_world(tmp_path, body)


def test_one_zygote_serves_all_with_the_same_preload_and_environment(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        specs = [
            world.spec(1, "say(os.environ.get('A'), 'decimal' in sys.modules)", rank_env={"RANK": "0"}),
            world.spec(2, "say(os.environ.get('A'), 'decimal' in sys.modules)", env={"OMP_NUM_THREADS": "2"}),
            world.spec(3, "say(os.environ.get('A'), 'decimal' in sys.modules)", env={"A": "1"}),
            world.spec(4, "say(os.environ.get('A'), 'decimal' in sys.modules)", preload=("decimal",)),
        ]
        await world.launch(*specs)
        assert sorted(await world.channel.lines(4)) == ["1 False", "None False", "None False", "None True"]
        assert set(world.launcher._pool.pids()) == {zygote_key(spec) for spec in specs}
        assert len(world.launcher._pool.pids()) == 3

    run_world(tmp_path, body)


def test_beyond_the_warm_zygotes_a_lone_environment_is_started_by_exec(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        keys = [zygote_key(world.spec(0, "", env={"A": str(i)})) for i in range(MAX_ZYGOTES)]
        await asyncio.gather(*map(world.launcher.warm, keys))
        await world.launch(world.spec(1, "say(os.environ['A'])", env={"A": "lone"}))
        assert await world.channel.line() == "lone"
        assert set(world.launcher._pool.pids()) == {BARE, *keys}
        pair = [world.spec(i, "say(os.environ['A'])", env={"A": "pair"}) for i in (2, 3)]
        await world.launch(*pair)
        assert await world.channel.lines(2) == ["pair", "pair"]
        assert zygote_key(pair[0]) in world.launcher._pool.pids()
        assert len(world.launcher._pool.pids()) == MAX_ZYGOTES + 1  # the one idle for longest made room

    run_world(tmp_path, body)


def test_another_interpreter_and_a_wrapper_are_exec_d_and_the_payload_is_on_no_command_line(
    tmp_path: Path,
) -> None:
    other = tmp_path / "python-elsewhere"
    other.write_text(f'#!/bin/sh\nVIA=elsewhere exec {sys.executable} "$@"\n')
    other.chmod(0o755)
    source = """
secret = "hidden"
say(os.environ.get("VIA"), os.nice(0), open("/proc/self/cmdline").read().count(secret))
"""

    async def body(world: World) -> None:
        await world.launch(world.spec(1, source, python=str(other)), world.spec(2, source, command=("nice", "-n", "3")))
        assert sorted(await world.channel.lines(2)) == ["None 3 0", "elsewhere 0 0"]
        assert {(await world.exit()).code for _ in range(2)} == {0}
        assert set(world.launcher._pool.pids()) == {BARE}

    run_world(tmp_path, body)


def test_a_wrapper_that_forks_is_terminated_with_its_worker(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        wrapper = ("sh", "-c", '"$@"; exit 3', "sh")
        (launched,) = await world.launch(world.spec(1, "say(os.getpid()); forever()", command=wrapper))
        worker = int(await world.channel.line())
        assert worker != launched.pid
        reports = await world.launcher.stop([1], grace=10.0)
        assert reports[1].requested
        assert linux.stat(worker) is None

    run_world(tmp_path, body)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"entry": "nowhere"}, "is not 'module:function'"),
        ({"cpus": "0-x"}, "is not a CPU list"),
        ({"cpus": "3-1"}, "runs backwards"),
        ({"cpus": "100000"}, "may not use"),
        ({"cwd": "/no/such/folder"}, "does not exist on hostX"),
        ({"python": "/no/such/python"}, "is not found on hostX"),
        ({"command": ("no-such-wrapper",)}, "is not found on hostX"),
        ({"output": "/proc/nowhere/out"}, "output file cannot be made"),
    ],
)
def test_what_cannot_start_is_refused_with_a_reason_and_the_rest_starts(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    async def body(world: World) -> None:
        bad, good = await world.try_launch(world.spec(1, "", **changes), world.spec(2, "say('up')"))
        assert isinstance(bad, LaunchError)
        assert reason in str(bad)
        assert str(bad).startswith("worker trainer-1 was not started: ")
        assert await world.channel.line() == "up"
        assert good.proc_id == 2

    run_world(tmp_path, body)


def test_a_proc_id_is_launched_once(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        first, second = await world.try_launch(world.spec(1, "forever()"), world.spec(1, "say('twice')"))
        (third,) = await world.try_launch(world.spec(1, "say('twice')"))
        assert first.pid == world.launcher.live()[1].pid
        assert "is there already" in str(second)
        assert "is there already" in str(third)

    run_world(tmp_path, body)


FLOOD = """
import ctypes
line = b"x" * 1023 + b"\\n"
print("first line")
for _ in range(4096):
    os.write(1, line)
say("flooded")
signal.sigwait([signal.SIGTERM])
libc = ctypes.CDLL(None)
libc.printf(b"from C\\n")
print("last line", file=sys.stderr)
os.kill(os.getpid(), 9)
"""


def test_a_flood_is_capped_without_losing_head_or_tail_and_a_kill_loses_no_line(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        source = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n" + FLOOD
        await world.launch(world.spec(1, source, output_limit=256 << 10))
        assert await world.channel.line() == "flooded"
        path = tmp_path / "1.out"
        while path.stat().st_blocks * 512 > 256 << 10:
            world.launcher._look_around()
        assert path.stat().st_size > 4 << 20  # offsets stay valid
        world.launcher.signal(1, 15)
        report = await world.exit()
        assert report.stderr_tail[-2:] == ("from C", "last line")
        assert path.read_bytes().startswith(b"first line\n")
        assert output.tail_lines(str(path), 1) == ("last line",)

    run_world(tmp_path, body)


TORCH = """
import json, random, torch, numpy
threads = torch.get_num_threads()
a = torch.ones(300, 300); (a @ a).sin().sum()
say(json.dumps(dict(threads=threads, omp=os.environ.get("OMP_NUM_THREADS"), draw=numpy.random.random(),
    seed=torch.initial_seed())))
forever()
"""


def test_workers_with_torch_preloaded_start_fast_draw_differently_and_have_their_threads(
    tmp_path: Path, record_property: pytest.RecordProperty, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    preload = ("torch", "torch.distributed", "numpy", "launch_entry")
    count = 32

    async def body(world: World) -> None:
        specs = [
            world.spec(i, TORCH, preload=preload, rank_env={"OMP_NUM_THREADS": "2"} if i < 2 else {})
            for i in range(count)
        ]
        assert await world.launcher.warm(zygote_key(specs[0]), world.progress.append) == ()
        assert any("importing torch" in sentence for sentence in world.progress)
        await world.launch(*specs[:1])
        await world.channel.line()
        began = time.monotonic()
        await world.launch(*specs[1:])
        found = [json.loads(line) for line in await world.channel.lines(count - 1)]
        record_property("first_op_of_31_ms", round((time.monotonic() - began) * 1e3))
        assert len({one["draw"] for one in found}) == count - 1
        assert len({one["seed"] for one in found}) == 1  # torch's own default, as in a fresh interpreter
        assert sorted(one["threads"] for one in found) == [1] * (count - 2) + [2]
        assert {one["omp"] for one in found} == {None, "2"}
        (zygote,) = world.launcher._pool.pids().values()
        assert len(os.listdir(f"/proc/{zygote}/task")) == 1
        reports = await world.launcher.stop(range(count), grace=5.0)
        assert {report.signal for report in reports.values()} == {"SIGTERM"}

    run_world(tmp_path, body)


def test_a_warm_key_is_printed_readably() -> None:
    key = ZygoteKey(("torch", "numpy"), (("A", "1"),))
    assert str(key) == "zygote(preload torch, numpy; 1 variables)"
