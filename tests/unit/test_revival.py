"""What counts afresh when actors and processes are started anew: credit by life, calls by epoch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from roost.actors.epochs import EpochGate
from roost.actors.peer import Peer
from roost.actors.refs import ProcRef
from roost.actors.wire.delivery import SEND, WAIT, CreditReceiver, CreditSender


def window(size: int = 4) -> tuple[CreditSender, CreditReceiver]:
    return CreditSender(size, 1000, 100, 10_000), CreditReceiver(size, 1000)


def test_a_sender_that_was_out_of_credit_has_it_again_with_the_next_life() -> None:
    sender, receiver = window()
    assert [sender.admit(10) for _ in range(5)] == [SEND] * 4 + [WAIT]
    sender.park("waits", 10)
    receiver = CreditReceiver(4, 1000, receiver.life + 1)
    assert sender.granted(*receiver.told()) == ["waits"]
    assert [sender.admit(10) for _ in range(4)] == [SEND] * 3 + [WAIT]


def test_counters_of_an_earlier_life_change_nothing_any_more() -> None:
    sender, receiver = window()
    for _ in range(3):
        sender.admit(10)
        receiver.consumed(10)
    late = receiver.told()
    sender.granted(*CreditReceiver(4, 1000, 2).told())
    assert [sender.admit(10) for _ in range(5)] == [SEND] * 4 + [WAIT]
    assert sender.granted(*late) == [] and sender.statistics().outstanding_messages == 4


def test_what_was_on_its_way_between_two_lives_breaks_no_count() -> None:
    sender, receiver = window()
    for _ in range(3):
        sender.admit(10)
    receiver = CreditReceiver(4, 1000, 1)
    sender.granted(*receiver.told())
    for _ in range(3):  # they come to the actor that was spawned anew
        receiver.consumed(10)
    assert sender.granted(*receiver.told()) == []
    for _ in range(50):  # and it goes on for as long as one likes, with never more than two windows outstanding
        while sender.admit(7) == SEND:
            pass
        assert sender.statistics().outstanding_messages <= 8
        for _ in range(4):
            receiver.consumed(7)
        sender.granted(*receiver.told())
    assert sender.admit(7) == SEND


def test_a_new_account_takes_the_counters_of_an_old_actor_of_a_later_life() -> None:
    receiver = CreditReceiver(4, 1000, 1)
    for _ in range(500):
        receiver.consumed(10)
    sender, _ = window()
    sender.admit(10)
    assert sender.wants(*receiver.told()) and sender.granted(*receiver.told()) == []
    assert sender.statistics().outstanding_messages == 0


class Node:
    """What an EpochGate needs of one."""

    def __init__(self) -> None:
        self.ref: ProcRef | None = ProcRef(1, "here", "n", "h", "", 2, "", 3)
        self.name, self.host = "here", "h"
        self.delivered: list[str] = []
        self.answered: list[Any] = []
        self.deliver_call = lambda peer, rank, fields, body: self.delivered.append(fields[2])

    def post_quietly(self, peer: Peer, kind: int, envelope: bytes, body: Any, *, rank: int) -> None:
        self.answered.append((rank, body))

    def grant(self, peer: Peer, actor: int) -> None:
        """Nothing here waits for it."""


def call(method: str, flags: int = 1) -> list[Any]:
    return [None, 77, method, 5, flags, None, None]


def test_calls_of_an_older_epoch_are_refused_and_those_of_a_newer_one_wait() -> None:
    node = Node()
    gate, peer = EpochGate(node), Peer(9, "there")  # type: ignore[arg-type]
    gate.take(peer, 4, 2, call("old"), b"")
    assert gate.refused == 1 and [rank for rank, _ in node.answered] == [4]
    gate.take(peer, 0, 2, call("old broadcast", flags=0), b"")
    assert gate.refused == 2 and len(node.answered) == 1, "nobody waits for an answer"
    gate.take(peer, 0, 4, call("first"), b"")
    gate.take(peer, 0, 5, call("far"), b"")
    gate.take(peer, 0, 4, call("second"), b"")
    assert node.delivered == [] and gate.refused == 2
    gate.advance(4)
    assert node.delivered == ["first", "second"] and node.ref == replace(Node().ref, epoch=4)  # type: ignore[type-var]
    gate.advance(3)
    assert node.ref is not None and node.ref.epoch == 4, "never back"
    gate.advance(6)
    assert node.delivered == ["first", "second"] and gate.refused == 3, "the one for epoch 5 came too late"
