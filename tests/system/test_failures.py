"""What users are told when something fails, who hears of it, and what is never left behind."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from troupe import SITE, AsyncOwner, Faulty, Mixed, Odd, Owner, Player, Spawner

from roost.actors import (
    ActorDied,
    ActorError,
    ActorStopped,
    CallTimeout,
    Channel,
    SupervisionError,
    supervision,
)

WAIT = 20.0
"""Seconds: bound of every wait here; endpoints that must not be waited for sleep longer."""

Spawn = Callable[..., Any]


pytestmark = pytest.mark.usefixtures("reported")


def caught(future: Any) -> Any:
    """The exception that `get` raises."""
    with pytest.raises(Exception) as info:
        future.get(timeout=WAIT)
    return info.value


# --- exceptions of endpoints


@pytest.mark.parametrize("method", ["fail", "afail"])
@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        KeyError("k"),
        ZeroDivisionError(),
        AssertionError("a", 1),
        NotImplementedError("n"),
        MemoryError("m"),
    ],
    ids=repr,
)
def test_an_exception_keeps_its_type_and_arguments(spawn: Spawn, method: str, error: Exception) -> None:
    one = spawn(Faulty, n=1).slice(gpus=0)
    got = caught(getattr(one, method).call_one(error))
    assert isinstance(got, type(error)) and isinstance(got, ActorError)
    assert got.args == error.args
    assert type(got.original) is type(error) and got.original.args == error.args


def test_exceptions_with_state_of_their_own_keep_it(spawn: Spawn) -> None:
    one = spawn(Faulty, n=1).slice(gpus=0)
    got = caught(one.run.call_one("open('/no/such/file')"))
    assert isinstance(got, FileNotFoundError)
    assert (got.errno, got.filename, got.strerror) == (errno.ENOENT, "/no/such/file", os.strerror(errno.ENOENT))
    got = caught(one.run.call_one("raise Odd(7, 'here')"))
    assert isinstance(got, Odd) and (got.code, got.args) == (7, ("here: 7",))
    got = caught(one.run.call_one("b'\\xff'.decode()"))
    assert isinstance(got, UnicodeDecodeError) and (got.start, got.object) == (0, b"\xff")
    got = caught(one.run.call_one("import subprocess; subprocess.run(['false'], check=True)"))
    assert isinstance(got, subprocess.CalledProcessError) and got.returncode == 1


def test_an_exception_group_can_be_split_at_the_caller(spawn: Spawn) -> None:
    got = caught(
        spawn(Faulty, n=1).slice(gpus=0).run.call_one("raise ExceptionGroup('g', [ValueError(1), KeyError(2)])")
    )
    assert isinstance(got, ExceptionGroup)
    assert [type(error) for error in got.exceptions] == [ValueError, KeyError]
    with pytest.raises(ExceptionGroup) as info:
        try:
            raise got
        except* ValueError:
            pass
    assert [type(error) for error in info.value.exceptions] == [KeyError]


@pytest.mark.parametrize("method", ["fail", "afail"])
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, StopIteration])
def test_what_would_end_the_caller_arrives_as_an_actor_error(
    spawn: Spawn, method: str, kind: type[BaseException]
) -> None:
    if (method, kind) == ("afail", StopIteration):
        pytest.skip("Python itself makes a RuntimeError of it in a coroutine")
    one = spawn(Faulty, n=1).slice(gpus=0)
    got = caught(getattr(one, method).call_one(kind(3)))
    assert type(got) is ActorError
    assert type(got.original) is kind and got.original.args == (3,)
    assert got.exception is got.original
    assert one.echo.call_one("lives").get(timeout=WAIT) == "lives"


def test_a_remote_cancellation_does_not_cancel_the_callers_task(spawn: Spawn) -> None:
    one = spawn(Faulty, n=1).slice(gpus=0)

    async def main() -> bool:
        async def ask() -> None:
            await one.afail.call_one(asyncio.CancelledError())

        task = asyncio.create_task(ask())
        (result,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(result, ActorError)
        return task.cancelled()

    assert asyncio.run(main()) is False


def test_a_users_timeout_is_not_the_callers_deadline(spawn: Spawn) -> None:
    one = spawn(Faulty, n=1).slice(gpus=0)
    theirs = caught(one.fail.call_one(TimeoutError("theirs")))
    assert isinstance(theirs, TimeoutError) and isinstance(theirs, ActorError) and not isinstance(theirs, CallTimeout)
    with pytest.raises(CallTimeout) as ours:
        one.sleep.call_one(0.2).get(timeout=0.01)
    assert not isinstance(ours.value, ActorError)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "import threading\nerror = ValueError('holds a lock')\nerror.lock = threading.Lock()\nraise error",
            "ValueError: holds a lock",
        ),
        (
            "class Bad(Exception):\n    def __str__(self): raise RuntimeError\n"
            "    def __reduce__(self): raise TypeError\n"
            "raise Bad()",
            "Bad",
        ),
        (
            "class Bad(Exception):\n    def __reduce__(self): return (int, ('x',))\nraise Bad('not here')",
            "Bad: not here",
        ),
    ],
    ids=["unpicklable", "no text either", "does not unpickle"],
)
def test_an_exception_that_does_not_travel_arrives_as_its_text(spawn: Spawn, source: str, said: str) -> None:
    one = spawn(Faulty, n=1).slice(gpus=0)
    got = caught(one.run.call_one(source))
    assert isinstance(got, ActorError)
    assert said in str(got) and "in body" in str(got)
    assert one.echo.call_one(1).get(timeout=WAIT) == 1


def test_an_answer_that_does_not_pickle_is_an_error_of_that_call(spawn: Spawn) -> None:
    one = spawn(Faulty, n=1).slice(gpus=0)
    got = caught(one.run.call_one("import threading\nreturn {'state': [threading.Lock()]}"))
    assert "return value['state'][0]" in str(got)
    assert one.echo.call_one(1).get(timeout=WAIT) == 1


@pytest.mark.parametrize("method", ["fail", "afail"])
def test_an_error_says_where_it_comes_from(spawn: Spawn, method: str) -> None:
    mesh = spawn(Faulty)
    pids = mesh.pid.call().get(timeout=WAIT).values()
    got = caught(getattr(mesh.slice(gpus=1), method).call_one(ValueError("x")))
    assert (got.actor, got.endpoint, got.rank, got.pid) == ("faulty", method, 0, pids[1])
    assert got.host and got.host in str(got)
    assert f"faulty.{method} raised ValueError" in str(got) and str(pids[1]) in str(got)
    assert "raise error" in got.remote_traceback and f"in {method}" in got.remote_traceback
    assert "asynccell" not in got.remote_traceback and "cell.py" not in got.remote_traceback
    got = caught(mesh.fail_at.call([1]))
    assert (got.rank, got.pid) == (1, pids[1])


def test_cause_and_notes_travel(spawn: Spawn) -> None:
    source = """
try:
    {}["k"]
except KeyError as error:
    new = ValueError("outer")
    new.add_note("a note")
    raise new from error"""
    got = caught(spawn(Faulty, n=1).slice(gpus=0).run.call_one(source))
    assert isinstance(got, ValueError)
    assert isinstance(got.__cause__, KeyError) and got.__cause__.args == ("k",)
    assert got.__notes__ == ["a note"]
    assert "KeyError: 'k'" in str(got) and "direct cause" in str(got)


def test_an_error_passes_through_actors_with_its_origin(site: Any) -> None:
    procs = site.spawn_procs(2)
    middle, last = procs.spawn("middle", Player).slice(gpus=0), procs.spawn("last", Faulty).slice(gpus=1)
    pid = last.pid.call_one().get(timeout=WAIT)
    got = caught(middle.apply.call_one(fail_there, last))
    assert isinstance(got, ValueError)
    assert str(pid) in str(got) and "last.fail raised ValueError" in str(got), "the actor it began in is named"


def fail_there(mesh: Any) -> None:
    mesh.fail.call_one(ValueError("down there")).get(timeout=20)


# --- several ranks


def test_a_call_fails_at_the_first_failure_and_names_who_still_runs(spawn: Spawn, barrier: Any) -> None:
    mesh = spawn(Faulty, n=4)
    got = caught(mesh.fail_at.call([0, 2], barrier.path))
    assert isinstance(got, ValueError) and got.rank == 0
    assert [(rank, type(error.original)) for rank, error in got.others] == [(2, ValueError)]
    assert got.running == (1, 3)
    assert re.search(r"also failed: rank 2 on \S+ \(pid \d+\): ValueError: rank 2 fails", str(got))
    assert "still running: ranks 1, 3" in str(got)
    behind = mesh.echo.call("next")
    assert mesh.slice(gpus=0).echo.call_one("free").get(timeout=WAIT) == "free"
    assert not behind.done(), "the next call queues behind those that run"
    barrier.open(2)
    assert behind.get(timeout=WAIT).values() == ["next"] * 4


def test_a_stream_tells_each_rank_apart(spawn: Spawn) -> None:
    outcomes = {}
    for future in spawn(Faulty, n=4).fail_at.stream([1, 3]):
        error = future.exception(timeout=WAIT)
        outcomes[future.rank] = type(error.original) if error is not None else future.get()
    assert outcomes == {0: 0, 1: ValueError, 2: 2, 3: ValueError}


# --- deaths of processes


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT], ids=lambda n: n.name)
def test_a_killed_rank_fails_its_pending_calls_with_an_exit_report(spawn: Spawn, number: signal.Signals) -> None:
    mesh = spawn(Faulty, n=4)
    pids = mesh.pid.call().get(timeout=WAIT).values()
    dying = mesh.slice(gpus=2)
    first = dying.kill_me.call_one(number)
    behind = [dying.echo.call_one(i) for i in range(50)]
    whole = mesh.echo.call("whole")
    begin = time.monotonic()
    for future in (first, *behind, whole):
        got = caught(future)
        assert isinstance(got, ActorDied) and isinstance(got, RuntimeError)
        assert f"was killed by {number.name}" in str(got) and f"pid {pids[2]}" in str(got)
        assert got.exit_report.signal == number.name and got.exit_report.pid == pids[2]
        assert got.exit_report.name.endswith("-2")
    assert "at rank 2" in str(got) and got.crashed_ranks == (2,)
    assert time.monotonic() - begin < 15, "well before the 30 s that the endpoint sleeps"
    rest = [mesh.slice(gpus=slice(0, 2)), mesh.slice(gpus=3)]
    assert [part.echo.call("on").get(timeout=WAIT).values() for part in rest] == [["on"] * 2, ["on"]]
    assert isinstance(caught(mesh.echo.call("all")), ActorDied)
    assert isinstance(caught(dying.echo.call_one(1)), ActorDied)
    if number is signal.SIGSEGV:
        assert "in kill_me" in str(got), "the stack of the crash"


def test_a_rank_that_exits_tells_its_code(spawn: Spawn) -> None:
    mesh = spawn(Faulty)
    got = caught(mesh.slice(gpus=1).exit_me.call_one(3))
    assert isinstance(got, ActorDied)
    assert "exit code 3" in str(got) and got.exit_report.code == 3 and got.exit_report.signal is None
    assert mesh.slice(gpus=0).echo.call_one(1).get(timeout=WAIT) == 1


def test_the_last_words_of_a_dead_rank_are_in_the_error(spawn: Spawn) -> None:
    got = caught(spawn(Faulty, n=1).slice(gpus=0).say_and_die.call_one("loss is nan, giving up"))
    assert "loss is nan, giving up" in str(got)


def test_answers_given_before_a_death_are_not_lost(spawn: Spawn) -> None:
    one = spawn(Faulty, n=1).slice(gpus=0)
    answers = [one.echo.call_one(i) for i in range(500)]
    death = one.exit_me.call_one(0)
    assert [future.get(timeout=WAIT) for future in answers] == list(range(500))
    assert isinstance(caught(death), ActorDied)


def test_a_dead_rank_refuses_any_number_of_calls_at_once(spawn: Spawn) -> None:
    """More than there is credit for: the dead give none back."""
    mesh = spawn(Faulty, n=2)
    one = mesh.slice(gpus=1)
    assert isinstance(caught(one.exit_me.call_one(3)), ActorDied)
    for _ in range(5000):
        assert isinstance(one.echo.call_one(1).exception(timeout=WAIT), ActorDied)
        assert isinstance(mesh.echo.call(1).exception(timeout=WAIT), ActorDied)
    assert mesh.slice(gpus=0).echo.call_one(2).get(timeout=WAIT) == 2


def test_an_actor_learns_that_the_rank_it_waits_for_is_dead(site: Any) -> None:
    procs = site.spawn_procs(2)
    waiting = procs.slice(gpus=0).spawn("waiting", Player)
    dying = procs.spawn("dying", Faulty).slice(gpus=1)
    got = caught(waiting.apply.call_one(wait_for_death, dying))
    assert isinstance(got, ActorDied) and "SIGKILL" in str(got)
    assert waiting.echo.call_one(1).get(timeout=WAIT) == 1


def wait_for_death(mesh: Any) -> None:
    mesh.kill_me.call_one(9).get(timeout=20)


def test_a_stopped_worker_does_not_hold_up_others_and_can_be_ended(site: Any, wait_until_gone: Any) -> None:
    procs = site.spawn_procs(2)
    mesh = procs.spawn("faulty", Faulty)
    pids = mesh.pid.call().get(timeout=WAIT).values()
    os.kill(pids[1], signal.SIGSTOP)
    hanging = mesh.slice(gpus=1).echo.call_one("never")
    assert [mesh.slice(gpus=0).echo.call_one(i).get(timeout=WAIT) for i in range(100)] == list(range(100))
    with pytest.raises(CallTimeout):
        mesh.echo.call(1).get(timeout=0.05)
    procs.stop().get(timeout=WAIT)
    wait_until_gone(pids)
    assert isinstance(caught(hanging), ActorStopped)


@pytest.mark.parametrize("new_session", [False, True], ids=["same session", "setsid"])
@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_children_that_a_worker_forked_end_with_it(
    site: Any, wait_until_gone: Any, new_session: bool, end: str
) -> None:
    procs = site.spawn_procs(2)
    mesh = procs.spawn("faulty", Faulty)
    children = [pid for pids in mesh.fork_children.call(3, new_session).get(timeout=WAIT).values() for pid in pids]
    assert len(children) == 6 and all(psutil.pid_exists(pid) for pid in children)
    assert mesh.echo.call("still").get(timeout=WAIT).values() == ["still"] * 2
    if end == "killed":
        begin = time.monotonic()
        assert isinstance(caught(mesh.kill_me.call(9)), ActorDied)
        assert time.monotonic() - begin < 10, "the children hold the sockets, but a death is told by the kernel"
    else:
        procs.stop().get(timeout=WAIT)
    wait_until_gone(children)


# --- who hears of it


def test_a_broadcast_that_raises_fails_its_actor_and_tells_the_program(spawn: Spawn, faults: Any) -> None:
    mesh = spawn(Faulty, n=4)
    mesh.fail_at.broadcast([1, 2])
    failures = sorted((faults.get(timeout=WAIT) for _ in range(2)), key=lambda failure: failure.crashed_ranks)
    assert [(f.mesh_name, f.crashed_ranks) for f in failures] == [("faulty", (1,)), ("faulty", (2,))]
    assert all("ValueError: rank" in failure.report() and "nobody waits" in failure.report() for failure in failures)
    got = caught(mesh.slice(gpus=1).echo.call_one(1))
    assert isinstance(got, ActorDied) and "ValueError: rank 1 fails" in str(got)
    assert mesh.slice(gpus=0).echo.call_one(1).get(timeout=WAIT) == 1
    assert faults.empty(), "once a failed rank"


def test_an_async_broadcast_that_raises_fails_its_actor_too(spawn: Spawn, faults: Any) -> None:
    one = spawn(Faulty, n=1)
    one.afail.broadcast(ValueError("async and unheard"))
    assert "async and unheard" in faults.get(timeout=WAIT).report()
    assert isinstance(caught(one.echo.call(1)), ActorDied)


def test_a_constructor_that_raises_fails_the_calls_of_its_rank_alone(spawn: Spawn, faults: Any) -> None:
    mesh = spawn(Faulty, 1, n=4)
    got = caught(mesh.echo.call(1))
    assert isinstance(got, ActorDied)
    assert "its __init__ raised ValueError: the constructor fails" in str(got) and "rank 1" in str(got)
    assert mesh.slice(gpus=slice(2, 4)).echo.call(5).get(timeout=WAIT).values() == [5, 5]
    assert isinstance(caught(mesh.slice(gpus=1).echo.call_one(1)), ActorDied)
    assert "the constructor fails" in str(caught(mesh.initialized))


def test_a_failure_that_was_seen_is_not_reported(site: Any, faults: Any) -> None:
    procs = site.spawn_procs(2)
    mesh = procs.spawn("seen", Faulty)
    assert isinstance(caught(mesh.slice(gpus=0).kill_me.call_one(9)), ActorDied)
    unseen = procs.slice(gpus=1).spawn("unseen", Faulty)
    unseen.fail.broadcast(ValueError("nobody looks"))
    failure = faults.get(timeout=WAIT)
    assert failure.mesh_name == "unseen" and faults.empty(), "the first had the same grace and would have come before"


def test_one_call_that_tells_of_two_dead_ranks_has_told_of_both(site: Any, faults: Any) -> None:
    procs = site.spawn_procs(2)
    mesh = procs.spawn("seen", Faulty)
    pids = mesh.pid.call().get(timeout=WAIT).values()
    call = mesh.sleep.call(60)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    got = caught(call)
    for rank in range(2):  # the second may have died after the window of the first
        assert isinstance(caught(mesh.slice(gpus=rank).echo.call_one(1)), ActorDied)
    assert "SIGKILL" in str(got)
    site.spawn_procs(1).spawn("unseen", Faulty).fail.broadcast(ValueError("nobody looks"))
    assert faults.get(timeout=WAIT).mesh_name == "unseen" and faults.empty()


def test_what_initialized_has_told_is_not_reported(site: Any, faults: Any) -> None:
    got = caught(site.spawn_procs(2, python="/no/such/python").initialized)
    assert isinstance(got, ActorDied) and "'/no/such/python' is not found" in str(got)
    site.spawn_procs(1).spawn("unseen", Faulty).fail.broadcast(ValueError("nobody looks"))
    assert faults.get(timeout=WAIT).mesh_name == "unseen" and faults.empty()


def test_what_initialized_of_an_actor_mesh_has_told_is_not_reported(site: Any, faults: Any) -> None:
    mesh = site.spawn_procs(2).spawn("faulty", Faulty, 1)
    assert "the constructor fails" in str(caught(mesh.initialized))
    other = site.spawn_procs(1).spawn("other", Faulty, 0)
    assert "the constructor fails" in faults.get(timeout=WAIT).report(), "that of whom nobody asked is"
    assert faults.empty()
    assert other.name == "other"


def test_a_dead_process_that_nobody_asks_is_reported_once_a_rank(site: Any, faults: Any) -> None:
    procs = site.spawn_procs(2)
    first, second = procs.spawn("first", Faulty), procs.spawn("second", Faulty)
    pids = first.pid.call().get(timeout=WAIT).values()
    assert second.pid.call().get(timeout=WAIT).values() == pids
    for rank, pid in enumerate(pids):
        os.kill(pid, signal.SIGKILL)
        failure = faults.get(timeout=WAIT)
        assert failure.crashed_ranks == (rank,)
        assert "SIGKILL" in failure.report() and str(pid) in failure.report()
    assert faults.empty(), "two actor meshes on a process mesh, one failure"


def test_a_future_that_is_thrown_away_unseen_reports_at_once(
    spawn: Spawn, faults: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "FAULT_GRACE", 3600.0)
    mesh = spawn(Faulty, n=1)
    mesh.initialized.get(timeout=WAIT)  # else it too would have to be thrown away
    one = mesh.slice(gpus=0)
    port, receiver = Channel.open()
    future = one.sleep.call_one(30, port)
    os.kill(receiver.recv().get(timeout=WAIT), signal.SIGKILL)
    while not future.done():  # nothing but `get` and `await` waits, and they see
        os.sched_yield()
    del future
    assert "SIGKILL" in faults.get(timeout=WAIT).report()


OWNERS = [Owner, AsyncOwner]


@pytest.mark.parametrize("how", ["killed", "broadcast"])
@pytest.mark.parametrize("cls", OWNERS)
def test_supervise_hears_of_what_the_actor_owns(site: Any, faults: Any, cls: type, how: str) -> None:
    procs = site.spawn_procs(1)
    owner, other = (procs.spawn(name, cls, "handled").slice(gpus=0) for name in ("owner", "other"))
    mesh, _ = owner.spawn_here.call_one(2).get(timeout=WAIT)
    owner.break_owned.call_one(how).get(timeout=WAIT)
    assert other.look_at.call_one(mesh.slice(gpus=0)).get(timeout=WAIT) == "ActorDied", "the owner's process knows"
    seen, threads = owner.hooks.call_one().get(timeout=WAIT)
    assert [ranks for _, ranks, _ in seen] == [(0,)]
    assert ("SIGKILL" if how == "killed" else "ValueError: broadcast") in seen[0][2]
    assert len(set(threads.values())) == 1 and "supervise" in threads, "the hook runs on the home thread"
    assert mesh.slice(gpus=1).echo.call_one(1).get(timeout=WAIT) == 1
    assert other.hooks.call_one().get(timeout=WAIT)[0] == [], "only the owner is asked"
    assert faults.empty()


@pytest.mark.parametrize("cls", OWNERS)
def test_supervise_runs_before_messages_that_wait(site: Any, faults: Any, barrier: Any, cls: type) -> None:
    procs = site.spawn_procs(1)
    owner, other = (procs.spawn(name, cls, "handled").slice(gpus=0) for name in ("owner", "other"))
    mesh, pids = owner.spawn_here.call_one(2).get(timeout=WAIT)
    port, receiver = Channel.open()
    owner.stand.call_one(barrier.path, port)
    receiver.recv().get(timeout=WAIT)
    waiting = owner.hooks.call_one()
    looking = other.look_at.call_one(mesh)
    os.kill(pids[0], signal.SIGKILL)
    assert looking.get(timeout=WAIT) == "ActorDied", "the owner's process knows of the death"
    barrier.open()
    assert len(waiting.get(timeout=WAIT)[0]) == 1


@pytest.mark.parametrize("cls", [*OWNERS, Spawner])
@pytest.mark.parametrize("verdict", ["falsy", "raises"])
def test_an_owner_that_does_not_handle_it_fails_and_its_owner_hears(
    site: Any, faults: Any, cls: type, verdict: str
) -> None:
    if cls is Spawner and verdict == "raises":
        pytest.skip("it has no hook")
    procs = site.spawn_procs(2, env={"ROOST_FAULT_GRACE": "0.1"})
    args = () if cls is Spawner else (verdict,)
    owners = procs.spawn("owner", cls, *args)
    mesh, pids = owners.slice(gpus=0).spawn_here.call_one(2).get(timeout=WAIT)
    os.kill(pids[1], signal.SIGKILL)
    failure = faults.get(timeout=WAIT)
    assert (failure.mesh_name, failure.crashed_ranks) == ("owner", (0,))
    assert "SIGKILL" in failure.report() and str(pids[1]) in failure.report(), "the first cause is told"
    if verdict == "raises":
        assert "LookupError: the hook fails" in failure.report()
    got = caught(owners.slice(gpus=0).stand.call_one("", None))
    assert isinstance(got, ActorDied) and "SIGKILL" in str(got)
    assert isinstance(caught(mesh.slice(gpus=0).echo.call_one(1)), SupervisionError), "what it owned has ended with it"
    assert faults.empty()


def test_a_failure_seen_in_an_endpoint_does_not_fail_the_owner(site: Any, faults: Any) -> None:
    owner = site.spawn_procs(1, env={"ROOST_FAULT_GRACE": "0.1"}).spawn("owner", Spawner).slice(gpus=0)
    _, pids = owner.spawn_here.call_one(2).get(timeout=WAIT)
    looking = owner.look_at_own.call_one()
    os.kill(pids[0], signal.SIGKILL)
    assert looking.get(timeout=WAIT) == "ActorDied"
    owner.spawn_here.call_one(1).get(timeout=WAIT)
    owner.break_owned.call_one("broadcast").get(timeout=WAIT)
    failure = faults.get(timeout=WAIT)
    assert "broadcast" in failure.report() and faults.empty(), "the second failure is the one that nobody saw"


@pytest.mark.parametrize("where", ["in get", "elsewhere"])
def test_the_default_hook_writes_a_report_and_ends_the_script(site: Any, run_script: Any, where: str) -> None:
    source = (
        SITE
        + """
import threading
from troupe import Faulty
mesh = spawn_procs(2).spawn("faulty", Faulty)
mesh.echo.call(1).get(timeout=20)
mesh.slice(gpus=1).fail.broadcast(ValueError("nobody looks"))
try:
    if sys.argv[2] == "in get":
        mesh.slice(gpus=0).sleep.call_one(60).get()
    else:
        threading.Event().wait(60)
except SystemExit as end:
    print(f"ends with {end.code}")
    raise
"""
    )
    script = run_script(source, site.name, where, code=1, env={"ROOST_FAULT_GRACE": "0.1"})
    assert script.out == "ends with 1\n"
    assert "a failure that nobody handled" in script.err
    assert "mesh 'faulty', ranks [1]" in script.err and "ValueError: nobody looks" in script.err
    assert script.err.count("a failure that nobody handled") == 1


def test_a_failure_that_nobody_saw_is_told_when_the_program_ends(site: Any, run_script: Any) -> None:
    source = (
        SITE
        + """
from roost import Channel
from troupe import Faulty
mesh = spawn_procs(2).spawn("faulty", Faulty)
future = mesh.slice(gpus=1).kill_me.call_one(9)
while not future.done():
    mesh.slice(gpus=0).echo.call_one(1).get(timeout=20)
"""
    )
    script = run_script(source, site.name, env={"ROOST_FAULT_GRACE": "3600"})
    assert "SIGKILL" in script.err and script.err.count("a failure that nobody handled") == 1


# --- Ctrl-C, and kill -9 of what holds everything together


CHILDREN = """
import os, psutil
def children():
    return [child.pid for child in psutil.Process().children(recursive=True)]
"""


def test_ctrl_c_interrupts_a_get_at_once_and_the_runtime_goes_on(
    site: Any, start_script: Any, wait_until_gone: Any
) -> None:
    source = (
        SITE
        + CHILDREN
        + """
from troupe import Faulty
mesh = spawn_procs(2).spawn("faulty", Faulty)
mesh.echo.call(1).get(timeout=20)
print(*children())
try:
    print("waiting")
    mesh.slice(gpus=1).sleep.call_one(30).get()
except KeyboardInterrupt:
    print("interrupted")
print(mesh.slice(gpus=0).echo.call_one("goes on").get(timeout=20))
other = this_host().spawn_procs({"gpus": 1}).spawn("other", Faulty)
print(other.slice(gpus=0).echo.call_one("spawns on").get(timeout=20))
"""
    )
    script = start_script(source, site.name)
    pids = [int(word) for word in script.line().split()]
    assert script.line() == "waiting"
    begin = time.monotonic()
    os.killpg(script.pid, signal.SIGINT)  # as a terminal does: to all that is in the foreground
    assert [script.line() for _ in range(3)] == ["interrupted", "goes on", "spawns on"]
    assert script.wait() == 0, script.err
    assert time.monotonic() - begin < 25, "well before the 30 s that the endpoint sleeps"
    wait_until_gone(pids)


def test_ctrl_c_that_nobody_catches_ends_the_script_and_leaves_nothing(
    site: Any, start_script: Any, wait_until_gone: Any
) -> None:
    source = (
        SITE
        + CHILDREN
        + """
from troupe import Faulty
mesh = spawn_procs(2).spawn("faulty", Faulty)
mesh.echo.call(1).get(timeout=20)
print(*children())
mesh.sleep.call(60).get()
"""
    )
    script = start_script(source, site.name)
    pids = [int(word) for word in script.line().split()]
    begin = time.monotonic()
    os.killpg(script.pid, signal.SIGINT)
    assert script.wait() in (-signal.SIGINT, 130)
    assert "KeyboardInterrupt" in script.err
    assert time.monotonic() - begin < 30, "well before the 60 s that the endpoint sleeps"
    wait_until_gone(pids)


def test_nothing_outlives_a_controller_that_is_killed(site: Any, start_script: Any, wait_until_gone: Any) -> None:
    source = (
        SITE
        + CHILDREN
        + """
from troupe import Faulty, Owner
procs = spawn_procs(2)
faulty, owner = procs.spawn("faulty", Faulty), procs.spawn("owner", Owner)
forked = faulty.fork_children.call(2, True).get(timeout=20).values()
owner.spawn_here.call(1).get(timeout=20)
faulty.sleep.broadcast(3600)
print(*children())
procs.initialized.get()
sys.stdin.read()
"""
    )
    script = start_script(source, site.name)
    pids = [int(word) for word in script.line().split()]
    assert len(pids) >= 2 + 4 + 2 + site.agents
    script.signal(signal.SIGKILL)
    wait_until_gone([script.pid, *pids])


AGENT_KILLED = (
    SITE
    + CHILDREN
    + """
from roost.mesh.local import controller
from roost.actors import ActorDied
from troupe import Faulty
procs = spawn_procs(2)
mesh = procs.spawn("faulty", Faulty)
workers = mesh.pid.call().get(timeout=20).values()
agent = controller().agents[-1].process.pid
waiting = mesh.slice(gpus=1).sleep.call_one(60)
print(agent, *workers)
try:
    waiting.get(timeout=20)
except ActorDied as error:
    print(error)
"""
)


def test_an_agent_that_is_killed_takes_its_workers_with_it_and_says_so(
    site: Any, start_script: Any, wait_until_gone: Any
) -> None:
    source = (
        AGENT_KILLED
        + """
try:
    mesh.echo.call(1).get(timeout=20)
except ActorDied as error:
    print("dead")
if sys.argv[1] == "two agents":
    print(mesh.slice(gpus=0).echo.call_one("the other host goes on").get(timeout=20))
"""
    )
    script = start_script(source, site.name)
    agent, *workers = map(int, script.line().split())
    os.kill(agent, signal.SIGKILL)
    said = script.line()
    assert (
        f"the host agent of {'h1' if site.agents == 2 else socket.gethostname()} (pid {agent}) was killed by SIGKILL"
        in said
    )
    assert script.line() == "dead"
    if site.agents == 2:
        assert script.line() == "the other host goes on"
        wait_until_gone(workers[1:])
    else:
        wait_until_gone(workers)
    assert script.wait() == 0, script.err
    wait_until_gone(workers)


def test_a_zygote_that_is_killed_is_replaced_and_its_workers_go_on(site: Any, run_script: Any) -> None:
    source = (
        SITE
        + CHILDREN
        + """
import signal, select
from troupe import Faulty
mesh = spawn_procs(2).spawn("faulty", Faulty)
workers = mesh.pid.call().get(timeout=20).values()
others = [pid for pid in children() if pid not in workers]
zygotes = [pid for pid in others if "roost.mesh.launch.zygote" in psutil.Process(pid).cmdline()]
for pid in zygotes:
    descriptor = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([descriptor], [], [], 20)
print(len(zygotes) > 0, mesh.pid.call().get(timeout=20).values() == workers)
new = spawn_procs(2).spawn("new", Faulty)
print(new.echo.call("spawned").get(timeout=20).values()[-1])
"""
    )
    assert run_script(source, site.name).out == "True True\nspawned\n"


def test_calls_of_a_process_that_is_gone_are_dropped_quietly(site: Any) -> None:
    procs = site.spawn_procs(2)
    caller = procs.slice(gpus=0).spawn("caller", Player)
    mixed = procs.slice(gpus=1).spawn("mixed", Mixed)
    pid = caller.pid.call_one().get(timeout=WAIT)
    port, receiver = Channel.open()
    pending = caller.apply.call_one(hold, mixed, port)
    assert receiver.recv().get(timeout=WAIT) == "waiting"
    os.kill(pid, signal.SIGKILL)
    assert isinstance(caught(pending), ActorDied)
    mixed.wake.call_one().get(timeout=WAIT)
    assert mixed.echo.call_one("goes on").get(timeout=WAIT) == "goes on"


def hold(mesh: Any, port: Any) -> Any:
    return mesh.wait.call_one(port).get(timeout=30)
