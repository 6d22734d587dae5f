"""The sums, their verifier, and the cursor that deals them."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import pytest

pytest.importorskip("reasoning_gym")

from grpo_parts.task import EOS, PAD, Item, PromptCursor, TaskConfig, decode, encode, score, split

TASK = TaskConfig(pool=2_000)


def test_text_survives_the_tokenizer_up_to_eos() -> None:
    assert encode("3 +") == [5, 15, 12]
    assert decode([*encode("-12"), EOS, *encode("9"), PAD]) == "-12"
    assert decode([PAD, *encode("7")]) == "?7"


def test_no_prompt_is_both_trained_on_and_held_out() -> None:
    train, held = split(TASK)
    trained = {item.prompt for item in train}
    assert not trained & {item.prompt for item in held}
    assert len({item.prompt for item in held}) == len(held) == 40
    assert len(trained) == 160


def test_prompts_fit_the_length_that_the_config_promises() -> None:
    task = TaskConfig(num_terms=3, max_digits=2, pool=2_000)
    train, held = split(task)
    assert max(len(item.prompt) for item in train + held) == task.prompt_chars == len("10 + 10 - 10 =")


@pytest.mark.parametrize(
    ("completion", "points"), [("7", 1.0), ("07", 1.0), ("17", 0.5), ("8", 0.0), ("", 0.0), ("?7", 0.5)]
)
def test_the_verifier_gives_points(completion: str, points: float) -> None:
    assert score(TASK, Item(0, 0, "3 + 4 =", "7"), completion) == points


def test_every_answer_of_the_dataset_gets_the_full_point() -> None:
    train, _ = split(TASK)
    assert all(score(TASK, item, item.answer) == 1.0 for item in islice(train, 200))


def test_a_restored_cursor_deals_the_same_items() -> None:
    cursor = PromptCursor(TASK, seed=3)
    cursor.requeue(cursor.take(5)[:2])
    state = cursor.state_dict()
    after = cursor.take(4)
    restored = PromptCursor(TASK, seed=3)
    restored.load_state_dict(state)
    assert restored.take(4) == after
    assert [item.ticket for item in after] == [0, 1, 5, 6]


def test_one_epoch_deals_each_item_once_and_the_next_in_another_order() -> None:
    cursor = PromptCursor(TASK, seed=0)
    size = len(split(TASK)[0])
    first, second = cursor.take(size), cursor.take(size)
    assert {i.index for i in first} == {i.index for i in second} == {i.index for i in split(TASK)[0]}
    assert [i.index for i in first] != [i.index for i in second]
    assert len({i.ticket for i in first + second}) == 2 * size
