"""Delivery end to end over a network that drops, repeats, reorders and loses relays with all they hold.

`World` is the model: senders, a relay that acknowledges on its link and may then die, one receiving actor,
and what must hold after every step. Hypothesis walks it for short counterexamples, seeds walk it far.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from roost.actors.wire.delivery import (
    BUSY,
    DELIVER,
    FUTURE,
    SEND,
    CreditReceiver,
    CreditSender,
    Epochs,
    Inbox,
    Outbox,
)

SENDERS = 3
MESSAGES, BYTES, BOUND, BOUND_BYTES = 4, 100, 8, 300
SIZES = (0, 1, 20, 49, 51, 80, 100, 130, 400)
ROUTES = ("direct", "up")
WIRES = (*ROUTES, "down", "back")


class Call(NamedTuple):
    """What the sender's user asked for; also what the receiver's mailbox holds."""

    name: int
    nbytes: int
    epoch: int
    tomb: bool = False


class Frame(NamedTuple):
    sender: int
    seq: int
    call: Call


class Control(NamedTuple):
    sender: int
    upto: int
    told: tuple[int, int] | None


@dataclass
class Sender:
    outbox: Outbox = field(default_factory=Outbox)
    credit: CreditSender = field(default_factory=lambda: CreditSender(MESSAGES, BYTES, BOUND, BOUND_BYTES))
    epoch: int = 0
    pushed: dict[int, Call] = field(default_factory=dict)
    parked: list[Call] = field(default_factory=list)
    tombs: set[int] = field(default_factory=set)


@dataclass
class Receiver:
    """The receiving process's state about one sender."""

    inbox: Inbox = field(default_factory=lambda: Inbox(limit=MESSAGES))
    credit: CreditReceiver = field(default_factory=lambda: CreditReceiver(MESSAGES, BYTES))
    mailbox: deque[Call] = field(default_factory=deque)
    log: list[Call] = field(default_factory=list)
    ran: list[Call] = field(default_factory=list)


class World:
    def __init__(self) -> None:
        self.senders = [Sender() for _ in range(SENDERS)]
        self.receivers = [Receiver() for _ in range(SENDERS)]
        self.epochs = Epochs()
        self.wires: dict[str, list[Frame | Control]] = {wire: [] for wire in WIRES}
        self.calls = 0
        self.stale = 0

    # Senders

    def call(self, s: int, nbytes: int, wire: str) -> None:
        sender, before = self.senders[s], self.senders[s].credit.statistics()
        self.calls += 1
        call = Call(self.calls, nbytes, sender.epoch)
        answer = sender.credit.admit(nbytes)
        if answer == SEND:
            assert not sender.parked, "overtakes what waits"
            self._push(s, call, wire)
        elif answer == BUSY:
            messages = before.outstanding_messages + before.parked_messages
            total = before.outstanding_bytes + before.parked_bytes + nbytes
            assert messages == BOUND or total > BOUND_BYTES, "refused without need"
        else:
            sender.credit.park(call, nbytes)
            sender.parked.append(call)

    def _push(self, s: int, call: Call, wire: str) -> None:
        seq = self.senders[s].outbox.push(call, call.nbytes)
        self.senders[s].pushed[seq] = call
        self.wires[wire].append(Frame(s, seq, call))

    def cancel(self, s: int, pick: int, wire: str) -> None:
        """Cancel a late call: one that waits is withdrawn, one that was sent becomes a tombstone."""
        sender = self.senders[s]
        if sender.parked and pick % 2:
            assert sender.credit.withdraw(sender.parked.pop(pick % len(sender.parked)))
            self._go(s, sender.credit.release(), wire)
        elif sender.pushed:
            seq = max(1, len(sender.pushed) - pick)
            tomb = sender.pushed[seq]._replace(tomb=True)
            if sender.outbox.tombstone(seq, tomb):
                sender.tombs.add(seq)
                self.wires[wire].append(Frame(s, seq, tomb))
            else:
                assert seq < self.receivers[s].inbox.next_seq, "not delivered, and never will be"

    def _go(self, s: int, released: list[object], wire: str) -> None:
        for call in released:
            assert call is self.senders[s].parked.pop(0), "released out of order"
            assert isinstance(call, Call)
            self._push(s, call, wire)

    def new_epoch(self, s: int) -> None:
        """A sender catches up with the others' epoch, or is the first to enter a new one."""
        newest = max(sender.epoch for sender in self.senders)
        self.senders[s].epoch = max(newest, self.senders[s].epoch + 1)

    # The network

    def lose(self, wire: str, at: int, size: int) -> None:
        del self.wires[wire][at : at + size]

    def repeat(self, wire: str, at: int, size: int) -> None:
        if len(self.wires[wire]) < 100:
            self.wires[wire] += self.wires[wire][at : at + size]

    def carry(self, wire: str, at: int, size: int) -> None:
        """A chunk from anywhere in a wire arrives at its other end, ahead of what was sent before it."""
        chunk = self.wires[wire][at : at + size]
        del self.wires[wire][at : at + size]
        if wire == "up":  # the relay has it and acknowledges on its link: the sender's link forgets it
            self.wires["down"] += chunk
            return
        for item in chunk:
            if isinstance(item, Frame):
                self._arrive(item)
            else:
                self._hear(item)

    def break_direct(self) -> None:
        self.wires["direct"].clear()
        self._resend("up")

    def relay_dies(self, wire: str) -> None:
        """All it held is lost, acknowledged or not. Its subtree is re-parented, the senders send again."""
        self.wires["up"].clear()
        self.wires["down"].clear()
        self._resend(wire)

    def _resend(self, wire: str) -> None:
        for s, sender in enumerate(self.senders):
            for seq, call in sender.outbox.unacked():
                assert isinstance(call, Call)
                self.wires[wire].append(Frame(s, seq, call))

    # The receiver

    def _arrive(self, frame: Frame) -> None:
        receiver = self.receivers[frame.sender]
        if receiver.inbox.accept(frame.seq):
            ready: list[object] = [frame.call]
        else:
            ready = receiver.inbox.offer(frame.seq, frame.call)
        for call in ready:
            assert isinstance(call, Call)
            receiver.log.append(call)
            if call.tomb:
                self._consumed(frame.sender, call)
            else:
                receiver.mailbox.append(call)

    def run(self, s: int) -> bool:
        """The actor takes the next message of a sender, unless its epoch has not come yet."""
        mailbox = self.receivers[s].mailbox
        verdict = self.epochs.check(mailbox[0].epoch) if mailbox else FUTURE
        if verdict == FUTURE:
            return False
        call = mailbox.popleft()
        if verdict == DELIVER:
            self.receivers[s].ran.append(call)
        else:
            self.stale += 1
        self._consumed(s, call)
        return True

    def _consumed(self, s: int, call: Call) -> None:
        if self.receivers[s].credit.consumed(call.nbytes):
            self.tell(s, grant=True)

    def tell(self, s: int, grant: bool) -> None:
        receiver = self.receivers[s]
        told = receiver.credit.told() if grant else None
        self.wires["back"].append(Control(s, receiver.inbox.next_seq, told))

    def advance(self, epoch: int) -> None:
        self.epochs.advance(epoch)

    def _hear(self, control: Control) -> None:
        sender = self.senders[control.sender]
        sender.outbox.ack(control.upto)
        if control.told is not None:
            self._go(control.sender, sender.credit.granted(*control.told), "direct")

    # What must hold

    def check(self) -> None:
        for sender, receiver in zip(self.senders, self.receivers, strict=True):
            due = receiver.inbox.next_seq
            assert len(receiver.log) == due - 1, "a frame delivered twice or not at all"
            for seq, call in enumerate(receiver.log, start=1):
                assert call._replace(tomb=False) == sender.pushed[seq], "out of order"
                assert not call.tomb or seq in sender.tombs
            names = [call.name for call in receiver.log]
            assert names == sorted(set(names))
            ran = [call.name for call in receiver.ran]
            assert ran == sorted(set(ran)), "ran twice or out of order"
            assert not {call.name for call in receiver.log if call.tomb} & set(ran), "ran after its tombstone"
            assert sender.outbox.next_seq - sender.outbox.kept <= due, "freed before it was delivered"
            self._check_bounds(sender, receiver)

    def _check_bounds(self, sender: Sender, receiver: Receiver) -> None:
        stats = sender.credit.statistics()
        kept = [sender.pushed[seq].nbytes for seq, _ in sender.outbox.unacked() if seq not in sender.tombs]
        assert stats.parked_messages == len(sender.parked)
        assert stats.parked_bytes == sum(call.nbytes for call in sender.parked)
        assert sender.outbox.kept_bytes == sum(kept)
        largest = max(SIZES)
        assert 0 <= stats.outstanding_messages <= MESSAGES
        assert 0 <= stats.outstanding_bytes <= max(BYTES, (BYTES + 1) // 2 - 1 + largest)
        assert sender.outbox.kept <= stats.outstanding_messages, "kept, but not counted against the bound"
        assert sender.outbox.kept_bytes <= stats.outstanding_bytes
        assert stats.outstanding_messages + stats.parked_messages <= BOUND
        assert stats.parked_bytes <= BOUND_BYTES or len(sender.parked) == 1
        assert receiver.inbox.held + len(receiver.mailbox) <= MESSAGES, "more than the window at the receiver"

    def heal(self) -> None:
        """One break and resend after the last fault; from then on nothing is lost and all comes to rest.

        Grants go only when `consumed` asks for them, so this also shows that credit never deadlocks.
        """
        for wire in WIRES:
            self.wires[wire].clear()
        self.advance(max(sender.epoch for sender in self.senders))
        self._resend("direct")
        for s in range(SENDERS):
            self.tell(s, grant=True)
        for _ in range(4 * SENDERS * BOUND):
            for wire in WIRES:
                self.carry(wire, 0, len(self.wires[wire]))
            ran = [self.run(s) for s in range(SENDERS)]
            self.check()
            if not any(ran) and not any(self.wires.values()):
                break
        for s in range(SENDERS):
            self.tell(s, grant=False)
        self.carry("back", 0, SENDERS)
        for sender, receiver in zip(self.senders, self.receivers, strict=True):
            assert sender.outbox.kept == sender.outbox.kept_bytes == 0, "never acknowledged"
            assert not sender.parked and not receiver.mailbox and receiver.inbox.missing() is None
            assert len(receiver.log) == len(sender.pushed)
        assert self.epochs.refused == self.stale
        self.check()


senders = st.integers(0, SENDERS - 1)
routes = st.sampled_from(ROUTES)
wires = st.sampled_from(WIRES)
places = st.integers(0, 12)
sizes = st.integers(1, 6)


class Walk(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(s=senders, nbytes=st.sampled_from(SIZES), wire=routes, times=st.integers(1, 4))
    def call(self, s: int, nbytes: int, wire: str, times: int) -> None:
        for _ in range(times):
            self.world.call(s, nbytes, wire)

    @rule(s=senders, pick=st.integers(0, 6), wire=routes)
    def cancel(self, s: int, pick: int, wire: str) -> None:
        self.world.cancel(s, pick, wire)

    @rule(wire=wires, at=places, size=sizes, fault=st.sampled_from(("lose", "repeat")))
    def fault(self, wire: str, at: int, size: int, fault: str) -> None:
        getattr(self.world, fault)(wire, at, size)

    @rule(wire=wires, at=places | st.just(0), size=sizes)
    def carry(self, wire: str, at: int, size: int) -> None:
        self.world.carry(wire, at, size)

    @rule()
    def break_direct(self) -> None:
        self.world.break_direct()

    @rule(wire=routes)
    def relay_dies(self, wire: str) -> None:
        self.world.relay_dies(wire)

    @rule(s=senders, times=st.integers(1, 4))
    def run(self, s: int, times: int) -> None:
        for _ in range(times):
            self.world.run(s)

    @rule(s=senders, grant=st.booleans())
    def tell(self, s: int, grant: bool) -> None:
        self.world.tell(s, grant)

    @rule(s=senders)
    def new_epoch(self, s: int) -> None:
        self.world.new_epoch(s)

    @rule(epoch=st.integers(0, 3))
    def advance(self, epoch: int) -> None:
        self.world.advance(epoch)

    @invariant()
    def holds(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.heal()


def test_every_short_walk_keeps_the_promises() -> None:
    run_state_machine_as_test(
        Walk,
        settings=settings(derandomize=True, database=None, deadline=None, max_examples=300, stateful_step_count=50),
    )


def walk(seed: int, steps: int) -> World:
    """A long random walk, healing now and then, so that what was sent last also meets faults."""
    dice, world = random.Random(seed), World()
    who = partial(dice.randrange, SENDERS)
    route, wire = partial(dice.choice, ROUTES), partial(dice.choice, WIRES)
    moves: list[tuple[int, Callable[[], object]]] = [
        (30, lambda: world.call(who(), dice.choice(SIZES), route())),
        (10, lambda: world.cancel(who(), dice.randrange(3), route())),
        (12, lambda: world.lose(wire(), dice.randrange(6), dice.randrange(1, 4))),
        (6, lambda: world.repeat(wire(), dice.randrange(6), dice.randrange(1, 4))),
        (50, lambda: world.carry(wire(), dice.choice((0, 0, 3)), dice.randrange(1, 9))),
        (2, world.break_direct),
        (2, lambda: world.relay_dies(route())),
        (40, lambda: world.run(who())),
        (10, lambda: world.tell(who(), dice.random() < 0.5)),
        (2, lambda: world.new_epoch(who())),
        (4, lambda: world.advance(max(s.epoch for s in world.senders) - dice.randrange(2))),
        (1, world.heal),
    ]
    weights = [weight for weight, _ in moves]
    for _ in range(steps):
        dice.choices(moves, weights)[0][1]()
        world.check()
    world.heal()
    return world


@pytest.mark.parametrize("seed", range(4))
def test_a_long_walk_keeps_the_promises(seed: int) -> None:
    world = walk(seed, steps=3000)
    ran = sum(len(receiver.ran) for receiver in world.receivers)
    tombs = sum(call.tomb for receiver in world.receivers for call in receiver.log)
    assert ran > 100 and tombs > 5 and world.stale > 0, "the walk must reach what it is to show"
    assert any(receiver.inbox.duplicates for receiver in world.receivers)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_long_walks_keep_the_promises(seed: int) -> None:
    walk(seed, steps=6000)
