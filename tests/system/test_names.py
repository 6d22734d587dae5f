"""Names: the one controller a name, meshes that are published, and detached ones that a later program finds."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from guests import LOOP, Guest, Stubborn

from roost.actors import Actor, ActorDied, ActorStopped, RoostError, endpoint
from roost.mesh import (
    NameTaken,
    NameUnknown,
    attach_to_workers,
    find,
    get_or_spawn_controller,
    lookup,
    names,
    publish,
    shutdown,
    this_host,
    this_proc,
    unpublish,
)

WAIT = 20.0

SPAWN_DETACHED = """
import sys
from guests import Guest
from roost.actors import Actor, endpoint
from roost.mesh import attach_to_workers

class Own(Actor):
    "Of this program alone: it travels by value."
    def __init__(self): self.said = []
    @endpoint
    def say(self, word):
        self.said.append(word)
        return self.said

hosts = attach_to_workers(sys.argv[1:], timeout=20)
procs = hosts.spawn_procs({"gpus": 1}, lifetime="job", name="gen")
guests = procs.spawn("guest", Guest, 10)
own = procs.spawn("own", Own)
guests.add.call().get(timeout=20)
own.say.call("first").get(timeout=20)
for mesh in (procs, guests, own):
    mesh.initialized.get(timeout=20)
print(*guests.pid.call().get(timeout=20).values())
sys.stdin.readline()
"""


SPAWN_NAMELESS = """
import os, sys
from guests import Guest
from roost.mesh import attach_to_workers

def start(pids, barrier):
    with open(pids, "wb", buffering=0) as file:
        file.write(b"%d\\n" % os.getpid())
    if os.environ["GROUP_RANK"] == "1":
        with open(barrier, "rb", buffering=0) as file:
            file.read(1)

pids, barrier = sys.argv[1:3]
hosts = attach_to_workers(sys.argv[3:], timeout=20)
procs = hosts.spawn_procs(lifetime="job", name="gen", bootstrap=lambda: start(pids, barrier))
guests = procs.spawn("guest", Guest)
sys.stdin.readline()
"""
"""Spawns a detached mesh whose second host does not come to its end."""

SPAWN_UNTOLD = """
import sys
from guests import Guest
from roost.mesh import attach_to_workers
from roost.mesh.naming import Card

async def nothing(self, node, agents):
    "As if it had ended before it could tell the other hosts."

Card._keep = nothing
hosts = attach_to_workers(sys.argv[1:], timeout=20)
procs = hosts.spawn_procs(lifetime="job", name="gen")
guests = procs.spawn("guest", Guest)
guests.initialized.get(timeout=20)
print(*guests.pid.call().get(timeout=20).values())
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def own_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test is a program of its own, with a secret of its own."""
    monkeypatch.setenv("ROOST_SECRET_FILE", str(tmp_path / "secret"))
    yield
    shutdown()


Loop = Callable[[], Any]


@pytest.fixture
def loop(start_script: Any, wait_until_gone: Any) -> Iterator[Loop]:
    """`loop()`: a worker loop's script with `.address` and `.agent`."""
    started = []

    def start() -> Any:
        script = start_script(LOOP, "tcp://127.0.0.1:0")
        script.address = script.line()
        (script.agent,) = psutil.Process(script.pid).children()
        started.append(script)
        return script

    yield start
    for script in started:
        if script.process.poll() is None:
            script.signal(signal.SIGTERM)
        script.process.wait(WAIT)
    wait_until_gone(script.agent.pid for script in started)


@pytest.fixture
def detached(loop: Loop, start_script: Any) -> Callable[..., tuple[list[Any], list[int]]]:
    """`detached(hosts=1, end="cleanly")`: loops and the pids of a detached mesh on them whose program has ended."""

    def make(hosts: int = 1, end: str = "cleanly") -> tuple[list[Any], list[int]]:
        loops = [loop() for _ in range(hosts)]
        program = start_script(SPAWN_DETACHED, *(each.address for each in loops))
        pids = [int(word) for word in program.line().split()]
        if end == "cleanly":
            program.say()
            assert program.wait() == 0, program.err
        else:
            program.signal(signal.SIGKILL)
            program.process.wait(WAIT)
        return loops, pids

    return make


# --- the one controller a name


def test_many_actors_that_ask_at_once_get_one_controller() -> None:
    askers = this_host().spawn_procs({"gpus": 4}).spawn("asker", Guest)
    answers = askers.registry.call("registry", 100).get(timeout=WAIT).values()
    assert len({pid for pid, _ in answers}) == 1
    assert sorted(count for _, count in answers) == [101, 102, 103, 104]
    mine = get_or_spawn_controller("registry", Guest, 500).get(timeout=WAIT)  # its arguments are ignored
    assert mine.add.call_one().get(timeout=WAIT) == 105
    assert mine.pid.call_one().get(timeout=WAIT) not in {os.getpid(), *askers.pid.call().get(timeout=WAIT).values()}
    other = get_or_spawn_controller("other", Guest).get(timeout=WAIT)
    assert other.pid.call_one().get(timeout=WAIT) != mine.pid.call_one().get(timeout=WAIT)


def test_actors_on_attached_hosts_get_the_same_controller(loop: Loop) -> None:
    hosts = attach_to_workers([loop().address, loop().address], timeout=WAIT)
    askers = hosts.spawn_procs({"gpus": 2}).spawn("asker", Guest)
    answers = askers.registry.call("registry", 0).get(timeout=WAIT).values()
    assert len({pid for pid, _ in answers}) == 1
    assert sorted(count for _, count in answers) == [1, 2, 3, 4]


def test_a_constructor_that_raises_is_told_and_may_be_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "there"
    first = [get_or_spawn_controller("stubborn", Stubborn, str(file)) for _ in range(2)]
    for each in first:
        with pytest.raises(ActorDied, match="not yet"):
            each.get(timeout=WAIT)
    assert get_or_spawn_controller("other", Guest).get(timeout=WAIT).add.call_one().get(timeout=WAIT) == 1
    file.touch()
    found = get_or_spawn_controller("stubborn", Stubborn, str(file)).get(timeout=WAIT)
    assert found.here.call_one().get(timeout=WAIT)


def test_a_controller_that_has_died_is_spawned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.actors.unhandled_fault_hook", lambda failure: None)
    first = get_or_spawn_controller("registry", Guest).get(timeout=WAIT)
    pid = first.pid.call_one().get(timeout=WAIT)
    with pytest.raises(ActorDied):
        first.die.call_one().get(timeout=WAIT)
    second = get_or_spawn_controller("registry", Guest).get(timeout=WAIT)
    assert second.pid.call_one().get(timeout=WAIT) != pid


def test_a_controller_that_was_stopped_is_spawned_anew() -> None:
    first = get_or_spawn_controller("registry", Guest).get(timeout=WAIT)
    assert first.add.call_one().get(timeout=WAIT) == 1
    first.stop().get(timeout=WAIT)
    assert get_or_spawn_controller("registry", Guest).get(timeout=WAIT).add.call_one().get(timeout=WAIT) == 1


def test_what_is_no_actor_or_takes_other_arguments_is_refused_at_the_call() -> None:
    with pytest.raises(TypeError):
        get_or_spawn_controller("x", int)  # type: ignore[type-var]
    with pytest.raises(TypeError):
        get_or_spawn_controller("x", Guest, 1, 2)


# --- names within a program


class Finder(Actor):
    @endpoint
    def find_and_add(self, name: str) -> int:
        found: list[int] = lookup(name).get(timeout=WAIT).add.call().get(timeout=WAIT).values()
        return sum(found)

    @endpoint
    def publish(self, name: str) -> None:
        guests = this_host().spawn_procs().spawn("guest", Guest, 7)
        publish(name, guests).get(timeout=WAIT)


def test_a_published_mesh_is_found_from_every_process_of_the_program() -> None:
    guests = this_host().spawn_procs({"gpus": 2}).spawn("guest", Guest)
    publish("guests", guests.slice(gpus=1)).get(timeout=WAIT)
    finder = this_host().spawn_procs().spawn("finder", Finder)
    assert finder.find_and_add.call_one("guests").get(timeout=WAIT) == 1
    finder.publish.call_one("theirs").get(timeout=WAIT)
    assert lookup("theirs").get(timeout=WAIT).add.call_one().get(timeout=WAIT) == 8
    assert names().get(timeout=WAIT) == ["guests", "theirs"]
    assert unpublish("guests").get(timeout=WAIT)
    assert not unpublish("guests").get(timeout=WAIT)
    with pytest.raises(NameUnknown, match="guests"):
        lookup("guests").get(timeout=WAIT)
    assert guests.add.call().get(timeout=WAIT).values() == [1, 2]


def test_a_name_is_taken_while_its_mesh_lives_and_free_after() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    first, second = procs.spawn("first", Guest), procs.spawn("second", Guest, 5)
    publish("it", first).get(timeout=WAIT)
    publish("it", first).get(timeout=WAIT)  # again is harmless
    with pytest.raises(NameTaken, match="first"):
        publish("it", second).get(timeout=WAIT)
    first.stop().get(timeout=WAIT)
    with pytest.raises(NameUnknown):
        lookup("it").get(timeout=WAIT)
    publish("it", second).get(timeout=WAIT)
    assert lookup("it").get(timeout=WAIT).add.call().get(timeout=WAIT).values() == [6, 6]
    with pytest.raises(TypeError):
        publish("it", 5)


# --- detached meshes


@pytest.mark.parametrize("end", ["cleanly", "killed"])
def test_a_detached_mesh_outlives_its_program_and_is_found_with_its_state(
    detached: Callable[..., Any], end: str, wait_until_gone: Any
) -> None:
    loops, pids = detached(end=end)
    assert all(psutil.pid_exists(pid) for pid in pids)
    hosts = attach_to_workers([loops[0].address], timeout=WAIT)
    assert names(hosts).get(timeout=WAIT) == ["gen", "gen/guest", "gen/own"]
    guests = find(hosts, "gen/guest").get(timeout=WAIT)
    assert guests.pid.call().get(timeout=WAIT).values() == pids
    assert guests.add.call().get(timeout=WAIT).values() == [12]
    own = find(hosts, "gen/own").get(timeout=WAIT)
    assert own.say.call("second").get(timeout=WAIT).values() == [["first", "second"]]
    procs = find(hosts, "gen").get(timeout=WAIT)
    more = procs.spawn("more", Guest, 1)
    assert more.pid.call().get(timeout=WAIT).values() == pids
    shutdown()  # this program ends too

    hosts = attach_to_workers([loops[0].address], timeout=WAIT)
    assert find(hosts, "gen/more").get(timeout=WAIT).add.call().get(timeout=WAIT).values() == [2]
    find(hosts, "gen").get(timeout=WAIT).stop().get(timeout=WAIT)
    wait_until_gone(pids)
    assert names(hosts).get(timeout=WAIT) == []
    with pytest.raises(NameUnknown, match="gen"):
        find(hosts, "gen").get(timeout=WAIT)


@pytest.mark.parametrize("end", ["cleanly", "killed"])
def test_a_detached_mesh_that_has_no_name_yet_ends_with_its_program(
    loop: Loop, start_script: Any, wait_until_gone: Any, tmp_path: Path, barrier: Any, end: str
) -> None:
    loops = [loop() for _ in range(2)]
    os.mkfifo(tmp_path / "pids")
    reading = os.open(tmp_path / "pids", os.O_RDWR)
    with open(reading) as lines:
        program = start_script(SPAWN_NAMELESS, tmp_path / "pids", barrier.path, *(each.address for each in loops))
        pids = [int(lines.readline()) for _ in loops]
    if end == "cleanly":
        program.say()
        assert program.wait() == 0, program.err
    else:
        program.signal(signal.SIGKILL)
    wait_until_gone(pids, timeout=10)
    hosts = attach_to_workers([each.address for each in loops], timeout=WAIT)
    assert names(hosts).get(timeout=WAIT) == []
    guests = hosts.spawn_procs(lifetime="job", name="gen").spawn("guest", Guest)
    assert guests.add.call().get(timeout=WAIT).values() == [1, 1]


@pytest.mark.parametrize("end", ["cleanly", "killed"])
def test_a_detached_mesh_that_has_its_name_stays_as_a_whole_where_not_all_its_hosts_were_told(
    loop: Loop, start_script: Any, end: str
) -> None:
    loops = [loop() for _ in range(2)]
    program = start_script(SPAWN_UNTOLD, *(each.address for each in loops))
    pids = [int(word) for word in program.line().split()]
    if end == "cleanly":
        program.say()
        assert program.wait() == 0, program.err
    else:
        program.signal(signal.SIGKILL)
        program.process.wait(WAIT)
    for _ in range(2):  # and it is not its next user's
        hosts = attach_to_workers([each.address for each in loops], timeout=WAIT)
        guests = find(hosts, "gen/guest").get(timeout=WAIT)
        assert guests.pid.call().get(timeout=WAIT).values() == pids
        shutdown()


def test_names_come_from_the_hosts_that_live(
    detached: Callable[..., Any], wait_until_gone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roost.actors.unhandled_fault_hook", lambda failure: None)
    loops, _ = detached(hosts=2)
    hosts = attach_to_workers([each.address for each in loops], timeout=WAIT)
    assert names(hosts).get(timeout=WAIT) == ["gen", "gen/guest", "gen/own"]
    for count, each in enumerate(loops, 1):
        each.agent.send_signal(signal.SIGKILL)
        wait_until_gone([each.agent.pid])
        if count < len(loops):
            assert names(hosts).get(timeout=WAIT) == ["gen", "gen/guest", "gen/own"]
    with pytest.raises(ActorDied):
        names(hosts).get(timeout=WAIT)


def test_the_names_have_a_copy_at_a_second_host(detached: Callable[..., Any]) -> None:
    loops, pids = detached(hosts=2)
    loops[0].signal(signal.SIGTERM)
    loops[0].wait()
    hosts = attach_to_workers([loops[1].address], timeout=WAIT)
    guests = find(hosts, "gen/guest").get(timeout=WAIT)
    assert guests.slice(hosts=1).pid.call().get(timeout=WAIT).values() == pids[1:]


def test_a_name_that_lives_is_taken_for_other_programs_and_that_of_a_dead_mesh_is_free(
    detached: Callable[..., Any], wait_until_gone: Any
) -> None:
    loops, pids = detached()
    hosts = attach_to_workers([loops[0].address], timeout=WAIT)
    refused = hosts.spawn_procs(lifetime="job", name="gen")
    with pytest.raises(NameTaken, match="gen"):
        refused.initialized.get(timeout=WAIT)
    guests = find(hosts, "gen/guest").get(timeout=WAIT)
    with pytest.raises(ActorDied, match="exit code 7"):
        guests.die.call().get(timeout=WAIT)
    wait_until_gone(pids)
    with pytest.raises(ActorDied, match="exit code 7"):  # kept for whoever comes later
        find(hosts, "gen/guest").get(timeout=WAIT).add.call().get(timeout=WAIT)
    assert names(hosts).get(timeout=WAIT) == []
    again = hosts.spawn_procs(lifetime="job", name="gen")
    assert again.initialized.get(timeout=WAIT)
    assert again.spawn("guest", Guest).add.call().get(timeout=WAIT).values() == [1]
    assert find(hosts, "gen/guest").get(timeout=WAIT).add.call().get(timeout=WAIT).values() == [2]


def test_a_detached_meshs_death_is_told_to_a_later_program(detached: Callable[..., Any], wait_until_gone: Any) -> None:
    loops, pids = detached()
    os.kill(pids[0], signal.SIGKILL)
    wait_until_gone(pids)
    hosts = attach_to_workers([loops[0].address], timeout=WAIT)
    with pytest.raises(ActorDied, match="SIGKILL"):
        find(hosts, "gen/guest").get(timeout=WAIT).add.call().get(timeout=WAIT)


def test_a_detached_mesh_gets_further_names(detached: Callable[..., Any]) -> None:
    loops, _ = detached()
    hosts = attach_to_workers([loops[0].address], timeout=WAIT)
    publish("best", find(hosts, "gen/guest").get(timeout=WAIT)).get(timeout=WAIT)
    assert lookup("best").get(timeout=WAIT).add.call().get(timeout=WAIT).values() == [12]
    shutdown()
    hosts = attach_to_workers([loops[0].address], timeout=WAIT)
    assert find(hosts, "best").get(timeout=WAIT).add.call().get(timeout=WAIT).values() == [13]
    assert unpublish("best", hosts).get(timeout=WAIT)
    with pytest.raises(NameUnknown):
        find(hosts, "best").get(timeout=WAIT)


def test_detached_processes_end_with_the_loop(detached: Callable[..., Any], wait_until_gone: Any) -> None:
    loops, pids = detached()
    hosts = attach_to_workers([loops[0].address], timeout=WAIT)
    hosts.shutdown().get(timeout=WAIT)
    wait_until_gone(pids)


def test_stop_of_the_hosts_leaves_detached_processes_alone(loop: Loop) -> None:
    with attach_to_workers([loop().address], timeout=WAIT) as hosts:
        guests = hosts.spawn_procs(lifetime="job", name="gen").spawn("guest", Guest)
        assert guests.add.call().get(timeout=WAIT).values() == [1]
    assert guests.add.call().get(timeout=WAIT).values() == [2]
    with pytest.raises(RoostError, match="detached"):
        guests.registry.call_one("registry", 0).get(timeout=WAIT)


def test_processes_that_cannot_be_detached_are_refused(loop: Loop) -> None:
    with pytest.raises(RoostError, match="run_worker_loop_forever"):
        this_host().spawn_procs(lifetime="job", name="gen")
    hosts = attach_to_workers([loop().address], timeout=WAIT)
    with pytest.raises(ValueError, match="name="):
        hosts.spawn_procs(lifetime="job")
    with pytest.raises(ValueError, match="lifetime"):
        hosts.spawn_procs(lifetime="ever", name="gen")
    with pytest.raises(NameUnknown):
        find(hosts, "gen").get(timeout=WAIT)


class Lodging(Actor):
    @endpoint
    def detach(self) -> None:
        this_host().spawn_procs(lifetime="job", name="gen").initialized.get(timeout=WAIT)


def test_an_actor_on_this_host_cannot_detach_processes_here() -> None:
    lodging = this_host().spawn_procs().spawn("lodging", Lodging)
    with pytest.raises(RoostError, match="run_worker_loop_forever"):
        lodging.detach.call_one().get(timeout=WAIT)


def test_a_stopped_detached_actor_frees_its_name(detached: Callable[..., Any]) -> None:
    loops, _ = detached()
    hosts = attach_to_workers([loops[0].address], timeout=WAIT)
    guests = find(hosts, "gen/guest").get(timeout=WAIT)
    guests.stop().get(timeout=WAIT)
    with pytest.raises(ActorStopped):
        find(hosts, "gen/guest").get(timeout=WAIT).add.call().get(timeout=WAIT)
    procs = find(hosts, "gen").get(timeout=WAIT)
    assert procs.spawn("guest", Guest, 3).add.call().get(timeout=WAIT).values() == [4]
    assert this_proc() is not None
