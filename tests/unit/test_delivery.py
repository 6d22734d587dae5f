"""Promises of the parts that order, keep and bound frames. Their interplay: test_delivery_model.py."""

from __future__ import annotations

import doctest
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.actors.wire import delivery
from roost.actors.wire.delivery import (
    BUSY,
    DELIVER,
    FUTURE,
    SEND,
    STALE,
    WAIT,
    CreditReceiver,
    CreditSender,
    Epochs,
    Inbox,
    Outbox,
    expand,
    run_lengths,
)
from roost.actors.wire.errors import ProtocolError

deterministic = settings(derandomize=True, database=None, deadline=None, max_examples=100)


def test_docstring_examples_are_true() -> None:
    outcome = doctest.testmod(delivery)
    assert outcome.attempted and not outcome.failed


class TestOutbox:
    def test_numbers_are_contiguous_from_one(self) -> None:
        box = Outbox()
        assert [box.push(name, 1) for name in "abc"] == [1, 2, 3]
        assert box.next_seq == 4 and box.kept == len(box) == 3

    def test_an_acknowledgement_frees_all_below_it_and_tells_the_bytes(self) -> None:
        box = Outbox()
        for nbytes in (1, 10, 100):
            box.push(nbytes, nbytes)
        assert box.ack(3) == 11
        assert box.unacked() == [(3, 100)] and box.kept_bytes == 100

    def test_stale_and_repeated_acknowledgements_are_harmless(self) -> None:
        box = Outbox()
        for _ in range(3):
            box.push(None, 1)
        assert [box.ack(upto) for upto in (3, 3, 1, 0, 4, 2)] == [2, 0, 0, 0, 1, 0]
        assert box.kept == box.kept_bytes == 0

    def test_an_acknowledgement_of_what_was_not_sent_is_refused_and_frees_nothing(self) -> None:
        box = Outbox("trainer-3")
        box.push("a", 1)
        with pytest.raises(ProtocolError, match=r"trainer-3 acknowledged frames below 3, .* is 2"):
            box.ack(3)
        assert box.unacked() == [(1, "a")]

    def test_a_tombstone_takes_the_place_of_its_frame_and_frees_its_bytes(self) -> None:
        box = Outbox()
        for name in "abc":
            box.push(name, 10)
        assert box.tombstone(2, "tomb")
        assert box.unacked() == [(1, "a"), (2, "tomb"), (3, "c")] and box.kept_bytes == 20
        assert box.ack(4) == 20

    def test_no_tombstone_for_what_is_acknowledged_and_none_for_what_was_never_pushed(self) -> None:
        box = Outbox()
        box.push("a", 10)
        box.push("b", 10)
        box.ack(2)
        assert not box.tombstone(1, "tomb") and box.unacked() == [(2, "b")]
        with pytest.raises(ValueError, match=r"frame 3 .* never pushed"):
            box.tombstone(3, "tomb")

    def test_its_repr_says_what_is_kept(self) -> None:
        box = Outbox("trainer-3")
        box.push("a", 10)
        assert repr(box) == "<Outbox to trainer-3: next 2, kept 1 (10 bytes)>"


class TestInbox:
    def test_frames_in_order_pass_at_once(self) -> None:
        box = Inbox()
        assert [box.accept(seq) for seq in (1, 2, 3)] == [True] * 3 and box.next_seq == 4

    def test_the_fast_path_leaves_duplicates_and_gaps_alone(self) -> None:
        box = Inbox()
        assert box.accept(1)
        assert not box.accept(1) and not box.accept(3) and box.next_seq == 2

    def test_the_fast_path_never_passes_by_held_frames(self) -> None:
        box = Inbox()
        assert box.offer(2, "b") == []
        assert not box.accept(1)
        assert box.offer(1, "a") == ["a", "b"] and box.next_seq == 3

    @deterministic
    @given(st.permutations(range(1, 9)), st.lists(st.integers(1, 8), max_size=8))
    def test_any_order_with_any_duplicates_comes_out_in_order_and_once(
        self, order: list[int], again: list[int]
    ) -> None:
        box = Inbox()
        out = [frame for seq in (*order[:4], *again, *order[4:], *again) for frame in box.offer(seq, seq)]
        assert out == list(range(1, 9))
        assert box.held == 0 and box.missing() is None and box.duplicates == 2 * len(again)

    def test_frames_held_beyond_a_gap_are_bounded(self) -> None:
        box = Inbox("trainer-3", limit=2)
        assert box.offer(2, "b") == box.offer(3, "c") == []
        with pytest.raises(ProtocolError, match="trainer-3 sent frame 4, but 1 is missing and 2 "):
            box.offer(4, "d")
        assert box.held == 2
        assert box.offer(3, "c") == []
        assert box.offer(1, "a") == ["a", "b", "c"]

    @pytest.mark.parametrize("seq", [0, -1])
    def test_numbers_below_one_are_refused(self, seq: int) -> None:
        with pytest.raises(ProtocolError, match="numbers start at 1"):
            Inbox().offer(seq, None)

    def test_it_names_the_first_gap(self) -> None:
        box = Inbox("trainer-3")
        assert box.missing() is None
        box.offer(9, None)
        box.offer(4, None)
        assert box.missing() == (1, 4)
        assert repr(box) == "<Inbox from trainer-3: next 1, waits for 1 to 3 with 2 held>"


class TestEpochs:
    def test_older_frames_are_refused_and_counted_newer_ones_wait_for_the_advance(self) -> None:
        epochs = Epochs(3)
        assert [epochs.check(e) for e in (2, 3, 4, 1)] == [STALE, DELIVER, FUTURE, STALE]
        assert epochs.refused == 2
        assert epochs.advance(4)
        assert [epochs.check(e) for e in (3, 4)] == [STALE, DELIVER] and epochs.refused == 3

    def test_an_epoch_never_goes_back(self) -> None:
        epochs = Epochs(3)
        assert not epochs.advance(3) and not epochs.advance(2) and epochs.current == 3


def parked(credit: CreditSender, item: object, nbytes: int) -> None:
    assert credit.admit(nbytes) == WAIT
    credit.park(item, nbytes)


class TestCreditSender:
    def test_messages_go_until_the_window_is_out_then_wait_then_are_refused(self) -> None:
        credit = CreditSender(messages=2, bytes=1000, bound=3, bound_bytes=1000)
        assert [credit.admit(1), credit.admit(1)] == [SEND, SEND]
        parked(credit, "third", 1)
        assert credit.admit(1) == BUSY
        stats = credit.statistics()
        assert (stats.outstanding_messages, stats.parked_messages, stats.refused) == (2, 1, 1)

    def test_the_byte_window_and_the_byte_bound_hold_as_well(self) -> None:
        credit = CreditSender(messages=100, bytes=100, bound=100, bound_bytes=150)
        assert credit.admit(60) == SEND
        parked(credit, "waits", 60)
        assert credit.admit(31) == BUSY
        parked(credit, "fits", 30)
        assert credit.statistics().parked_bytes == 90

    def test_a_message_never_overtakes_one_that_waits(self) -> None:
        credit = CreditSender(messages=100, bytes=100, bound=100, bound_bytes=1000)
        assert credit.admit(60) == SEND
        parked(credit, "large", 60)
        parked(credit, "small", 1)
        assert credit.granted(1, 60) == ["large", "small"]

    def test_counters_from_the_receiver_may_be_stale_and_repeated(self) -> None:
        credit = CreditSender(messages=2, bytes=100, bound=9, bound_bytes=1000)
        assert [credit.admit(5), credit.admit(5)] == [SEND, SEND]
        for item in "abc":
            parked(credit, item, 5)
        assert credit.granted(2, 10) == ["a", "b"]
        assert credit.granted(1, 5) == credit.granted(2, 10) == []
        assert credit.statistics().outstanding_messages == 2

    @pytest.mark.parametrize("counters", [(3, 10), (2, 11), (2, 4)])
    def test_impossible_counters_are_refused(self, counters: tuple[int, int]) -> None:
        credit = CreditSender(messages=2, bytes=100, bound=9, bound_bytes=1000)
        assert [credit.admit(5), credit.admit(5)] == [SEND, SEND]
        credit.granted(1, 5)
        with pytest.raises(ProtocolError, match="it was sent 2 of 10"):
            credit.granted(*counters)
        assert credit.statistics().outstanding_messages == 1

    def test_a_message_larger_than_the_window_goes_when_little_is_outstanding(self) -> None:
        credit = CreditSender(messages=9, bytes=100, bound=9, bound_bytes=10_000)
        assert credit.admit(50) == SEND
        parked(credit, "huge", 5000)
        assert credit.granted(1, 50) == ["huge"]
        parked(credit, "next", 1)
        assert credit.granted(2, 5050) == ["next"]

    def test_untold_consumption_never_blocks_a_large_message(self) -> None:
        sender = CreditSender(messages=9, bytes=100, bound=9, bound_bytes=1000)
        receiver = CreditReceiver(messages=9, bytes=100)
        assert sender.admit(49) == SEND
        assert not receiver.consumed(49), "the sender will not hear of it"
        assert sender.admit(100) == SEND

    def test_a_message_larger_than_the_bound_may_wait_alone(self) -> None:
        credit = CreditSender(messages=1, bytes=10, bound=9, bound_bytes=100)
        assert credit.admit(1) == SEND
        parked(credit, "huge", 1000)
        assert credit.admit(1000) == credit.admit(1) == BUSY
        assert credit.granted(1, 1) == ["huge"]

    def test_a_waiting_message_can_be_withdrawn_once(self) -> None:
        credit = CreditSender(messages=1, bytes=10, bound=9, bound_bytes=100)
        assert credit.admit(1) == SEND
        first, second = [1], [1]
        parked(credit, first, 1)
        parked(credit, second, 2)
        assert credit.withdraw(first) and not credit.withdraw(first)
        assert credit.statistics().parked_bytes == 2
        assert credit.granted(1, 1) == [second] and not credit.withdraw(second)

    def test_what_waited_behind_a_withdrawn_message_can_be_released(self) -> None:
        credit = CreditSender(messages=9, bytes=10, bound=9, bound_bytes=100)
        assert credit.admit(6) == SEND
        parked(credit, "large", 9)
        parked(credit, "small", 1)
        assert credit.release() == []
        assert credit.withdraw("large")
        assert credit.release() == ["small"]

    def test_parking_an_item_twice_is_a_mistake(self) -> None:
        credit = CreditSender(messages=1, bytes=10, bound=9, bound_bytes=100)
        credit.park("a", 1)
        with pytest.raises(ValueError, match="'a' waits for credit already"):
            credit.park("a", 1)

    def test_a_bound_below_the_window_limits_the_window(self) -> None:
        credit = CreditSender(messages=9, bytes=10, bound=1, bound_bytes=100)
        assert [credit.admit(1), credit.admit(1)] == [SEND, BUSY]

    def test_empty_windows_are_refused(self) -> None:
        with pytest.raises(ValueError, match="messages=0"):
            CreditSender(messages=0, bytes=1, bound=1, bound_bytes=1)
        with pytest.raises(ValueError, match="bytes=0"):
            CreditReceiver(messages=1, bytes=0)

    def test_its_repr_says_what_is_outstanding(self) -> None:
        credit = CreditSender(messages=2, bytes=10, bound=9, bound_bytes=100)
        credit.admit(3)
        assert repr(credit) == "<CreditSender: 1/2 messages and 3/10 bytes outstanding, 0 waiting>"


class TestCreditReceiver:
    def test_it_asks_for_a_grant_at_half_the_messages_or_half_the_bytes(self) -> None:
        credit = CreditReceiver(messages=5, bytes=100)
        assert [credit.consumed(1) for _ in range(3)] == [False, False, True]
        assert credit.told() == (3, 3)
        assert [credit.consumed(n) for n in (49, 1)] == [False, True]
        assert credit.told() == credit.told() == (5, 53)

    def test_it_asks_until_the_counters_were_told(self) -> None:
        credit = CreditReceiver(messages=1, bytes=100)
        assert credit.consumed(0) and credit.consumed(0)
        assert repr(credit) == "<CreditReceiver: consumed 2 (0 bytes), 2 untold>"


class TestCast:
    @deterministic
    @given(st.lists(st.integers(1, 3), max_size=40))
    def test_run_lengths_are_shortest_and_expand_to_the_same_numbers(self, seqs: list[int]) -> None:
        runs = run_lengths(seqs)
        assert expand(runs, len(seqs)) == seqs
        assert all(left[0] != right[0] for left, right in pairwise(runs))

    @pytest.mark.parametrize("runs", [[(1, 2)], [(1, 4)], [(1, 3), (2, 0)], [(1, -1), (1, 4)], [(1, 2**60)]])
    def test_runs_for_another_number_of_ranks_are_refused(self, runs: list[tuple[int, int]]) -> None:
        with pytest.raises(ProtocolError, match="cast to 3 ranks"):
            expand(runs, 3)

    @deterministic
    @given(st.lists(st.sets(st.integers(0, 3), min_size=1), max_size=30), st.randoms())
    def test_casts_and_direct_calls_share_one_order_per_rank(self, calls: list[set[int]], dice: random.Random) -> None:
        outboxes, inboxes = [Outbox() for _ in range(4)], [Inbox() for _ in range(4)]
        frames = []
        for call, ranks in enumerate(calls):
            seqs = [outboxes[rank].push(call, 1) for rank in sorted(ranks)]
            frames.append((call, ranks, run_lengths(seqs)))
        got: list[list[object]] = [[] for _ in range(4)]
        dice.shuffle(frames)
        for call, ranks, runs in frames:
            for rank, seq in zip(sorted(ranks), expand(runs, len(ranks)), strict=True):
                got[rank] += inboxes[rank].offer(seq, call)
        assert got == [[call for call, ranks in enumerate(calls) if rank in ranks] for rank in range(4)]
