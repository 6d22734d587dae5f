"""What is refused, when, and in which words; and that what was asked for is really applied."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from troupe import Faulty, Player

from roost.actors import Actor, ActorDied, ActorStopped, Channel, RoostError, endpoint
from roost.actors.node import current_node
from roost.mesh import BootstrapCommand

WAIT = 20.0

Spawn = Callable[..., Any]


def frames_sent() -> int:
    """How many frames this process has numbered, to whomever."""
    node = current_node()
    assert node is not None
    return sum(peer.outbox.next_seq for peer in node.peers.values())


# --- calls


def test_an_unknown_endpoint_names_those_that_exist(spawn: Spawn) -> None:
    mesh = spawn(Player)
    with pytest.raises(
        AttributeError, match=r"Player \(mesh 'player'\) has no endpoint 'ecko'; it has .*add\(a: .*echo\("
    ):
        mesh.ecko.call(1)
    with pytest.raises(AttributeError, match="has no endpoint"):
        mesh.slice(gpus=0).no_such.call_one()


def test_a_method_that_is_no_endpoint_says_what_to_do(spawn: Spawn) -> None:
    said = r"Plain\.helper is a method but no endpoint: put @endpoint on it, or .*as_endpoint"
    with pytest.raises(AttributeError, match=said):
        spawn(Plain).helper.call()


class Plain(Actor):
    def helper(self) -> None:
        """Not callable from elsewhere."""

    @endpoint
    def reached(self) -> bool:
        return True


@pytest.mark.parametrize("verb", ["call", "call_one", "choose", "stream", "broadcast"])
@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "missing a required argument: 'a'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"d": 2}, "unexpected keyword argument 'd'"),
        ((1,), {"a": 2}, "multiple values for argument 'a'"),
    ],
    ids=["missing", "too many", "unknown", "twice"],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(
    spawn: Spawn, verb: str, args: tuple[Any, ...], kwargs: dict[str, Any], said: str
) -> None:
    mesh = spawn(Player, n=1)
    mesh.echo.call(1).get(timeout=WAIT)
    before = frames_sent()
    with pytest.raises(TypeError) as info:
        getattr(mesh.slice(gpus=0).add, verb)(*args, **kwargs)
    assert said in str(info.value)
    assert "Player.add(a: 'int', b: 'int' = 10, *, c: 'int' = 0) -> 'int'" in str(info.value), "the signature is told"
    assert frames_sent() == before


def test_an_argument_that_does_not_pickle_names_its_path(spawn: Spawn) -> None:
    mesh = spawn(Player)
    mesh.echo.call(1).get(timeout=WAIT)
    before = frames_sent()
    for send in (mesh.echo.call, mesh.slice(gpus=0).echo.call_one, mesh.echo.broadcast):
        with pytest.raises(TypeError, match=r"\['config'\]\['locks'\]\[1\].*lock") as info:
            send({"config": {"locks": [1, threading.Lock()]}})
        assert "argument" in str(info.value)
    assert frames_sent() == before
    assert mesh.echo.call("goes on").get(timeout=WAIT).values() == ["goes on"] * 2


def test_an_argument_that_does_not_unpickle_there_is_an_error_of_that_call(spawn: Spawn) -> None:
    one = spawn(Player, n=1).slice(gpus=0)
    with pytest.raises(ValueError, match="cannot be made again"):
        one.echo.call_one(Unmakable()).get(timeout=WAIT)
    assert one.echo.call_one("goes on").get(timeout=WAIT) == "goes on"


def refuse() -> None:
    raise ValueError("cannot be made again")


class Unmakable:
    def __reduce__(self) -> Any:
        return refuse, ()


def test_call_one_is_for_a_mesh_of_one(spawn: Spawn) -> None:
    mesh = spawn(Player)
    before = frames_sent()
    with pytest.raises(ValueError, match="call_one is for a mesh of one, 'player' has 2: slice it, or use call"):
        mesh.echo.call_one(1)
    assert frames_sent() == before


def test_calls_to_a_stopped_mesh_raise_at_once(site: Any) -> None:
    procs = site.spawn_procs(2)
    mesh, other = procs.spawn("mesh", Player), procs.spawn("other", Player)
    mesh.echo.call(1).get(timeout=WAIT)
    other.stop().get(timeout=WAIT)
    with pytest.raises(ActorStopped, match=r"other\.echo: the mesh has been stopped"):
        other.echo.call(1)
    part = mesh.slice(gpus=0)
    procs.stop("no longer needed").get(timeout=WAIT)
    for send in (mesh.echo.call, part.echo.call_one, mesh.echo.choose, mesh.echo.stream, mesh.echo.broadcast):
        with pytest.raises(ActorStopped, match="no longer needed"):
            send(1)
    with pytest.raises(ActorStopped, match=r"cannot spawn 'late'.*no longer needed"):
        procs.spawn("late", Player)


def test_slices_that_do_not_exist_are_refused(spawn: Spawn) -> None:
    mesh = spawn(Player)
    with pytest.raises(IndexError, match="gpus"):
        mesh.slice(gpus=2)
    with pytest.raises(TypeError, match="Shape does not have dimension labeled 'gpu'"):
        mesh.slice(gpu=0)


# --- spawning actors


@pytest.mark.parametrize("wrong", [int, "Player", Player.__init__, object()], ids=repr)
def test_what_is_no_actor_is_not_spawned(site: Any, wrong: Any) -> None:
    procs = site.spawn_procs(1)
    with pytest.raises(TypeError, match="spawn takes a subclass of Actor, not "):
        procs.spawn("wrong", wrong)


def test_wrong_constructor_arguments_are_refused_before_anything_is_sent(site: Any) -> None:
    procs = site.spawn_procs(1)
    procs.initialized.get(timeout=WAIT)
    before = frames_sent()
    with pytest.raises(TypeError, match=r"Player\(start: .*scale: .*: got an unexpected keyword argument 'size'"):
        procs.spawn("p", Player, size=1)
    with pytest.raises(TypeError, match=r"Player\(.*too many positional arguments"):
        procs.spawn("p", Player, 1, 2)
    with pytest.raises(TypeError, match=r"Plain\(\) takes no arguments"):
        procs.spawn("p", Plain, 1)
    with pytest.raises(TypeError, match=r"argument of 'p'.*lock"):
        procs.spawn("p", Player, threading.Lock())
    assert frames_sent() == before


@pytest.mark.parametrize("name", ["stop", "slice", "size", "name", "extent", "flatten", "initialized"])
def test_an_endpoint_cannot_hide_what_a_mesh_has_itself(name: str) -> None:
    with pytest.raises(
        ValueError, match=f"Shadow: an endpoint cannot be called '{name}', an actor mesh has that itself; rename it"
    ):
        type("Shadow", (Actor,), {name: endpoint(lambda self: None)})


def test_a_concurrent_endpoint_must_be_async() -> None:
    with pytest.raises(ValueError, match="must be `async def`"):

        class Wrong(Actor):
            @endpoint(concurrent=True)
            def work(self) -> None: ...


def test_an_endpoint_needs_self_and_a_function() -> None:
    with pytest.raises(TypeError, match="takes no `self`"):
        endpoint(lambda: None)
    with pytest.raises(TypeError, match="is for methods"):
        endpoint(3)  # type: ignore[call-overload]


# --- spawning processes


@pytest.mark.parametrize("size", [0, -1, 1.5, "2", True])
def test_sizes_that_make_no_mesh_are_refused(site: Any, size: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="gpus"):
        site.hosts.spawn_procs({"gpus": size})


def test_a_dimension_of_the_hosts_cannot_be_repeated(module_site: Any) -> None:
    if module_site.agents == 1:
        pytest.skip("one host has no dimension")
    with pytest.raises(ValueError, match="per_host repeats the dimension 'hosts' of the hosts"):
        module_site.hosts.spawn_procs({"hosts": 2})


def test_bindings_that_do_not_fit_are_refused(site: Any) -> None:
    with pytest.raises(ValueError, match=r"proc_bind length \(1\) must equal procs_per_host \(2\)"):
        site.hosts.spawn_procs({"gpus": 2}, proc_bind=[{"cpus": "0"}])
    with pytest.raises(
        ValueError, match="proc_bind has no key 'cpu'; there are cpunodebind, cpus, membind, physcpubind"
    ):
        site.hosts.spawn_procs({"gpus": 1}, proc_bind=[{"cpu": "0"}])


def failing(procs: Any) -> str:
    """Why the processes did not start; calls to actors on them must say the same."""
    mesh = procs.spawn("faulty", Faulty)
    call = mesh.echo.call(1)
    with pytest.raises(RoostError) as info:
        procs.initialized.get(timeout=WAIT)
    with pytest.raises(ActorDied) as of_call:
        call.get(timeout=WAIT)
    reason = str(info.value)
    assert reason.split("\n")[0].split(" after ")[0].removesuffix(" (and 1 more)") in str(of_call.value)
    return reason


def test_an_interpreter_that_does_not_exist_is_named(site: Any) -> None:
    assert "'/no/such/python' is not found" in failing(site.spawn_procs(2, python="/no/such/python"))
    assert "'/no/such/python' is not found" in failing(
        site.hosts.with_python_executable("/no/such/python").spawn_procs()
    )


def test_processors_that_do_not_exist_are_named(site: Any) -> None:
    assert "4000" in failing(site.spawn_procs(1, proc_bind=[{"cpus": "4000"}]))


def test_a_bootstrap_that_raises_is_told_with_its_traceback(site: Any) -> None:
    reason = failing(site.spawn_procs(2, bootstrap=bad_bootstrap))
    assert "before it was ready" in reason
    assert "ValueError: the bootstrap fails" in reason


def bad_bootstrap() -> None:
    raise ValueError("the bootstrap fails")


def test_a_bootstrap_command_that_does_not_exist_is_named(site: Any) -> None:
    assert "'no-such-profiler' is not found" in failing(
        site.spawn_procs(1, bootstrap_command=BootstrapCommand("no-such-profiler"))
    )


# --- what was asked for is applied


def look(what: str) -> Any:
    """What the worker's own eyes see."""
    if what == "cpus":
        return sorted(os.sched_getaffinity(0))
    if what == "python":
        return sys.executable
    return os.environ.get(what)


def test_bootstraps_run_before_any_actor_sync_or_async(site: Any) -> None:
    for bootstrap in (set_mark, aset_mark):
        mesh = site.spawn_procs(2, bootstrap=bootstrap).spawn("p", Player)
        assert mesh.apply.call(look, "MARK").get(timeout=WAIT).values() == ["set"] * 2


def set_mark() -> None:
    os.environ["MARK"] = "set"


async def aset_mark() -> None:
    os.environ["MARK"] = "set"


def test_variables_are_set_and_removed(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = site.spawn_procs(2, env={"MINE": "yes", "HOME": None}).spawn("p", Player)
    assert mesh.apply.call(look, "MINE").get(timeout=WAIT).values() == ["yes"] * 2
    assert mesh.apply.call(look, "HOME").get(timeout=WAIT).values() == [None] * 2
    plain = site.spawn_procs(2).spawn("p", Player)
    assert plain.apply.call(look, "MINE").get(timeout=WAIT).values() == [None] * 2


def test_ranks_are_in_the_environment_as_torchrun_sets_them(site: Any) -> None:
    mesh = site.spawn_procs(4).spawn("p", Player)

    def of(name: str) -> list[str]:
        return mesh.apply.call(look, name).get(timeout=WAIT).values()

    assert of("RANK") == ["0", "1", "2", "3"] and of("WORLD_SIZE") == ["4"] * 4
    one = site.agents == 1
    assert of("LOCAL_RANK") == (["0", "1", "2", "3"] if one else ["0", "1", "0", "1"])
    assert of("LOCAL_WORLD_SIZE") == (["4"] * 4 if one else ["2"] * 4)
    assert of("GROUP_RANK") == (["0"] * 4 if one else ["0", "0", "1", "1"])


def test_processes_are_bound_to_their_processors(site: Any) -> None:
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        pytest.skip("one processor")
    bind = [{"cpus": str(mine[1])}, {"cpus": f"{mine[0]},{mine[1]}"}]
    per_host = 2 if site.agents == 1 else 1
    mesh = site.spawn_procs(2, proc_bind=bind[:per_host]).spawn("p", Player)
    bound = mesh.apply.call(look, "cpus").get(timeout=WAIT).values()
    assert bound == ([[mine[1]], mine[:2]] if site.agents == 1 else [[mine[1]]] * 2)


def test_another_interpreter_is_the_one_that_runs(site: Any, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexport STARTED_BY="$0"\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    mesh = site.spawn_procs(2, python=str(python)).spawn("p", Player)
    assert mesh.apply.call(look, "STARTED_BY").get(timeout=WAIT).values() == [str(python)] * 2


def test_a_bootstrap_command_is_what_python_runs_under(site: Any) -> None:
    command = BootstrapCommand("env", ("UNDER=env",)).with_env({"ADDED": "1"})
    mesh = site.spawn_procs(2, bootstrap_command=command).spawn("p", Player)
    assert mesh.apply.call(look, "UNDER").get(timeout=WAIT).values() == ["env"] * 2
    assert mesh.apply.call(look, "ADDED").get(timeout=WAIT).values() == ["1"] * 2


def test_output_of_workers_comes_line_by_line_with_their_names(site: Any, capfd: pytest.CaptureFixture[str]) -> None:
    procs = site.spawn_procs(2, name="talkers")
    mesh = procs.spawn("p", Player)
    mesh.apply.call(print, "hello\nworld").get(timeout=WAIT)
    procs.stop().get(timeout=WAIT)
    out = ""
    port, receiver = Channel.open()
    while out.count("[talkers-") < 4:  # it comes behind the news that the process has ended, at its own pace
        with pytest.raises(TimeoutError):
            receiver.recv().get(timeout=0.01)
        out += capfd.readouterr().out
    assert sorted(out.splitlines()) == [f"[talkers-{rank}] {word}" for rank in (0, 1) for word in ("hello", "world")]
    del port
