"""A short supervised start, so that reinforcement has some right answers to reward.

Part of the answers is replaced by random numbers. The model learns the form of an answer and something of
the sums, and because it imitates the wrong answers too, most of its samples are wrong: rewards start below
0.4, and what they gain later comes from GRPO alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import RunConfig
from .grpo import Reduce, reduce_and_step
from .model import Transformer
from .sampler import pad_left
from .task import EOS, PAD, Item, encode


def noisy_answer(item: Item, noise: float, rng: random.Random) -> str:
    """The item's answer, or with probability `noise` any number from -99 to 199."""
    return str(rng.randint(-99, 199)) if rng.random() < noise else item.answer


def supervised_batch(items: Sequence[Item], noise: float, rng: random.Random) -> tuple[Tensor, Tensor]:
    """Prompts [B, P] padded left and answers [B, T] with EOS, padded right, both int64."""
    answers = [[*encode(noisy_answer(item, noise, rng)), EOS] for item in items]
    width = max(map(len, answers))
    padded = torch.tensor([answer + [PAD] * (width - len(answer)) for answer in answers])
    return pad_left([item.prompt for item in items]), padded


def warm_up(
    model: Transformer,
    items: Sequence[Item],
    config: RunConfig,
    rank: int = 0,
    world_size: int = 1,
    reduce: Reduce | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> float:
    """Train on noisy answers for `config.warmup_steps`; return the last loss (mean nats a token).

    All ranks draw the same batch from `config.seed` and each takes every world_size-th row of it.
    """
    rng = random.Random(config.seed)
    optimizer = torch.optim.AdamW(model.parameters(), config.warmup_lr)
    mean = float("nan")
    for step in range(config.warmup_steps):
        chosen = rng.choices(items, k=config.warmup_batch)
        prompts, answers = supervised_batch(chosen, config.warmup_noise, rng)
        total = int((answers != PAD).sum())
        prompts, answers = (part[rank::world_size].to(model.device) for part in (prompts, answers))
        logits = model(torch.cat([prompts, answers], 1)[:, :-1])[:, prompts.shape[1] - 1 :]
        losses = F.cross_entropy(logits.flatten(0, 1), answers.flatten(), ignore_index=PAD, reduction="sum")
        (losses / total).backward()
        part = losses.detach()[None] / total
        _, summed = reduce_and_step(model, optimizer, config.max_grad_norm, part, reduce)
        mean = float(summed)
        if on_step is not None:
            on_step(step + 1, mean)
    return mean
