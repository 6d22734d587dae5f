"""Everything in any order, over real processes, against a model that predicts each answer.

Processes and actors are spawned, sliced, called in every way, killed, started anew and stopped, in an order that
hypothesis draws. The model knows what each call may come to: its value, or a reason that the history allows. Every
wait has an end, so that what hangs is a failure; notes with numbers show that what one sender sent one actor was
handled in that order, and once; when all is stopped nothing may be left.

Seeds are fixed, and a failure prints its example and a blob that replays it (`@reproduce_failure`).
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import queue
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from scribes import SCRIBES, Scribe

import roost.actors
from roost.actors import ActorDied, ActorStopped, CallCancelled, CallTimeout, Channel, MeshFailure, RoostError
from roost.actors.runtime import current_runtime

WAIT = 30.0
"""Seconds: what takes longer hangs."""

MOST_PROCESSES = 6

VALUE, DIED, STOPPED, CANCELLED, TIMEOUT, REFUSED = "value", "died", "stopped", "cancelled", "timeout", "refused"


class Shown:
    """Hypothesis prints it by its repr."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


@dataclass(eq=False, repr=False)
class Procs(Shown):
    """A process mesh as the model knows it."""

    mesh: Any
    pids: list[int]
    dead: set[int] = field(default_factory=set)
    stopped: bool = False
    epoch: int = 1

    def __repr__(self) -> str:
        state = ", stopped" if self.stopped else f", dead: {sorted(self.dead)}" if self.dead else ""
        return f"<{self.mesh.name} of {self.size}{state}>"

    @property
    def size(self) -> int:
        return len(self.pids)


@dataclass(eq=False, repr=False)
class Actors(Shown):
    """An actor mesh: on these ranks of its processes, with what each actor should hold."""

    mesh: Any
    procs: Procs
    ranks: list[int]
    cls: type
    kept: list[Any]
    notes: list[dict[str, list[tuple[int, bool]]]]
    """By actor and sender: numbers in the order in which they were sent, and whether each must be there."""
    failed: set[int] = field(default_factory=set)
    stopped: bool = False

    def __repr__(self) -> str:
        state = ", stopped" if self.stopped else f", failed: {sorted(self.failed)}" if self.failed else ""
        return f"<{self.cls.__name__} {self.mesh.name} on ranks {self.ranks} of {self.procs!r}{state}>"

    def fresh(self, rank: int, first: Any) -> None:
        self.kept[rank] = first
        self.notes[rank] = defaultdict(list)
        self.failed.discard(rank)

    def gone(self, rank: int) -> bool:
        return self.ranks[rank] in self.procs.dead or rank in self.failed

    def usual(self, ranks: list[int]) -> set[str]:
        """What a call to these ranks that is made now comes to."""
        if self.stopped or self.procs.stopped:
            return {STOPPED}
        return {DIED} if any(self.gone(rank) for rank in ranks) else {VALUE}


@dataclass(eq=False, repr=False)
class Pending(Shown):
    """A call that nobody has waited for yet."""

    future: Any
    actors: Actors
    ranks: list[int]
    allowed: set[str]
    value: Any
    completions: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<call to {self.ranks} of {self.actors!r}: {sorted(self.allowed)}>"


class World(RuleBasedStateMachine):
    """The model and the job itself, side by side; `site` is set by the test."""

    site: Any = None
    wait_until_gone: Callable[..., None]
    told: queue.SimpleQueue[MeshFailure] = queue.SimpleQueue()
    deaths = reports = 0  # in all: a report may come when its example is over

    def __init__(self) -> None:
        super().__init__()
        self.before = holdings()
        self.procs: list[Procs] = []
        self.actors: list[Actors] = []
        self.pending: list[Pending] = []
        self.handed: dict[tuple[Actors, int, int], tuple[Actors, list[int], int]] = {}
        self.numbers = itertools.count()

    # choosing

    def some_procs(self, data: st.DataObject, alive: bool = False) -> Procs:
        return data.draw(st.sampled_from([procs for procs in self.procs if not (alive and procs.stopped)]))

    def some_actors(self, data: st.DataObject) -> Actors:
        return data.draw(st.sampled_from(self.actors))

    def some_part(self, data: st.DataObject, actors: Actors) -> tuple[Any, list[int]]:
        """A slice, and its ranks of the mesh."""
        size = len(actors.ranks)
        start = data.draw(st.integers(0, size - 1))
        stop = data.draw(st.integers(start + 1, size))
        ranks = list(range(start, stop))
        return (actors.mesh if len(ranks) == size else actors.mesh.slice(gpus=slice(start, stop))), ranks

    def forget_stopped(self) -> None:
        """Most of what is called should live."""
        stopped = [actors for actors in self.actors if actors.stopped or actors.procs.stopped]
        self.actors = [actors for actors in self.actors if actors not in stopped[:-2]]
        self.procs = [procs for procs in self.procs if not procs.stopped]

    def live(self) -> int:
        return sum(procs.size for procs in self.procs if not procs.stopped)

    # checking

    def outcome(self, run: Callable[[], Any], actors: Actors, ranks: list[int], allowed: set[str], value: Any) -> str:
        """Run a call to its end: it comes to something that is allowed, and with the right value."""
        came, got = of(run)
        told = f"{came} ({got!r}) of {actors.mesh!r}, ranks {ranks}, where {allowed} was allowed"
        assert came in allowed, told
        if came == VALUE:
            assert got == value, told
        elif came == DIED:
            assert "SIGKILL" in str(got) or "has failed" in str(got), f"no reason told: {got!r}"
        return came

    def settle(self, pending: Pending) -> None:
        self.outcome(
            lambda: pending.future.get(timeout=WAIT), pending.actors, pending.ranks, pending.allowed, pending.value
        )
        until = time.monotonic() + WAIT
        while not pending.completions and time.monotonic() < until:
            time.sleep(0.0005)
        assert len(pending.completions) == 1, "it completes once"

    def call_later(self, future: Any, actors: Actors, ranks: list[int], value: Any) -> Pending:
        pending = Pending(future, actors, ranks, actors.usual(ranks), value)
        future.add_done_callback(lambda _: pending.completions.append(1))
        self.pending.append(pending)
        return pending

    def expect_note(self, actors: Actors, ranks: list[int], sender: str, number: int, certain: bool) -> None:
        for rank in ranks:
            if not actors.gone(rank):
                actors.notes[rank][sender].append((number, certain))

    # spawning

    @precondition(lambda self: self.live() < MOST_PROCESSES)
    @rule(size=st.sampled_from([1, 2, 2, 4]))
    def spawn_procs(self, size: int) -> None:
        if self.live() + size > MOST_PROCESSES:
            return
        site = self.site
        if site.agents == 1:
            mesh = site.hosts.spawn_procs({"gpus": size})
        elif size == 1:
            mesh = site.hosts.slice(hosts=1).spawn_procs({"gpus": 1})
        else:
            mesh = site.hosts.spawn_procs({"gpus": size // 2}).flatten("gpus")
        procs = Procs(mesh, [0] * size)
        self.procs.append(procs)
        first = self.spawn_on(procs, list(range(size)), Scribe, None)
        procs.pids = first.mesh.pid.call().get(timeout=WAIT).values()
        assert len(set(procs.pids)) == size

    def spawn_on(self, procs: Procs, ranks: list[int], cls: type, first: Any) -> Actors:
        part = procs.mesh if len(ranks) == procs.size else procs.mesh.slice(gpus=slice(ranks[0], ranks[-1] + 1))
        mesh = part.spawn(f"scribe{next(self.numbers)}", cls, first)
        actors = Actors(mesh, procs, ranks, cls, [first] * len(ranks), [defaultdict(list) for _ in ranks])
        self.actors.append(actors)
        return actors

    @precondition(lambda self: any(not procs.stopped for procs in self.procs))
    @rule(data=st.data(), cls=st.sampled_from(SCRIBES), first=st.integers())
    def spawn_actors(self, data: st.DataObject, cls: type, first: int) -> None:
        procs = self.some_procs(data, alive=True)
        start = data.draw(st.integers(0, procs.size - 1))
        stop = data.draw(st.integers(start + 1, procs.size))
        if not procs.dead.intersection(range(start, stop)):
            self.spawn_on(procs, list(range(start, stop)), cls, first)

    # calling

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), value=st.integers(), awaited=st.booleans())
    def call(self, data: st.DataObject, value: int, awaited: bool) -> None:
        actors = self.some_actors(data)
        part, ranks = self.some_part(data, actors)

        def run() -> Any:
            if not awaited:
                return part.echo.call(value).get(timeout=WAIT).values()

            async def wait() -> Any:
                return (await asyncio.wait_for(part.echo.call(value), WAIT)).values()

            return asyncio.run(wait())

        self.outcome(run, actors, ranks, actors.usual(ranks), [value] * len(ranks))

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), size=st.sampled_from([0, 100, 100_000, 3_000_000]))
    def call_one_or_choose(self, data: st.DataObject, size: int) -> None:
        actors = self.some_actors(data)
        rank = data.draw(st.integers(0, len(actors.ranks) - 1))
        value = os.urandom(8) * (size // 8)
        one = actors.mesh.slice(gpus=rank)
        self.outcome(lambda: one.echo.call_one(value).get(timeout=WAIT), actors, [rank], actors.usual([rank]), value)
        part, ranks = self.some_part(data, actors)
        allowed = set().union(*(actors.usual([rank]) for rank in ranks))
        self.outcome(lambda: part.echo.choose(value).get(timeout=WAIT), actors, ranks, allowed, value)

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), value=st.integers())
    def stream(self, data: st.DataObject, value: int) -> None:
        actors = self.some_actors(data)
        part, ranks = self.some_part(data, actors)
        if STOPPED in actors.usual(ranks):
            self.outcome(lambda: list(part.echo.stream(value)), actors, ranks, {STOPPED}, None)
            return
        answered = []
        for future in part.echo.stream(value):
            came, _ = of(lambda future=future: future.get(timeout=WAIT))  # type: ignore[misc]
            answered.append(future.rank)
            assert {came} == actors.usual([ranks[future.rank]]), f"{came} of rank {future.rank} of {part!r}"
        assert sorted(answered) == list(range(len(ranks))), "each rank once"

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), count=st.sampled_from([0, 1, 7, 100]))
    def take_items(self, data: st.DataObject, count: int) -> None:
        """A streaming endpoint: its items in order, all of them, or the reason why not."""
        actors = self.some_actors(data)
        rank = data.draw(st.integers(0, len(actors.ranks) - 1))
        one = actors.mesh.slice(gpus=rank)
        self.outcome(lambda: list(one.items.stream(count)), actors, [rank], actors.usual([rank]), list(range(count)))

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), text=st.text(max_size=20))
    def raise_at_the_caller(self, data: st.DataObject, text: str) -> None:
        """An endpoint that raises fails its call, and the actor lives on."""
        actors = self.some_actors(data)
        rank = data.draw(st.integers(0, len(actors.ranks) - 1))
        usual = actors.usual([rank])

        def run() -> str:
            try:
                actors.mesh.slice(gpus=rank).fail.call_one(text).get(timeout=WAIT)
            except ValueError as error:
                return str(error.args[0])
            return "nothing was raised"

        self.outcome(run, actors, [rank], usual, text)

    # what is kept in order

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), count=st.integers(1, 40), way=st.sampled_from(["call", "broadcast", "mixed"]))
    def note(self, data: st.DataObject, count: int, way: str) -> None:
        """Numbered notes one behind the other, unwaited for."""
        actors = self.some_actors(data)
        part, ranks = self.some_part(data, actors)
        usual = actors.usual(ranks)
        for turn in range(count):
            number = next(self.numbers)
            if way == "broadcast" or (way == "mixed" and turn % 2):
                came, _ = of(lambda number=number: part.note.broadcast("me", number))  # type: ignore[misc]
                assert came == VALUE or {came} == usual, f"{came} of a broadcast, where {usual} was allowed"
                if STOPPED not in usual:
                    self.expect_note(actors, ranks, "me", number, usual == {VALUE})
                continue
            came, future = of(lambda number=number: part.note.call("me", number))  # type: ignore[misc]
            if came != VALUE:
                assert {came} == usual
                continue
            self.call_later(Values(future), actors, ranks, [number] * len(ranks))
            self.expect_note(actors, ranks, "me", number, usual == {VALUE})

    @precondition(lambda self: self.actors)
    @rule(data=st.data())
    def read_back(self, data: st.DataObject) -> None:
        actors = self.some_actors(data)
        for rank in range(len(actors.ranks)):
            self.read_rank(actors, rank)

    def read_rank(self, actors: Actors, rank: int) -> None:
        one = actors.mesh.slice(gpus=rank)
        came, got = of(lambda: one.noted.call_one().get(timeout=WAIT))
        assert {came} == actors.usual([rank]), f"{came} ({got!r}) of rank {rank} of {actors.mesh!r}"
        if came != VALUE:
            return
        written: dict[str, list[int]] = defaultdict(list)
        for sender, number in got:
            written[sender].append(number)
        assert written.keys() <= actors.notes[rank].keys(), "nobody else has written"
        for sender, sent in actors.notes[rank].items():
            check_order(written[sender], sent, f"{sender} to rank {rank} of {actors.mesh!r}")

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), value=st.one_of(st.integers(), st.binary(max_size=100), st.lists(st.text(max_size=5))))
    def keep_and_recall(self, data: st.DataObject, value: Any) -> None:
        """A broadcast, and a call behind it that sees what it did."""
        actors = self.some_actors(data)
        part, ranks = self.some_part(data, actors)
        usual = actors.usual(ranks)
        came, _ = of(lambda: part.keep.broadcast(value))
        assert came == VALUE or {came} == usual
        if usual == {STOPPED}:
            return
        for rank in ranks:
            if not actors.gone(rank):
                actors.kept[rank] = value
        everybody = list(range(len(actors.ranks)))
        self.outcome(
            lambda: actors.mesh.recall.call().get(timeout=WAIT).values(),
            actors, everybody, actors.usual(everybody), actors.kept,
        )  # fmt: skip

    # pending calls, cancelled or not

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), value=st.integers(), seconds=st.sampled_from([0.0, 0.0, 0.02]))
    def begin(self, data: st.DataObject, value: int, seconds: float) -> None:
        """A call that is waited for later, whatever happens meanwhile."""
        actors = self.some_actors(data)
        part, ranks = self.some_part(data, actors)
        came, future = of(lambda: part.echo.call(value, seconds))
        if came == VALUE:
            self.call_later(Values(future), actors, ranks, [value] * len(ranks))
        else:
            assert {came} == actors.usual(ranks)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        pending = data.draw(st.sampled_from(self.pending))
        if pending.future.cancel():
            pending.allowed = {CANCELLED}
            for notes in pending.actors.notes:  # what it was to write may be there or not
                for sender, sent in notes.items():
                    notes[sender] = [(n, must and n != pending.value[0]) for n, must in sent]

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), value=st.integers())
    def run_out_of_time(self, data: st.DataObject, value: int) -> None:
        actors = self.some_actors(data)
        part, ranks = self.some_part(data, actors)
        self.outcome(
            lambda: part.echo.call(value, 0.05).get(timeout=0.01).values(),
            actors, ranks, actors.usual(ranks) | {TIMEOUT},
            [value] * len(ranks),
        )  # fmt: skip

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.pending) - 1))
        self.settle(self.pending.pop(index))

    # meshes and ports in messages

    @precondition(lambda self: len(self.actors) > 1)
    @rule(data=st.data(), count=st.integers(1, 10))
    def send_a_mesh(self, data: st.DataObject, count: int) -> None:
        """One actor writes at others, whose mesh it is given."""
        writer, target = self.some_actors(data), self.some_actors(data)
        rank = data.draw(st.integers(0, len(writer.ranks) - 1))
        if writer is target or writer.usual([rank]) != {VALUE}:
            return
        part, ranks = self.some_part(data, target)
        sender = f"{writer.mesh.name}.{rank}"
        numbers = [next(self.numbers) for _ in range(count)]
        usual = target.usual(ranks)
        if usual == {STOPPED}:
            return
        for number in numbers:
            self.expect_note(target, ranks, sender, number, usual == {VALUE})
        self.outcome(
            lambda: writer.mesh.slice(gpus=rank).pass_on.call_one(part, sender, numbers).get(timeout=WAIT),
            writer, [rank], usual, [[number] * len(ranks) for number in numbers],
        )  # fmt: skip

    @precondition(lambda self: len(self.actors) > 1)
    @rule(data=st.data())
    def hand_over(self, data: st.DataObject) -> None:
        """An actor is given a mesh to keep."""
        holder, target = self.some_actors(data), self.some_actors(data)
        rank = data.draw(st.integers(0, len(holder.ranks) - 1))
        part, ranks = self.some_part(data, target)
        if holder is not target and holder.usual([rank]) == {VALUE} and target.usual(ranks) == {VALUE}:
            holder.mesh.slice(gpus=rank).take_mesh.call_one(part).get(timeout=WAIT)
            key = holder, rank, holder.procs.epoch
            self.handed[key] = target, ranks, target.procs.epoch

    @precondition(lambda self: self.handed)
    @rule(data=st.data(), value=st.integers())
    def use_what_was_handed_over(self, data: st.DataObject, value: int) -> None:
        """A mesh that was given before processes of it were started anew is refused, not answered by others."""
        holder, rank, epoch = data.draw(st.sampled_from(list(self.handed)))
        target, ranks, target_epoch = self.handed[holder, rank, epoch]
        if holder.usual([rank]) != {VALUE} or holder.procs.epoch != epoch:
            return
        allowed = target.usual(ranks)
        if target.procs.epoch != target_epoch:
            allowed = {REFUSED, DIED} | (allowed & {STOPPED})
        self.outcome(
            lambda: holder.mesh.slice(gpus=rank).ask_mesh.call_one(value).get(timeout=WAIT),
            holder, [rank], allowed, [value] * len(ranks),
        )  # fmt: skip

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), values=st.lists(st.integers(), max_size=20))
    def send_a_port(self, data: st.DataObject, values: list[int]) -> None:
        """Every actor of a part sends through one port: each one's values arrive in order."""
        actors = self.some_actors(data)
        part, ranks = self.some_part(data, actors)
        if actors.usual(ranks) != {VALUE}:
            return
        port, receiver = Channel.open()
        part.send.broadcast(port, values)
        got = [receiver.recv().get(timeout=WAIT) for _ in range(len(values) * len(ranks))]
        assert sorted(got) == sorted(values * len(ranks))
        if len(ranks) == 1:
            assert got == values

    @precondition(lambda self: len(self.actors) > 1)
    @rule(data=st.data(), values=st.lists(st.integers(), min_size=1, max_size=20))
    def send_an_actors_port(self, data: st.DataObject, values: list[int]) -> None:
        """One actor opens a channel, another sends, the first receives."""
        opener, sender = self.some_actors(data), self.some_actors(data)
        at = data.draw(st.integers(0, len(opener.ranks) - 1))
        by = data.draw(st.integers(0, len(sender.ranks) - 1))
        if opener.usual([at]) != {VALUE} or sender.usual([by]) != {VALUE}:
            return
        one = opener.mesh.slice(gpus=at)
        port = one.open.call_one().get(timeout=WAIT)
        sender.mesh.slice(gpus=by).send.broadcast(port, values)
        assert one.receive.call_one(len(values)).get(timeout=WAIT) == values

    # dying and living again

    @precondition(lambda self: any(not procs.stopped and len(procs.dead) < procs.size for procs in self.procs))
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        procs = self.some_procs(data, alive=True)
        alive = [rank for rank in range(procs.size) if rank not in procs.dead]
        if not alive:
            return
        rank = data.draw(st.sampled_from(alive))
        os.kill(procs.pids[rank], 9)
        World.wait_until_gone([procs.pids[rank]])
        procs.dead.add(rank)
        World.deaths += 1
        for pending in self.pending:
            actors = pending.actors
            mine = actors.procs is procs and rank in (actors.ranks[r] for r in pending.ranks)
            if mine and CANCELLED not in pending.allowed:
                pending.allowed = pending.allowed | {DIED}

    @precondition(lambda self: any(not procs.stopped for procs in self.procs))
    @rule(data=st.data())
    def fail_unheard(self, data: st.DataObject) -> None:
        """An exception that nobody waits for fails its actor."""
        standing = [a for a in self.actors if a.usual(list(range(len(a.ranks)))) == {VALUE}]
        if not standing:
            return
        actors = data.draw(st.sampled_from(standing))
        rank = data.draw(st.integers(0, len(actors.ranks) - 1))
        actors.mesh.slice(gpus=rank).fail.broadcast("nobody waits")
        actors.failed.add(rank)
        World.deaths += 1
        came, got = of(lambda: actors.mesh.slice(gpus=rank).pid.call_one().get(timeout=WAIT))
        assert came == DIED and "nobody waits" in str(got), f"{came}: {got!r}"

    @precondition(lambda self: any(procs.dead and not procs.stopped for procs in self.procs))
    @rule(data=st.data(), known=st.booleans())
    def respawn(self, data: st.DataObject, known: bool) -> None:
        """Dead ranks are started anew, and with them their actors, as they were at first."""
        procs = data.draw(st.sampled_from([procs for procs in self.procs if procs.dead and not procs.stopped]))
        mine = [a for a in self.actors if a.procs is procs and not a.stopped]
        if not known or not mine:
            ranks = None
        else:
            ranks = sorted(procs.dead)
        for actors in mine:  # a death is known once a call has failed of it
            for rank in range(len(actors.ranks)):
                if actors.gone(rank):
                    came, _ = of(lambda: actors.mesh.slice(gpus=rank).pid.call_one().get(timeout=WAIT))  # noqa: B023
                    assert came == DIED
        if not {rank for actors in mine for rank in actors.ranks} >= procs.dead:
            return
        procs.mesh.respawn(ranks).get(timeout=WAIT)
        reborn, procs.dead = procs.dead, set()
        procs.epoch += 1
        assert procs.mesh.epoch == procs.epoch
        for actors in mine:
            for rank, place in enumerate(actors.ranks):
                if place in reborn:
                    first = actors.mesh.slice(gpus=rank).recall.call_one().get(timeout=WAIT)
                    actors.fresh(rank, first)
                    pid = actors.mesh.slice(gpus=rank).pid.call_one().get(timeout=WAIT)
                    assert pid != procs.pids[place] or place not in reborn
        for actors in mine:
            for rank, place in enumerate(actors.ranks):
                if place in reborn:
                    procs.pids[place] = actors.mesh.slice(gpus=rank).pid.call_one().get(timeout=WAIT)

    # stopping

    @precondition(lambda self: any(not a.stopped and not a.procs.stopped for a in self.actors))
    @rule(data=st.data(), waited=st.booleans())
    def stop_actors(self, data: st.DataObject, waited: bool) -> None:
        standing = [a for a in self.actors if not a.stopped and not a.procs.stopped]
        actors = data.draw(st.sampled_from(standing))
        stopping = actors.mesh.stop()
        actors.stopped = True
        if waited:
            stopping.get(timeout=WAIT)
        assert of(lambda: actors.mesh.echo.call(1).get(timeout=WAIT))[0] == STOPPED
        self.forget_stopped()

    @precondition(lambda self: any(not procs.stopped for procs in self.procs))
    @rule(data=st.data())
    def stop_procs(self, data: st.DataObject) -> None:
        procs = self.some_procs(data, alive=True)
        procs.mesh.stop().get(timeout=WAIT)
        procs.stopped = True
        World.wait_until_gone([pid for rank, pid in enumerate(procs.pids) if rank not in procs.dead])
        self.forget_stopped()

    # the end

    def teardown(self) -> None:
        try:
            while self.pending:
                self.settle(self.pending.pop())
            for actors in self.actors:
                for rank in range(len(actors.ranks)):
                    self.read_rank(actors, rank)
        finally:
            for procs in self.procs:
                if not procs.stopped:
                    procs.mesh.stop().get(timeout=WAIT)
        while not self.told.empty():
            self.told.get()
            World.reports += 1
        assert World.reports <= World.deaths, "nobody is told of more than has happened"
        self.procs.clear()
        self.actors.clear()
        self.handed.clear()
        leaves_what_it_found(self.before)


class Values:
    """The future of a ValueMesh, as one of the list of its values."""

    def __init__(self, future: Any) -> None:
        self._future = future
        self.cancel, self.add_done_callback = future.cancel, future.add_done_callback

    def get(self, timeout: float) -> Any:
        return self._future.get(timeout=timeout).values()


def of(run: Callable[[], Any]) -> tuple[str, Any]:
    """What a call comes to, and its value or the error."""
    try:
        return VALUE, run()
    except CallTimeout as error:
        return TIMEOUT, error
    except CallCancelled as error:
        return CANCELLED, error
    except ActorStopped as error:
        return STOPPED, error
    except ActorDied as error:
        return DIED, error
    except RoostError as error:
        return REFUSED, error


def check_order(written: list[int], sent: list[tuple[int, bool]], who: str) -> None:
    """What was written is what was sent, in that order and once, but for what need not be there."""
    rest = iter(written)
    number = next(rest, None)
    for expected, certain in sent:
        if number == expected:
            number = next(rest, None)
        else:
            assert not certain, f"{who}: {expected} is missing or out of order, {written} for {sent}"
    assert number is None, f"{who}: {number} out of order or twice, {written} for {sent}"


def descriptors() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):
        try:
            yield os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the listing's own


def holdings() -> dict[str, int]:
    """What this program holds: it must not grow with what has come and gone."""
    gc.collect()
    runtime = current_runtime()
    assert runtime is not None
    node = runtime.node
    return {
        "descriptors": sum("/memfd:" not in link for link in descriptors()),  # but for the pool, which is for reuse
        "calls": len(node.pending),
        "ports": len(node.ports),
        "owned": len(runtime.supervisor.owned),
        "accounts": sum(len(p.credit) + len(p.granting) for p in list(node.peers.values()) if p.dead is None),
    }


def leaves_what_it_found(before: dict[str, int]) -> None:
    """Sockets of stopped processes close within moments; nothing else may be left."""
    until = time.monotonic() + WAIT
    now = holdings()
    while any(now[what] > before[what] for what in now) and time.monotonic() < until:
        time.sleep(0.01)
        now = holdings()
    assert all(now[what] <= before[what] for what in now), f"{now} is left of {before}"


@pytest.fixture(scope="module", autouse=True)
def reported() -> Iterator[None]:
    """Failures that nobody handled come here, also late ones, instead of ending the test run."""
    before, roost.actors.unhandled_fault_hook = roost.actors.unhandled_fault_hook, World.told.put
    yield
    roost.actors.unhandled_fault_hook = before


@pytest.fixture(autouse=True)
def world(site: Any, wait_until_gone: Any) -> Iterator[None]:
    """The machine works on this site."""
    World.site, World.wait_until_gone = site, staticmethod(wait_until_gone)
    procs = site.spawn_procs(2)  # what there is from the first time on, like links between agents, is there now
    procs.spawn("first", Scribe).pid.call().get(timeout=WAIT)
    procs.stop().get(timeout=WAIT)
    yield
    World.site = None


def explore(seeds: list[int], examples: int, steps: int) -> None:
    for number in seeds:
        print(f"seed {number}")
        machine = seed(number)(type(f"World{number}", (World,), {}))
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                database=None,
                print_blob=True,
                phases=[Phase.generate],  # each step takes milliseconds to seconds: shrinking would take hours
                suppress_health_check=list(HealthCheck),
                report_multiple_bugs=False,
            ),
        )


def test_what_happens_in_any_order_is_what_the_model_says() -> None:
    explore([1, 2], examples=6, steps=30)


@pytest.mark.long
@pytest.mark.timeout(1100)
@pytest.mark.parametrize("number", range(10, 20))
def test_what_happens_in_any_long_order_is_what_the_model_says(number: int) -> None:
    explore([number], examples=25, steps=80)
