"""More of what `roost.testing` promises: processes that end themselves, jobs, threads, streams, interrupts."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from roost import Actor, ActorDied, Channel, ProcessJob, Unreachable, context, endpoint, shutdown, testing, this_host
from roost.actors.errors import RoostError

pytestmark = pytest.mark.timeout(20)


class Worker(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def leave(self, code: int) -> None:
        os._exit(code)

    @endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    @endpoint
    def until_cancelled(self, port: Any) -> str:
        port.send("running")
        while not context().cancelled:
            pass
        port.send("told")
        return "over"

    @endpoint
    def count(self, n: int) -> Iterator[int]:
        yield from range(n)

    @endpoint
    async def ticks(self, n: int) -> AsyncIterator[int]:
        for i in range(n):
            await asyncio.sleep(10)
            yield i

    @endpoint
    async def one(self) -> int:
        return 1

    @endpoint
    async def nest(self) -> int:
        return int(await this_host().spawn_procs().spawn("inner", Worker).one.call_one())


@pytest.fixture
def sim() -> Iterator[testing.Simulation]:
    with testing.simulate() as simulation:
        yield simulation


def worker(n: int = 1) -> Any:
    return this_host().spawn_procs({"gpus": n}).spawn("worker", Worker)


def test_each_process_has_a_number_and_ends_alone(sim: testing.Simulation) -> None:
    mesh = worker(3)
    pids = mesh.pid.call().get().values()
    assert len({os.getpid(), *pids}) == 4
    with pytest.raises(ActorDied, match=rf"pid {pids[0]} on host0\) ended with exit code 7"):
        mesh.slice(gpus=0).leave.call_one(7).get()
    with pytest.raises(ActorDied, match="SIGTERM"):
        mesh.slice(gpus=1).die.call_one().get()
    os.kill(pids[2], signal.SIGKILL)
    with pytest.raises(ActorDied, match="SIGKILL"):
        mesh.slice(gpus=2).pid.call_one().get()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[2], 0)


def test_the_tests_own_process_is_not_killed(sim: testing.Simulation) -> None:
    from roost import this_proc

    with pytest.raises(ValueError, match="own process"):
        sim.kill(this_proc())
    with pytest.raises(TypeError, match="ProcMesh or an ActorMesh"):
        sim.kill("worker")
    with pytest.raises(IndexError):
        sim.kill(worker(2), 2)
    with pytest.raises(ValueError, match="where is"):
        sim.kill(worker(), when="worker.pid", where="sometimes")
    with pytest.raises(ValueError, match="no host 'nowhere'"):
        sim.partition("nowhere")


def test_jobs_give_simulated_hosts(sim: testing.Simulation) -> None:
    with ProcessJob({"trainers": 1, "generators": 2}) as job:
        mesh: Any = job.state().generators.spawn_procs().spawn("worker", Worker)
        assert len(mesh.pid.call().get()) == 2
        assert sim.statistics()["hosts"] == 4
    with pytest.raises(RoostError):
        mesh.pid.call().get()


def test_shutdown_ends_everything_and_the_program_goes_on(sim: testing.Simulation) -> None:
    mesh = worker()
    mesh.pid.call_one().get()
    shutdown()
    with pytest.raises(RoostError):
        mesh.pid.call_one().get()
    assert worker().pid.call_one().get() > 0


def test_an_actor_spawns_others_from_a_coroutine(sim: testing.Simulation) -> None:
    assert worker().nest.call_one().get() == 1
    assert sim.history("inner.one")[0].sender.startswith("procs")


def test_loops_that_look_take_time_and_end(sim: testing.Simulation) -> None:
    one = worker()
    port, receiver = Channel.open()
    future = one.until_cancelled.call_one(port)
    assert receiver.recv().get() == "running"
    sim.clock.advance(1)
    future.cancel()
    assert receiver.recv().get() == "told"
    other = one.pid.call_one()
    while not other.done():
        pass
    assert other.get() > 0


def test_threads_of_the_simulation_take_part_and_others_are_told(sim: testing.Simulation) -> None:
    mesh = worker()
    found: list[Any] = []
    sim.thread(lambda: found.append(mesh.one.call_one().get())).join()
    assert found == [1]

    def stranger() -> None:
        try:
            mesh.one.call_one()
        except RoostError as error:
            found.append(str(error))

    thread = threading.Thread(target=stranger)
    thread.start()
    thread.join()
    assert "not part of the simulation" in found[1]


def test_streaming_endpoints_stream_in_virtual_time(sim: testing.Simulation) -> None:
    mesh = worker()
    assert list(mesh.count.stream(4)) == [0, 1, 2, 3]
    assert list(mesh.ticks.stream(3)) == [0, 1, 2]
    assert sim.clock.now == pytest.approx(30, abs=0.1)
    assert [call.outcome for call in sim.calls] == ["returned", "returned"]


def test_an_async_test_sees_a_deadlock() -> None:
    async def main() -> None:
        async with testing.simulate():
            _, receiver = Channel.open()
            await receiver.recv()

    with pytest.raises(testing.Deadlock):
        asyncio.run(main())


def test_another_kind_of_loop_is_refused() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        with pytest.raises(testing.SimulationError, match=r"sim\.run"):
            async with testing.simulate():
                pass

    loop = uvloop.new_event_loop()
    loop.run_until_complete(main())
    loop.close()


def test_an_exception_of_the_test_ends_the_simulation() -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), testing.simulate():
        kept = worker(4).until_cancelled.call(Channel.open()[0])
        _ = 1 / 0
    del kept
    assert threading.active_count() == before
    with testing.simulate():
        assert worker().one.call_one().get() == 1


def test_an_interrupt_while_an_actor_runs_ends_the_test_and_nothing_is_left() -> None:
    main = threading.get_ident()
    timer = threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGINT))

    class Busy(Actor):
        @endpoint
        def work(self) -> None:
            until = time.perf_counter() + 0.3
            while time.perf_counter() < until:
                pass
            Channel.open()[1].recv().get()

    with pytest.raises(KeyboardInterrupt), testing.simulate():
        busy: Any = this_host().spawn_procs().spawn("busy", Busy)
        timer.start()
        busy.work.call_one().get()
    timer.join()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("roost-busy")]
    with testing.simulate():
        assert worker().one.call_one().get() == 1


def test_a_partition_that_heals_loses_and_repeats_nothing() -> None:
    class Log(Actor):
        def __init__(self) -> None:
            self.seen: list[int] = []

        @endpoint
        def note(self, n: int) -> list[int]:
            self.seen.append(n)
            return self.seen

    def check(sim: testing.Simulation) -> None:
        log: Any = sim.host().spawn_procs().spawn("log", Log)
        log.initialized.get()
        futures = []
        for n in range(20):
            futures.append(log.note.call_one(n))
            if n % 5 == 2:
                sim.partition("host1")
            sim.clock.advance(0.01)
            if n % 5 == 4:
                sim.heal("host1")
        assert futures[-1].get(timeout=20) == list(range(20))

    testing.explore(check, seeds=5, latency=0.004)


def test_a_host_that_stays_away_is_unreachable_for_actors_too() -> None:
    class Caller(Actor):
        @endpoint
        async def ask(self, other: Any) -> str:
            try:
                return str(await other.one.call_one())
            except Unreachable as error:
                return type(error).__name__

    with testing.simulate(link_timeout=5) as sim:
        caller: Any = sim.host("near").spawn_procs().spawn("caller", Caller)
        other: Any = sim.host("far").spawn_procs().spawn("worker", Worker)
        assert caller.ask.call_one(other).get() == "1"
        sim.partition("far")
        assert caller.ask.call_one(other).get() == "Unreachable"
        assert sim.clock.now > 5
