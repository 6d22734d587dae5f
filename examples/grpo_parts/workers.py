"""The actors of the run: trainers, generators, a reward model that is the dataset's own verifier.

controller --groups--> Trainer x 2 (gloo all-reduce)  --publishes--> WeightSource in trainer 0's memory
controller --prompts--> Generator x 2  --pulls, one-sided--^   --completions--> Reward x 2 --scores--> Generator
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from roost import Actor, Port, current_rank, endpoint
from roost.rdma.weights import WeightSource

from .config import RunConfig
from .grpo import Metrics, anneal, make_optimizer, train_step
from .model import Transformer
from .records import Group, make_groups
from .sampler import greedy_accuracy, sample
from .task import Item, score, split
from .warmup import warm_up


def make_model(config: RunConfig, device: str) -> Transformer:
    """The model; the same weights wherever it is made with one seed."""
    torch.manual_seed(config.seed)
    return Transformer(config.model).to(device)


def staged_all_reduce(tensor: torch.Tensor) -> None:
    """Sum over ranks that share one GPU: gloo adds on the CPU."""
    staged = tensor.cpu()
    dist.all_reduce(staged)
    tensor.copy_(staged)


class Trainer(Actor):
    """One data-parallel rank of the policy. Rank 0 publishes the weights after each step."""

    def __init__(self, config: RunConfig, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.config, self.device = config, device
        self.rank, self.world = current_rank().rank, current_rank().extent.nelements
        self.model = make_model(config, device)
        self.optimizer = make_optimizer(self.model, config)
        self.reference: Transformer | None = None
        self.step_number = 0
        self.source = WeightSource(self.model.state_dict()) if self.rank == 0 else None

    @endpoint
    def warm_up(self, progress: Port[tuple[int, float]]) -> float:
        """The supervised start; rank 0 tells its progress."""
        items, _ = split(self.config.task)

        def tell(step: int, loss: float) -> None:
            if self.rank == 0 and step % 10 == 0:
                progress.send((step, loss))

        loss = warm_up(self.model, items, self.config, self.rank, self.world, self._reduce(), tell)
        self._keep_reference()
        return loss

    def _keep_reference(self) -> None:
        if self.config.kl_coef:
            self.reference = Transformer(self.config.model).to(self.device)
            self.reference.load_state_dict(self.model.state_dict())

    def _reduce(self) -> Any:
        if self.world == 1:
            return None
        return dist.all_reduce if dist.get_backend() == "nccl" or self.device == "cpu" else staged_all_reduce

    @endpoint
    def publish(self) -> WeightSource | None:
        """The source that generators pull from, with the present weights in it."""
        if self.source is not None:
            self.source.publish(self.model.state_dict(), self.step_number)
        return self.source

    @endpoint
    def step(self, groups: Sequence[Group]) -> tuple[Metrics, float]:
        """One optimizer step on this rank's share of the groups, published as the next version; with its seconds."""
        begin = time.perf_counter()
        anneal(self.optimizer, self.step_number, self.config)
        total = sum(group.count for group in groups)
        mine = groups[self.rank :: self.world]
        metrics = train_step(self.model, self.optimizer, mine, total, self.config, self._reduce(), self.reference)
        self.step_number += 1
        if self.source is not None:
            self.source.publish(self.model.state_dict(), self.step_number)
        return metrics, time.perf_counter() - begin

    @endpoint
    def evaluate(self) -> float:
        """Greedy accuracy on the held-out items."""
        _, held_out = split(self.config.task)
        items = held_out[: self.config.eval_items]
        return greedy_accuracy(self.model, self.config.task, items, self.config.max_new_tokens)

    @endpoint
    def save(self) -> dict[str, Any]:
        """What a checkpoint holds of this rank; all ranks hold the same."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step_number}
        return state | {"reference": self.reference.state_dict() if self.reference is not None else None}

    @endpoint
    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step_number = state["step"]
        self._keep_reference()
        if self.reference is not None and state["reference"] is not None:
            self.reference.load_state_dict(state["reference"])


@dataclass(frozen=True, slots=True)
class Rollout:
    """What a generator gives back: scored groups, all of one version, and what the weights' pull took."""

    groups: list[Group]
    version: int
    pull_ms: float | None  # None where the weights were new enough
    seconds: float


class Generator(Actor):
    """Samples completions with weights that it pulls from the trainer's memory."""

    def __init__(
        self, config: RunConfig, device: str, threads: int, source: WeightSource, rewards: Any, seed: int
    ) -> None:
        torch.set_num_threads(threads)
        self.config, self.source, self.rewards = config, source, rewards
        self.model = make_model(config, device)
        self.state = self.model.state_dict()
        self.random = torch.Generator(device).manual_seed(seed + current_rank().rank)
        self.version = -1

    @endpoint
    def pid(self) -> int:
        """The process it lives in."""
        return os.getpid()

    @endpoint
    def pull(self) -> tuple[int, float | None]:
        """Bring the weights up to date; gives the version and, where it moved, the milliseconds."""
        begin = time.perf_counter()
        pulled = self.source.pull(self.state, newer_than=self.version)
        if pulled is None:
            return self.version, None
        self.version = pulled
        return pulled, 1e3 * (time.perf_counter() - begin)

    @endpoint
    def rollout(self, items: Sequence[Item]) -> Rollout:
        """Sample a group of completions for each item with the weights it holds, and have them scored."""
        begin = time.perf_counter()
        config = self.config
        prompts = [item.prompt for item in items]
        samples = sample(self.model, prompts, config.group, config.max_new_tokens, config.temperature, self.random)
        rewards = self.rewards.score.choose(items, samples.texts).get(timeout=60)
        groups = make_groups(items, samples, rewards, self.version)
        return Rollout(groups, self.version, None, time.perf_counter() - begin)


class Reward(Actor):
    """Scores completions with the dataset's own verifier."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        split(config.task)  # the dataset is made now, not at the first call

    @endpoint
    def score(self, items: Sequence[Item], completions: Sequence[str]) -> list[float]:
        """Points between 0 and 1; `completions` has the same number for each item, in order."""
        each = len(completions) // len(items)
        return [score(self.config.task, items[row // each], text) for row, text in enumerate(completions)]
