"""What `roost.testing` promises: Roost's own semantics in one process, in virtual time."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from roost import (
    Actor,
    ActorDied,
    ActorError,
    Channel,
    MeshFailure,
    context,
    current_rank,
    endpoint,
    testing,
    this_host,
    this_proc,
)
from roost import actors as roost_actors
from roost.actors import ActorStopped, CallCancelled, CallTimeout

pytestmark = pytest.mark.timeout(20)


class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.n = start

    @endpoint
    def add(self, by: int = 1) -> int:
        self.n += by
        return self.n

    @endpoint
    def put(self, items: list[int]) -> list[int]:
        items.append(self.n)
        return items

    @endpoint
    def fail(self, text: str) -> None:
        raise ValueError(text)

    @endpoint
    def where(self) -> tuple[int, dict[str, int], int, str, str]:
        rank = current_rank()
        instance = context().actor_instance
        return rank.rank, dict(rank.extent), instance.rank.rank, instance.name, os.environ.get("RANK", "")

    @endpoint
    def thread(self) -> int:
        return threading.get_ident()

    @endpoint
    def lock(self) -> Any:
        return threading.Lock()


class Sleeper(Actor):
    def __init__(self) -> None:
        self.log: list[str] = []

    @endpoint
    async def nap(self, seconds: float) -> float:
        self.log.append(f"begin {seconds:g}")
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise
        self.log.append(f"end {seconds:g}")
        return asyncio.get_running_loop().time()

    @endpoint(concurrent=True)
    async def doze(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @endpoint
    def sync_nap(self, seconds: float) -> float:
        time.sleep(seconds)
        return time.monotonic()

    @endpoint
    async def in_thread(self, seconds: float) -> float:
        await asyncio.to_thread(time.sleep, seconds)
        return time.monotonic()

    @endpoint
    def read(self) -> list[str]:
        return self.log

    @endpoint(explicit_response_port=True)
    def later(self, port: Any, value: int) -> None:
        port.send(value * 2)


class Parent(Actor):
    def __init__(self, handles: bool = True) -> None:
        self.handles = handles
        self.seen: list[str] = []
        self.children: Any = None

    @endpoint
    def spawn(self) -> Any:
        self.procs = this_host().spawn_procs({"gpus": 2}, name="children")
        self.children = self.procs.spawn("child", Counter, 1)
        return self.children

    @endpoint
    def total(self) -> int:
        return sum(self.children.add.call(1).get().values())

    @endpoint
    def seen_failures(self) -> list[str]:
        return self.seen

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.seen.append(failure.mesh_name)
        return self.handles


class Peer(Actor):
    def __init__(self) -> None:
        self.other: Any = None

    @endpoint
    def meet(self, other: Any) -> None:
        self.other = other

    @endpoint
    def ask(self) -> str:
        return str(self.other.answer.call_one().get())

    @endpoint
    def answer(self) -> str:
        return "yes"

    @endpoint
    def ring(self) -> str:
        return str(self.other.ask.call_one().get())


ended: list[str] = []


class Tidy(Actor):
    @endpoint
    def work(self) -> None:
        pass

    def __cleanup__(self, error: Exception | None) -> None:
        ended.append("cleanup")


@pytest.fixture
def sim() -> Iterator[testing.Simulation]:
    with testing.simulate() as simulation:
        yield simulation


def counters(n: int = 4) -> Any:
    return this_host().spawn_procs({"gpus": n}).spawn("counter", Counter, 5)


# the same meshes, the same calls


def test_meshes_have_the_same_shapes_and_adverbs(sim: testing.Simulation) -> None:
    mesh = sim.hosts(2).spawn_procs({"gpus": 2}).spawn("counter", Counter, 5)
    assert mesh.initialized.get() is True
    assert mesh.extent == {"hosts": 2, "gpus": 2}
    assert mesh.add.call(1).get().values() == [6, 6, 6, 6]
    assert mesh.slice(hosts=1).add.call(1).get().extent == {"gpus": 2}
    assert mesh.flatten("rank").slice(rank=3).add.call_one().get() == 8
    assert mesh.split(gpus=("a", "b"), a=1).extent == {"hosts": 2, "a": 1, "b": 2}
    assert mesh.add.choose(0).get() in (6, 7, 8)
    assert sorted(future.get() for future in mesh.add.stream(0)) == [6, 6, 7, 8]
    mesh.add.broadcast(10)
    assert mesh.add.call(0).get().values() == [16, 16, 17, 18]
    mesh.stop().get()
    with pytest.raises(ActorStopped, match="stopped by its owner"):
        mesh.add.call(1).get()


def test_the_same_controller_runs_simulated_and_outside_nothing_is_left(sim: testing.Simulation) -> None:
    assert this_host().extent == {}
    assert this_proc().spawn("here", Counter, 1).add.call_one(1).get() == 2


def test_after_a_simulation_everything_is_as_before() -> None:
    from roost.actors import future, node, runtime

    before = [future.time, future.threading, node._current, runtime._runtime, os.environ, asyncio.new_event_loop]
    with testing.simulate():
        counters(1).add.call_one(1).get()
    assert [
        future.time,
        future.threading,
        node._current,
        runtime._runtime,
        os.environ,
        asyncio.new_event_loop,
    ] == before
    assert future.time is time
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("roost-counter")]


def test_arguments_and_results_have_value_semantics(sim: testing.Simulation) -> None:
    mesh = counters(1)
    mine = [1, 2]
    answer = mesh.put.call_one(mine)
    mine.append(99)
    assert answer.get() == [1, 2, 5]
    assert mine == [1, 2, 99]


def test_what_cannot_be_pickled_is_refused_as_in_production(sim: testing.Simulation) -> None:
    mesh = counters(1)
    with pytest.raises(TypeError, match="lock"):
        mesh.put.call_one(threading.Lock())
    with pytest.raises(TypeError, match="lock"):
        mesh.lock.call_one().get()


def test_arguments_are_checked_at_the_call(sim: testing.Simulation) -> None:
    with pytest.raises(TypeError, match="add"):
        counters(1).add.call_one(1, 2, 3)
    with pytest.raises(AttributeError, match="has no endpoint"):
        _ = counters(1).nothing


def test_ranks_and_variables_are_those_of_each_process(sim: testing.Simulation) -> None:
    mesh = sim.hosts(2).spawn_procs({"gpus": 2}, env={"EXTRA": "1"}).spawn("counter", Counter)
    found = mesh.where.call().get().values()
    assert [rank for rank, *_ in found] == [0, 1, 2, 3]
    assert [variable for *_, variable in found] == ["0", "1", "2", "3"]
    assert mesh.slice(hosts=1).where.call().get().values()[1] == (1, {"gpus": 2}, 3, "counter", "3")
    assert "EXTRA" not in os.environ


def test_an_actor_keeps_its_home_thread(sim: testing.Simulation) -> None:
    mesh = counters(2)
    first, second = mesh.thread.call().get().values()
    assert first != second != threading.get_ident()
    assert mesh.thread.call().get().values() == [first, second]


def test_an_actor_of_one_rank_is_called_directly(sim: testing.Simulation) -> None:
    one = testing.local(Counter, 7, rank=1, extent={"gpus": 4})
    assert one.add.call_one(1).get() == 8  # type: ignore[attr-defined]
    assert one.where.call_one().get() == (1, {"gpus": 4}, 1, "counter", "1")  # type: ignore[attr-defined]


# failures


def test_an_exception_has_the_endpoints_type_and_roosts(sim: testing.Simulation) -> None:
    mesh = counters(2)
    with pytest.raises(ValueError, match="no such thing") as caught:
        mesh.fail.call("no such thing").get()
    assert isinstance(caught.value, ActorError)
    assert (caught.value.rank, caught.value.host) == (0, "host0")
    assert [rank for rank, _ in caught.value.others] == [1]
    assert "in fail" in caught.value.remote_traceback
    assert "roost/testing" not in caught.value.remote_traceback
    assert mesh.add.call(1).get().values() == [6, 6]


def test_a_broadcast_that_raises_ends_its_actor_and_is_a_fault(sim: testing.Simulation) -> None:
    mesh = counters(1)
    mesh.fail.broadcast("nobody hears this")
    sim.clock.advance(10)
    assert ["nobody hears this" in fault.reason for fault in sim.faults] == [True]
    with pytest.raises(ActorDied, match="nobody hears this"):
        mesh.add.call_one(1).get()


def test_a_fault_hook_of_the_users_own_is_called(sim: testing.Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[MeshFailure] = []
    monkeypatch.setattr(roost_actors, "unhandled_fault_hook", heard.append)
    counters(1).fail.broadcast("x")
    sim.clock.advance(10)
    assert len(heard) == 1 and heard == sim.faults


def test_a_constructor_that_raises_fails_the_mesh(sim: testing.Simulation) -> None:
    class Broken(Actor):
        def __init__(self) -> None:
            raise OSError("no disk")

        @endpoint
        def work(self) -> None: ...

    mesh = this_host().spawn_procs().spawn("broken", Broken)
    with pytest.raises(ActorDied, match="no disk"):
        mesh.initialized.get()


def test_a_bootstrap_that_raises_fails_the_processes(sim: testing.Simulation) -> None:
    def bootstrap() -> None:
        raise RuntimeError("no driver")

    with pytest.raises(ActorDied, match="no driver"):
        this_host().spawn_procs({"gpus": 2}, bootstrap=bootstrap).initialized.get()


def test_an_owner_is_asked_and_its_meshes_end_with_it(sim: testing.Simulation) -> None:
    procs = this_host().spawn_procs(name="parents")
    parent: Any = procs.spawn("parent", Parent)
    children = parent.spawn.call_one().get()
    assert parent.total.call_one().get() == 4
    sim.kill(children, 0)
    with pytest.raises(ActorDied):
        children.add.call(1).get()
    sim.clock.advance(1)
    assert parent.seen_failures.call_one().get() == ["children"]
    procs.stop().get()
    with pytest.raises((ActorStopped, ActorDied)):
        children.slice(gpus=1).add.call_one(1).get()
    assert sim.statistics()["ended"] == 3


def test_what_an_owner_does_not_handle_fails_it_in_turn(sim: testing.Simulation) -> None:
    parent: Any = this_host().spawn_procs(name="parents").spawn("parent", Parent, False)
    children = parent.spawn.call_one().get()
    children.initialized.get()
    sim.kill(children, 1)
    sim.clock.advance(30)
    assert len(sim.faults) == 1
    assert "children, which it owns, has failed" in sim.faults[0].report()
    with pytest.raises(ActorDied):
        parent.total.call_one().get()


def test_cleanup_runs_at_a_stop_and_at_the_end() -> None:
    ended.clear()
    with testing.simulate():
        first: Any = this_host().spawn_procs().spawn("tidy", Tidy)
        first.work.call_one().get()
        first.stop().get()
        assert ended == ["cleanup"]
        second: Any = this_host().spawn_procs().spawn("tidy", Tidy)
        second.work.call_one().get()
    assert ended == ["cleanup", "cleanup"]


# time


def test_an_hour_passes_at_once(sim: testing.Simulation) -> None:
    sleeper: Any = this_host().spawn_procs().spawn("sleeper", Sleeper)
    begin = time.perf_counter()
    assert sleeper.nap.call_one(3600).get() == pytest.approx(3600, abs=1)
    assert time.perf_counter() - begin < 5
    assert sim.clock.now >= 3600


def test_sync_endpoints_sleep_in_virtual_time_where_time_is_patched() -> None:
    with testing.simulate(patch_time=True) as sim:
        sleeper: Any = this_host().spawn_procs().spawn("sleeper", Sleeper)
        assert sleeper.sync_nap.call_one(3600).get() == pytest.approx(3600, abs=1)
        assert sleeper.in_thread.call_one(100).get() == pytest.approx(3700, abs=1)
        began = time.time()
        time.sleep(1e6)
        assert time.time() - began == pytest.approx(1e6)
        assert sim.clock.now > 1e6
    assert time.monotonic() != sim.clock.now


def test_the_clock_moves_by_hand_without_autojump() -> None:
    with testing.simulate(autojump=False) as sim:
        sleeper: Any = this_host().spawn_procs().spawn("sleeper", Sleeper)
        future = sleeper.nap.call_one(10)
        sim.clock.advance(9)
        assert not future.done()
        sim.clock.advance(1.1)
        assert future.done()
        with pytest.raises(testing.Deadlock, match="stands still"):
            sleeper.nap.call_one(5).get()


def test_timeouts_are_virtual_and_cancel_at_the_actor(sim: testing.Simulation) -> None:
    sleeper: Any = this_host().spawn_procs().spawn("sleeper", Sleeper)
    with pytest.raises(CallTimeout, match="within 60 s"):
        sleeper.nap.call_one(3600).get(timeout=60)
    assert sim.clock.now == pytest.approx(60, abs=1)
    assert sleeper.read.call_one().get() == ["begin 3600", "cancelled"]
    assert [call.outcome for call in sim.history("sleeper.nap")] == ["cancelled"]


def test_a_queued_call_that_is_cancelled_never_runs(sim: testing.Simulation) -> None:
    sleeper: Any = this_host().spawn_procs().spawn("sleeper", Sleeper)
    first, second = sleeper.nap.call_one(5), sleeper.nap.call_one(6)
    sim.clock.settle()
    second.cancel()
    assert first.get() > 0
    with pytest.raises(CallCancelled):
        second.get()
    assert sleeper.read.call_one().get() == ["begin 5", "end 5"]


def test_one_message_at_a_time_but_concurrent_ones(sim: testing.Simulation) -> None:
    sleeper: Any = this_host().spawn_procs().spawn("sleeper", Sleeper)
    naps = [sleeper.nap.call_one(n) for n in (3, 1)]
    dozes = [sleeper.doze.call_one(n) for n in (2, 1)]
    assert [f.get() for f in dozes] == [2, 1]
    assert sim.clock.now == pytest.approx(2, abs=0.1)
    assert [round(f.get()) for f in naps] == [3, 4]


def test_response_ports_and_channels_work(sim: testing.Simulation) -> None:
    sleeper: Any = this_host().spawn_procs().spawn("sleeper", Sleeper)
    assert sleeper.later.call_one(4).get() == 8
    port, receiver = Channel.open()
    port.send(3)
    assert receiver.recv().get() == 3


def test_coroutines_of_the_test_live_in_virtual_time(sim: testing.Simulation) -> None:
    async def main() -> float:
        sleeper: Any = this_host().spawn_procs().spawn("sleeper", Sleeper)
        loop = asyncio.get_running_loop()
        began = loop.time()
        napping = asyncio.ensure_future(_wait(sleeper.nap.call_one(100)))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await napping
        await asyncio.sleep(50)
        return loop.time() - began

    assert sim.run(main()) == pytest.approx(80, abs=0.1)
    assert asyncio.run(main()) == pytest.approx(80, abs=0.1)


async def _wait(future: Any) -> Any:
    return await future


def test_a_running_loop_is_adopted_and_given_back() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        real = loop.time()
        async with testing.simulate() as sim:
            sleeper: Any = this_host().spawn_procs().spawn("sleeper", Sleeper)
            begin = loop.time()
            assert await sleeper.doze.call_one(500) == 500
            await asyncio.sleep(500)
            assert loop.time() - begin == pytest.approx(1000, abs=0.1)
            assert sim.clock.now == pytest.approx(1000, abs=0.1)
        assert loop.time() - real < 10
        await asyncio.sleep(0.001)

    asyncio.run(main())


# injected


def test_a_killed_process_fails_its_calls_with_a_report(sim: testing.Simulation) -> None:
    mesh = counters()
    sim.kill(mesh, 2, how="SIGSEGV")
    with pytest.raises(ActorDied, match=r"was killed by SIGSEGV after 0\.\d s") as caught:
        mesh.add.call(1).get()
    assert caught.value.exit_report.signal == "SIGSEGV"
    sim.kill(mesh.slice(gpus=0), how=3)
    with pytest.raises(ActorDied, match="exit code 3"):
        mesh.slice(gpus=0).add.call_one(1).get()
    sim.kill(mesh.slice(gpus=1), how="oom")
    with pytest.raises(ActorDied, match="out-of-memory"):
        mesh.slice(gpus=1).add.call_one(1).get()
    assert mesh.slice(gpus=3).add.call_one(1).get() == 7


def test_a_death_comes_at_its_time(sim: testing.Simulation) -> None:
    sleeper: Any = this_host().spawn_procs().spawn("sleeper", Sleeper)
    sim.kill(sleeper, at=30)
    with pytest.raises(ActorDied):
        sleeper.nap.call_one(100).get()
    assert sim.clock.now == pytest.approx(30, abs=0.2)
    assert [call.outcome for call in sim.history("*.nap")] == ["died"]


@pytest.mark.parametrize(("where", "effects"), [("before", 1), ("during", 2), ("after", 2)])
def test_a_death_comes_at_a_call(where: str, effects: int) -> None:
    begun: list[int] = []

    class Worker(Actor):
        @endpoint
        async def step(self, record: Any) -> str:
            begun.append(1)
            await asyncio.sleep(1)
            return "done"

    with testing.simulate() as sim:
        worker: Any = this_host().spawn_procs().spawn("worker", Worker)
        worker.initialized.get()
        count = len(begun)
        sim.kill(worker, when="worker.step", call=2, where=where)
        assert worker.step.call_one(None).get() == "done"
        with pytest.raises(ActorDied, match="SIGKILL"):
            worker.step.call_one(None).get()
        assert sim.history("worker.step")[-1].outcome == "died"
        took = sim.clock.now
    del count, effects
    assert took == pytest.approx(2.0 if where == "after" else 1.0, abs=0.2)


def test_endpoints_are_late_or_fail_where_told(sim: testing.Simulation) -> None:
    mesh = counters(2)
    sim.delay("counter.add", 5, ranks=1)
    mesh.add.call(1).get()
    assert sim.clock.now == pytest.approx(5, abs=0.1)
    sim.fail("counter.add", KeyError("injected"), ranks=[0])
    with pytest.raises(KeyError, match="injected") as caught:
        mesh.add.call(1).get()
    assert caught.value.rank == 0  # type: ignore[attr-defined]
    assert mesh.add.call(1).get().values() == [7, 8]


def test_a_partition_holds_messages_and_makes_hosts_unreachable() -> None:
    with testing.simulate(link_timeout=10) as sim:
        hosts = sim.hosts(2)
        mesh: Any = hosts.spawn_procs().spawn("counter", Counter)
        mesh.add.call(1).get()
        sim.partition("host2")
        waiting = mesh.slice(hosts=1).add.call_one(1)
        assert mesh.slice(hosts=0).add.call_one(1).get() == 2
        sim.clock.advance(5)
        assert not waiting.done()
        sim.heal()
        assert waiting.get() == 2
        sim.partition(hosts.slice(hosts=1))
        from roost import Unreachable

        with pytest.raises(Unreachable, match="could not be reached for 10 s"):
            mesh.slice(hosts=1).add.call_one(1).get()
        assert mesh.slice(hosts=0).add.call_one(1).get() == 3


def test_latency_between_hosts_takes_virtual_time() -> None:
    with testing.simulate(latency=0.25) as sim:
        mesh: Any = sim.host().spawn_procs().spawn("counter", Counter)
        mesh.initialized.get()
        before = sim.clock.now
        mesh.add.call_one(1).get()
        assert sim.clock.now - before == pytest.approx(0.5, abs=0.01)


# what goes on


def test_calls_are_written_down(sim: testing.Simulation) -> None:
    mesh = counters(2)
    mesh.add.call(3).get()
    with pytest.raises(ValueError):
        mesh.slice(gpus=1).fail.call_one("x").get()
    assert [(c.sender, c.name, c.rank, c.args, c.outcome) for c in sim.calls] == [
        ("controller", "counter.add", 0, "3", "returned"),
        ("controller", "counter.add", 1, "3", "returned"),
        ("controller", "counter.fail", 1, "'x'", "raised ValueError: x"),
    ]
    assert sim.history("counter.f*")[0].number == 1
    assert "counter.fail[1]('x'): raised" in str(sim.calls[-1])
    assert sim.statistics()["calls"] == 3
    with pytest.raises(AssertionError, match="raised ValueError"):
        testing.assert_no_failures(sim)


def test_no_failures_are_seen_where_there_are_none(sim: testing.Simulation) -> None:
    counters(2).add.call(3).get()
    testing.assert_no_failures(sim)


def test_a_deadlock_says_who_waits_for_whom(sim: testing.Simulation) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    a: Any = procs.slice(gpus=0).spawn("a", Peer)
    b: Any = procs.slice(gpus=1).spawn("b", Peer)
    a.meet.call_one(b).get()
    b.meet.call_one(a).get()
    assert a.ask.call_one().get() == "yes"
    with pytest.raises(testing.Deadlock) as caught:
        a.ring.call_one().get()
    text = str(caught.value)
    assert "the test waits for a.ring" in text
    assert "a.ring[0], called by controller, waits for b.ask" in text
    assert "b.ask[0], called by" in text and "waits for a.answer" in text
    assert "a[0] has 1 more in its mailbox" in text


def test_a_wait_for_nothing_is_a_deadlock(sim: testing.Simulation) -> None:
    _, receiver = Channel.open()
    with pytest.raises(testing.Deadlock, match="nothing can run"):
        receiver.recv().get()


def test_a_circle_is_found() -> None:
    class Spinner(Actor):
        @endpoint
        async def spin(self) -> None:
            while True:
                await asyncio.sleep(0)

    with testing.simulate(max_steps=2000):
        spinner: Any = this_host().spawn_procs().spawn("spinner", Spinner)
        with pytest.raises(testing.Deadlock, match="runs in a circle"):
            spinner.spin.call_one().get()
        spinner.spin.call_one().cancel()


def test_unfinished_calls_are_told_at_the_end() -> None:
    with pytest.warns(testing.UnfinishedWarning, match=r"sleeper\.nap"), testing.simulate() as sim:
        sleeper: Any = this_host().spawn_procs().spawn("sleeper", Sleeper)
        kept = sleeper.nap.call_one(1e9)
    assert sim.unfinished == ["sleeper.nap"]
    del kept


def test_simulations_do_not_nest(sim: testing.Simulation) -> None:
    with pytest.raises(testing.SimulationError, match="do not nest"), testing.simulate():
        pass


def test_local_needs_a_simulation() -> None:
    with pytest.raises(testing.SimulationError, match="simulate"):
        testing.local(Counter)


# interleavings


class Account(Actor):
    def __init__(self) -> None:
        self.balance = 0

    @endpoint
    def read(self) -> int:
        return self.balance

    @endpoint
    def write(self, value: int) -> None:
        self.balance = value


class Clerk(Actor):
    @endpoint
    def deposit(self, account: Any) -> None:
        account.write.call_one(account.read.call_one().get() + 1).get()


def lost_update(sim: testing.Simulation) -> None:
    account: Any = sim.this_host().spawn_procs().spawn("account", Account)
    clerks: Any = sim.this_host().spawn_procs({"gpus": 2}).spawn("clerk", Clerk)
    first, second = clerks.slice(gpus=0), clerks.slice(gpus=1)
    futures = [first.deposit.call_one(account), second.deposit.call_one(account)]
    for future in futures:
        future.get()
    assert account.read.call_one().get() == 2


def test_exploring_finds_a_lost_update_and_its_seed_repeats_it() -> None:
    with pytest.raises(testing.Explored, match="lost_update fails with seed") as caught:
        testing.explore(lost_update, seeds=50)
    with pytest.raises(testing.Explored) as again:
        testing.explore(lost_update, seeds=[caught.value.seed])
    assert again.value.seed == caught.value.seed
    assert isinstance(again.value.__cause__, AssertionError)


def order(sim: testing.Simulation) -> list[str]:
    account: Any = sim.this_host().spawn_procs().spawn("account", Account)
    clerks: Any = sim.this_host().spawn_procs({"gpus": 4}).spawn("clerk", Clerk)
    clerks.deposit.call(account).get()
    return [f"{call.began:g} {call.sender} {call.name} {call.args}" for call in sim.history("account.*")]


def test_a_seed_gives_the_same_run_and_others_differ() -> None:
    runs = {}
    for seed in (None, 1, 2, 3, 4):
        for _ in range(2):
            with testing.simulate(seed=seed) as sim:
                runs.setdefault(seed, []).append(order(sim))
    assert all(first == second for first, second in runs.values())
    assert len({tuple(first) for first, _ in runs.values()}) > 1


def test_one_senders_messages_keep_their_order_under_every_seed() -> None:
    class Log(Actor):
        def __init__(self) -> None:
            self.seen: list[int] = []

        @endpoint
        def note(self, n: int) -> None:
            self.seen.append(n)

        @endpoint
        async def read(self) -> list[int]:
            return self.seen

    async def check(sim: testing.Simulation) -> None:
        log: Any = sim.host().spawn_procs().spawn("log", Log)
        for n in range(10):
            log.note.broadcast(n)
        assert await log.read.call_one() == list(range(10))

    testing.explore(check, seeds=10, latency=0.01)
