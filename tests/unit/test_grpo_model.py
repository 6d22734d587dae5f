"""The cached path, padding, and the sampler agree with the plain forward pass."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import pytest

pytest.importorskip("torch")

import torch
from grpo_parts.model import ModelConfig, Transformer
from grpo_parts.sampler import pad_left, sample
from grpo_parts.task import EOS, PAD

PROMPTS = ["3 + 4 =", "10 - 99 =", "="]


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    made = Transformer(ModelConfig())
    with torch.no_grad():
        for parameter in made.parameters():  # away from the small start, so that differences would show
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return made


def test_the_default_model_has_600_thousand_parameters() -> None:
    assert sum(p.numel() for p in Transformer(ModelConfig()).parameters()) == 603_280


@torch.no_grad()
def test_cached_steps_give_the_logits_of_the_full_pass(model: Transformer) -> None:
    prompts = pad_left(PROMPTS)
    more = torch.randint(2, 16, (3, 5))
    full = model(torch.cat([prompts, more], 1))
    logits, cache = model.prefill(prompts, new_tokens=5)
    for column in range(5):
        torch.testing.assert_close(logits, full[:, prompts.shape[1] - 1 + column], atol=1e-5, rtol=0)
        logits = model.step(more[:, column], cache)
    torch.testing.assert_close(logits, full[:, -1], atol=1e-5, rtol=0)


@torch.no_grad()
def test_padding_on_the_left_changes_no_logit(model: Transformer) -> None:
    prompts = pad_left(PROMPTS)
    assert prompts.shape == (3, 9)
    assert (prompts[2] == PAD).sum() == 8
    for row, text in enumerate(PROMPTS):
        alone = model(pad_left([text]))[0]
        torch.testing.assert_close(model(prompts)[row, -len(text) :], alone, atol=1e-5, rtol=0)


@torch.no_grad()
def test_sampled_logprobs_are_those_of_the_full_pass(model: Transformer) -> None:
    samples = sample(model, PROMPTS, 4, 6, 0.7, torch.Generator().manual_seed(1))
    rows = torch.cat([samples.prompts, samples.tokens], 1)
    real = torch.cat([samples.prompts != PAD, samples.mask], 1)
    logits = model(rows, real)[:, samples.prompts.shape[1] - 1 : -1]
    full = torch.log_softmax(logits / 0.7, -1).gather(-1, samples.tokens[..., None])[..., 0]
    torch.testing.assert_close(samples.logprobs, full * samples.mask, atol=1e-5, rtol=1e-5)


def test_rows_of_a_group_share_a_prompt_and_end_at_eos(model: Transformer) -> None:
    samples = sample(model, PROMPTS, 16, 6, 1.0, torch.Generator().manual_seed(2))
    assert samples.tokens.dtype == torch.int64
    assert samples.logprobs.dtype == torch.float32
    assert torch.equal(samples.prompts, pad_left(PROMPTS).repeat_interleave(16, 0))
    for row, mask in zip(samples.tokens.tolist(), samples.mask.tolist(), strict=True):
        length = row.index(EOS) + 1 if EOS in row else len(row)
        assert mask == [True] * length + [False] * (len(row) - length)
        assert row[length:] == [PAD] * (len(row) - length)


def test_a_seed_gives_the_same_samples_and_another_seed_others(model: Transformer) -> None:
    one, again, other = (
        sample(model, PROMPTS, 8, 6, 1.0, torch.Generator().manual_seed(seed)).texts for seed in (5, 5, 6)
    )
    assert one == again != other


def test_greedy_takes_the_likeliest_token(model: Transformer) -> None:
    samples = sample(model, PROMPTS, 1, 1, 0.0)
    assert torch.equal(samples.tokens[:, 0], model(pad_left(PROMPTS))[:, -1].argmax(-1))


def test_a_row_longer_than_the_context_is_refused(model: Transformer) -> None:
    with pytest.raises(ValueError, match="a row of 33 tokens, but the context is 32"):
        model(torch.ones(1, 33, dtype=torch.int64))
