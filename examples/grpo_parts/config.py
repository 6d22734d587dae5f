"""All settings of a run in one frozen record."""

from __future__ import annotations

from dataclasses import dataclass, field

from .model import ModelConfig
from .task import TaskConfig


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Settings of a GRPO run; the defaults learn on two CPU cores in a few minutes.

    One step trains on `prompts * group` completions. Sampling and training are each done by `ranks`
    processes with one torch thread, so that four processes share two cores.
    """

    seed: int = 0
    task: TaskConfig = field(default_factory=TaskConfig)
    model: ModelConfig = field(default_factory=ModelConfig)

    # Supervised start: short and on answers of which a third is wrong, so that there is much left to learn.
    warmup_steps: int = 150
    warmup_batch: int = 128
    warmup_lr: float = 1e-3
    warmup_noise: float = 0.3

    # Sampling.
    prompts: int = 32  # prompts a step
    group: int = 8  # completions a prompt, compared with each other
    max_new_tokens: int = 6
    temperature: float = 1.0

    # Training.
    steps: int = 600
    lr: float = 3e-4
    lr_final: float = 0.1  # part of `lr` that is left at the last step, falling linearly
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0
    clip_low: float = 0.2  # a ratio below 1 - clip_low gives no further gradient
    clip_high: float = 0.28  # the upper bound is looser, as in DAPO (arXiv:2503.14476, section 3.1)
    kl_coef: float = 0.0  # weight of the KL to the reference policy; 0 spares its forward pass
    max_staleness: int = 1  # versions between the weights that sampled a group and those it trains

    # Evaluation.
    eval_items: int = 500  # at most so many held-out items

    def __post_init__(self) -> None:
        if self.group < 2:
            raise ValueError(f"a group of {self.group} has nothing to compare: use 2 or more")
        if self.max_staleness < 0:
            raise ValueError(f"max_staleness must be 0 or more, not {self.max_staleness}")
        need = self.task.prompt_chars + self.max_new_tokens
        if need > self.model.context:
            raise ValueError(
                f"the longest prompt and its completion take {need} tokens, the model's context is"
                f" {self.model.context}: raise ModelConfig.context or make the task easier"
            )

    @property
    def rows(self) -> int:
        """Completions a step."""
        return self.prompts * self.group
