"""What people meet in their first hours: faults that were found by newcomers, each held here."""

from __future__ import annotations

import os
from typing import Any

import numpy
import pytest
from troupe import Player

from roost.actors import Actor, ActorDied, ActorStopped, endpoint

PATIENCE = 30


class Caller(Actor):
    """Calls an actor that it was given."""

    def __init__(self, other: Any) -> None:
        self.other = other

    @endpoint
    def ask(self, value: Any) -> tuple[Any, Any]:
        one = self.other.echo.call_one(value).get(timeout=PATIENCE)
        return one, self.other.echo.call(value).get(timeout=PATIENCE).item()


class Environment(Actor):
    @endpoint
    def get(self, name: str) -> str | None:
        return os.environ.get(name)


class Hopeless(Actor):
    def __init__(self) -> None:
        {}["learning rate"]

    @endpoint
    def nothing(self) -> None: ...


def test_two_actors_of_one_process_call_each_other(site: Any) -> None:
    procs = site.spawn_procs(2).slice(gpus=1)
    player = procs.spawn("player", Player)
    caller = procs.spawn("caller", Caller, player)
    assert caller.ask.call_one("x").get(PATIENCE) == ("x", "x")
    large = numpy.arange(300_000)
    (one, many) = caller.ask.call_one(large).get(PATIENCE)
    assert (one == large).all() and (many == large).all()


def test_large_calls_that_are_answered_one_by_one_never_run_out_of_credit(site: Any) -> None:
    player = site.spawn_procs(2).spawn("player", Player).slice(gpus=1)
    array = numpy.ones(5_000_000)
    for _ in range(9):  # 360 MB, where the window is 256 MiB
        assert player.echo.call_one(array).get(PATIENCE).shape == array.shape


def test_a_failing_init_says_where(site: Any) -> None:
    hopeless = site.spawn_procs(2).spawn("hopeless", Hopeless)
    for future in (hopeless.nothing.call(), hopeless.initialized):
        with pytest.raises(ActorDied) as caught:
            future.get(PATIENCE)
        assert "KeyError: 'learning rate'" in str(caught.value)
        assert "in __init__" in str(caught.value) and "test_first_hours.py" in str(caught.value)


def test_variables_set_later_reach_the_next_workers(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOST_TEST_LATER", "yes")
    environment = site.spawn_procs(2).spawn("environment", Environment)
    assert environment.get.call("ROOST_TEST_LATER").get(PATIENCE).values() == ["yes", "yes"]


def test_a_helper_that_was_changed_is_new_for_new_actors(run_script: Any) -> None:
    script = run_script(
        """
        from roost import Actor, endpoint, this_host
        RATE = 0.1
        def rate(): return RATE
        class A(Actor):
            @endpoint
            def get(self): return rate()
        procs = this_host().spawn_procs()
        old = procs.spawn("old", A)
        print(old.get.call_one().get(30), flush=True)
        RATE = 0.2
        print(procs.spawn("new", A).get.call_one().get(30), old.get.call_one().get(30), flush=True)
        """
    )
    assert script.out.split() == ["0.1", "0.2", "0.1"]


def test_after_shutdown_an_old_mesh_says_so_at_once_and_all_begins_anew(run_script: Any) -> None:
    script = run_script(
        """
        from roost import Actor, endpoint, this_host, shutdown
        from roost.actors import ActorStopped
        class A(Actor):
            @endpoint
            def get(self): return 1
            @endpoint
            async def wait(self):
                import asyncio
                await asyncio.sleep(60)
        for _ in range(3):
            a = this_host().spawn_procs().spawn("a", A)
            assert a.get.call_one().get(30) == 1
            pending = a.wait.call_one()
            shutdown()
            for future in (lambda: pending, lambda: a.get.call_one()):
                try:
                    future().get(30)
                except ActorStopped as error:
                    print(error)
        """
    )
    assert len(script.out.splitlines()) == 6 and script.out.count("controller has been shut down") >= 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env": {"N": 3}}, "'N' has 3"),
        ({"preload": "numpy"}, r"write \['numpy'\]"),
        ({"bootstrap": "x"}, "cannot be called"),
        ({"per_host": 4}, "mapping of dimensions"),
        ({"proc_bind": {"cpus": "0"}}, "list with a mapping of strings"),
        ({"bootstrap_command": ("nsys",)}, "BootstrapCommand"),
    ],
)
def test_options_of_the_wrong_kind_are_refused_at_the_call(options: dict[str, Any], words: str) -> None:
    from roost import this_host

    with pytest.raises(TypeError, match=words):
        this_host().spawn_procs(**options)


def test_a_future_and_an_endpoint_called_bare_get_a_sentence(site: Any) -> None:
    player = site.spawn_procs(2).spawn("player", Player).slice(gpus=0)
    with pytest.raises(TypeError, match="a Future cannot be sent"):
        player.echo.call_one(player.echo.call_one(1))
    with pytest.raises(TypeError, match=r"\.echo\.call\("):
        player.echo(1)


def test_a_stopped_mesh_stays_stopped_for_those_it_was_sent_to(site: Any) -> None:
    procs = site.spawn_procs(2)
    player, caller = procs.spawn("player", Player), None
    caller = procs.slice(gpus=1).spawn("caller", Caller, player.slice(gpus=0))
    player.stop().get(PATIENCE)
    with pytest.raises(ActorStopped):
        caller.ask.call_one(1).get(PATIENCE)
    assert os.getpid() not in procs.spawn("more", Player).pid.call().get(PATIENCE).values()
