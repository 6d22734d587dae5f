"""Calls as users make them: deadlines, fail-fast, waiting for some, parts by a named dim, many calls at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from troupe import Player, stop_at

from roost import as_completed, this_proc, wait
from roost.actors import Actor, CallTimeout, Channel, Port, concurrent_endpoint, context, current_rank, endpoint
from roost.mesh import Replicate

WAIT = 30
Spawn = Callable[..., Any]


class Worker(Actor):
    """Fails, waits and answers as it is told."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @endpoint
    def fail_if(self, ranks: list[int], barrier: str = "") -> int:
        here = current_rank().rank
        if here in ranks:
            raise ValueError(f"bad batch {here if len(ranks) < 3 else ''}")
        if barrier:
            stop_at(barrier)
        return here

    @endpoint
    def wait_unless(self, rank: int, barrier: str) -> int:
        if current_rank().rank != rank:
            stop_at(barrier)
        return current_rank().rank

    @endpoint
    async def until_cancelled(self, port: Port[Any], first_fails: bool = False) -> None:
        if first_fails and current_rank().rank == 0:
            raise KeyError("the first")
        try:
            port.send(("running", current_rank().rank))
            await asyncio.sleep(WAIT * 4)
        except asyncio.CancelledError:
            port.send(("cancelled", current_rank().rank))
            raise

    @endpoint
    def part(self, batch: Any, scale: float, *, extra: Any = None) -> Any:
        self.seen.append((batch, scale, extra))
        return batch * scale if hasattr(batch, "dtype") else [item * scale for item in batch]

    @endpoint
    def what_came(self) -> list[Any]:
        return self.seen

    @endpoint
    def square(self, value: int) -> int:
        self.seen.append(value)
        if value < 0:
            raise ValueError(f"negative: {value}")
        return value * value

    @endpoint
    def left(self) -> float | None:
        return context().remaining

    @endpoint
    def left_two_down(self, other: Any) -> float | None:
        found: float | None = other.left.call_one().get(timeout=WAIT)
        return found

    @endpoint
    def options_of_its_own(self, timeout: str, **more: Any) -> tuple[str, dict[str, Any]]:
        return timeout, more

    @endpoint
    def fail_or_evaluate(self, odd: int, barrier: str) -> None:
        if current_rank().rank == odd:
            self.evaluate(barrier)
        else:
            stop_at(barrier)

    def evaluate(self, barrier: str) -> None:
        stop_at(barrier)

    @concurrent_endpoint
    async def whoami(self) -> str:
        return f"worker {current_rank().rank}"


# failing


def test_a_call_that_waits_for_all_tells_of_all_failures_folded(spawn: Spawn) -> None:
    mesh = spawn(Worker, n=4)
    with pytest.raises(ValueError) as caught:
        mesh.fail_if.call([0, 2, 3], fail_fast=False).get(timeout=WAIT)
    error: Any = caught.value
    assert sorted(error.errors) == [0, 2, 3] and error.running == ()
    assert "2 ranks (2-3)" in str(error) and "ValueError: bad batch" in str(error)
    assert all(each.host and each.pid for each in error.errors.values())


def test_the_rest_of_a_failed_call_is_cancelled_when_asked(spawn: Spawn) -> None:
    mesh = spawn(Worker, n=2)
    mesh.whoami.call().get(timeout=WAIT)
    port, receiver = Channel.open()
    with pytest.raises(KeyError) as caught:
        mesh.until_cancelled.call(port, first_fails=True, cancel_rest=True).get(timeout=WAIT)
    assert "cancelled with it: ranks 1" in str(caught.value)
    told = [receiver.recv().get(timeout=WAIT) for _ in range(2)]
    assert told == [("running", 1), ("cancelled", 1)]
    assert mesh.whoami.call().get(timeout=WAIT).values() == ["worker 0", "worker 1"]


def test_the_rest_of_a_failed_call_goes_on_otherwise(spawn: Spawn, barrier: Any) -> None:
    mesh = spawn(Worker, n=2)
    with pytest.raises(ValueError) as caught:
        mesh.fail_if.call([0], barrier.path).get(timeout=WAIT)
    assert caught.value.running == (1,)  # type: ignore[attr-defined]
    barrier.open()
    assert mesh.fail_if.call([]).get(timeout=WAIT).values() == [0, 1]


def test_options_stand_among_the_keywords_or_apart(spawn: Spawn) -> None:
    mesh = spawn(Worker, n=2)
    one = mesh.slice(gpus=0)
    own = one.options_of_its_own.options(timeout=WAIT).call_one("mine", window=3).get(timeout=WAIT)
    assert own == ("mine", {"window": 3}), "an endpoint's own parameters are its own"
    with pytest.raises(TypeError, match="no option 'patience'"):
        one.square.options(patience=3)
    with pytest.raises(ValueError, match="timeout=-1"):
        one.square.call_one(3, timeout=-1)
    with pytest.raises(TypeError, match="timeout='3'"):
        one.square.call_one(3, timeout="3")
    assert "worker.square(value" in repr(one.square.options(timeout=3))


# deadlines


def test_a_mesh_call_past_its_deadline_shows_what_silent_ranks_were_doing(spawn: Spawn, barrier: Any) -> None:
    mesh = spawn(Worker, n=2)
    mesh.whoami.call().get(timeout=WAIT)
    for call in (
        lambda: mesh.wait_unless.call(0, barrier.path).get(timeout=0.3),
        lambda: mesh.wait_unless.call(0, barrier.path, timeout=0.3).get(),
    ):
        with pytest.raises(CallTimeout) as caught:
            call()
        error = caught.value
        assert error.unanswered == (1,)
        assert "stop_at" in error.stacks[1] and "wait_unless" in error.stacks[1]
        assert "no answer from rank 1" in str(error) and "stop_at" in str(error)
        barrier.open()
        assert mesh.whoami.call().get(timeout=WAIT).values() == ["worker 0", "worker 1"]


def test_a_deadline_completes_a_future_that_nobody_waits_for(spawn: Spawn) -> None:
    mesh = spawn(Worker, n=2)
    port, receiver = Channel.open()
    mesh.whoami.call().get(timeout=WAIT)
    done = threading.Event()
    future = mesh.until_cancelled.call(port, timeout=0.3)
    future.add_done_callback(lambda _: done.set())
    assert done.wait(WAIT)
    told = sorted(receiver.recv().get(timeout=WAIT) for _ in range(4))
    assert told == [("cancelled", 0), ("cancelled", 1), ("running", 0), ("running", 1)], "it reaches the coroutine"
    assert isinstance(future.exception(), TimeoutError)


def test_a_deadline_reaches_the_endpoint_and_the_calls_it_makes(spawn: Spawn) -> None:
    mesh = spawn(Worker, n=2)
    first, second = mesh.slice(gpus=0), mesh.slice(gpus=1)
    assert first.left.call_one().get(timeout=WAIT) is None
    assert 0 < first.left.call_one(timeout=20).get() <= 20
    inner = first.left_two_down.call_one(second, timeout=20).get()
    assert inner is not None and 0 < inner <= 20


@pytest.mark.parametrize("method", ["ask", "aask"])
def test_a_deadline_passed_to_a_nested_call_shows_where_the_called_actor_waits(
    site: Any, barrier: Any, method: str
) -> None:
    procs = site.spawn_procs(2)
    worker = procs.spawn("worker", Worker)
    first, second = procs.slice(gpus=0).spawn("asker", Asker), worker.slice(gpus=1)
    worker.whoami.call().get(timeout=WAIT)
    with pytest.raises(CallTimeout) as caught:
        getattr(first, method).call_one(second, barrier.path, timeout=0.3).get()
    error = caught.value
    assert error.unanswered == (0,) and "no answer from rank 0" in str(error)
    assert "line" in error.stacks[0] and method in error.stacks[0]
    barrier.open()
    assert second.square.call_one(3).get(timeout=WAIT) == 9


class Asker(Actor):
    """Waits for another actor."""

    @endpoint
    def ask(self, worker: Any, barrier: str) -> int:
        found: int = worker.fail_if.call_one([], barrier).get()
        return found

    @endpoint
    async def aask(self, worker: Any, barrier: str) -> int:
        found: int = await worker.fail_if.call_one([], barrier)
        return found


def test_many_deadlines_that_are_met_leave_nothing(spawn: Spawn) -> None:
    from roost.actors.node import current_node

    mesh = spawn(Worker, n=2).slice(gpus=0)
    node = current_node()
    assert node is not None
    for _ in range(50):
        for future in [mesh.square.call_one(2, timeout=600) for _ in range(200)]:
            assert future.get(timeout=WAIT) == 4
    assert len(node.deadlines) < 2000


# streams, and waiting for some


def test_a_stream_tells_the_rank_with_the_value(spawn: Spawn) -> None:
    mesh = spawn(Worker, n=4)
    got = sorted(future.get(timeout=WAIT) for future in mesh.whoami.stream(with_rank=True))
    assert got == [(rank, f"worker {rank}") for rank in range(4)]


def test_a_stream_past_its_deadline_fails_what_is_left_of_it(spawn: Spawn, barrier: Any) -> None:
    mesh = spawn(Worker, n=2)
    mesh.whoami.call().get(timeout=WAIT)
    first, second = mesh.wait_unless.stream(0, barrier.path, timeout=0.3)
    assert first.get(timeout=WAIT) == 0
    with pytest.raises(CallTimeout, match="rank 1"):
        second.get(timeout=WAIT)
    barrier.open()


def test_wait_returns_when_enough_are_done(spawn: Spawn, barrier: Any) -> None:
    mesh = spawn(Worker, n=2)
    futures = [mesh.slice(gpus=rank).wait_unless.call_one(0, barrier.path) for rank in (0, 1)]
    futures.append(mesh.slice(gpus=0).square.call_one(3))
    # every call_one is rank 0 of its slice, so only the barrier holds the second mesh member back
    done, pending = wait(futures, num_returns=3, timeout=WAIT)
    assert (done, pending) == (futures, [])
    held = [mesh.slice(gpus=1).fail_if.call_one([], barrier.path), mesh.slice(gpus=0).square.call_one(4)]
    done, pending = wait(held, timeout=WAIT)
    assert (done, pending) == ([held[1]], [held[0]])
    assert wait(held, num_returns=2, timeout=0.05) == ([held[1]], [held[0]]), "the time has passed"
    barrier.open()
    assert wait(held, num_returns=None, timeout=WAIT)[1] == []
    for wrong in (0, 3):
        with pytest.raises(ValueError, match="num_returns"):
            wait(held, num_returns=wrong)


def test_as_completed_gives_each_as_it_is_done(spawn: Spawn, barrier: Any) -> None:
    mesh = spawn(Worker, n=2)
    held = mesh.slice(gpus=1).fail_if.call_one([], barrier.path)
    quick = mesh.slice(gpus=0).square.call_one(3)
    turn = iter(as_completed([held, quick], timeout=WAIT))
    assert next(turn) is quick
    barrier.open()
    assert next(turn) is held
    assert list(turn) == []
    held = mesh.slice(gpus=1).fail_if.call_one([], barrier.path)
    with pytest.raises(CallTimeout, match="1 of 1"):
        list(as_completed([held], timeout=0.05))
    barrier.open()

    async def main() -> list[int]:
        futures = [mesh.slice(gpus=rank).square.call_one(rank + 5) for rank in (0, 1)]
        return [await future async for future in as_completed(futures, timeout=WAIT)]

    assert sorted(asyncio.run(main())) == [25, 36]


# parts


def test_each_rank_gets_only_its_part_of_a_batch(site: Any) -> None:
    procs = site.spawn_procs(4).split(gpus=("dp", "tp"), tp=2)
    mesh = procs.spawn("trainer", Worker)
    got = mesh.part.dispatch([1, 2, 3], 10, split="dp", extra=Replicate(["a", "b"])).get(timeout=WAIT)
    assert got.extent.labels == ("dp",) and got.values() == [[10], [20, 30]]
    came = mesh.what_came.call().get(timeout=WAIT)
    assert came.item(dp=0, tp=1) == [([1], 10, ["a", "b"])] == came.item(dp=0, tp=0)
    assert came.item(dp=1, tp=1) == [([2, 3], 10, ["a", "b"])]
    array = np.arange(8.0)
    joined = mesh.part.dispatch(array, 2.0, split="dp", merge=True).get(timeout=WAIT)
    assert np.array_equal(joined, array * 2)
    assert mesh.part.dispatch([4, 5], 1, split="tp", merge=sum_of_parts).get(timeout=WAIT) == 9


def sum_of_parts(parts: list[list[int]]) -> int:
    return sum(sum(part) for part in parts)


def test_a_batch_that_cannot_be_split_is_refused_before_anything_is_sent(spawn: Spawn) -> None:
    mesh = spawn(Worker, n=2)
    with pytest.raises(ValueError, match="no such dim"):
        mesh.part.dispatch([1, 2], 1, split="dp")
    with pytest.raises(ValueError, match="argument 0 has 3, 'extra' has 2"):
        mesh.part.dispatch([1, 2, 3], 1, split="gpus", extra=[1, 2])
    with pytest.raises(ValueError, match="a batch of 1 cannot be split over 2"):
        mesh.part.dispatch([1], 1, split="gpus")
    with pytest.raises(TypeError, match="scale"):
        mesh.part.dispatch([1, 2], split="gpus")
    assert mesh.what_came.call().get(timeout=WAIT).values() == [[], []]


def test_a_failure_in_a_group_is_told_whichever_rank_of_it_failed(site: Any) -> None:
    mesh = site.spawn_procs(2).split(gpus=("dp", "tp"), tp=2).spawn("trainer", Worker)
    with pytest.raises(TypeError) as caught:
        mesh.part.dispatch([None], 1.5, split="dp").get(timeout=WAIT)
    assert caught.value.rank in (0, 1)  # type: ignore[attr-defined]


# many calls at once


@pytest.mark.parametrize("chunk", [None, 1, 3, 100])
def test_map_gives_results_in_the_order_of_the_items(spawn: Spawn, chunk: int | None) -> None:
    mesh = spawn(Worker, n=2)
    assert mesh.square.map(range(20), chunk=chunk).get(timeout=WAIT) == [i * i for i in range(20)]
    came = mesh.what_came.call().get(timeout=WAIT).values()
    assert sorted(came[0] + came[1]) == list(range(20))
    assert all(each == sorted(each) for each in came), "one rank handles its items in order"
    assert mesh.square.map([]).get(timeout=WAIT) == []


def test_map_raises_the_first_failure_and_names_the_others_by_item(spawn: Spawn) -> None:
    mesh = spawn(Worker, n=2)
    with pytest.raises(ValueError, match="negative: -1") as caught:
        mesh.square.map([1, -1, 2, -2]).get(timeout=WAIT)
    assert [index for index, _ in caught.value.others] == [3]  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="what_came"):
        mesh.what_came.map([1])
    with pytest.raises(ValueError, match="chunk=0"):
        mesh.square.map([1], chunk=0)


# statistics


def test_statistics_answer_past_a_busy_mailbox(spawn: Spawn, barrier: Any) -> None:
    mesh = spawn(Player, n=2)
    port, receiver = Channel.open()
    held = mesh.slice(gpus=0).stand.call_one(barrier.path, port)
    receiver.recv().get(timeout=WAIT)
    waiting = [mesh.slice(gpus=0).echo.call_one(i) for i in range(3)]
    for future in waiting:
        future._flush()
    until = time.monotonic() + WAIT
    while (found := mesh.statistics().get(timeout=WAIT)).get(0)["waiting"] != 3:
        assert time.monotonic() < until, found
    assert found.item(gpus=1)["waiting"] == 0 and found.item(gpus=0)["state"] == "running"
    barrier.open()
    assert held.get(timeout=WAIT) == "passed" and [f.get(timeout=WAIT) for f in waiting] == [0, 1, 2]


def test_calls_within_the_program_have_the_same_options() -> None:
    mesh = this_proc().spawn("here", Worker)
    assert mesh.square.call_one(3, timeout=WAIT).get() == 9
    assert mesh.square.map([1, 2]).get(timeout=WAIT) == [1, 4]
    mesh.stop().get(timeout=WAIT)


class Nested(Actor):
    """Spawns on the processes it was spawned on itself."""

    @endpoint
    def spawn_beside(self) -> list[tuple[dict[str, int], int]]:
        procs = context().actor_instance.proc_mesh
        players = procs.spawn("player", Player)
        return [(dict(point), pid) for point, pid in players.pid.call().get(timeout=WAIT)]

    @endpoint
    async def own_process(self) -> int:
        players = context().actor_instance.proc.spawn("player", Player)
        return await players.pid.call_one()


def test_an_actor_knows_the_processes_it_was_spawned_on(site: Any) -> None:
    procs = site.spawn_procs(4)
    pids = procs.spawn("player", Player).pid.call().get(timeout=WAIT).values()
    half = procs.slice(gpus=slice(1, 3)).spawn("nested", Nested)
    found = half.slice(gpus=0).spawn_beside.call_one().get(timeout=WAIT)
    assert found == [({"gpus": 0}, pids[1]), ({"gpus": 1}, pids[2])]
    assert half.own_process.call().get(timeout=WAIT).values() == pids[1:3]


def test_a_failure_that_nobody_asked_for_is_logged(spawn: Spawn, caplog: pytest.LogCaptureFixture) -> None:
    mesh = spawn(Worker, n=2)
    one = mesh.slice(gpus=0)
    wait([one.square.call_one(-3), mesh.square.call(-4, fail_fast=False)], num_returns=2, timeout=WAIT)
    wait([one.square.call_one(3)], timeout=WAIT)
    until = time.monotonic() + WAIT
    while len(told := [r.getMessage() for r in caplog.records if r.name == "roost.calls"]) < 2:
        assert time.monotonic() < until, told  # a future goes when the I/O thread has let go of it too
    assert sorted(told) == [
        "worker.square at rank 0 raised ValueError: negative: -3; nobody asked for its answer",
        "worker.square at rank 0 raised ValueError: negative: -4; nobody asked for its answer",
    ]


class Inward(Actor):
    """Calls itself, which can only time out."""

    def __init__(self) -> None:
        self.ran = 0

    @endpoint
    def ask(self, me: Any) -> str:
        try:
            me.inner.call_one().get(timeout=0.05)
        except TimeoutError:
            return "timed out"
        return "answered"

    @endpoint
    def inner(self) -> None:
        self.ran += 1

    @endpoint
    def count(self) -> int:
        return self.ran


def test_a_call_to_itself_that_timed_out_is_dropped(spawn: Spawn) -> None:
    one = spawn(Inward, n=2).slice(gpus=0)
    assert [one.ask.call_one(one).get(timeout=WAIT) for _ in range(5)] == ["timed out"] * 5
    assert one.count.call_one().get(timeout=WAIT) == 0


class Logs(Actor):
    """Configures logging for itself."""

    @endpoint
    def configure(self) -> list[Any]:
        import logging

        before = list(logging.getLogger().handlers)
        logging.basicConfig(level=logging.INFO, format="MINE %(message)s")
        return before


def test_logging_in_a_worker_is_the_users_own(spawn: Spawn) -> None:
    assert spawn(Logs, n=2).configure.call().get(timeout=WAIT).values() == [[], []]


def test_equal_stacks_of_silent_ranks_are_told_once_and_the_odd_one_first(site: Any, barrier: Any) -> None:
    mesh = site.spawn_procs(4).spawn("worker", Worker)
    mesh.whoami.call().get(timeout=WAIT)
    with pytest.raises(CallTimeout) as caught:
        mesh.fail_or_evaluate.call(2, barrier.path).get(timeout=0.5)
    text = str(caught.value)
    assert text.index("rank 2:") < text.index("ranks 0-1, 3:") and "evaluate" in text.partition("ranks 0-1, 3:")[0]
    barrier.open(4)
