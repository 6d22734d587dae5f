"""What an endpoint may be: with a deadline, interruptible, in a lane, a generator, batched, called many times at once,
no endpoint at all; and how much may wait for it. Sync, async and mixed actors.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from stage import AsyncOne, Blocking, Dropping, DroppingAsync, MixedOne, Refusing, SyncOne

import roost.actors
from roost.actors import (
    Actor,
    ActorDied,
    ActorError,
    ActorStopped,
    Busy,
    CallCancelled,
    CallTimeout,
    Channel,
    Mailbox,
    concurrent_endpoint,
    context,
    endpoint,
)
from roost.actors.calls import MANY, OneCall
from roost.actors.wire import pickling
from roost.mesh import as_endpoint

WAIT = 15.0
SYNC = pytest.mark.parametrize("Class", [SyncOne, MixedOne])
ALL = pytest.mark.parametrize("Class", [SyncOne, MixedOne, AsyncOne])


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Failures reach nobody: the default hook would interrupt the test run."""
    before, roost.actors.unhandled_fault_hook = roost.actors.unhandled_fault_hook, lambda failure: None
    yield
    roost.actors.unhandled_fault_hook = before


@pytest.fixture
def one(spawn: Any) -> Any:
    """`one(Class)`: a mesh of one, that lives."""

    def make(cls: type, *args: Any) -> Any:
        actor = spawn(cls, *args, n=1)
        actor.initialized.get(timeout=WAIT)
        return actor

    return make


def caught(future: Any, kind: type[BaseException] = Exception) -> Any:
    with pytest.raises(kind) as got:
        future.get(timeout=WAIT)
    return got.value


def note_of(future: Any) -> str:
    """What the actor has said of a call that was cancelled: with its answer, or after its future was done."""
    until = time.monotonic() + WAIT
    while not future._note and time.monotonic() < until and "deadline passed" not in str(future._value):
        time.sleep(0.001)
    return f"{future._value} {future._note}"


def statistics(actor: Any) -> dict[str, Any]:
    found: dict[str, Any] = actor.statistics().get(timeout=WAIT).item()
    return found


def until(actor: Any, **wanted: int) -> dict[str, Any]:
    """The statistics of an actor, once they are as wanted."""
    end = time.monotonic() + WAIT
    while True:
        found = statistics(actor)
        if all(found[name] == value for name, value in wanted.items()):
            return found
        assert time.monotonic() < end, f"never {wanted}: {found}"


# deadlines


@SYNC
def test_a_call_whose_deadline_passes_while_it_waits_is_never_started(one: Any, barrier: Any, Class: Any) -> None:
    actor = one(Class)
    port, receiver = Channel.open()
    first = actor.stand.call_one(barrier.path, port)
    assert receiver.recv().get(timeout=WAIT) == "stands"
    late = actor.note.options(timeout=0.05).call_one("late")
    caught(late, CallTimeout)
    said = note_of(late)
    assert "deadline passed before it was started" in said or "never started" in said, (
        "it is said while the actor is held up"
    )
    barrier.open()
    assert first.get(timeout=WAIT) == "passed"
    assert actor.noted.call_one().get(timeout=WAIT) == []


@ALL
def test_a_running_endpoint_learns_that_its_deadline_has_passed(one: Any, Class: Any) -> None:
    actor = one(Class)
    port, receiver = Channel.open()
    call = actor.until_cancelled.options(timeout=0.2).call_one(port)
    assert 0 < receiver.recv().get(timeout=WAIT) <= 0.2
    told, cancelled, remaining = receiver.recv().get(timeout=WAIT)
    assert told == "cancelled" and cancelled and remaining < 0.2
    caught(call, CallTimeout)
    assert ("task was cancelled" if Class is AsyncOne else "returned too late") in note_of(call)
    assert actor.noted.call_one().get(timeout=WAIT) == []


def test_a_task_that_swallows_its_cancellation_has_ended(one: Any) -> None:
    actor = one(AsyncOne)
    caught(actor.swallow.options(timeout=0.1).call_one(), CallTimeout)
    assert actor.noted.call_one().get(timeout=WAIT) == []


def test_a_broadcast_has_a_deadline_too(one: Any) -> None:
    actor = one(AsyncOne)
    port, receiver = Channel.open()
    actor.until_cancelled.options(timeout=0.1).broadcast(port)
    receiver.recv().get(timeout=WAIT)
    assert receiver.recv().get(timeout=WAIT)[:2] == ("cancelled", True)
    assert actor.noted.call_one().get(timeout=WAIT) == [], "the actor lives"


@ALL
def test_without_a_deadline_there_is_none(one: Any, Class: Any) -> None:
    actor = one(Class)
    port, receiver = Channel.open()
    call = actor.until_cancelled.call_one(port)
    assert receiver.recv().get(timeout=WAIT) is None
    call.cancel()
    assert receiver.recv().get(timeout=WAIT) == ("cancelled", True, None)
    assert context().remaining is None and context().deadline is None and not context().cancelled


# interruptible endpoints


@SYNC
@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_an_interruptible_endpoint_is_interrupted(one: Any, Class: Any, how: str) -> None:
    actor = one(Class)
    port, receiver = Channel.open()
    call = actor.loop_for_ever.options(timeout=0.2 if how == "deadline" else None).call_one(port)
    assert receiver.recv().get(timeout=WAIT) == "loops"
    if how == "cancel":
        call.cancel("no more")
    kind, reason = receiver.recv().get(timeout=WAIT)
    assert kind == "CallCancelled" and ("no more" if how == "cancel" else "deadline") in reason
    caught(call, CallCancelled if how == "cancel" else CallTimeout)
    assert "it was interrupted" in note_of(call)
    assert actor.noted.call_one().get(timeout=WAIT) == []


@SYNC
def test_an_interruptible_endpoint_that_waits_for_another_actor_is_interrupted(
    one: Any, barrier: Any, Class: Any
) -> None:
    actor, other = one(Class), one(Class)
    port, receiver = Channel.open()
    call = actor.ask_for_ever.call_one(other, barrier.path, port)
    assert [receiver.recv().get(timeout=WAIT) for _ in range(2)] == ["asks", "stands"]
    call.cancel()
    assert receiver.recv().get(timeout=WAIT) == "CallCancelled"
    assert "it was interrupted" in note_of(call)
    assert actor.noted.call_one().get(timeout=WAIT) == []


def test_interrupts_that_come_as_endpoints_end_hit_nothing_else(one: Any) -> None:
    """Cancelling at every moment of a brief call leaves the actor whole."""
    actor = one(SyncOne)
    for round_ in range(300):
        call = actor.brief.call_one(round_)
        time.sleep(round_ % 30 * 20e-6)
        call.cancel()
        assert actor.note.call_one(round_).get(timeout=WAIT) == round_ + 1
    assert statistics(actor)["state"] == "running"


# lanes


@ALL
def test_a_lane_does_not_wait_for_the_home_thread(one: Any, barrier: Any, Class: Any) -> None:
    actor = one(Class)
    port, receiver = Channel.open()
    held = actor.hold.call_one(port) if Class is AsyncOne else actor.stand.call_one(barrier.path, port)
    receiver.recv().get(timeout=WAIT)
    waits = actor.noted.call_one()
    thread, rank = actor.alive.call_one().get(timeout=WAIT)
    assert "health" in thread and rank == {"gpus": 0}
    found = statistics(actor)
    assert found["lanes"] == {
        "health": {"size": 1, "waiting": 0, "running": 0},
        "io": {"size": 2, "waiting": 0, "running": 0},
    }
    assert found["running"] == 1 and found["waiting"] == 1 and found["oldest_wait_s"] > 0
    assert not waits.done()
    held.cancel()
    barrier.open()
    assert waits.get(timeout=WAIT) == []


@SYNC
def test_a_lane_runs_as_many_as_its_size_and_starts_them_in_order(one: Any, barrier: Any, Class: Any) -> None:
    actor = one(Class)
    port, receiver = Channel.open()
    calls = [actor.io.call_one(i, barrier.path, port) for i in range(5)]
    assert sorted(receiver.recv().get(timeout=WAIT) for _ in range(2)) == [0, 1]
    until(actor, running=2, waiting=3)
    for i in range(2, 5):
        barrier.open()
        assert receiver.recv().get(timeout=WAIT) == i
    barrier.open(2)
    assert [call.get(timeout=WAIT) for call in calls] == list(range(5))


def test_tasks_of_a_lane_are_as_many_as_its_size(one: Any) -> None:
    actor = one(AsyncOne)
    port, receiver = Channel.open()
    long = [actor.io.call_one(i, WAIT, port) for i in range(2)]
    third = actor.io.call_one("third", 0.0, port)
    assert sorted(receiver.recv().get(timeout=WAIT) for _ in range(2)) == [0, 1]
    until(actor, running=2, waiting=1)
    long[1].cancel()
    assert receiver.recv().get(timeout=WAIT) == "third" and third.get(timeout=WAIT) == "third"
    assert "task was cancelled" in note_of(long[1])
    long[0].cancel()


def test_what_waits_in_a_lane_is_done_before_the_actor_stops_and_no_thread_is_left(one: Any, barrier: Any) -> None:
    actor = one(SyncOne)
    calls = [actor.io.call_one(i) for i in range(10)]
    actor.stop().get(timeout=WAIT)
    assert [call.get(timeout=WAIT) for call in calls] == list(range(10))


@ALL
def test_calls_of_a_lane_that_run_on_are_answered_when_the_actor_ends(one: Any, barrier: Any, Class: Any) -> None:
    actor = one(Class)
    port, receiver = Channel.open()
    call = actor.io.call_one(1, WAIT if Class is AsyncOne else barrier.path, port)
    receiver.recv().get(timeout=WAIT)
    stopping = actor.stop()
    assert isinstance(caught(call), ActorStopped)
    stopping.get(timeout=WAIT)


def test_calls_that_come_before_the_actor_lives_find_their_lane(site: Any) -> None:
    procs = site.spawn_procs(2)
    actor = procs.spawn("early", SyncOne)
    calls = [actor.io.call(i) for i in range(20)]
    assert [call.get(timeout=WAIT).values() for call in calls] == [[i, i] for i in range(20)]


def test_a_lane_of_no_size_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no lane 'oi', lanes= has io"):

        class Mistyped(Actor, lanes={"io": 2}):
            @endpoint(lane="oi")
            def read(self) -> None:
                """Read."""

    with pytest.raises(ValueError, match="at least 1"):

        class Nothing(Actor, lanes={"io": 0}):
            """None."""


def test_lanes_are_inherited_and_other_class_arguments_passed_on() -> None:
    class Marked:
        def __init_subclass__(cls, mark: str = "", **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            cls.mark = mark

    class Base(Actor, Marked, lanes={"io": 2}):
        pass

    class Derived(Base, lanes={"gpu": 3}, mark="yes"):
        @endpoint(lane="gpu")
        def f(self) -> None: ...

    from roost.actors.endpoint import lanes_of

    assert lanes_of(Derived) == {"io": 2, "gpu": 3} and Derived.mark == "yes"
    assert lanes_of(Base) == {"io": 2}


# mailboxes


def full(actor: Any, barrier: Any) -> Any:
    """Hold the actor and fill its mailbox."""
    port, receiver = Channel.open()
    held = actor.stand.call_one(barrier.path, port)
    receiver.recv().get(timeout=WAIT)
    return held


def test_a_full_mailbox_answers_busy(one: Any, barrier: Any) -> None:
    actor = one(Refusing)
    held = full(actor, barrier)
    calls = [actor.note.call_one(i) for i in range(4)]
    error = caught(calls[3], Busy)
    assert "2 messages waiting" in str(error) and "rank 0" in str(error) and "raise the limit" in str(error)
    actor.note.broadcast(9)
    until(actor, refused=3, waiting=2)
    caught(calls[2], Busy)
    barrier.open()
    assert held.get(timeout=WAIT) == "passed" and [call.get(timeout=WAIT) for call in calls[:2]] == [1, 2]
    assert actor.noted.call_one().get(timeout=WAIT) == [0, 1]


@pytest.mark.parametrize("Class", [Dropping, DroppingAsync])
def test_a_full_mailbox_drops_what_has_waited_longest(one: Any, barrier: Any, Class: Any) -> None:
    actor = one(Class)
    if Class is DroppingAsync:
        port, receiver = Channel.open()
        held = actor.hold.call_one(port)
        receiver.recv().get(timeout=WAIT)
    else:
        held = full(actor, barrier)
    calls = [actor.note.call_one(i) for i in range(5)]
    for call in calls[:3]:
        assert "dropped" in str(caught(call, Busy))
    assert until(actor, dropped=3, waiting=2)["refused"] == 0
    held.cancel()
    barrier.open()
    for call in calls[3:]:
        call.get(timeout=WAIT)
    assert actor.noted.call_one().get(timeout=WAIT) == [3, 4]


def test_a_flood_never_stops_at_an_actor_that_drops(one: Any, barrier: Any) -> None:
    """What is dropped gives its credit back."""
    actor = one(Dropping)
    full(actor, barrier)
    for i in range(6000):  # more than the credit of a sender
        actor.note.broadcast(i)
    until(actor, dropped=5998)
    barrier.open()
    until(actor, waiting=0, running=0)
    assert actor.noted.call_one().get(timeout=WAIT) == [5998, 5999]


def test_a_full_mailbox_lets_its_senders_wait(one: Any, barrier: Any) -> None:
    actor = one(Blocking)
    held = full(actor, barrier)
    calls = [actor.note.call_one(i) for i in range(40)]
    for i in range(40, 60):
        actor.note.broadcast(i)
    assert until(actor, waiting=2)["waiting"] == 2
    assert statistics(actor)["waiting"] == 2, "no more than the limit is ever there"
    barrier.open()
    assert held.get(timeout=WAIT) == "passed"
    assert [call.get(timeout=WAIT) for call in calls] == list(range(1, 41))
    until(actor, handled=61)
    assert actor.noted.call_one().get(timeout=WAIT) == list(range(60)), "in order"


def test_calls_cancelled_at_a_sender_that_waits_leave_no_gap(one: Any, barrier: Any) -> None:
    actor = one(Blocking)
    full(actor, barrier)
    calls = [actor.note.call_one(i) for i in range(20)]
    for call in calls[::2]:
        call.cancel()
    actor.statistics().get(timeout=WAIT)  # the word of those that were sent has arrived before it
    barrier.open()
    for call in calls[1::2]:
        call.get(timeout=WAIT)
    assert actor.noted.call_one().get(timeout=WAIT) == list(range(1, 20, 2))


def test_a_mailbox_must_make_sense() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Mailbox(limit=0)
    with pytest.raises(TypeError, match="no Mailbox"):

        class Wrong(Actor, mailbox=3):  # type: ignore[arg-type]
            """Wrong."""


# streaming endpoints


@ALL
def test_items_arrive_as_they_are_made_a_window_ahead(one: Any, Class: Any) -> None:
    actor = one(Class)
    port, receiver = Channel.open()
    stream = actor.count.options(window=2).stream(100, port)
    assert [receiver.recv().get(timeout=WAIT) for _ in range(2)] == [0, 1]
    made = receiver.recv()
    with pytest.raises(CallTimeout):
        made.get(timeout=0.3)
    assert next(stream) == 0
    assert receiver.recv().get(timeout=WAIT) == 2, "one taken, one more made"
    assert list(stream) == list(range(1, 100))


@ALL
def test_a_window_of_one_comes_to_its_end(one: Any, Class: Any) -> None:
    assert list(one(Class).count.options(window=1).stream(50)) == list(range(50))


@ALL
def test_a_call_of_a_generator_gets_the_list(one: Any, Class: Any) -> None:
    actor = one(Class)
    assert actor.count.call_one(5).get(timeout=WAIT) == list(range(5))
    assert actor.count.call_one(0).get(timeout=WAIT) == []
    actor.count.broadcast(5)
    assert actor.noted.call_one().get(timeout=WAIT) == []


@ALL
def test_what_a_generator_raises_comes_after_its_items(one: Any, Class: Any) -> None:
    actor = one(Class)
    got = []
    with pytest.raises(KeyError) as error:
        for item in actor.count.stream(10, None, 3):
            got.append(item)
    assert got == [0, 1, 2] and isinstance(error.value, ActorError)
    caught(actor.count.call_one(10, None, 3), KeyError)


@ALL
@pytest.mark.parametrize("how", ["closed", "forgotten", "deadline"])
def test_a_stream_that_nobody_takes_closes_its_generator_at_once(one: Any, Class: Any, how: str) -> None:
    actor = one(Class)
    port, receiver = Channel.open()
    timeout = 0.5 if how == "deadline" else None
    stream = actor.count.options(window=3, timeout=timeout).stream(100, port)
    assert [receiver.recv().get(timeout=WAIT) for _ in range(3)] == [0, 1, 2]
    if how == "closed":
        stream.close()
    elif how == "forgotten":
        del stream
        gc.collect()
    assert receiver.recv().get(timeout=WAIT) == "closed", "though it waited for its caller"
    assert actor.noted.call_one().get(timeout=WAIT) == [], "nobody is held up"


def test_a_generator_that_awaits_is_closed_at_once(one: Any) -> None:
    actor = one(AsyncOne)
    port, receiver = Channel.open()
    stream = actor.wait_within.stream(port)
    assert next(stream) == 0
    stream.close()
    assert receiver.recv().get(timeout=WAIT) == "closed"


@ALL
def test_the_death_of_its_caller_ends_a_stream(site: Any, Class: Any) -> None:
    procs = site.spawn_procs(2)
    actor = procs.slice(gpus=0).spawn("streams", Class)
    caller = procs.slice(gpus=1).spawn("takes", Taker)
    port, receiver = Channel.open()
    pid = caller.take.call_one(actor, port).get(timeout=WAIT)
    assert [receiver.recv().get(timeout=WAIT) for _ in range(3)] == [0, 1, 2]
    os.kill(pid, signal.SIGKILL)
    assert receiver.recv().get(timeout=WAIT) == "closed"
    assert actor.noted.call_one().get(timeout=WAIT) == []


class Taker(Actor):
    """Opens a stream and takes nothing of it."""

    @endpoint
    def take(self, actor: Any, port: Any) -> int:
        self.stream = actor.count.options(window=3).stream(100, port)
        return os.getpid()

    def __supervise__(self, failure: Any) -> bool:
        return True


@ALL
def test_streams_of_a_mesh_tell_whose_item_it_is(spawn: Any, Class: Any) -> None:
    mesh = spawn(Class)
    got = list(mesh.count.options(with_rank=True).stream(20))
    for rank in range(2):
        assert [item for whose, item in got if whose == rank] == list(range(20))


def test_items_may_be_large(one: Any) -> None:
    got = list(one(SyncOne).big.stream(4))
    assert [(len(item), item[0]) for item in got] == [(6 << 20, i) for i in range(4)]


@ALL
def test_a_stream_can_be_awaited(one: Any, Class: Any) -> None:
    actor = one(Class)

    async def take() -> list[int]:
        return [item async for item in actor.count.stream(20)]

    assert asyncio.run(take()) == list(range(20))


def test_an_async_generator_holds_its_actor_a_concurrent_one_does_not(one: Any) -> None:
    actor = one(AsyncOne)
    port, _ = Channel.open()
    stream = actor.wait_within.stream(port)
    assert next(stream) == 0
    assert actor.noted.call_one().get(timeout=WAIT) == []
    holds = actor.count.options(window=1).stream(100)
    waits = actor.noted.call_one()
    assert next(holds) == 0 and not waits.done()
    holds.close()
    assert waits.get(timeout=WAIT) == []
    stream.close()


# batches


@ALL
def test_calls_that_wait_are_joined(one: Any, Class: Any) -> None:
    actor = one(Class)
    calls = [actor.double.call_one(i) for i in range(10)]
    assert [call.get(timeout=WAIT) for call in calls] == [2 * i for i in range(10)]
    batches = actor.noted.call_one().get(timeout=WAIT)
    assert [item for batch in batches for item in batch] == list(range(10))
    assert all(len(batch) <= 4 for batch in batches) and len(batches) < 10


@ALL
def test_a_batch_waits_for_more_only_so_long(one: Any, Class: Any) -> None:
    actor = one(Class)
    begin = time.monotonic()
    assert actor.double.call_one(4).get(timeout=WAIT) == 8
    assert 0.1 < time.monotonic() - begin < 5


def test_a_full_batch_does_not_wait(one: Any) -> None:
    actor = one(AsyncOne)
    calls = [actor.pair.call_one(i) for i in (3, 4)]
    assert [call.get(timeout=WAIT) for call in calls] == [7, 7], "it would have waited a minute"


@SYNC
def test_batched_calls_overtake_nothing(one: Any, Class: Any) -> None:
    actor = one(Class)
    calls: list[Any] = []
    for i in range(3):
        calls += [actor.double.call_one(i), actor.note.call_one(f"after {i}")]
    for call in calls:
        call.get(timeout=WAIT)
    assert actor.noted.call_one().get(timeout=WAIT) == [[0], "after 0", [1], "after 1", [2], "after 2"]


@ALL
def test_a_list_of_the_wrong_length_fails_each_call(one: Any, Class: Any) -> None:
    actor = one(Class)
    for call in [actor.shorten.call_one(i) for i in range(3)]:
        assert "returned 2 values for 3 items" in str(caught(call, ValueError))


@ALL
def test_what_a_batch_raises_fails_each_call(one: Any, Class: Any) -> None:
    actor = one(Class)
    for call in [actor.refuse.call_one(i) for i in range(2)]:
        assert isinstance(caught(call, LookupError), ActorError)


@ALL
def test_a_call_cancelled_while_it_waits_is_not_in_the_batch(one: Any, Class: Any) -> None:
    actor = one(Class)
    calls = [actor.double.call_one(i) for i in range(3)]
    calls[1].cancel()
    assert calls[0].get(timeout=WAIT) == 0 and calls[2].get(timeout=WAIT) == 4
    assert actor.noted.call_one().get(timeout=WAIT) == [[0, 2]]
    assert "never" in note_of(calls[1])


def test_a_batched_endpoint_is_called_with_one_item(one: Any) -> None:
    actor = one(SyncOne)
    with pytest.raises(TypeError, match="items"):
        actor.double.call_one()
    with pytest.raises(TypeError, match="items"):
        actor.double.call_one(1, 2)
    assert actor.double.map([1, 2, 3, 4, 5]).get(timeout=WAIT) == [2, 4, 6, 8, 10]
    assert actor.noted.call_one().get(timeout=WAIT) == [[1, 2, 3, 4], [5]]


# many calls in one message


@ALL
def test_many_calls_are_answered_one_by_one_in_order(one: Any, Class: Any) -> None:
    actor = one(Class)
    assert actor.odd.map([1, 3, 5]).get(timeout=WAIT) == [1, 3, 5]
    results = many(actor.odd, [1, 2, 3])
    assert [ok for ok, _ in results] == [True, False, True]
    record, error, cause = results[1][1]
    assert record["endpoint"] == "odd" and str(error) == "2 is even" and cause is None
    assert [value for _, value in many(actor.count, [2, 3])] == [[0, 1], [0, 1, 2]]


def many(target: Any, items: list[Any]) -> Any:
    """The answer as it comes, without a look at what is in it."""
    node, peers = target._ready()
    call = OneCall(node, target._about, peers[0], 0)
    target._send_one(node, peers[0], 0, pickling.pack([((item,), {}) for item in items]), call, MANY)
    return call.get(timeout=WAIT)


# methods that are no endpoints


@ALL
def test_a_method_without_endpoint_can_be_called_as_one(one: Any, Class: Any) -> None:
    actor = one(Class)
    assert as_endpoint(actor.plain).call_one(2, b=5).get(timeout=WAIT) == 7
    if Class is not AsyncOne:
        assert as_endpoint(actor.plain_port, explicit_response_port=True).call_one(2).get(timeout=WAIT) == 3


def test_an_async_method_of_an_actor_without_a_loop_can_be_called_as_an_endpoint(one: Any) -> None:
    actor = one(Looploss)
    assert as_endpoint(actor.slowly).call_one(3).get(timeout=WAIT) == 4
    assert actor.sync.call_one().get(timeout=WAIT) == 1


class Looploss(Actor):
    """All its endpoints are sync, a method is not."""

    @endpoint
    def sync(self) -> int:
        return 1

    async def slowly(self, n: int) -> int:
        return n + 1


# the instance


@SYNC
def test_an_actor_knows_itself(one: Any, Class: Any) -> None:
    actor = one(Class)
    me = actor.who.call_one().get(timeout=WAIT)
    assert me["name"] == Class.__name__.lower() and me["class_name"] == Class.__name__ and me["creator"] == "client"
    assert me["rank"] == {"gpus": 0} and me["proc_name"]


@SYNC
def test_an_actor_can_stop_itself_after_what_waits(one: Any, Class: Any) -> None:
    port, receiver = Channel.open()
    actor = one(Class, port)
    said, noted = actor.end.call_one("stop", "enough"), actor.note.call_one(1)
    assert said.get(timeout=WAIT) == "said"
    assert receiver.recv().get(timeout=WAIT) == "None"
    error = caught(actor.note.call_one(2))
    assert isinstance(error, ActorStopped) and "enough" in str(error)
    assert isinstance(noted.exception(timeout=WAIT), ActorStopped | type(None))


@SYNC
@pytest.mark.parametrize("how", ["abort", "kill"])
def test_an_actor_can_fail_of_its_own_will(one: Any, Class: Any, how: str) -> None:
    port, receiver = Channel.open()
    actor = one(Class, port)
    assert actor.end.call_one(how).get(timeout=WAIT) == "said"
    error = caught(actor.note.call_one(2))
    assert isinstance(error, ActorDied) and "no reason provided" in str(error)
    if how == "abort":
        assert "no reason provided" in receiver.recv().get(timeout=WAIT)
    else:
        with pytest.raises(CallTimeout):
            receiver.recv().get(timeout=0.3)


# answers that cannot be sent as they are


@SYNC
def test_an_error_of_odd_text_arrives_and_the_actor_lives(one: Any, Class: Any) -> None:
    actor = one(Class)
    assert "lone" in str(caught(actor.surrogate.call_one(), ValueError))
    assert actor.note.call_one(1).get(timeout=WAIT) == 1


# definitions


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"interruptible": True}, "leave `interruptible` out"),
        ({"concurrent": True, "lane": "x"}, "lane"),
        ({"batch": -1}, "negative"),
        ({"batch_wait": 1.0}, "say also batch="),
        ({"batch": 2, "explicit_response_port": True}, "batched"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], words: str) -> None:
    async def method(self: Any, port: Any, item: Any = None) -> None: ...

    with pytest.raises(ValueError, match=words):
        endpoint(**options)(method)


def test_a_batched_endpoint_takes_one_list() -> None:
    with pytest.raises(TypeError, match="takes one argument"):
        endpoint(batch=2)(lambda self, a, b: [])


def test_concurrent_generators_are_async() -> None:
    with pytest.raises(ValueError, match="async def"):
        endpoint(concurrent=True)(lambda self: 1)

    @concurrent_endpoint(propagate="inspect", instrument=False)
    async def items(self: Any) -> Any:
        yield 1

    assert items.yields and items.concurrent


def test_under_a_strict_policy_sync_and_async_do_not_mix(site: Any) -> None:
    from roost.actors.policy import Policy, policy, set_policy

    before = policy()
    set_policy(Policy(mix_sync_async=False))
    try:
        with pytest.raises(ValueError, match="mixes both async and sync endpoints"):
            site.spawn_procs(2).spawn("mixed", MixedOne)
        with pytest.raises(ValueError, match="async __cleanup__"):
            site.spawn_procs(2).spawn("wrong", SyncWithAsyncHook)
        with pytest.raises(ValueError, match="synchronous __cleanup__"):
            site.spawn_procs(2).spawn("wrong", AsyncWithSyncHook)
    finally:
        set_policy(before)


class SyncWithAsyncHook(Actor):
    @endpoint
    def f(self) -> None: ...

    async def __cleanup__(self, error: Any) -> None: ...


class AsyncWithSyncHook(Actor):
    @endpoint
    async def f(self) -> None: ...

    def __cleanup__(self, error: Any) -> None: ...


def test_threads_here_are_few() -> None:
    """Lanes belong to workers: the caller has none."""
    assert not [thread for thread in threading.enumerate() if "-io-" in thread.name]
