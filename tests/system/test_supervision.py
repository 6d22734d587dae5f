"""When a failure counts as handled, who is told otherwise, and what they are told: one test a rule."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import queue
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from owners import PARENTS, WAIT, AsyncLink, Child, Grandparent, Link, MixedParent, settle
from troupe import SITE

import roost.actors
from roost.actors import ActorDied, ActorError, Channel, MeshFailure, Unreachable, supervision
from roost.actors.runtime import current_runtime

NEVER = "3600"
"""A grace in seconds that no test outlives: what is told before it is told for another reason."""

SOON = "0.2"

Spawn = Callable[..., Any]
Faults = queue.SimpleQueue


@pytest.fixture(scope="module", autouse=True)
def reported() -> Iterator[Faults[MeshFailure]]:
    """What reaches the fault hook; the default one would end the test run."""
    seen: Faults[MeshFailure] = queue.SimpleQueue()
    before, roost.actors.unhandled_fault_hook = roost.actors.unhandled_fault_hook, seen.put
    yield seen
    roost.actors.unhandled_fault_hook = before


@pytest.fixture
def grace(reported: Faults[MeshFailure], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Faults[MeshFailure]]:
    """`grace(seconds)` sets it in this program and gives what is told from now on."""
    runtime = current_runtime()
    for failure in runtime.supervisor.held if runtime is not None else ():
        failure.handled = True  # of an earlier test

    def begin(seconds: str) -> Faults[MeshFailure]:
        monkeypatch.setattr(supervision, "FAULT_GRACE", float(seconds))
        while not reported.empty():
            reported.get()
        return reported

    return begin


def caught(future: Any) -> Any:
    """The exception that `get` raises."""
    with pytest.raises(Exception) as info:
        future.get(timeout=WAIT)
    return info.value


def tell_another(site: Any, faults: Faults[MeshFailure]) -> None:
    """Let something else fail unseen: if it is the first that is told, then nothing was told of what came before."""
    site.spawn_procs(1).spawn("another", Child).fail.broadcast("another failure")
    failure = faults.get(timeout=WAIT)
    assert "another failure" in failure.report(), failure.report()


def pending_death(site: Any, calls: int = 1) -> tuple[list[Any], int]:
    """Futures of calls whose process has been killed; nobody has looked at them."""
    mesh = site.spawn_procs(1).spawn("dying", Child)
    mesh.initialized.get(timeout=WAIT)
    port, receiver = Channel.open()
    futures = [mesh.slice(gpus=0).sleep.call_one(60, port) for _ in range(calls)]
    pid = receiver.recv().get(timeout=WAIT)
    os.kill(pid, signal.SIGKILL)
    settle(futures)
    return futures, pid


# --- the program is the owner


def look_by_get(future: Any) -> None:
    assert isinstance(caught(future), ActorDied)


def look_by_exception(future: Any) -> None:
    assert isinstance(future.exception(timeout=WAIT), ActorDied)


def look_by_await(future: Any) -> None:
    async def main() -> None:
        with pytest.raises(ActorDied):
            await future

    asyncio.run(main())


def start_one(mesh: Any, port: Any) -> Any:
    return mesh.slice(gpus=0).sleep.call_one(60, port)


def start_stream(mesh: Any, port: Any) -> Any:
    return next(mesh.sleep.stream(60, port))


def start_items(mesh: Any, port: Any) -> Any:
    return mesh.drip.stream(port)


@pytest.mark.parametrize("start", [start_one, start_stream, start_items])
def test_whatever_kind_of_call_raises_a_failure_has_told_of_it(site: Any, grace: Any, start: Any) -> None:
    faults = grace(NEVER)
    pending, _ = killed_while(site, start)
    assert isinstance(caught(pending), ActorDied)
    del pending
    grace(SOON)
    tell_another(site, faults)


@pytest.mark.parametrize("start", [start_one, start_stream])
def test_whatever_kind_of_call_is_dropped_unseen_the_failure_is_told(site: Any, grace: Any, start: Any) -> None:
    faults = grace(NEVER)
    pending, pid = killed_while(site, start)
    settle([pending])
    assert faults.empty(), "somebody may still look"
    del pending
    gc.collect()  # the futures of a stream know each other
    assert str(pid) in faults.get(timeout=WAIT).report()


def killed_while(site: Any, start: Any) -> tuple[Any, int]:
    """What waits for a process that has been killed."""
    mesh = site.spawn_procs(1).spawn("dying", Child)
    mesh.initialized.get(timeout=WAIT)
    port, receiver = Channel.open()
    pending = start(mesh, port)
    pid = receiver.recv().get(timeout=WAIT)
    os.kill(pid, signal.SIGKILL)
    return pending, pid


@pytest.mark.parametrize("look", [look_by_get, look_by_exception, look_by_await])
def test_a_failure_that_is_raised_within_the_grace_is_handled(site: Any, grace: Any, look: Any) -> None:
    faults = grace(NEVER)
    futures, _ = pending_death(site)
    look(futures[0])
    futures.clear()
    faults = grace(SOON)
    tell_another(site, faults)


def test_to_know_that_a_call_is_done_is_not_to_have_seen_its_failure(site: Any, grace: Any) -> None:
    faults = grace(SOON)
    futures, pid = pending_death(site)  # waits by done callbacks and done()
    assert str(pid) in faults.get(timeout=WAIT).report()
    assert futures[0].done()


def test_a_get_after_the_grace_raises_all_the_same_and_nothing_is_told_twice(site: Any, grace: Any) -> None:
    faults = grace(SOON)
    futures, pid = pending_death(site)
    failure = faults.get(timeout=WAIT)
    assert "SIGKILL" in failure.report() and str(pid) in failure.report()
    assert isinstance(caught(futures[0]), ActorDied), "after the program was told"
    tell_another(site, faults)


def test_one_of_several_futures_that_is_looked_at_is_enough(site: Any, grace: Any) -> None:
    faults = grace(NEVER)
    futures, _ = pending_death(site, calls=3)
    del futures[0]
    look_by_get(futures.pop())
    futures.clear()
    grace(SOON)
    tell_another(site, faults)


def test_the_last_future_that_is_dropped_unseen_tells_at_once(site: Any, grace: Any) -> None:
    faults = grace(NEVER)
    futures, pid = pending_death(site, calls=3)
    del futures[0]
    assert faults.empty(), "two are left that may tell of it"
    futures.clear()
    failure = faults.get(timeout=WAIT)
    assert str(pid) in failure.report()


def test_a_death_that_no_call_waits_for_is_told_after_the_grace(site: Any, grace: Any) -> None:
    faults = grace(SOON)
    pid = site.spawn_procs(1).spawn("idle", Child).pid.call().get(timeout=WAIT).values()[0]
    os.kill(pid, signal.SIGKILL)
    failure = faults.get(timeout=WAIT)
    assert failure.crashed_ranks == (0,) and str(pid) in failure.report()


# --- an actor is the owner


def family(site: Any, cls: type, children: int = 1, *, seconds: str = NEVER, verdict: str = "falsy") -> Any:
    """A parent in a process whose grace is `seconds`, its children, and their processes."""
    procs = site.spawn_procs(1, env={"ROOST_FAULT_GRACE": seconds})
    parent = procs.spawn("parent", cls, verdict).slice(gpus=0)
    mesh, pids = parent.spawn_children.call_one(children).get(timeout=WAIT)
    return parent, mesh, pids


@pytest.mark.parametrize("cls", PARENTS)
def test_an_owner_that_drops_its_futures_unseen_fails_at_once(site: Any, grace: Any, cls: type) -> None:
    faults = grace(SOON)
    parent, _, pids = family(site, cls)
    parent.call.call_one(2).get(timeout=WAIT)
    os.kill(pids[0], signal.SIGKILL)
    parent.settled.call_one().get(timeout=WAIT)
    assert parent.hooks.call_one().get(timeout=WAIT) == [("procs0", (0,))], "it is asked before, always"
    parent.drop.call_one().get(timeout=WAIT)
    failure = faults.get(timeout=WAIT)
    assert (failure.mesh_name, failure.crashed_ranks) == ("parent", (0,))
    assert "SIGKILL" in failure.report() and str(pids[0]) in failure.report()
    assert isinstance(caught(parent.hooks.call_one()), ActorDied)


@pytest.mark.parametrize("cls", PARENTS)
def test_an_owner_that_looks_within_the_grace_goes_on(site: Any, grace: Any, cls: type) -> None:
    faults = grace(SOON)
    parent, _, pids = family(site, cls, 2)
    parent.call.call_one(2).get(timeout=WAIT)
    os.kill(pids[0], signal.SIGKILL)
    parent.settled.call_one().get(timeout=WAIT)
    assert parent.look.call_one().get(timeout=WAIT) == "ActorDied"
    parent.drop.call_one().get(timeout=WAIT)
    tell_another(site, faults)
    assert parent.hooks.call_one().get(timeout=WAIT) == [("procs0", (0,))]


@pytest.mark.parametrize("cls", PARENTS)
def test_an_owner_that_holds_its_futures_beyond_the_grace_fails(site: Any, grace: Any, cls: type) -> None:
    faults = grace(SOON)
    parent, _, pids = family(site, cls, seconds=SOON)
    parent.call.call_one(1).get(timeout=WAIT)
    os.kill(pids[0], signal.SIGKILL)
    failure = faults.get(timeout=WAIT)
    assert failure.mesh_name == "parent" and str(pids[0]) in failure.report()
    tell_another(site, faults)


@pytest.mark.parametrize("cls", PARENTS)
def test_what_supervise_has_handled_is_not_told_by_dropped_futures(site: Any, grace: Any, cls: type) -> None:
    faults = grace(SOON)
    parent, _, pids = family(site, cls, seconds=SOON, verdict="handled")
    parent.call.call_one(2).get(timeout=WAIT)
    os.kill(pids[0], signal.SIGKILL)
    parent.settled.call_one().get(timeout=WAIT)
    parent.drop.call_one().get(timeout=WAIT)
    tell_another(site, faults)  # which takes the same grace
    assert parent.hooks.call_one().get(timeout=WAIT) == [("procs0", (0,))]


def test_a_hook_that_raises_beside_async_endpoints_has_not_handled_it(site: Any, grace: Any) -> None:
    faults = grace(SOON)
    _, _, pids = family(site, MixedParent, seconds=SOON, verdict="raises")
    os.kill(pids[0], signal.SIGKILL)
    said = faults.get(timeout=WAIT).report()
    assert str(pids[0]) in said and "LookupError: the hook fails" in said


# --- who calls is not who owns


@pytest.mark.parametrize("cls", PARENTS)
def test_a_caller_that_is_not_the_owner_gets_the_exception_and_the_owner_is_asked_too(
    site: Any, grace: Any, cls: type
) -> None:
    faults = grace(SOON)
    parent, mesh, pids = family(site, cls, seconds=SOON)
    caller = site.spawn_procs(1).spawn("caller", Child).slice(gpus=0)
    asking = caller.ask.call_one(mesh, 60)
    parent.call.call_one(1).get(timeout=WAIT)  # the children are busy by now, or will be
    os.kill(pids[0], signal.SIGKILL)
    got = caught(asking)
    assert isinstance(got, ActorDied) and str(pids[0]) in str(got), "it is raised where the call was made"
    failure = faults.get(timeout=WAIT)
    assert failure.mesh_name == "parent", "that the caller knows does not help the owner"
    assert caller.pid.call_one().get(timeout=WAIT), "the caller lives"


def test_an_actor_that_knows_does_not_spare_the_program_that_owns(site: Any, grace: Any) -> None:
    faults = grace(SOON)
    owned = site.spawn_procs(1).spawn("owned", Child)
    pid = owned.pid.call().get(timeout=WAIT).values()[0]
    caller = site.spawn_procs(1).spawn("caller", Knowing).slice(gpus=0)
    asking = caller.ask_quietly.call_one(owned)
    os.kill(pid, signal.SIGKILL)
    assert asking.get(timeout=WAIT) == "ActorDied"
    assert str(pid) in faults.get(timeout=WAIT).report()
    tell_another(site, faults)


class Knowing(Child):
    @roost.actors.endpoint
    def ask_quietly(self, mesh: Any) -> str:
        return type(mesh.sleep.call(60).exception(timeout=WAIT)).__name__


# --- several failures, and what follows from what


@pytest.mark.parametrize("cls", PARENTS)
def test_of_two_failures_at_once_each_is_asked_about(site: Any, grace: Any, cls: type) -> None:
    faults = grace(SOON)
    parent, _, pids = family(site, cls, 3, verdict="handled")
    for pid in pids[:2]:
        os.kill(pid, signal.SIGKILL)
    asked: list[Any] = []
    while len(asked) < 2:
        asked = parent.hooks.call_one().get(timeout=WAIT)
    assert sorted(asked) == [("procs0", (0,)), ("procs0", (1,))]
    tell_another(site, faults)


@pytest.mark.parametrize("cls", PARENTS)
def test_an_owner_fails_once_of_two_failures(site: Any, grace: Any, cls: type) -> None:
    faults = grace(SOON)
    _, _, pids = family(site, cls, 3, seconds=SOON)
    for pid in pids[:2]:
        os.kill(pid, signal.SIGKILL)
    failure = faults.get(timeout=WAIT)
    assert failure.mesh_name == "parent"
    assert any(str(pid) in failure.report() for pid in pids[:2])
    tell_another(site, faults)


def test_a_death_is_the_cause_of_what_its_actors_and_their_callers_suffer(site: Any, grace: Any) -> None:
    """One process dies: two actor meshes lose a rank, and a peer fails because it waits for that rank."""
    faults = grace(SOON)
    procs = site.spawn_procs(2)
    first, second = procs.spawn("first", Child), procs.spawn("second", Child)
    pids = first.pid.call().get(timeout=WAIT).values()
    assert second.pid.call().get(timeout=WAIT).values() == pids
    port, receiver = Channel.open()
    waiting = second.slice(gpus=1).ask.call_one(first.slice(gpus=0), 60, port)
    whole = second.slice(gpus=1).pid.call_one()
    assert receiver.recv().get(timeout=WAIT) == pids[0]
    mine = first.slice(gpus=0).sleep.call_one(60)
    os.kill(pids[0], signal.SIGKILL)
    for future in (waiting, mine):
        got = caught(future)
        assert isinstance(got, ActorDied), "what a peer passes on is the death itself, not an error about it"
        assert "SIGKILL" in str(got) and str(pids[0]) in str(got)
        assert got.exit_report.pid == pids[0]
    assert whole.get(timeout=WAIT) == pids[1], "the peer lives on"
    tell_another(site, faults)


def test_one_report_names_the_death_of_which_all_the_rest_is_a_consequence(site: Any, grace: Any) -> None:
    faults = grace(SOON)
    procs = site.spawn_procs(2)
    first, second = procs.spawn("first", Child), procs.spawn("second", Child)
    pids = first.pid.call().get(timeout=WAIT).values()
    second.pid.call().get(timeout=WAIT)
    os.kill(pids[0], signal.SIGKILL)
    failure = faults.get(timeout=WAIT)
    assert failure.crashed_ranks == (0,)
    assert "SIGKILL" in failure.report() and str(pids[0]) in failure.report()
    tell_another(site, faults)


def test_an_unheard_consequence_names_its_cause(site: Any, grace: Any) -> None:
    """A broadcast that fails because another process died: its report leads to that death."""
    faults = grace(SOON)
    dying, peer = site.spawn_procs(1).spawn("dying", Child), site.spawn_procs(1).spawn("peer", Child)
    port, receiver = Channel.open()
    mine = dying.slice(gpus=0).sleep.call_one(60, port)
    pid = receiver.recv().get(timeout=WAIT)
    peer.ask.broadcast(dying, 60)
    os.kill(pid, signal.SIGKILL)
    assert isinstance(caught(mine), ActorDied), "the program knows of the death"
    failure = faults.get(timeout=WAIT)
    assert failure.mesh_name == "peer"
    assert "SIGKILL" in failure.report() and str(pid) in failure.report(), "the first cause is told"
    tell_another(site, faults)


@pytest.mark.parametrize("kinds", [(Link, Link), (AsyncLink, AsyncLink), (Link, AsyncLink)], ids=str)
@pytest.mark.parametrize("how", ["raises", "killed"])
def test_a_failure_deep_in_a_chain_names_the_actor_where_it_began(
    site: Any, grace: Any, kinds: tuple[type, type], how: str
) -> None:
    faults = grace(SOON)
    procs = site.spawn_procs(4)
    chain = [procs.slice(gpus=i).spawn(f"link{i}", kinds[i % 2]) for i in range(4)]
    pids = [link.pid.call_one().get(timeout=WAIT) for link in chain]
    got = caught(chain[0].go.call_one(chain[1:], how))
    assert str(pids[3]) in str(got)
    if how == "raises":
        assert isinstance(got, KeyError) and isinstance(got, ActorError)
        assert (got.actor, got.endpoint, got.pid) == ("link3", "go", pids[3])
        passed = "\n".join(got.__notes__)
        assert [f"passed on by link{i}.go" in passed for i in range(3)] == [True] * 3
        assert all(str(pid) in passed for pid in pids[:3])
        assert chain[3].pid.call_one().get(timeout=WAIT) == pids[3], "all live on"
    else:
        assert isinstance(got, ActorDied) and not isinstance(got, ActorError)
        assert "SIGKILL" in str(got) and got.exit_report.pid == pids[3]
        assert caught(chain[3].pid.call_one()).exit_report.pid == pids[3]
    assert [link.pid.call_one().get(timeout=WAIT) for link in chain[:3]] == pids[:3]
    tell_another(site, faults)


@pytest.mark.parametrize("cls", PARENTS)
def test_a_failure_climbs_through_owners_and_its_report_leads_down_to_the_first_cause(
    site: Any, grace: Any, cls: type
) -> None:
    faults = grace(SOON)
    procs = site.spawn_procs(1, env={"ROOST_FAULT_GRACE": SOON})
    top = procs.spawn("grandparent", Grandparent).slice(gpus=0)
    _, pids = top.spawn_parent.call_one(cls).get(timeout=WAIT)
    os.kill(pids[0], signal.SIGKILL)
    failure = faults.get(timeout=3 * WAIT)  # the middle one has the grace of every process, 5 s
    assert (failure.mesh_name, failure.crashed_ranks) == ("grandparent", (0,))
    said = failure.report()
    assert "SIGKILL" in said and str(pids[0]) in said
    assert said.index("grandparent") < said.index("parent", said.index("grandparent") + len("grandparent"))
    tell_another(site, faults)


# --- dead is not unreachable


def test_a_host_that_is_silent_is_unreachable_and_its_workers_are_not_called_dead(run_script: Any) -> None:
    source = """
import os, signal, psutil
from roost import ProcessJob
from roost.actors import ActorDied, Unreachable
from roost.mesh.local import controller
from owners import Child
hosts = ProcessJob({"h": 2}).state().h
mesh = hosts.spawn_procs({"gpus": 1}).flatten("gpus").spawn("child", Child)
pids = mesh.pid.call().get(timeout=20).values()
agent = controller().agents[-1].process.pid
os.kill(agent, signal.SIGSTOP)                     # the host is silent; its worker lives
error = mesh.slice(gpus=1).sleep.call_one(60).exception(timeout=30)
print(type(error).__name__, isinstance(error, ActorDied), error.exit_report)
print(error)
print(psutil.pid_exists(pids[1]), mesh.slice(gpus=0).pid.call_one().get(timeout=20) == pids[0])
os.kill(pids[0], signal.SIGKILL)                   # this one is dead
error = mesh.slice(gpus=0).sleep.call_one(60).exception(timeout=30)
print(type(error).__name__, isinstance(error, Unreachable), error.exit_report.signal)
os.kill(agent, signal.SIGCONT)
"""
    lines = run_script(source, env={"ROOST_LINK_TIMEOUT": "2"}, timeout=90).out.splitlines()
    assert lines[0] == "Unreachable False None"
    assert "it may live, and what it was asked may have run" in "".join(lines[1:-2])
    assert lines[-2:] == ["True True", "ActorDied False SIGKILL"]
    assert not issubclass(Unreachable, ActorDied) and not issubclass(ActorDied, Unreachable)


# --- the default hook


UNSEEN = (
    SITE
    + """
import asyncio, atexit, os, psutil, threading, time
from owners import Child
procs = spawn_procs(2)
mesh, busy = procs.spawn("child", Child), procs.spawn("busy", Child)
mesh.pid.call().get(timeout=20)
print(*[child.pid for child in psutil.Process().children(recursive=True)], flush=True)
atexit.register(lambda: print("at exit", flush=True))
def let_fail():
    mesh.fail.broadcast("nobody looks")
"""
)

WAITS = {
    "in a get": "let_fail()\nbusy.sleep.call(60).get()",
    "in an event": "let_fail()\nthreading.Event().wait(60)",
    "in sleep": "let_fail()\ntime.sleep(60)",
    "in plain python": "let_fail()\nuntil = time.monotonic() + 60\nwhile time.monotonic() < until: pass",
    "in asyncio": "async def main():\n    let_fail()\n    await asyncio.sleep(60)\nasyncio.run(main())",
}


@pytest.mark.parametrize("where", WAITS)
def test_the_default_hook_ends_a_script_with_one_report_and_leaves_no_orphan(
    start_script: Any, wait_until_gone: Any, where: str
) -> None:
    source = UNSEEN + f"try:\n    exec({WAITS[where]!r})\nfinally:\n    print('finally', flush=True)\n"
    script = start_script(source, "one agent", env={"ROOST_FAULT_GRACE": "0.1"})
    pids = [int(word) for word in script.line().split()]
    assert script.wait() == 1, script.err
    assert script.out.splitlines()[1:] == ["finally", "at exit"]
    assert script.err.count("that nobody handled") == 1, script.err
    assert script.err.count("ValueError: nobody looks") in (1, 2), "equal failures of two ranks are told as one"
    assert "ranks 0-1" in script.err or "ranks [0, 1]" in script.err, script.err
    wait_until_gone(pids)


def test_the_default_hook_ends_a_script_on_two_agents_too(start_script: Any, wait_until_gone: Any) -> None:
    script = start_script(UNSEEN + WAITS["in a get"], "two agents", env={"ROOST_FAULT_GRACE": "0.1"})
    pids = [int(word) for word in script.line().split()]
    assert script.wait() == 1, script.err
    assert script.err.count("that nobody handled") == 1
    wait_until_gone(pids)


def test_a_script_that_has_seen_the_failure_ends_as_if_there_was_none(start_script: Any, wait_until_gone: Any) -> None:
    source = (
        UNSEEN
        + """
os.kill(mesh.slice(gpus=1).pid.call_one().get(timeout=20), 9)
try:
    mesh.sleep.call(60).get(timeout=20)
except Exception as error:
    print(type(error).__name__)
time.sleep(0.5)                                    # longer than the grace
"""
    )
    script = start_script(source, "one agent", env={"ROOST_FAULT_GRACE": "0.1"})
    pids = [int(word) for word in script.line().split()]
    assert script.wait() == 0, script.err
    assert script.out.splitlines()[1:] == ["ActorDied", "at exit"] and "nobody handled" not in script.err
    wait_until_gone(pids)


# --- notebooks


def needs(*modules: str) -> None:
    """Skip where one is not installed; none is imported here, where it would make a notebook of the test run."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"no {module} in this environment")


SHELL = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
def cell(source):
    result = shell.run_cell(source)
    result.raise_error()
cell('''
from roost import this_host
from owners import Child
mesh = this_host().spawn_procs({"gpus": 2}).spawn("child", Child)
print(len(mesh.pid.call().get(timeout=20).values()))
''')
cell('''
mesh.slice(gpus=1).fail.broadcast("nobody looks")
''')
cell('''
import time
time.sleep(1.0)                                    # longer than the grace: the cell that runs is not interrupted
print("this cell has ended")
''')
cell('''
print(mesh.slice(gpus=0).sleep.call_one(0).get(timeout=20))
print(type(mesh.slice(gpus=1).pid.call_one().exception(timeout=20)).__name__)
''')
"""


def test_an_interactive_shell_goes_on_after_a_failure_that_nobody_handled(run_script: Any) -> None:
    needs("IPython")
    script = run_script(SHELL, env={"ROOST_FAULT_GRACE": "0.1"}, timeout=60)
    assert script.out.splitlines() == ["2", "this cell has ended", "None", "ActorDied"]
    assert script.err.count("that nobody handled") == 1 and "nobody looks" in script.err


KERNEL = """
import sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3", startup_timeout=60)
def cell(source):
    said = []
    def take(message):
        if message["msg_type"] == "stream":
            said.append(message["content"]["text"])
    reply = client.execute_interactive(source, timeout=60, output_hook=take)
    print(reply["content"]["status"], repr("".join(said)), flush=True)
try:
    cell('''
from roost import this_host
from owners import Child
mesh = this_host().spawn_procs({"gpus": 2}).spawn("child", Child)
pids = mesh.pid.call().get(timeout=20).values()
print(len(pids))''')
    cell('''
import os, time
os.kill(pids[1], 9)
time.sleep(1.0)''')
    cell("print(mesh.slice(gpus=0).pid.call_one().get(timeout=20) == pids[0])")
    cell('''
import roost
roost.shutdown()''')
    print(manager.is_alive())
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
"""


def test_a_notebook_kernel_is_never_killed(run_script: Any) -> None:
    needs("ipykernel", "jupyter_client")
    script = run_script(KERNEL, env={"ROOST_FAULT_GRACE": "0.1"}, timeout=110)
    lines = script.out.splitlines()
    assert lines[0] == "ok '2\\n'"
    assert lines[1].startswith("ok ") and lines[1].count("that nobody handled") == 1 and "SIGKILL" in lines[1]
    assert lines[2:] == ["ok 'True\\n'", "ok ''", "True"]
