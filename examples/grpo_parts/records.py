"""What the parts hand to each other: a group of rollouts, and what happened in each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from .sampler import Samples
from .task import Item


@dataclass(frozen=True, slots=True)
class Group:
    """G completions of one prompt, sampled by the weights `version` and scored: the unit of the buffer."""

    item: Item
    version: int
    tokens: Tensor  # [G, T] int64, PAD after EOS
    mask: Tensor  # [G, T] bool, True for sampled tokens
    logprobs: Tensor  # [G, T] f32, under the policy that sampled them
    rewards: Tensor  # [G] f32

    @property
    def count(self) -> int:
        """Sampled tokens."""
        return int(self.mask.sum())

    def state_dict(self) -> dict[str, Any]:
        """Plain values and tensors, readable by `torch.load(weights_only=True)`."""
        state = {f.name: getattr(self, f.name) for f in fields(self)}
        return state | {"item": asdict(self.item)}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Group:
        return cls(**(state | {"item": Item(**state["item"])}))


def make_groups(items: Sequence[Item], samples: Samples, rewards: Sequence[float], version: int) -> list[Group]:
    """Cut `samples` of `items` (in their order) into one group an item; `rewards` has one a row.

    The tensors are copies: a view would drag the whole batch along whenever one group is sent.
    """
    size = len(samples.texts) // len(items)
    scores = torch.tensor(rewards, dtype=torch.float32)
    groups = []
    for index, item in enumerate(items):
        rows = slice(index * size, (index + 1) * size)
        parts = (samples.tokens[rows], samples.mask[rows], samples.logprobs[rows], scores[rows])
        groups.append(Group(item, version, *(part.clone() for part in parts)))
    return groups


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One optimizer step, as the view and the plot show it."""

    step: int  # from 1
    seconds: float  # since the start of the run
    reward: float  # mean over the batch, 0 to 1
    staleness: float  # mean over the batch, in versions
    max_staleness: int  # the oldest group of the batch
    tokens_per_s: float  # sampled tokens trained on, a second
    trainer_idle: float  # part of the time the trainer waited for rollouts, 0 to 1
    generator_idle: float  # part of the time the generators waited for slots, 0 to 1
    pull_ms: float  # time of the latest weight pull by a generator
    loss: float = 0.0
    entropy: float = 0.0
    clip_fraction: float = 0.0
    kl: float = 0.0
    dropped: int = 0  # groups dropped as too stale, in all


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Greedy accuracy on the held-out items, 0 to 1, after `step` steps."""

    step: int
    accuracy: float


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth a line: "generator 1 was killed (SIGKILL); a fresh one is up at version 57"."""

    step: int
    text: str
