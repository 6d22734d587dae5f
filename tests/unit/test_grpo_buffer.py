"""The replay buffer admits by slots, hands out once, and loses nothing."""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import pytest

pytest.importorskip("torch")

import torch
from grpo_parts.buffer import ReplayBuffer
from grpo_parts.records import Group
from grpo_parts.task import Item


def items(*tickets: int) -> list[Item]:
    return [Item(ticket, ticket, "1 + 1 =", "2") for ticket in tickets]


def group(item: Item, version: int) -> Group:
    one = torch.ones(2, 1)
    return Group(item, version, one.long(), one.bool(), one, torch.ones(2))


def finish(buffer: ReplayBuffer, version: int, *tickets: int) -> None:
    for item in items(*tickets):
        assert buffer.put(group(item, version))


def tickets(groups: list[Group] | None) -> list[int]:
    assert groups is not None
    return [g.item.ticket for g in groups]


def test_room_is_the_slots_left_at_the_version_the_generator_holds() -> None:
    buffer = ReplayBuffer(batch=2, max_staleness=1)
    assert buffer.room(0) == 4
    buffer.start("a", items(0, 1, 2))
    assert buffer.room(0) == 1
    finish(buffer, 0, 0, 1)
    assert buffer.room(0) == 1  # accepted ones hold their slots as running ones do
    assert tickets(buffer.take(0)) == [0, 1]
    assert buffer.room(0) == 1  # consumed, but this generator has not pulled version 1
    assert buffer.room(1) == 3


def test_a_batch_is_taken_whole_or_not_at_all() -> None:
    buffer = ReplayBuffer(batch=2, max_staleness=0)
    buffer.start("a", items(0, 1))
    finish(buffer, 0, 0)
    assert buffer.take(0) is None
    finish(buffer, 0, 1)
    assert tickets(buffer.take(0)) == [0, 1]
    assert buffer.take(0) is None


def test_the_oldest_version_leaves_first_and_equals_in_order_of_arrival() -> None:
    buffer = ReplayBuffer(batch=2, max_staleness=2)
    buffer.start("a", items(0, 1, 2, 3))
    finish(buffer, 1, 3, 0)
    finish(buffer, 0, 2, 1)
    assert tickets(buffer.take(1)) == [2, 1]
    assert tickets(buffer.take(2)) == [3, 0]


def test_a_straggler_is_dropped_counted_and_its_prompt_returned_once() -> None:
    buffer = ReplayBuffer(batch=1, max_staleness=1)
    buffer.start("a", items(0, 1))
    finish(buffer, 2, 1)
    assert tickets(buffer.take(2)) == [1]
    finish(buffer, 0, 0)  # sampled at version 0, turns up at version 2
    room = buffer.room(2)
    assert buffer.take(2) is None
    assert buffer.statistics().dropped == 1
    assert buffer.room(2) == room + 1
    assert buffer.returned() == items(0)
    assert buffer.returned() == []


def test_a_lost_generator_frees_its_slots_and_its_late_groups_are_refused() -> None:
    buffer = ReplayBuffer(batch=3, max_staleness=0)
    buffer.start("a", items(0, 1))
    buffer.start("b", items(2))
    finish(buffer, 0, 0)
    assert buffer.release_running("a") == 1
    assert buffer.returned() == items(1)
    assert buffer.room(0) == 1
    assert not buffer.put(group(items(1)[0], 0))
    buffer.start("c", items(1))
    finish(buffer, 0, 1, 2)
    assert not buffer.put(group(items(1)[0], 0))  # the same rollout delivered twice
    assert tickets(buffer.take(0)) == [0, 1, 2]
    assert buffer.statistics().refused == 2


def test_one_prompt_cannot_run_twice_at_once() -> None:
    buffer = ReplayBuffer(batch=2, max_staleness=0)
    buffer.start("a", items(0))
    with pytest.raises(ValueError, match="prompt 0 is already running on a"):
        buffer.start("b", items(0))


def test_a_restored_buffer_keeps_waiting_groups_and_returns_running_prompts() -> None:
    buffer = ReplayBuffer(batch=2, max_staleness=1)
    buffer.start("a", items(0, 1, 2, 3))
    finish(buffer, 0, 0, 1, 2)
    buffer.take(0)
    restored = ReplayBuffer(batch=2, max_staleness=1)
    restored.load_state_dict(buffer.state_dict())
    assert restored.returned() == items(3)
    assert restored.statistics().waiting == 1
    assert restored.room(1) == buffer.room(1) + 1  # the running rollout's slot is free
    restored.start("new", items(3))
    finish(restored, 1, 3)
    assert tickets(restored.take(1)) == [2, 3]


@pytest.mark.parametrize("seed", range(20))
def test_staleness_is_bounded_and_each_ticket_consumed_at_most_once(seed: int) -> None:
    """Random generators that pull late, die and deliver late, against the two promises."""
    rng = random.Random(seed)
    batch, bound = rng.randint(1, 4), rng.randint(0, 2)
    buffer = ReplayBuffer(batch, bound)
    held = {"a": 0, "b": 0}  # version each generator holds
    running: dict[str, list[Group]] = {"a": [], "b": []}
    lost: list[Group] = []
    again: list[Item] = []
    version = drawn = 0
    consumed: list[int] = []
    for _ in range(600):
        name = rng.choice("ab")
        match rng.choice(["pull", "start", "start", "put", "put", "put", "take", "take", "die", "late"]):
            case "pull":
                held[name] = version
            case "start" if buffer.room(held[name]):
                again += buffer.returned()
                item = again.pop() if again else items(drawn)[0]
                drawn = max(drawn, item.ticket + 1)
                buffer.start(name, [item])
                running[name].append(group(item, held[name]))
            case "put" if running[name]:
                assert buffer.put(running[name].pop(0))
            case "take" if groups := buffer.take(version):
                assert all(0 <= version - g.version <= bound for g in groups)
                consumed += tickets(groups)
                version += 1
            case "die" if rng.random() < 0.3:
                assert buffer.release_running(name) == len(running[name])
                lost += running[name]
                running[name] = []
            case "late" if lost:
                known = {g.item.ticket for each in running.values() for g in each}
                late = lost.pop()
                assert late.item.ticket in known or not buffer.put(late)
            case _:
                pass
    assert len(consumed) == len(set(consumed)) == version * batch
    counts = buffer.statistics()
    open_tickets = {i.ticket for i in again + buffer.returned()} - set(consumed)
    assert drawn == len(consumed) + counts.waiting + counts.running + len(open_tickets)
    assert version > 5
