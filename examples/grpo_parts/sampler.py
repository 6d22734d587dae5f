"""Completions for prompts, by sampling (rollouts) or greedily (evaluation).

Each prompt is run once and its cache repeated for its group, so a group of 16 costs one prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .model import Transformer
from .task import EOS, PAD, Item, TaskConfig, decode, encode, score


@dataclass(frozen=True, slots=True)
class Samples:
    """B = prompts x group completions; the rows of a prompt's group are adjacent."""

    prompts: Tensor  # [B, P] int64, PAD on the left
    tokens: Tensor  # [B, T] int64, PAD after EOS
    mask: Tensor  # [B, T] bool, True for sampled tokens, EOS with them
    logprobs: Tensor  # [B, T] f32, log-probability of each token under the policy that sampled it; 0 unmasked
    texts: list[str]

    @property
    def count(self) -> int:
        """Sampled tokens."""
        return int(self.mask.sum())


def pad_left(prompts: Sequence[str]) -> Tensor:
    """Token ids [len(prompts), longest] int64: pad_left(["1 =", "="]) is [[3, 15, 14], [0, 0, 14]]."""
    rows = [encode(prompt) for prompt in prompts]
    width = max(map(len, rows))
    return torch.tensor([[PAD] * (width - len(row)) + row for row in rows])


@torch.no_grad()
def sample(
    model: Transformer,
    prompts: Sequence[str],
    group: int,
    max_new_tokens: int,
    temperature: float,
    generator: torch.Generator | None = None,
) -> Samples:
    """Sample `group` completions for each prompt at `temperature`; 0 takes the likeliest token.

    What comes back is on the CPU, whatever the model's device. The log-probabilities are those of the
    distribution sampled from, log_softmax(logits / temperature) (of the plain logits when greedy). T is
    the longest completion, at most `max_new_tokens`; a row that
    reaches it has no EOS.
    """
    padded = pad_left(prompts).to(model.device)
    logits, cache = model.prefill(padded, max_new_tokens)
    logits, cache = logits.repeat_interleave(group, 0), cache.repeat(group)
    alive = torch.ones(len(logits), dtype=torch.bool, device=model.device)
    tokens, masks, logprobs = [], [], []
    for column in range(max_new_tokens):
        distribution = torch.log_softmax(logits / (temperature or 1.0), -1)
        if temperature > 0:
            picked = torch.multinomial(distribution.exp(), 1, generator=generator)
        else:
            picked = distribution.argmax(-1, keepdim=True)
        token = torch.where(alive, picked[:, 0], PAD)
        tokens.append(token)
        masks.append(alive)
        logprobs.append(torch.where(alive, distribution.gather(1, picked)[:, 0], 0.0))
        alive = alive & (token != EOS)
        if column + 1 == max_new_tokens or not alive.any():
            break
        logits = model.step(token, cache)
    stacked = torch.stack(tokens, 1).cpu()
    return Samples(
        padded.repeat_interleave(group, 0).cpu(),
        stacked,
        torch.stack(masks, 1).cpu(),
        torch.stack(logprobs, 1).cpu(),
        [decode(row) for row in stacked.tolist()],
    )


def greedy_accuracy(model: Transformer, task: TaskConfig, items: Sequence[Item], max_new_tokens: int) -> float:
    """Part of `items` whose greedy completion gets the full point."""
    texts = sample(model, [item.prompt for item in items], 1, max_new_tokens, 0.0).texts
    right = sum(score(task, item, text) == 1.0 for item, text in zip(items, texts, strict=True))
    return right / len(items)
