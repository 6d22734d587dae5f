"""Ranks that die are started anew in their places: when asked, and by policy. And how a program ends otherwise."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from phoenix import AsyncPhoenix, BadRestore, Keeper, Link, Phoenix, refuse_when
from troupe import SITE

from roost.actors import (
    ActorDied,
    ActorStopped,
    Channel,
    Restart,
    RoostError,
    SupervisionError,
)
from roost.mesh import RestartPolicy

WAIT = 30.0

pytestmark = pytest.mark.usefixtures("reported")

Die = Callable[..., None]


def kill(mesh: Any, *ranks: int) -> Any:
    """Kill ranks of an actor mesh and wait until their death is known here; gives the last error."""
    error = None
    for rank in ranks:
        error = mesh.slice(gpus=rank).die.call_one().exception(timeout=WAIT)
        assert isinstance(error, ActorDied)
    return error


def pids(mesh: Any) -> list[int]:
    found: list[int] = mesh.pid.call().get(timeout=WAIT).values()
    return found


# --- when asked


def test_a_respawned_rank_has_its_place_its_arguments_and_all_its_meshes(site: Any) -> None:
    procs = site.spawn_procs(4, env={"GIVEN": "at spawn"})
    argument = ["as it was"]
    mesh = procs.spawn("first", Phoenix, argument)
    other = procs.slice(gpus=slice(2, 4)).spawn("second", Phoenix, "other")
    part, rest = mesh.slice(gpus=2), mesh.slice(gpus=slice(0, 2))
    argument.append("changed at the owner")
    mesh.change.call().get(timeout=WAIT)
    before = pids(mesh)
    kill(mesh, 2)
    os.environ["GIVEN"] = "later"
    try:
        future = procs.respawn(reason="a test")
    finally:
        del os.environ["GIVEN"]
    assert part.echo.call_one("at once").get(timeout=WAIT) == "at once", "a slice of before, without waiting"
    assert future.get(timeout=WAIT) is procs
    after = pids(mesh)
    assert [after[r] == before[r] for r in range(4)] == [True, True, False, True]
    assert part.look.call_one().get(timeout=WAIT)[:2] == (after[2], ["as it was"])
    assert rest.look.call().get(timeout=WAIT).values()[0][1] == ["as it was", "changed"], "the others have lived on"
    assert [found[:2] for found in other.look.call().get(timeout=WAIT).values()] == [
        (after[2], "other"),
        (after[3], "other"),
    ]
    assert part.environment.call_one("GIVEN").get(timeout=WAIT) == ("at spawn", "2"), "the rank in its variables too"
    assert procs.epoch == 2
    assert procs.restarts == [Restart(2, (2,), False, "a test")]


def test_restore_is_called_on_fresh_ranks_before_any_message_and_on_the_others_before_those_that_wait(
    site: Any, barrier: Any
) -> None:
    for cls in (Phoenix, AsyncPhoenix):
        procs = site.spawn_procs(2)
        mesh = procs.spawn("told", cls)
        port, receiver = Channel.open()
        kill(mesh, 1)
        standing = mesh.slice(gpus=0).stand.call_one(port, barrier.path)
        receiver.recv().get(timeout=WAIT)
        mesh.slice(gpus=0).note.broadcast("waited")
        future = procs.respawn(reason="why")
        mesh.note.broadcast("after")
        future.get(timeout=WAIT)
        barrier.open()
        assert standing.get(timeout=WAIT) == "passed", "what runs is not disturbed"
        (_, _, old), (_, _, new) = mesh.look.call().get(timeout=WAIT).values()
        assert old == ["init", Restart(2, (1,), False, "why"), "waited", "after"]
        assert new == ["init", Restart(2, (1,), True, "why"), "after"]


def test_calls_in_flight_to_the_others_are_not_disturbed(site: Any) -> None:
    procs = site.spawn_procs(2)
    mesh = procs.spawn("busy", Phoenix)
    kill(mesh, 1)
    one = mesh.slice(gpus=0)
    answers = [one.echo.call_one(i) for i in range(500)]
    procs.respawn()
    answers += [one.echo.call_one(i) for i in range(500, 1000)]
    assert [future.get(timeout=WAIT) for future in answers] == list(range(1000))


def test_a_mesh_of_an_older_epoch_is_refused_with_what_to_do(site: Any) -> None:
    procs, others = site.spawn_procs(2), site.spawn_procs(1)
    mesh = procs.spawn("renewed", Phoenix)
    holder = others.spawn("holder", Phoenix)
    one = holder.flatten("gpus").slice(gpus=0)
    one.hold.call_one(mesh.slice(gpus=0)).get(timeout=WAIT)
    assert one.call_held.call_one("before").get(timeout=WAIT) == ["before"]
    kill(mesh, 1)
    procs.respawn().get(timeout=WAIT)
    error = one.call_held.call_one("stale").exception(timeout=WAIT)
    assert isinstance(error, SupervisionError)
    assert "get the mesh again from whoever respawned it" in str(error)
    assert "epoch 1" in str(error) and "epoch 2" in str(error)
    assert one.call.call_one(mesh, "new").get(timeout=WAIT) == ["new", "new"], "the mesh as it is now works there"


def test_several_respawns_count_epochs_and_each_is_told(site: Any) -> None:
    procs = site.spawn_procs(2)
    mesh = procs.spawn("again", Phoenix)
    told: queue.SimpleQueue[Restart] = queue.SimpleQueue()
    procs.on_restart(told.put)
    for turn in range(3):
        kill(mesh, turn % 2)
        procs.respawn()
        assert mesh.echo.call(turn).get(timeout=WAIT).values() == [turn, turn]
    assert procs.epoch == 4
    assert [(r.epoch, r.ranks) for r in procs.restarts] == [(2, (0,)), (3, (1,)), (4, (0,))]
    assert [told.get(timeout=WAIT) for _ in range(3)] == procs.restarts
    events = mesh.slice(gpus=1).look.call_one().get(timeout=WAIT)[2]
    assert [(e.epoch, e.fresh) for e in events[1:]] == [(3, True), (4, False)]


def test_ranks_that_live_are_refused_unless_they_are_to_be_killed(
    site: Any, faults: Any, barrier: Any, wait_until_gone: Any
) -> None:
    procs = site.spawn_procs(2)
    mesh = procs.spawn("alive", Phoenix)
    before = pids(mesh)
    with pytest.raises(ValueError, match="-1 lives: only dead ranks are respawned"):
        procs.respawn([1])
    with pytest.raises(ValueError, match="has no rank 2"):
        procs.respawn([2])
    assert procs.respawn().get(timeout=WAIT) is procs and procs.epoch == 1, "nothing is dead, nothing is done"
    port, receiver = Channel.open()
    pending = mesh.slice(gpus=1).stand.call_one(port, barrier.path)
    receiver.recv().get(timeout=WAIT)
    future = procs.respawn([1], force=True, reason="to be sure")
    assert mesh.echo.call("waits").get(timeout=WAIT).values() == ["waits", "waits"]
    assert isinstance(pending.exception(timeout=WAIT), ActorStopped)
    future.get(timeout=WAIT)
    wait_until_gone([before[1]])
    after = pids(mesh)
    assert after[0] == before[0] and after[1] != before[1]
    unseen = site.spawn_procs(1).spawn("unseen", Phoenix)
    unseen.fail.broadcast()
    assert faults.get(timeout=WAIT).mesh_name == "unseen" and faults.empty(), "the end of what was killed is planned"


def test_a_stopped_mesh_is_not_respawned(site: Any) -> None:
    procs = site.spawn_procs(2)
    mesh = procs.spawn("stopped", Phoenix)
    kill(mesh, 0)
    procs.stop().get(timeout=WAIT)
    with pytest.raises(ActorStopped, match="has been stopped"):
        procs.respawn()


def test_only_the_process_that_spawned_a_mesh_respawns_it(site: Any) -> None:
    procs = site.spawn_procs(2)
    mesh = procs.spawn("mine", Phoenix)
    error = mesh.slice(gpus=0).hold.call_one(mesh).exception(timeout=WAIT)
    assert error is None
    import pickle

    with pytest.raises(RoostError, match="was spawned by another process"):
        pickle.loads(pickle.dumps(procs)).respawn()


def test_two_respawns_at_once_run_one_after_the_other(site: Any) -> None:
    procs = site.spawn_procs(4)
    mesh = procs.spawn("racing", Phoenix)
    before = pids(mesh)
    kill(mesh, 1, 2)
    start = threading.Barrier(4)
    outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def respawn(ranks: list[int] | None) -> None:
        start.wait(WAIT)
        try:
            outcomes.put(procs.respawn(ranks).get(timeout=WAIT))
        except ValueError as error:
            outcomes.put(error)

    threads = [threading.Thread(target=respawn, args=(ranks,)) for ranks in ([1], [2], None, None)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    for _ in threads:
        outcome = outcomes.get(timeout=WAIT)
        assert outcome is procs or "lives: only dead ranks" in str(outcome)
    after = pids(mesh)
    assert [after[r] == before[r] for r in range(4)] == [True, False, False, True]
    assert sorted(rank for restart in procs.restarts for rank in restart.ranks) == [1, 2], "each once"


def test_a_process_that_cannot_start_fails_the_future_and_leaves_the_mesh_as_dead_as_before(
    site: Any, faults: Any, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    procs = site.spawn_procs(2, bootstrap=refuse_when(str(wrong)))
    mesh = procs.spawn("fragile", Phoenix)
    before = pids(mesh)
    kill(mesh, 1)
    wrong.touch()
    future = procs.respawn()
    error = mesh.slice(gpus=1).echo.call_one(1).exception(timeout=WAIT)
    assert isinstance(error, ActorDied) and "the bootstrap refuses" in str(error)
    error = future.exception(timeout=WAIT)
    assert isinstance(error, ActorDied) and "the bootstrap refuses" in str(error)
    assert mesh.slice(gpus=0).pid.call_one().get(timeout=WAIT) == before[0]
    wrong.unlink()
    procs.respawn().get(timeout=WAIT)
    assert mesh.echo.call("up").get(timeout=WAIT).values() == ["up", "up"]
    assert faults.empty(), "what the future has told is handled"


def test_a_constructor_or_hook_that_raises_fails_the_future_and_the_rank(
    site: Any, faults: Any, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    procs = site.spawn_procs(2)
    mesh = procs.spawn("constructed", Phoenix, fail_if=str(wrong))
    hooked = procs.spawn("hooked", BadRestore, True)
    pids(mesh), pids(hooked)
    kill(mesh, 1)
    wrong.touch()
    error = procs.respawn().exception(timeout=WAIT)
    assert isinstance(error, ActorDied) and "the constructor refuses" in str(error)
    for failed, said in (
        (mesh, "the constructor refuses"),
        (hooked, "its __restore__ raised LookupError: the hook fails"),
    ):
        error = failed.slice(gpus=1).echo.call_one(1).exception(timeout=WAIT)
        assert isinstance(error, ActorDied) and said in str(error)
        assert failed.slice(gpus=0).echo.call_one(1).get(timeout=WAIT) == 1


def test_a_hook_that_raises_on_a_rank_that_lived_on_fails_its_actor(site: Any, faults: Any) -> None:
    procs = site.spawn_procs(2)
    mesh = procs.spawn("survivor", BadRestore, False)
    kill(mesh, 1)
    procs.respawn().get(timeout=WAIT)
    error = mesh.slice(gpus=0).echo.call_one(1).exception(timeout=WAIT)
    assert isinstance(error, ActorDied) and "its __restore__ raised LookupError" in str(error)
    assert mesh.slice(gpus=1).echo.call_one(1).get(timeout=WAIT) == 1


def test_arguments_that_were_too_large_to_keep_are_named_before_anything_is_done(site: Any) -> None:
    large = b"x" * (17 << 20)
    procs = site.spawn_procs(2)
    mesh = procs.spawn("large", Phoenix, large)
    kill(mesh, 1)
    with pytest.raises(
        RoostError, match="'large' cannot be spawned again: its arguments are 17 MiB, and 16 MiB are kept"
    ):
        procs.respawn()
    assert procs.epoch == 1
    mesh.stop().get(timeout=WAIT)
    procs.respawn().get(timeout=WAIT)
    kept = site.spawn_procs(2, restart=RestartPolicy(max_restarts=0))
    mesh = kept.spawn("large", Phoenix, large)
    kill(mesh, 1)
    kept.respawn()
    assert mesh.slice(gpus=1).look.call_one().get(timeout=WAIT)[1] == large


def test_an_actor_respawns_a_mesh_that_it_owns(site: Any, faults: Any) -> None:
    owner = site.spawn_procs(1).spawn("owner", Keeper).flatten("gpus").slice(gpus=0)
    before = owner.own.call_one(2, {}).get(timeout=WAIT)
    assert owner.kill_one.call_one().get(timeout=WAIT) == "ActorDied"
    after = owner.renew.call_one().get(timeout=WAIT)
    assert [(given, epoch) for _, given, epoch in after] == [("kept", 2)] * 2
    assert after[0][0] != before[0] and after[1][0] == before[1]


# --- actors that failed, on processes that live


def test_actors_that_failed_are_spawned_anew_on_their_processes(site: Any, faults: Any) -> None:
    procs = site.spawn_procs(2)
    mesh = procs.spawn("failing", Phoenix, ["given"])
    before = pids(mesh)
    one = mesh.slice(gpus=1)
    one.echo.call_one(1).get(timeout=WAIT)
    one.fail.broadcast()
    assert isinstance(one.echo.call_one(1).exception(timeout=WAIT), ActorDied)
    with pytest.raises(ValueError, match="rank 0 of 'failing' lives"):
        mesh.respawn([0])
    future = mesh.respawn(reason="again")
    assert mesh.echo.call("on").get(timeout=WAIT).values() == ["on", "on"]
    assert future.get(timeout=WAIT) is mesh
    assert pids(mesh) == before and procs.epoch == 1
    old, new = (events for _, _, events in mesh.look.call().get(timeout=WAIT).values())
    assert old == ["init", Restart(1, (1,), False, "again")] and new == ["init", Restart(1, (1,), True, "again")]
    assert mesh.on_main_thread.call().get(timeout=WAIT).values() == [True, True]
    for turn in range(3):
        one.fail.broadcast()
        assert isinstance(one.echo.call_one(1).exception(timeout=WAIT), ActorDied)
        one.respawn([0])
        assert one.echo.call_one(turn).get(timeout=WAIT) == turn
    kill(mesh, 1)
    with pytest.raises(ValueError, match="the process of rank 1 of 'failing' is dead"):
        mesh.respawn([1])


def test_an_actor_spawned_anew_has_all_its_credit(site: Any, faults: Any) -> None:
    procs = site.spawn_procs(1)
    mesh = procs.spawn("pressed", Phoenix)
    one = mesh.flatten("gpus").slice(gpus=0)
    for _ in range(2):
        answers = [one.echo.call_one(i) for i in range(6000)]
        assert answers[-1].get(timeout=WAIT) == 5999
        one.fail.broadcast()
        refused = [one.echo.call_one(i) for i in range(6000)]
        assert all(isinstance(future.exception(timeout=WAIT), ActorDied) for future in refused)
        for _ in range(3000):
            one.note.broadcast("to nobody")
        mesh.respawn()
        answers = [one.echo.call_one(i) for i in range(12_000)]
        assert [future.get(timeout=WAIT) for future in answers] == list(range(12_000))


# --- by policy


def test_a_policy_restarts_what_dies_and_nobody_hears_of_a_failure(site: Any, faults: Any, caplog: Any) -> None:
    procs = site.spawn_procs(2, restart=RestartPolicy(backoff=0.3, jitter=0.0))
    mesh = procs.spawn("kept", Phoenix, ["given"])
    told: queue.SimpleQueue[Restart] = queue.SimpleQueue()
    procs.on_restart(told.put)
    before = pids(mesh)
    error = kill(mesh, 1)
    assert "was killed by SIGKILL" in str(error) and str(before[1]) in str(error)
    assert "it is restarted in 0.3 s" in str(error)
    assert "it is restarted in" in str(mesh.slice(gpus=1).echo.call_one(1).exception(timeout=WAIT)), "while it waits"
    restart = told.get(timeout=WAIT)
    assert (restart.epoch, restart.ranks) == (2, (1,)) and "was killed by SIGKILL" in restart.reason
    assert mesh.echo.call("up").get(timeout=WAIT).values() == ["up", "up"], "calls made now wait for the new process"
    pid, given, events = mesh.slice(gpus=1).look.call_one().get(timeout=WAIT)
    assert pid != before[1] and given == ["given"] and events == ["init", Restart(2, (1,), True, restart.reason)]
    (record,) = [record for record in caplog.records if "is restarted" in record.getMessage()]
    assert record.levelname == "WARNING" and "SIGKILL" in record.getMessage() and "1 of 3" in record.getMessage()
    site.spawn_procs(1).spawn("unseen", Phoenix).fail.broadcast()
    assert faults.get(timeout=WAIT).mesh_name == "unseen" and faults.empty()


def test_ranks_that_die_together_are_restarted_together(site: Any, faults: Any) -> None:
    procs = site.spawn_procs(4, restart=RestartPolicy(max_restarts=1, backoff=0.5))
    mesh = procs.spawn("together", Phoenix)
    told: queue.SimpleQueue[Restart] = queue.SimpleQueue()
    procs.on_restart(told.put)
    for pid in pids(mesh)[1:]:
        os.kill(pid, signal.SIGKILL)
    assert told.get(timeout=WAIT).ranks == (1, 2, 3)
    assert mesh.echo.call(1).get(timeout=WAIT).values() == [1] * 4
    assert faults.empty() and len(procs.restarts) == 1


def test_a_spent_budget_gives_the_failure_to_the_owner_and_says_so(site: Any, faults: Any) -> None:
    procs = site.spawn_procs(2, restart=RestartPolicy(max_restarts=2, backoff=0.01, jitter=0.0))
    mesh = procs.spawn("doomed", Phoenix)
    told: queue.SimpleQueue[Restart] = queue.SimpleQueue()
    procs.on_restart(told.put)
    for _ in range(2):
        os.kill(mesh.slice(gpus=0).pid.call_one().get(timeout=WAIT), signal.SIGKILL)
        told.get(timeout=WAIT)
    os.kill(mesh.slice(gpus=0).pid.call_one().get(timeout=WAIT), signal.SIGKILL)
    failure = faults.get(timeout=WAIT)
    assert failure.crashed_ranks == (0,)
    assert "it was restarted 2 times within 600 s, and is not restarted again" in failure.report()
    assert "is not restarted again" in str(mesh.slice(gpus=0).echo.call_one(1).exception(timeout=WAIT))
    assert mesh.slice(gpus=1).echo.call_one(1).get(timeout=WAIT) == 1
    procs.respawn().get(timeout=WAIT)
    assert mesh.echo.call(2).get(timeout=WAIT).values() == [2, 2], "asked for, it is respawned still"


def test_a_process_that_never_starts_again_spends_the_budget(site: Any, faults: Any, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    policy = RestartPolicy(max_restarts=2, backoff=0.01)
    procs = site.spawn_procs(2, bootstrap=refuse_when(str(wrong)), restart=policy)
    mesh = procs.spawn("never", Phoenix)
    found = pids(mesh)
    wrong.touch()
    os.kill(found[1], signal.SIGKILL)
    failure = faults.get(timeout=WAIT)
    assert "the bootstrap refuses" in failure.report() and "not restarted again" in failure.report()
    assert len(procs.restarts) == 2 and faults.empty()


def test_a_policy_restarts_actors_that_fail_on_a_process_that_lives(site: Any, faults: Any) -> None:
    procs = site.spawn_procs(2, restart=RestartPolicy(backoff=0.01))
    mesh = procs.spawn("failing", Phoenix)
    before = pids(mesh)
    told: queue.SimpleQueue[Restart] = queue.SimpleQueue()
    procs.on_restart(told.put)
    mesh.slice(gpus=1).fail.broadcast()
    assert told.get(timeout=WAIT).ranks == (1,)
    assert pids(mesh) == before
    events = mesh.slice(gpus=1).look.call_one().get(timeout=WAIT)[2]
    assert [event.fresh for event in events[1:]] == [True] and "the endpoint fails" in events[1].reason
    assert faults.empty()


def test_a_policy_works_in_the_process_of_an_actor_that_owns_the_mesh(site: Any, faults: Any) -> None:
    owner = site.spawn_procs(1).spawn("owner", Keeper).flatten("gpus").slice(gpus=0)
    before = owner.own.call_one(2, {"backoff": 0.01}).get(timeout=WAIT)
    assert owner.kill_one.call_one().get(timeout=WAIT) == "ActorDied"
    while True:
        looked = owner.look.call_one()
        if looked.exception(timeout=WAIT) is None:
            break
    after = looked.get()
    assert after[0][0] != before[0] and [epoch for *_, epoch in after] == [2, 2]
    assert owner.heard.call_one().get(timeout=WAIT) == [], "its __supervise__ was not asked"


def test_a_mesh_that_is_stopped_while_a_restart_waits_stays_stopped(site: Any, faults: Any) -> None:
    procs = site.spawn_procs(2, restart=RestartPolicy(backoff=0.2))
    mesh = procs.spawn("stopped", Phoenix)
    kill(mesh, 0)
    procs.stop().get(timeout=WAIT)
    other = site.spawn_procs(1, restart=RestartPolicy(backoff=0.3)).spawn("other", Phoenix)
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    kill(other.flatten("gpus"), 0)
    while other.flatten("gpus").slice(gpus=0).echo.call_one(1).exception(timeout=WAIT) is not None:
        pass
    assert procs.restarts == [] and told.empty()


# --- the first cause, and the end of a program


@pytest.mark.parametrize("depth", [2, 3])
def test_the_first_cause_is_named_at_the_top_of_a_chain(site: Any, faults: Any, depth: int) -> None:
    procs = site.spawn_procs(1, env={"ROOST_FAULT_GRACE": "0.1"})
    names = ["b", "c", "d"][: depth - 1]
    top = procs.spawn("a", Link).flatten("gpus").slice(gpus=0)
    chain = top.extend.call_one(names).get(timeout=WAIT)
    assert len(chain) == depth
    os.kill(chain[-1], signal.SIGKILL)
    failure = faults.get(timeout=WAIT)
    assert failure.mesh_name == "a"
    report = failure.report()
    assert f"(pid {chain[-1]}" in report and "SIGKILL" in report
    for name in names:
        assert name in report
    assert faults.empty(), "once, not once a link of the chain"


SCRIPT = (
    SITE
    + """
import atexit, os, psutil, roost, threading
from phoenix import Phoenix
mesh = spawn_procs(4).spawn("t", Phoenix)
mesh.pid.call().get(timeout=20)
print(*[child.pid for child in psutil.Process().children(recursive=True)], flush=True)
atexit.register(print, "at exit", flush=True)
def fail():
    for rank in range(3):
        mesh.slice(gpus=rank).fail.broadcast()
"""
)


@pytest.mark.parametrize("where", ["in get", "elsewhere"])
def test_an_unhandled_failure_ends_a_script_with_one_report_and_code_1(
    site: Any, start_script: Any, wait_until_gone: Any, where: str
) -> None:
    source = (
        SCRIPT
        + """
try:
    fail()
    if sys.argv[2] == "in get":
        roost.Channel.open()[1].recv().get()
    else:
        threading.Event().wait(60)
finally:
    print("finally", flush=True)
"""
    )
    script = start_script(source, site.name, where, env={"ROOST_FAULT_GRACE": "0.1"})
    found = [int(pid) for pid in script.line().split()]
    assert script.wait() == 1, script.err
    assert script.out.splitlines()[1:] == ["finally", "at exit"]
    assert script.err.count("that nobody handled") == 1
    assert "mesh 't', ranks 0-2: t at rank 0 has failed" in script.err and "(the other 2 alike)" in script.err
    assert "KeyboardInterrupt" not in script.err and "UnhandledFailure" not in script.err
    wait_until_gone(found)


def test_a_script_under_asyncio_run_ends_the_same_way(site: Any, run_script: Any) -> None:
    source = (
        SITE
        + """
import asyncio
from phoenix import Phoenix
async def main():
    mesh = spawn_procs(2).spawn("t", Phoenix)
    await mesh.pid.call()
    mesh.fail.broadcast()
    try:
        await asyncio.sleep(60)
    finally:
        print("finally", flush=True)
if sys.argv[2] == "first":
    this_host()
asyncio.run(main())
"""
    )
    for runtime in ("first", "later"):
        script = run_script(source, site.name, runtime, code=1, env={"ROOST_FAULT_GRACE": "0.1"})
        assert script.out == "finally\n"
        assert script.err.count("that nobody handled") == 1 and "KeyboardInterrupt" not in script.err


def test_a_sigint_handler_of_the_programs_own_is_called_instead(site: Any, start_script: Any) -> None:
    source = SITE + "import signal\ndef mine(*_): raise KeyboardInterrupt('mine')\nsignal.signal(signal.SIGINT, mine)\n"
    source += (
        SCRIPT.removeprefix(SITE)
        + """
try:
    fail()
    threading.Event().wait(60)
except KeyboardInterrupt as error:
    print("interrupted:", error)
"""
    )
    script = start_script(source, site.name, env={"ROOST_FAULT_GRACE": "0.1"})
    assert script.wait() == 0, script.err
    assert "interrupted: mine" in script.out and script.err.count("that nobody handled") == 1


def test_code_that_swallows_the_end_goes_on_and_a_hook_of_the_users_hears_each(site: Any, start_script: Any) -> None:
    source = (
        SCRIPT
        + """
try:
    fail()
    threading.Event().wait(60)
except SystemExit as error:
    print("swallowed", error.code, sorted(r for f in error.failures for r in f.crashed_ranks), flush=True)
import roost.actors
heard = []
event = threading.Event()
def hook(failure):
    heard.append(failure.crashed_ranks)
    event.set()
roost.actors.unhandled_fault_hook = hook
mesh.slice(gpus=3).fail.broadcast()
print(event.wait(20), heard, flush=True)
"""
    )
    script = start_script(source, site.name, env={"ROOST_FAULT_GRACE": "0.1"})
    assert script.wait() == 0, script.err
    assert script.out.splitlines()[1:] == ["swallowed 1 [0, 1, 2]", "True [(3,)]", "at exit"]


def test_told_is_not_handled_where_the_policy_says_so(site: Any, run_script: Any) -> None:
    source = (
        SITE
        + """
from dataclasses import replace
from roost.actors.policy import policy, set_policy
set_policy(replace(policy(), told_is_handled=False))
import threading
from phoenix import Phoenix
mesh = spawn_procs(2).spawn("told", Phoenix)
print(type(mesh.slice(gpus=1).die.call_one().exception(timeout=20)).__name__, flush=True)
threading.Event().wait(60)
"""
    )
    script = run_script(source, site.name, code=1, env={"ROOST_FAULT_GRACE": "0.1"})
    assert script.out == "ActorDied\n" and script.err.count("that nobody handled") == 1
