"""Actors as users see them, in real processes, on one agent and on two that are linked by tcp."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import uvloop
from troupe import SITE, Mixed, Owner, Player, Spinner

from roost.actors import CallCancelled, CallTimeout, Channel, PortClosed
from roost.actors.future import Future
from roost.actors.node import current_node
from roost.mesh import ProcMesh, this_host

WAIT = 15.0
"""Seconds: bound of every wait here."""

Spawn = Callable[..., Any]


# --- spawning and calling


def test_a_call_gives_one_value_per_rank_in_rank_order(spawn: Spawn) -> None:
    mesh = spawn(Player, n=4)
    answer = mesh.ranks.call().get(timeout=WAIT)
    assert answer.extent == mesh.extent
    assert answer.values() == [({"gpus": rank}, {"gpus": rank}) for rank in range(4)]
    assert answer.item(gpus=2) == ({"gpus": 2}, {"gpus": 2})
    assert mesh.by_rank.call(list("abcd")).get(timeout=WAIT).values() == list("abcd")


def test_each_rank_is_a_process_of_its_own_on_the_host_it_was_asked_for(site: Any) -> None:
    places = site.spawn_procs(4).spawn("p", Player).place.call().get(timeout=WAIT).values()
    assert len({pid for pid, _ in places} | {os.getpid()}) == 5
    nodes = [node for _, node in places]
    assert len(set(nodes)) == site.agents
    assert nodes == sorted(nodes, key=nodes.index), "ranks of one host are neighbours"


def test_arguments_reach_the_constructor_and_the_endpoints(spawn: Spawn) -> None:
    mesh = spawn(Player, {"lr": 1e-3}, scale=3)
    assert mesh.arguments.call().get(timeout=WAIT).values() == [({"lr": 1e-3}, 3)] * 2
    one = mesh.slice(gpus=1)
    assert one.add.call_one(1).get(timeout=WAIT) == 11
    assert one.add.call_one(1, b=2, c=3).get(timeout=WAIT) == 6
    assert one.add.call_one(a=4).get(timeout=WAIT) == 14


def test_choose_calls_one_rank_and_not_always_the_same(spawn: Spawn) -> None:
    mesh = spawn(Player)
    pids = set(mesh.pid.call().get(timeout=WAIT).values())
    chosen = {future.get(timeout=WAIT) for future in [mesh.pid.choose() for _ in range(64)]}
    assert chosen == pids


def test_a_stream_hands_out_answers_as_they_arrive(spawn: Spawn, barrier: Any) -> None:
    mesh = spawn(Player, n=4)
    stream = mesh.stand_if.stream(0, barrier.path)
    first = [next(stream) for _ in range(3)]
    assert sorted(future.get(timeout=WAIT) for future in first) == [1, 2, 3]
    assert [future.rank for future in first] == [future.get() for future in first]
    last = next(stream)
    assert not last.done()
    barrier.open()
    assert (last.get(timeout=WAIT), last.rank) == (0, 0)
    assert list(stream) == []


def test_a_broadcast_reaches_every_rank_and_waits_for_none(spawn: Spawn, barrier: Any) -> None:
    mesh = spawn(Player, n=4)
    port, receiver = Channel.open()
    assert mesh.stand.broadcast(barrier.path, port) is None
    assert sorted(receiver.recv().get(timeout=WAIT) for _ in range(4)) == [0, 1, 2, 3]
    barrier.open(4)


def test_a_slice_calls_its_ranks_with_message_ranks_of_its_own(spawn: Spawn) -> None:
    mesh = spawn(Player, n=4)
    part = mesh.slice(gpus=slice(1, 4, 2))
    assert part.ranks.call().get(timeout=WAIT).values() == [({"gpus": 0}, {"gpus": 1}), ({"gpus": 1}, {"gpus": 3})]
    assert part.by_rank.call(["x", "y"]).get(timeout=WAIT).values() == ["x", "y"]
    assert mesh.slice(gpus=3).ranks.call_one().get(timeout=WAIT) == ({}, {"gpus": 3})
    assert mesh.split(gpus=("dp", "tp"), tp=2).slice(dp=1, tp=0).ranks.call_one().get(timeout=WAIT)[1] == {"gpus": 2}


def test_actors_on_a_slice_of_processes_have_ranks_of_their_own(site: Any) -> None:
    procs = site.spawn_procs(4)
    all_of_them = procs.spawn("all", Player)
    part = procs.slice(gpus=slice(2, 4)).spawn("part", Player)
    assert part.ranks.call().get(timeout=WAIT).values() == [({"gpus": 0}, {"gpus": 0}), ({"gpus": 1}, {"gpus": 1})]
    assert part.pid.call().get(timeout=WAIT).values() == all_of_them.pid.call().get(timeout=WAIT).values()[2:]


# --- order


def test_a_thousand_pipelined_calls_run_in_their_order(spawn: Spawn) -> None:
    one = spawn(Player, n=1).slice(gpus=0)
    futures = [one.note.call_one(i) for i in range(1000)]
    assert one.noted.call_one().get(timeout=WAIT) == list(range(1000))
    assert all(future.done() for future in futures)


@pytest.mark.parametrize("cls", [Player, Mixed])
def test_calls_casts_and_broadcasts_of_one_sender_run_in_their_order(spawn: Spawn, cls: type) -> None:
    mesh = spawn(cls)
    slices = [mesh.slice(gpus=rank) for rank in range(2)]
    for i in range(0, 999, 3):
        slices[0].note.call_one(i)
        slices[1].note.call_one(i)
        mesh.note.call(i + 1)
        mesh.note.broadcast(i + 2)
    assert mesh.noted.call().get(timeout=WAIT).values() == [list(range(999))] * 2


def test_large_and_small_messages_do_not_overtake_each_other(spawn: Spawn) -> None:
    mesh = spawn(Player)
    sizes = [5 << 20, 1, 100 << 10, 10, 1 << 20, 5, 5 << 20, 2]
    for size in sizes:
        mesh.note.broadcast(np.zeros(size, np.uint8))
        mesh.slice(gpus=1).note.call_one(bytes(size))
    seen = mesh.slice(gpus=1).apply.call_one(len, "").get(timeout=WAIT)
    assert seen == 0
    log = mesh.slice(gpus=1).noted.call_one().get(timeout=WAIT)
    assert [len(item) for item in log] == [size for size in sizes for _ in range(2)]
    assert [type(item) for item in log[:2]] == [np.ndarray, bytes]


def test_more_calls_than_credit_run_in_order_and_all_are_answered(spawn: Spawn, barrier: Any) -> None:
    one = spawn(Player, n=1).slice(gpus=0)
    standing = one.stand.call_one(barrier.path)
    futures = [one.note.call_one(i) for i in range(6000)]  # an actor grants 4096
    assert not futures[0].done()
    barrier.open()
    assert standing.get(timeout=WAIT) == "passed"
    assert futures[-1].get(timeout=WAIT) is None
    assert one.noted.call_one().get(timeout=WAIT) == list(range(6000))


# --- values


@pytest.mark.parametrize("size", [10, 100 << 10, 6 << 20])
def test_what_was_sent_is_what_it_was_at_the_call(spawn: Spawn, barrier: Any, size: int) -> None:
    mesh = spawn(Player)
    standing = mesh.stand.call(barrier.path)
    array, listed = np.zeros(size, np.uint8), [1, 2, 3]
    mesh.keep.broadcast([array, listed])
    one = mesh.slice(gpus=0).echo.call_one((array, listed))
    array[:] = 7
    listed.append(4)
    barrier.open(2)
    standing.get(timeout=WAIT)
    kept, kept_list = one.get(timeout=WAIT)
    assert not kept.any() and kept_list == [1, 2, 3]
    for got, got_list in mesh.recall.call().get(timeout=WAIT).values():
        assert not got.any() and got_list == [1, 2, 3]


@pytest.mark.parametrize("size", [3, 100 << 10, 6 << 20])
def test_an_answer_is_what_it_was_when_it_was_given(spawn: Spawn, size: int) -> None:
    one = spawn(Player, n=1).slice(gpus=0)
    one.keep.call_one(np.zeros(size, np.uint8)).get(timeout=WAIT)
    before = one.recall.call_one()
    one.change.call_one().get(timeout=WAIT)
    assert before.get(timeout=WAIT)[0] == 0
    assert one.recall.call_one().get(timeout=WAIT)[0] == 99


@pytest.mark.parametrize("size", [100, 100 << 10, 6 << 20])
def test_ranks_of_a_cast_do_not_see_what_others_write(spawn: Spawn, size: int) -> None:
    mesh = spawn(Player)
    mesh.keep.call(np.zeros(size, np.uint8)).get(timeout=WAIT)
    mesh.slice(gpus=0).change.call_one().get(timeout=WAIT)
    assert [int(array[0]) for array in mesh.recall.call().get(timeout=WAIT).values()] == [99, 0]


@pytest.mark.parametrize("size", [0, 1, 1000, 100 << 10, 5 << 20, 20 << 20])
def test_arrays_arrive_whole_aligned_and_writable(spawn: Spawn, size: int) -> None:
    mesh = spawn(Player)
    sent = np.arange(size, dtype=np.uint8)
    answers = [mesh.slice(gpus=0).echo.call_one({"x": sent}).get(timeout=WAIT)]
    answers += mesh.echo.call({"x": sent}).get(timeout=WAIT).values()
    for answer in answers:
        got = answer["x"]
        assert got.dtype == sent.dtype and np.array_equal(got, sent)
        got[...] = 1
        assert size < 64 << 10 or got.ctypes.data % 64 == 0


def test_a_tensor_keeps_dtype_shape_stride_and_shared_storage(spawn: Spawn) -> None:
    torch = pytest.importorskip("torch")
    one = spawn(Player, n=1).slice(gpus=0)
    big = torch.arange(3 << 20, dtype=torch.float32)
    sent = {
        "half": torch.ones(3, 4, dtype=torch.bfloat16),
        "big": big,
        "row": big.view(3, -1)[1],
        "t": torch.ones(2, 3).t(),
    }
    got = one.echo.call_one(sent).get(timeout=WAIT)
    for name, tensor in sent.items():
        assert torch.equal(got[name], tensor) and got[name].dtype == tensor.dtype, name
    assert got["t"].stride() == sent["t"].stride()
    got["big"].view(3, -1)[1].zero_()
    assert not got["row"].any(), "two views of one storage are two views of one storage again"


def test_large_payloads_use_the_pool_on_one_host_and_its_segments_again(site: Any) -> None:
    mesh = site.spawn_procs(2).spawn("p", Player)
    procs = this_host().spawn_procs({"gpus": 2})
    near = procs.spawn("near", Player)
    try:
        node = current_node()
        assert node is not None
        array = np.ones(6 << 20, np.uint8)
        before = node.pool.statistics()
        for _ in range(8):
            assert int(near.slice(gpus=0).apply.call_one(np.sum, array).get(timeout=WAIT)) == 6 << 20
        after = node.pool.statistics()
        used = after.made + after.reused - before.made - before.reused
        assert used == 8 and after.made - before.made <= 4, "a segment that was released is used again"
        near.keep.call(np.ones(100 << 10, np.uint8)).get(timeout=WAIT)
        cast = node.pool.statistics()
        assert cast.made + cast.reused == after.made + after.reused + 1, "one copy for all ranks of a host"
        near.slice(gpus=0).keep.call_one(np.ones(100 << 10, np.uint8)).get(timeout=WAIT)
        small = node.pool.statistics()
        assert (small.made, small.reused) == (cast.made, cast.reused), "100 KiB to one receiver go through the socket"
        if site.agents == 2:
            mesh.keep.call(array).get(timeout=WAIT)
            assert node.pool.statistics().made == cast.made, "elsewhere no shared memory reaches"
    finally:
        procs.stop().get(timeout=WAIT)


# --- references


def test_a_mesh_and_a_slice_that_travel_in_messages_can_be_called(site: Any) -> None:
    procs = site.spawn_procs(4)
    a, b = procs.spawn("a", Player), procs.spawn("b", Mixed)
    assert a.call_other.call(b.slice(gpus=slice(1, 3)), "x").get(timeout=WAIT).values() == [["x", "x"]] * 4
    assert b.slice(gpus=0).call_other.call_one(a, 5).get(timeout=WAIT) == [5] * 4
    assert a.echo.call(b).get(timeout=WAIT).values()[3].aecho.call("back").get(timeout=WAIT).values() == ["back"] * 4


def test_actors_of_different_hosts_send_each_other_large_arrays(site: Any) -> None:
    mesh = site.spawn_procs(4).spawn("p", Player)
    array = np.arange(5 << 20, dtype=np.uint8)
    answers = mesh.slice(gpus=0).call_other.call_one(mesh.slice(gpus=slice(1, 4)), array).get(timeout=WAIT)
    assert len(answers) == 3 and all(np.array_equal(answer, array) for answer in answers)


def test_an_actor_calls_another_actor_of_its_own_process(site: Any) -> None:
    procs = site.spawn_procs(1)
    a, b = procs.spawn("a", Player).slice(gpus=0), procs.spawn("b", Player)
    array = np.zeros(5 << 20, np.uint8)
    (answer,) = a.call_other.call_one(b, array).get(timeout=WAIT)
    assert np.array_equal(answer, array)
    assert a.pid.call_one().get(timeout=WAIT) == b.slice(gpus=0).pid.call_one().get(timeout=WAIT)


def test_what_an_actor_spawned_ends_with_it(site: Any, wait_until_gone: Any) -> None:
    owner = site.spawn_procs(1).spawn("owner", Owner).slice(gpus=0)
    mesh, pids = owner.spawn_here.call_one(2).get(timeout=WAIT)
    assert mesh.pid.call().get(timeout=WAIT).values() == pids, "whoever gets the mesh can call it"
    owner.stop().get(timeout=WAIT)
    wait_until_gone(pids)


def test_what_an_actor_spawned_ends_with_its_process(site: Any, wait_until_gone: Any) -> None:
    procs = site.spawn_procs(1)
    _, pids = procs.spawn("owner", Owner).slice(gpus=0).spawn_here.call_one(2).get(timeout=WAIT)
    procs.stop().get(timeout=WAIT)
    wait_until_gone(pids)


@pytest.mark.parametrize("where", ["its own host", "all hosts"])
def test_what_an_actor_spawned_ends_when_its_process_is_killed(site: Any, wait_until_gone: Any, where: str) -> None:
    procs = site.spawn_procs(1)
    owner = procs.spawn("owner", Owner).slice(gpus=0)
    _, pids = owner.spawn_here.call_one(2, site.hosts if where == "all hosts" else None).get(timeout=WAIT)
    assert len(pids) == 2 * (site.agents if where == "all hosts" else 1)
    pid = procs.spawn("p", Player).slice(gpus=0).pid.call_one().get(timeout=WAIT)
    os.kill(pid, 9)
    assert "SIGKILL" in str(owner.hooks.call_one().exception(timeout=WAIT))
    wait_until_gone(pids)


# --- sync, async and concurrent endpoints; threads


def test_sync_async_and_concurrent_endpoints_stand_in_one_actor(spawn: Spawn) -> None:
    mesh = spawn(Mixed)
    one = mesh.slice(gpus=0)
    port, receiver = Channel.open()
    waiting = one.wait.call_one(port)
    receiver.recv().get(timeout=WAIT)
    behind = [one.note.call_one("sync"), one.anote.call_one("async")]
    assert one.cnoted.call_one().get(timeout=WAIT) == [], (
        "an async endpoint holds the actor, but not its concurrent ones"
    )
    assert not any(future.done() for future in behind)
    one.wake.call_one().get(timeout=WAIT)
    assert waiting.get(timeout=WAIT) == "woken"
    assert one.noted.call_one().get(timeout=WAIT) == ["sync", "async"]
    assert mesh.echo.call(1).get(timeout=WAIT).values() == mesh.aecho.call(1).get(timeout=WAIT).values() == [1, 1]


def test_concurrent_calls_run_side_by_side_each_in_its_own_context(spawn: Spawn) -> None:
    mesh = spawn(Mixed)
    one = mesh.slice(gpus=0)
    port, receiver = Channel.open()
    waiting = [one.cwait.call_one(port) for _ in range(50)]
    for _ in range(50):
        receiver.recv().get(timeout=WAIT)
    one.wake.call_one()
    assert [future.get(timeout=WAIT) for future in waiting] == ["woken"] * 50
    calls = [mesh.rank_here.call(i) for i in range(100)]
    assert all(call.get(timeout=WAIT).values() == [0, 1] for call in calls)


@pytest.mark.parametrize("cls", [Player, Mixed])
def test_a_sync_endpoint_sees_no_running_loop_and_may_run_its_own(spawn: Spawn, cls: type) -> None:
    assert spawn(cls).loop_seen.call().get(timeout=WAIT).values() == [(False, 7)] * 2


def test_an_async_endpoint_is_a_task_with_timeouts_and_groups(spawn: Spawn) -> None:
    assert spawn(Mixed).in_task.call().get(timeout=WAIT).values() == [(True, "timed out", 3)] * 2


def test_the_first_actor_of_a_process_has_its_main_thread_others_one_each(site: Any) -> None:
    procs = site.spawn_procs(1)
    actors = [procs.spawn(f"a{i}", Player).slice(gpus=0) for i in range(3)]
    seen = [actor.thread.call_one().get(timeout=WAIT) for actor in actors]
    assert all(init == now for init, now, _ in seen), "__init__ and endpoints share the home thread"
    assert [main for _, _, main in seen] == [True, False, False]
    assert len({now for _, now, _ in seen}) == 3


def test_constructor_and_endpoints_of_both_colours_share_the_home_thread(site: Any) -> None:
    procs = site.spawn_procs(1)
    for on_main in (True, False):
        mixed = procs.spawn(f"m{on_main}", Mixed).slice(gpus=0)
        mixed.note_thread.call_one().get(timeout=WAIT)
        threads, was_main = mixed.all_threads.call_one().get(timeout=WAIT)
        assert len(set(threads.values())) == 1 and set(threads) == {"init", "async", "sync"}
        assert was_main is on_main


def test_an_actor_busy_in_python_stops_neither_input_nor_its_neighbours(site: Any) -> None:
    procs = site.spawn_procs(1)
    spinner, other = (procs.spawn(name, Spinner).slice(gpus=0) for name in ("spinner", "other"))
    port, receiver = Channel.open()
    spinning = spinner.spin.call_one(port)
    assert receiver.recv().get(timeout=WAIT) == "spinning"
    other.release.call_one().get(timeout=WAIT)
    assert spinning.get(timeout=WAIT) is True


def test_the_context_tells_actor_rank_and_size(spawn: Spawn) -> None:
    from roost.actors import current_actor_name, current_size

    mesh = spawn(Player, n=4)
    assert mesh.slice(gpus=slice(2, 4)).apply.call(current_actor_name).get(timeout=WAIT).values() == [
        "player[2]",
        "player[3]",
    ]
    assert mesh.slice(gpus=slice(2, 4)).apply.call(current_size).get(timeout=WAIT).values() == [{"gpus": 2}] * 2
    assert current_actor_name() == "client"


# --- waiting


def test_get_works_in_threads_at_once(spawn: Spawn) -> None:
    mesh = spawn(Player)
    answers: list[Any] = []

    def work(number: int) -> None:
        answers.extend(mesh.echo.call((number, i)).get(timeout=WAIT).values() for i in range(50))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert sorted(map(tuple, answers)) == [((n, i), (n, i)) for n in range(4) for i in range(50)]


def test_several_threads_may_wait_for_one_future(spawn: Spawn, barrier: Any) -> None:
    future = spawn(Player, n=1).slice(gpus=0).stand.call_one(barrier.path)
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(future.get(timeout=WAIT))) for _ in range(4)]
    for thread in threads:
        thread.start()
    barrier.open()
    for thread in threads:
        thread.join(WAIT)
    assert answers == ["passed"] * 4
    assert future.get() == future.result() == "passed"


def test_get_works_where_a_loop_is_running(spawn: Spawn) -> None:
    mesh = spawn(Player)

    async def cell() -> list[Any]:
        return mesh.echo.call("in a cell").get(timeout=WAIT).values()

    assert asyncio.run(cell()) == ["in a cell"] * 2


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_futures_are_awaited_from_any_loop(spawn: Spawn, factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    mesh = spawn(Mixed)

    async def main() -> None:
        assert (await mesh.aecho.call(1)).values() == [1, 1]
        many = await asyncio.gather(*(mesh.slice(gpus=i % 2).echo.call_one(i) for i in range(100)))
        assert many == list(range(100))
        task = mesh.slice(gpus=0).echo.call_one("task").as_asyncio()
        assert await task == "task"
        future = mesh.slice(gpus=0).echo.call_one("again")
        assert (await future, await future, future.get()) == ("again",) * 3
        for future in mesh.aecho.stream("s"):
            assert await future == "s"

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


def test_done_and_callbacks_tell_of_the_end(spawn: Spawn, barrier: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    complaints: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", complaints.append)
    future = spawn(Player, n=1).slice(gpus=0).stand.call_one(barrier.path)
    called: list[Future[Any]] = []
    first, second = threading.Event(), threading.Event()
    future.add_done_callback(lambda f: 1 / 0)
    future.add_done_callback(lambda f: (called.append(f), first.set()))
    assert not future.done()
    barrier.open()
    assert first.wait(WAIT) and future.done()
    future.add_done_callback(lambda f: (called.append(f), second.set()))
    assert second.wait(WAIT)
    assert called == [future, future]
    assert [complaint.exc_type for complaint in complaints] == [ZeroDivisionError]


# --- cancelling


def test_a_get_that_times_out_cancels_the_task_at_the_actor(spawn: Spawn) -> None:
    one = spawn(Mixed, n=1).slice(gpus=0)
    port, receiver = Channel.open()
    future = one.await_cancel.call_one(port)
    assert receiver.recv().get(timeout=WAIT) == "waiting"
    with pytest.raises(
        CallTimeout, match=r"mixed\.await_cancel gave no answer within 0\.01 s and was cancelled"
    ) as caught:
        future.get(timeout=0.01)
    assert isinstance(caught.value, TimeoutError)
    assert receiver.recv().get(timeout=WAIT) == "cancelled"
    assert future.cancelled() and future.done()
    assert one.echo.call_one("goes on").get(timeout=WAIT) == "goes on"


@pytest.mark.parametrize("cls", [Player, Mixed])
def test_a_cancelled_call_that_waits_is_never_run(site: Any, barrier: Any, cls: type) -> None:
    procs = site.spawn_procs(1)
    one, neighbour = procs.spawn("one", cls).slice(gpus=0), procs.spawn("neighbour", Player).slice(gpus=0)
    port, receiver = Channel.open()
    holding = one.stand.call_one(barrier.path, port) if cls is Player else one.wait.call_one(port)
    receiver.recv().get(timeout=WAIT)
    kept, dropped = one.note.call_one("kept"), one.note.call_one("dropped")
    assert dropped.cancel() is True
    assert dropped.cancel() is False
    neighbour.echo.call_one("behind it").get(timeout=WAIT)  # then the cancellation has arrived too
    if cls is Player:
        barrier.open()
    else:
        one.wake.call_one()
    holding.get(timeout=WAIT)
    assert kept.get(timeout=WAIT) is None
    assert one.noted.call_one().get(timeout=WAIT) == ["kept"]
    with pytest.raises(CallCancelled, match="never started"):
        dropped.get()
    assert "cancelled, it was never started" in repr(dropped)
    assert kept.cancel() is False


@pytest.mark.parametrize("how", ["sync", "async", "mesh"])
def test_cancelling_reaches_what_is_running(spawn: Spawn, how: str) -> None:
    mesh = spawn(Player if how == "sync" else Mixed)
    one = mesh.slice(gpus=0)
    port, receiver = Channel.open()
    if how == "sync":
        future = one.watch_for_cancel.call_one(port)
    else:
        future = one.await_cancel.call_one(port) if how == "async" else mesh.await_cancel.call(port)
    ranks = 2 if how == "mesh" else 1
    for _ in range(ranks):
        assert receiver.recv().get(timeout=WAIT) in ("running", "waiting")
    assert future.cancel("enough") and future.cancelled()
    for _ in range(ranks):
        assert receiver.recv().get(timeout=WAIT) == ("told" if how == "sync" else "cancelled")
    assert mesh.echo.call("on").get(timeout=WAIT).values() == ["on", "on"]
    said = str(future.exception())
    assert "enough" in said
    assert ("still running" if how == "sync" else "task was cancelled") in said


def test_the_cancelled_task_of_an_awaiter_cancels_the_call(spawn: Spawn) -> None:
    one = spawn(Mixed, n=1).slice(gpus=0)
    port, receiver = Channel.open()

    async def main() -> None:
        async def wait() -> None:
            await one.await_cancel.call_one(port)

        task = asyncio.create_task(wait())
        assert await receiver.recv() == "waiting"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await receiver.recv() == "cancelled"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await one.await_cancel.call_one(port)
        assert [await receiver.recv() for _ in range(2)] == ["waiting", "cancelled"]

    asyncio.run(main())


# --- ports


def test_messages_of_one_sender_arrive_at_a_port_in_their_order(spawn: Spawn) -> None:
    mesh = spawn(Player, n=4)
    port, receiver = Channel.open()
    for rank in range(4):
        mesh.slice(gpus=rank).send_to.broadcast(port, [(rank, i) for i in range(250)])
    got = [receiver.recv().get(timeout=WAIT) for _ in range(1000)]
    for rank in range(4):
        assert [i for sender, i in got if sender == rank] == list(range(250))


def test_a_port_works_from_every_process_and_carries_large_arrays(spawn: Spawn) -> None:
    mesh = spawn(Player)
    receiving, sending = mesh.slice(gpus=0), mesh.slice(gpus=1)
    port = receiving.open_channel.call_one().get(timeout=WAIT)
    array = np.arange(5 << 20, dtype=np.uint8)
    port.send("from here")
    port.send(array)
    array[0] = 99
    first = receiving.receive.call_one(2).get(timeout=WAIT)
    assert first[0] == "from here" and len(first[1]) == 5 << 20 and first[1][0] == 0
    sending.send_to.call_one(port, ["from the other", array]).get(timeout=WAIT)
    second = receiving.receive.call_one(2).get(timeout=WAIT)
    assert second[0] == "from the other" and np.array_equal(second[1], array)


def test_an_exception_sent_to_a_port_is_raised_by_recv(spawn: Spawn) -> None:
    port, receiver = Channel.open()
    spawn(Player, n=1).fail_to.broadcast(port)
    with pytest.raises(KeyError, match="through a port"):
        receiver.recv().get(timeout=WAIT)


def test_a_port_opened_once_takes_one_message(spawn: Spawn) -> None:
    one = spawn(Player, n=1).slice(gpus=0)
    port, receiver = Channel.open(once=True)
    one.send_to.call_one(port, [1, 2]).get(timeout=WAIT)
    assert receiver.recv().get(timeout=WAIT) == 1
    with pytest.raises(PortClosed):
        receiver.recv().get(timeout=WAIT)


def test_a_message_taken_by_a_recv_that_was_given_up_is_not_lost(spawn: Spawn) -> None:
    one = spawn(Player, n=1).slice(gpus=0)
    port, receiver = Channel.open()
    with pytest.raises(TimeoutError):
        receiver.recv().get(timeout=0.01)
    one.send_to.call_one(port, ["first"]).get(timeout=WAIT)
    assert receiver.recv().get(timeout=WAIT) == "first"


def test_an_endpoint_with_a_response_port_answers_now_later_or_through_others(site: Any) -> None:
    procs = site.spawn_procs(2)
    a, b = procs.spawn("a", Player), procs.spawn("b", Player)
    one = a.slice(gpus=0)
    assert one.answer_now.call_one("now").get(timeout=WAIT) == "now"
    later = one.answer_later.call_one()
    assert one.echo.call_one("meanwhile").get(timeout=WAIT) == "meanwhile"
    assert not later.done()
    one.answer_kept.call_one("later").get(timeout=WAIT)
    assert later.get(timeout=WAIT) == "later"
    assert one.answer_elsewhere.call_one(b.slice(gpus=1), "elsewhere").get(timeout=WAIT) == "elsewhere"
    assert a.answer_now.call([1]).get(timeout=WAIT).values() == [[1], [1]]
    with pytest.raises(ValueError, match="said through the port"):
        one.answer_with_error.call_one().get(timeout=WAIT)


# --- stopping


def test_stop_runs_what_waits_then_cleans_up_on_the_home_thread(site: Any) -> None:
    port, receiver = Channel.open()
    procs = site.spawn_procs(1)
    owner = procs.spawn("owner", Owner, "falsy", port).slice(gpus=0)
    player = procs.spawn("player", Player).slice(gpus=0)
    futures = [player.echo.call_one(i) for i in range(100)]
    stopping = procs.stop("the test is over")
    assert procs.stop() is stopping
    stopping.get(timeout=WAIT)
    assert [future.get(timeout=WAIT) for future in futures] == list(range(100))
    assert receiver.recv().get(timeout=WAIT) == ("cleanup", None, True)
    assert "the test is over" in repr(procs)
    del owner


def test_one_actor_can_be_stopped_and_its_neighbours_go_on(site: Any) -> None:
    procs = site.spawn_procs(2)
    a, b = procs.spawn("a", Player), procs.spawn("b", Player)
    b.echo.call(1).get(timeout=WAIT)
    a.stop().get(timeout=WAIT)
    assert b.echo.call(2).get(timeout=WAIT).values() == [2, 2]
    c = procs.spawn("c", Player)
    assert c.thread.call().get(timeout=WAIT).values()[0][2] is True, "the main thread is free again"


def test_a_mesh_is_a_context_manager(site: Any, wait_until_gone: Any) -> None:
    with site.spawn_procs(2) as procs:
        assert isinstance(procs, ProcMesh)
        pids = procs.spawn("p", Player).pid.call().get(timeout=WAIT).values()
    wait_until_gone(pids)


# --- scripts and notebooks


def test_classes_and_lambdas_of_the_script_itself_travel(site: Any, run_script: Any) -> None:
    source = (
        SITE
        + '''
from dataclasses import dataclass
from enum import Enum
from roost import Actor, endpoint

@dataclass
class Sample:
    tokens: list
    score: float = 0.0

class Kind(Enum):
    GOOD = 1

class Base(Actor):
    def helper(self, sample):
        return OFFSET + sample.score

class Scorer(Base):
    def __init__(self, rule):
        self.rule = rule
    @endpoint
    def score(self, sample):
        """Uses a global, a lambda, a method of a base class, and a class of the script."""
        sample.score = self.rule(sample) + self.helper(sample)
        return sample, Kind.GOOD, lambda: sample.score * FACTOR

OFFSET, FACTOR = 100, 2

if __name__ == "__main__":
    mesh = spawn_procs(2).spawn("scorer", Scorer, lambda s: len(s.tokens))
    for sample, kind, function in mesh.score.call(Sample([1, 2, 3])).get(timeout=30).values():
        assert type(sample) is Sample and sample == Sample([1, 2, 3], 103.0), sample
        assert kind is Kind.GOOD
        assert function() == 206
    print("done")
'''
    )
    assert run_script(source, site.name).out == "done\n"


def test_a_class_redefined_in_a_notebook_is_the_new_one_in_new_actors(site: Any, run_script: Any) -> None:
    source = (
        SITE
        + '''
from roost import Actor, endpoint
procs = spawn_procs(2)
cell = """
class Cell(Actor):
    @endpoint
    def version(self): return VERSION
"""
seen = []
for version in ("1", "2"):
    exec(cell.replace("VERSION", version))
    seen.append(procs.spawn(f"cell{version}", Cell).version.call().get(timeout=30).values())
print(seen)
'''
    )
    assert run_script(source, site.name).out == "[[1, 1], [2, 2]]\n"


def test_a_notebook_may_get_and_await_in_its_cells(site: Any, run_script: Any) -> None:
    """As ipykernel does it: cells run inside a loop that is running, some as coroutines."""
    source = (
        SITE
        + '''
import ast, asyncio, types
from roost import Actor, endpoint

CELLS = ["""
class Echo(Actor):
    @endpoint
    def echo(self, x): return x
    @endpoint
    async def aecho(self, x): return x
mesh = spawn_procs(2).spawn("echo", Echo)
""", "print(mesh.echo.call(1).get(timeout=30).values())", "print((await mesh.aecho.call(2)).values())",
"import roost; roost.shutdown()"]

async def kernel():
    for cell in CELLS:
        code = compile(cell, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, globals())
        if asyncio.iscoroutine(result):
            await result

asyncio.run(kernel())
'''
    )
    assert run_script(source, site.name).out == "[1, 1]\n[2, 2]\n"


def test_a_script_that_ends_leaves_no_process(site: Any, start_script: Any, wait_until_gone: Any) -> None:
    source = (
        SITE
        + """
import os, psutil
from roost import Actor, endpoint
class Pid(Actor):
    @endpoint
    def pid(self): return os.getpid()
spawn_procs(2).spawn("pid", Pid).pid.call().get(timeout=30)
print(*[child.pid for child in psutil.Process().children(recursive=True)])
"""
    )
    script = start_script(source, site.name)
    pids = [int(word) for word in script.line().split()]
    assert len(pids) >= 2 + site.agents
    assert script.wait() == 0, script.err
    wait_until_gone(pids)
    assert script.err == ""
