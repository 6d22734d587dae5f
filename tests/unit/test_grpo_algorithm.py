"""The loss against values worked by hand, its gradient's sign, and equality over ranks."""

from __future__ import annotations

import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import pytest

pytest.importorskip("torch")

import torch
from grpo_parts.config import RunConfig
from grpo_parts.grpo import collate, group_advantages, grpo_loss, kl_k3, token_logprobs, train_step
from grpo_parts.model import Transformer
from grpo_parts.records import Group, make_groups
from grpo_parts.sampler import sample
from grpo_parts.task import Item
from grpo_parts.warmup import warm_up

CONFIG = RunConfig(warmup_steps=3, warmup_batch=8)
ITEMS = [Item(0, 0, "3 + 4 =", "7"), Item(1, 1, "12 - 5 =", "7"), Item(2, 2, "1 - 1 =", "0")]


def fresh_model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(CONFIG.model)


def rollouts(model: Transformer) -> list[Group]:
    generator = torch.Generator().manual_seed(0)
    samples = sample(model, [item.prompt for item in ITEMS], 4, 6, 1.0, generator)
    rewards = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.5, 0.5, 0.0, 0.0]
    return make_groups(ITEMS, samples, rewards, version=3)


def test_advantages_compare_within_a_group_and_equal_rewards_give_none() -> None:
    advantages = group_advantages(torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]]))
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    torch.testing.assert_close(advantages[0], torch.tensor([1.0, -1.0, -1.0, 1.0]) * expected)
    assert advantages[1].tolist() == [0.0] * 4


def test_the_loss_is_the_one_worked_by_hand() -> None:
    # ratios: row 0 (A = 2): 1.5 clipped to 1.2, and 0.5 kept; row 1 (A = -1): 0.5 clipped to 0.8, 1.5 kept.
    ratio = torch.tensor([[1.5, 0.5, 9.0], [0.5, 1.5, 1.0]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    loss, parts = grpo_loss(
        ratio.log(), torch.zeros(2, 3), torch.tensor([2.0, -1.0]), mask, 5, clip_low=0.2, clip_high=0.2
    )
    assert loss.item() == pytest.approx(-(2 * 1.2 + 2 * 0.5 - 0.8 - 1.5 - 1.0) / 5)
    assert parts[0].item() == pytest.approx(2 / 5)  # clipped tokens
    ratios = [1.5, 0.5, 0.5, 1.5, 1.0]
    assert parts[1].item() == pytest.approx(sum(r - 1 - math.log(r) for r in ratios) / 5)


def test_the_gradient_raises_good_tokens_lowers_bad_ones_and_stops_at_the_clip() -> None:
    logprobs = torch.tensor([[0.0, 1.0], [0.0, -1.0]], requires_grad=True)
    advantages = torch.tensor([1.0, -1.0])
    loss, _ = grpo_loss(logprobs, torch.zeros(2, 2), advantages, torch.ones(2, 2, dtype=torch.bool), 4)
    loss.backward()
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, torch.tensor([[-0.25, 0.0], [0.25, 0.0]]))


def test_k3_is_unbiased_and_its_penalty_pulls_to_the_reference() -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
    exact = (p * (p / q).log()).sum()
    torch.testing.assert_close((p * kl_k3(p.log(), q.log())).sum(), exact)
    logprobs = torch.tensor([[-1.0]], requires_grad=True)
    mask = torch.ones(1, 1, dtype=torch.bool)
    loss, parts = grpo_loss(
        logprobs, logprobs.detach(), torch.zeros(1), mask, 1, reference=torch.tensor([[-3.0]]), kl_coef=0.1
    )
    loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(0.1 * (1 - math.exp(-2)))  # downhill is towards -3
    assert parts[2].item() == pytest.approx(math.exp(-2) + 2 - 1)


def test_fresh_weights_have_ratio_one_however_groups_are_padded() -> None:
    model = fresh_model()
    batch = collate(rollouts(model))
    assert batch.prompts.shape[1] == len("12 - 5 =")
    logprobs, entropy = token_logprobs(model, batch, 1.0)
    torch.testing.assert_close(logprobs * batch.mask, batch.behaviour, atol=1e-5, rtol=1e-5)
    assert entropy.max() <= math.log(CONFIG.model.vocab) + 1e-5


def test_two_ranks_with_unequal_shares_take_the_step_of_one() -> None:
    groups = rollouts(fresh_model())
    total = sum(group.count for group in groups)
    whole = fresh_model()
    optimizer = torch.optim.SGD(whole.parameters(), 1.0)
    metrics = train_step(whole, optimizer, groups, total, CONFIG)

    sent: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> None:  # a copy of what rank 0 would put into the all-reduce
        sent.append(tensor.clone())

    first, second = fresh_model(), fresh_model()
    train_step(first, torch.optim.SGD(first.parameters(), 1.0), groups[:1], total, CONFIG, keep)
    summed = train_step(
        second,
        torch.optim.SGD(second.parameters(), 1.0),
        groups[1:],
        total,
        CONFIG,
        lambda tensor: tensor.add_(sent[0]),
    )
    for one, two in zip(whole.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)
    assert summed.loss == pytest.approx(metrics.loss, abs=1e-6)
    assert summed.entropy == pytest.approx(metrics.entropy, abs=1e-5)
    assert summed.grad_norm == pytest.approx(metrics.grad_norm, rel=1e-4)


def test_steps_on_one_batch_raise_the_rewarded_completions() -> None:
    model = fresh_model()
    groups = rollouts(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(3):
        train_step(model, optimizer, groups, sum(group.count for group in groups), CONFIG)
    batch = collate(groups)
    change = ((token_logprobs(model, batch, 1.0)[0] - batch.behaviour) * batch.mask).sum(1)
    assert (change * batch.advantages).sum() > 0


def test_warm_up_is_the_same_on_two_ranks_as_on_one() -> None:
    whole = fresh_model()
    loss = warm_up(whole, ITEMS, CONFIG)
    flats: list[torch.Tensor] = []
    first_step = RunConfig(warmup_steps=1, warmup_batch=8)
    warm_up(fresh_model(), ITEMS, first_step, 0, 2, lambda tensor: flats.append(tensor.clone()))
    second = fresh_model()
    half = warm_up(second, ITEMS, first_step, 1, 2, lambda tensor: tensor.add_(flats[0]))
    again = warm_up(fresh_model(), ITEMS, first_step)
    assert half == pytest.approx(again, abs=1e-5)
    assert loss < again


def test_a_group_survives_its_state_dict() -> None:
    group = rollouts(fresh_model())[1]
    again = Group.from_state_dict(group.state_dict())
    assert again.item == group.item
    assert again.version == 3
    assert torch.equal(again.tokens, group.tokens)


@pytest.mark.parametrize(
    ("changes", "match"), [({"group": 1}, "nothing to compare"), ({"max_new_tokens": 40}, "context is 32")]
)
def test_a_config_that_cannot_work_is_refused(changes: dict[str, int], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        RunConfig(**changes)
