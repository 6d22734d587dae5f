"""Channels: who sent, what is claimed when, what is full, and what ends."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from roost.actors import Actor, ActorDied, Busy, Channel, Port, PortClosed, concurrent_endpoint, endpoint
from roost.actors.node import current_node
from roost.mesh import this_host

WAIT = 30.0
Spawn = Callable[..., Any]


class Talker(Actor):
    """Sync endpoints that send."""

    def __init__(self) -> None:
        self.kept: Port[Any] | None = None

    @endpoint
    def tell(self, port: Port[Any], value: Any = None) -> None:
        port.send(value)

    @endpoint
    def keep(self, port: Port[Any]) -> None:
        self.kept = port

    @endpoint
    def tell_kept(self, value: Any) -> None:
        assert self.kept is not None
        self.kept.send(value)

    @endpoint
    def tell_from_a_thread(self, port: Port[Any], value: Any) -> None:
        thread = threading.Thread(target=port.send, args=(value,))
        thread.start()
        thread.join(WAIT)

    @endpoint
    def tell_all(self, port: Port[Any], values: list[Any]) -> int:
        for value in values:
            port.send(value)
        return len(values)

    @endpoint
    def tell_until_full(self, port: Port[Any], at_most: int) -> int:
        for count in range(at_most):
            try:
                port.send(count)
            except Busy:
                return count
        return at_most

    @endpoint
    def tell_quietly(self, port: Port[Any], value: Any) -> bool:
        port.return_undeliverable = False
        port.send(value)
        return True

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class AsyncTalker(Actor):
    """Async endpoints that send, beside one that answers meanwhile."""

    @endpoint
    async def tell(self, port: Port[Any], value: Any = None) -> None:
        port.send(value)

    @concurrent_endpoint
    async def tell_all(self, port: Port[Any], values: list[Any]) -> int:
        for value in values:
            await port.asend(value)
        return len(values)

    @endpoint
    async def tell_until_full(self, port: Port[Any], at_most: int) -> int:
        for count in range(at_most):
            try:
                port.send(count)
            except Busy:
                return count
        return at_most

    @endpoint
    async def here(self) -> bool:
        return True


class MixedTalker(Actor):
    """A sync endpoint on an actor that has a loop."""

    @endpoint
    def tell(self, port: Port[Any], value: Any = None) -> None:
        port.send(value)

    @endpoint
    async def here(self) -> bool:
        return True


class Listener(Actor):
    """Opens channels of its own."""

    @endpoint
    def open(self, limit: int | None = None) -> Port[Any]:
        port, self.receiver = Channel.open(limit=limit)
        return port

    @endpoint
    def take(self, count: int) -> list[Any]:
        return [self.receiver.recv().get(timeout=WAIT) for _ in range(count)]

    @endpoint
    async def take_async(self, count: int) -> list[Any]:
        found = []
        async for value in self.receiver:
            found.append(value)
            if len(found) == count:
                break
        return found

    @endpoint
    def close(self) -> None:
        self.receiver.close()

    @endpoint
    def pid(self) -> int:
        return os.getpid()


# --- who sent


@pytest.mark.parametrize("kind", [Talker, AsyncTalker, MixedTalker])
def test_a_ranked_receiver_tells_the_rank_in_the_mesh_that_was_called(spawn: Spawn, kind: type[Actor]) -> None:
    mesh = spawn(kind, n=2)
    port, receiver = Channel.open_ranked()
    mesh.tell.call(port, "all").get(timeout=WAIT)
    assert sorted(receiver.recv().get(timeout=WAIT) for _ in range(2)) == [(0, "all"), (1, "all")]
    mesh.slice(gpus=1).tell.call_one(port, "one").get(timeout=WAIT)
    assert receiver.recv().get(timeout=WAIT) == (0, "one")


def test_the_rank_is_that_of_the_message_that_sends_not_of_the_one_that_brought_the_port(spawn: Spawn) -> None:
    mesh = spawn(Talker, n=2)
    port, receiver = Channel.open_ranked()
    mesh.slice(gpus=slice(1, 2)).keep.call(port).get(timeout=WAIT)
    mesh.slice(gpus=0).keep.call_one(port).get(timeout=WAIT)
    mesh.tell_kept.call("x").get(timeout=WAIT)
    assert sorted(receiver.recv().get(timeout=WAIT) for _ in range(2)) == [(0, "x"), (1, "x")]
    mesh.tell_from_a_thread.call(port, "y").get(timeout=WAIT)
    assert sorted(receiver.recv().get(timeout=WAIT) for _ in range(2)) == [(0, "y"), (1, "y")]


def test_ranked_is_a_view_of_the_same_messages(spawn: Spawn) -> None:
    port, receiver = Channel.open()
    ranked = receiver.ranked()
    spawn(Talker, n=2).tell_all.call(port, [1, 2]).get(timeout=WAIT)
    first = ranked.recv().get(timeout=WAIT)
    rest = [receiver.recv().get(timeout=WAIT) for _ in range(3)]
    assert sorted([first[1], *rest]) == [1, 1, 2, 2]
    del receiver
    gc.collect()
    port.send("still open")
    assert ranked.recv().get(timeout=WAIT) == (0, "still open")


# --- what is claimed when


def give_up(how: str, receiver: Any) -> None:
    """Take a recv and lose interest in it."""
    future = receiver.recv()
    if how == "cancelled":
        future.cancel()
    elif how == "timed out":
        with pytest.raises(TimeoutError):
            future.get(timeout=0.01)
    elif how == "task cancelled":

        async def wait() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(receiver.recv(), 0.01)

        asyncio.run(wait())
    elif how == "asked whether it is done":
        future.done()


@pytest.mark.parametrize("how", ["dropped", "cancelled", "timed out", "task cancelled", "asked whether it is done"])
def test_a_recv_that_is_given_up_loses_no_message(how: str) -> None:
    this_host()
    port, receiver = Channel.open()
    for _ in range(3):
        give_up(how, receiver)
    port.send("first")
    port.send("second")
    assert receiver.recv().get(timeout=WAIT) == "first"
    assert receiver.recv().get(timeout=WAIT) == "second"


def test_a_message_handed_to_a_future_that_nobody_looks_at_is_given_back_in_its_place() -> None:
    this_host()
    port, receiver = Channel.open()
    for value in ("first", "second", "third"):
        port.send(value)
    taken = receiver.recv()
    while not taken.done():
        time.sleep(0.001)
    other = receiver.recv()
    assert other.done()
    del taken, other
    gc.collect()
    assert [receiver.recv().get(timeout=WAIT) for _ in range(3)] == ["first", "second", "third"]


def test_of_two_pending_recvs_the_one_asked_first_gets_the_first_message() -> None:
    this_host()
    port, receiver = Channel.open()
    one, two = receiver.recv(), receiver.recv()
    port.send("first")
    assert two.get(timeout=WAIT) == "first"
    port.send("second")
    assert one.get(timeout=WAIT) == "second"
    assert (one.get(), two.get()) == ("second", "first"), "asked again, they say the same"


def test_a_reader_that_waits_gets_what_another_gave_back() -> None:
    this_host()
    port, receiver = Channel.open()
    port.send("only")
    taken = receiver.recv()
    while not taken.done():
        time.sleep(0.001)
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.append(receiver.recv().get(timeout=WAIT)))
    reader.start()
    while not receiver.statistics().readers:
        time.sleep(0.001)
    del taken
    gc.collect()
    reader.join(WAIT)
    assert found == ["only"]


def test_many_readers_with_short_patience_receive_each_message_once() -> None:
    this_host()
    port, receiver = Channel.open()
    count, found, lock = 2000, [], threading.Lock()

    def read() -> None:
        while True:
            try:
                value = receiver.recv().get(timeout=0.0005)
            except TimeoutError:
                continue
            if value is None:
                return
            with lock:
                found.append(value)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for value in range(1, count + 1):
        port.send(value)
    for _ in readers:
        port.send(None)
    for reader in readers:
        reader.join(WAIT)
    assert sorted(found) == list(range(1, count + 1))


def test_callbacks_and_loops_claim_too() -> None:
    this_host()
    port, receiver = Channel.open()
    came = threading.Event()
    future = receiver.recv()
    future.add_done_callback(lambda done: came.set())
    port.send(1)
    assert came.wait(WAIT)
    assert future.get() == 1

    async def gather() -> list[Any]:
        pending = [asyncio.ensure_future(asyncio.wait_for(receiver.recv(), WAIT)) for _ in range(3)]
        await asyncio.sleep(0)
        for value in range(3):
            port.send(value)
        return await asyncio.gather(*pending)

    assert asyncio.run(gather()) == [0, 1, 2]


# --- what is full


@pytest.mark.parametrize("kind", [Talker, AsyncTalker])
def test_a_sender_waits_where_a_blocking_channel_is_full(spawn: Spawn, kind: type[Actor]) -> None:
    talker = spawn(kind, n=1).slice(gpus=0)
    port, receiver = Channel.open(limit=4)
    sending = talker.tell_all.call_one(port, list(range(50)))
    found = []
    for _ in range(50):
        found.append(receiver.recv().get(timeout=WAIT))
        assert receiver.statistics().waiting <= 4
    assert found == list(range(50))
    assert sending.get(timeout=WAIT) == 50


def test_a_coroutine_that_awaits_room_holds_up_nobody(spawn: Spawn) -> None:
    talker = spawn(AsyncTalker, n=1).slice(gpus=0)
    port, receiver = Channel.open(limit=2)
    sending = talker.tell_all.call_one(port, list(range(5)))
    assert talker.here.call_one().get(timeout=WAIT), "the loop goes on while the channel is full"
    assert not sending.done()
    assert [receiver.recv().get(timeout=WAIT) for _ in range(5)] == list(range(5))
    assert sending.get(timeout=WAIT) == 5


def test_send_never_blocks_a_loop(spawn: Spawn) -> None:
    talker = spawn(AsyncTalker, n=1).slice(gpus=0)
    port, receiver = Channel.open(limit=3)
    assert talker.tell_until_full.call_one(port, 10).get(timeout=WAIT) == 3
    assert [receiver.recv().get(timeout=WAIT) for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("kind", [Talker, AsyncTalker])
def test_a_failing_channel_raises_busy_at_the_sender(spawn: Spawn, kind: type[Actor]) -> None:
    talker = spawn(kind, n=1).slice(gpus=0)
    port, receiver = Channel.open(limit=7, policy="fail")
    assert talker.tell_until_full.call_one(port, 10).get(timeout=WAIT) == 7
    assert [receiver.recv().get(timeout=WAIT) for _ in range(7)] == list(range(7))
    assert receiver.statistics().dropped == 0


def test_a_channel_of_the_newest_drops_older_ones_and_counts_them(spawn: Spawn) -> None:
    talker = spawn(Talker, n=1).slice(gpus=0)
    port, receiver = Channel.open(limit=3, policy="drop_oldest")
    assert talker.tell_all.call_one(port, list(range(10_000))).get(timeout=WAIT) == 10_000
    while receiver.statistics().received < 10_000:  # some of them wait for credit when the call returns
        time.sleep(0.001)
    seen = receiver.statistics()
    assert (seen.waiting, seen.dropped) == (3, 9997)
    assert [receiver.recv().get(timeout=WAIT) for _ in range(3)] == [9997, 9998, 9999]


def test_without_a_limit_what_is_not_received_waits_at_both_ends_and_arrives_in_order(spawn: Spawn) -> None:
    talker = spawn(Talker, n=1).slice(gpus=0)
    port, receiver = Channel.open()
    assert talker.tell_all.call_one(port, list(range(6000))).get(timeout=WAIT) == 6000
    while receiver.statistics().waiting < 4096:
        time.sleep(0.001)
    assert receiver.statistics().waiting == 4096
    assert [receiver.recv().get(timeout=WAIT) for _ in range(6000)] == list(range(6000))


def test_waiting_for_room_has_an_end() -> None:
    this_host()
    port, receiver = Channel.open(limit=1)
    port.send(1)
    with pytest.raises(Busy, match=r"had no room for 0\.05 s: .*1 messages of this process|2 messages"):
        port.send(2, timeout=0.05)
    assert receiver.recv().get(timeout=WAIT) == 1
    port.send(3, timeout=WAIT)
    assert receiver.recv().get(timeout=WAIT) == 3, "what was given up never arrives"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"limit": 0}, "at least one"),
        ({"limit": 1, "policy": "spill"}, "drop_oldest"),
        ({"policy": "block"}, "needs a limit"),
    ],
)
def test_bounds_that_mean_nothing_are_refused(options: dict[str, Any], text: str) -> None:
    this_host()
    with pytest.raises(ValueError, match=text):
        Channel.open(**options)


# --- what ends


def test_closing_lets_a_sender_go_that_waits_for_room(spawn: Spawn) -> None:
    talker = spawn(Talker, n=1).slice(gpus=0)
    port, receiver = Channel.open(limit=1)
    sending = talker.tell_all.call_one(port, list(range(100)))
    assert receiver.recv().get(timeout=WAIT) == 0
    receiver.close()
    assert sending.get(timeout=WAIT) == 100, "what nobody wants is dropped"
    assert talker.tell_all.call_one(port, [1]).get(timeout=WAIT) == 1


@pytest.mark.parametrize("kind", [Talker, AsyncTalker])
def test_the_death_of_the_receiver_is_raised_at_a_sender_that_waits(site: Any, kind: type[Actor]) -> None:
    listener = site.spawn_procs(1).spawn("listener", Listener).slice(gpus=0)
    talker = this_host().spawn_procs().spawn("talker", kind)
    port = listener.open.call_one(1).get(timeout=WAIT)
    sending = talker.tell_all.call_one(port, list(range(100)))
    assert listener.take.call_one(1).get(timeout=WAIT) == [0]
    os.kill(listener.pid.call_one().get(timeout=WAIT), signal.SIGKILL)
    with pytest.raises(ActorDied):
        listener.pid.call_one().get(timeout=WAIT)
    with pytest.raises(ActorDied):
        sending.get(timeout=WAIT)
    talker.stop().get(timeout=WAIT)


def test_what_cannot_be_delivered_is_raised_or_dropped_as_the_port_says(site: Any) -> None:
    listener = site.spawn_procs(1).spawn("listener", Listener).slice(gpus=0)
    port = listener.open.call_one().get(timeout=WAIT)
    assert port.return_undeliverable
    pid = listener.pid.call_one().get(timeout=WAIT)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorDied):
        listener.pid.call_one().get(timeout=WAIT)
    with pytest.raises(ActorDied):
        port.send(1)
    port.return_undeliverable = False
    port.send(1)
    assert not pickle.loads(pickle.dumps(port)).return_undeliverable, "it travels with the port"


def test_a_closed_channel_gives_what_arrived_and_then_says_so() -> None:
    this_host()
    port, receiver = Channel.open()
    port.send(1)
    while not receiver.statistics().waiting:
        time.sleep(0.001)
    waiting = receiver.recv()
    with receiver:
        assert waiting.get(timeout=WAIT) == 1
        pending = receiver.recv()
        thread = threading.Thread(target=pending.exception)
        thread.start()
        while not receiver.statistics().readers:
            time.sleep(0.001)
    thread.join(WAIT)
    assert isinstance(pending.exception(), PortClosed), "who waited is told"
    with pytest.raises(PortClosed, match="closed"):
        receiver.recv().get(timeout=WAIT)
    port.send("nobody wants it")


def test_iterating_ends_with_the_channel(spawn: Spawn) -> None:
    port, receiver = Channel.open()
    spawn(Talker, n=1).tell_all.call(port, [1, 2, 3]).get(timeout=WAIT)
    port.exception(ValueError("in the stream"))
    values = iter(receiver)
    assert [next(values) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(ValueError, match="in the stream"):
        next(values)
    port.send(4)
    while not receiver.statistics().waiting:
        time.sleep(0.001)
    receiver.close()
    assert list(receiver) == [4]

    async def drain() -> list[Any]:
        return [value async for value in receiver]

    assert asyncio.run(drain()) == []


def test_a_receiver_that_is_collected_closes_its_channel() -> None:
    this_host()
    port, receiver = Channel.open(limit=1)
    port.send(1)
    node = current_node()
    assert node is not None
    assert port._port_id in node.ports
    del receiver
    gc.collect()
    until = time.monotonic() + WAIT
    while port._port_id in node.ports and time.monotonic() < until:
        time.sleep(0.001)
    assert port._port_id not in node.ports
    port.send(2, timeout=WAIT)
    port.send(3, timeout=WAIT)


def test_a_receiver_stays_where_it_was_opened() -> None:
    this_host()
    _, receiver = Channel.open()
    with pytest.raises(TypeError, match="send its Port"):
        pickle.dumps(receiver)


def test_actors_open_channels_for_each_other(site: Any) -> None:
    procs = site.spawn_procs(2)
    listener = procs.slice(gpus=0).spawn("listener", Listener)
    talker = procs.slice(gpus=1).spawn("talker", Talker)
    port = listener.open.call_one(4).get(timeout=WAIT)
    taking = listener.take.call_one(20)
    talker.tell_all.call_one(port, list(range(20))).get(timeout=WAIT)
    assert taking.get(timeout=WAIT) == list(range(20))
    taking = listener.take_async.call_one(20)
    talker.tell_all.call_one(port, list(range(20))).get(timeout=WAIT)
    assert taking.get(timeout=WAIT) == list(range(20))
    listener.close.call_one().get(timeout=WAIT)
    assert talker.tell_quietly.call_one(port, 1).get(timeout=WAIT)


def test_a_loop_with_no_patience_receives_each_message_once_and_in_order() -> None:
    this_host()
    count = 3000

    async def main() -> list[int]:
        port, receiver = Channel.open()
        sending = threading.Thread(target=lambda: [port.send(value) for value in range(count)])
        sending.start()
        found: list[int] = []
        turn = 0
        while len(found) < count:
            turn += 1
            waiting = receiver.recv()
            if turn % 7 == 0:
                waiting.done()  # claims what is there, and is dropped
            elif turn % 3 == 0:
                try:
                    async with asyncio.timeout((turn % 4) * 1e-4):
                        found.append(await waiting)
                except TimeoutError:
                    continue
            else:
                found.append(await waiting)
        sending.join(WAIT)
        return found

    assert asyncio.run(asyncio.wait_for(main(), WAIT)) == list(range(count))
