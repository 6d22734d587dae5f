"""GRPO on tensors: advantages within a group, the clipped loss, one data-parallel step.

Sources:
- GRPO, advantages and objective: DeepSeekMath, arXiv:2402.03300, section 4.1, equations 3 and 4.
- Clipped ratio: PPO, arXiv:1707.06347, equation 7. Here the ratio is to the policy that *sampled*, which
  may be some versions old, so the clip also bounds what staleness can do.
- The mean is over the tokens of the whole batch, not over each completion first, so that long
  completions weigh by their length: DAPO, arXiv:2503.14476, section 3.3; so are unequal clip bounds, 3.1.
- KL estimator "k3": J. Schulman, "Approximating KL divergence", joschu.net/blog/kl-approx.html (2020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .config import RunConfig
from .model import Transformer
from .records import Group
from .sampler import pad_left
from .task import PAD

Reduce = Callable[[Tensor], object]  # sums a tensor over the data-parallel ranks, in place


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups of one rank, padded to one shape: B rows of P prompt tokens and T sampled ones."""

    prompts: Tensor  # [B, P] int64, PAD on the left
    tokens: Tensor  # [B, T] int64, PAD on the right
    mask: Tensor  # [B, T] bool
    behaviour: Tensor  # [B, T] f32, log-probabilities under the sampling policy
    advantages: Tensor  # [B] f32

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        return Batch(*(getattr(self, field.name).to(device) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Metrics:
    """Means over the tokens of the global batch; the same on every rank."""

    loss: float
    clip_fraction: float  # tokens whose ratio was clipped
    kl_behaviour: float  # KL(sampling policy || this one), k3
    kl_reference: float  # KL(this policy || reference), k3; 0 without a reference
    entropy: float  # nats, of the policy's next-token distribution
    grad_norm: float  # before clipping


def group_advantages(rewards: Tensor, eps: float = 1e-4) -> Tensor:
    """(r - mean) / (std + eps) of rewards [N, G] within each group; a group of equal rewards gets zeros.

    >>> group_advantages(torch.tensor([[1.0, 0.0, 0.0, 1.0]]))
    tensor([[ 0.8659, -0.8659, -0.8659,  0.8659]])
    """
    centred = rewards - rewards.mean(1, keepdim=True)
    return centred / (rewards.std(1, keepdim=True) + eps)


def collate(groups: Sequence[Group]) -> Batch:
    """One batch of `groups`, whose prompts and completions may differ in length."""
    width = max(group.tokens.shape[1] for group in groups)

    def stack(parts: list[Tensor]) -> Tensor:
        return torch.cat([torch.nn.functional.pad(p, (0, width - p.shape[1])) for p in parts])

    sizes = torch.tensor([len(group.rewards) for group in groups])
    return Batch(
        pad_left([group.item.prompt for group in groups]).repeat_interleave(sizes, 0),
        stack([group.tokens for group in groups]),
        stack([group.mask for group in groups]),
        stack([group.logprobs for group in groups]),
        torch.cat([group_advantages(group.rewards[None])[0] for group in groups]),
    )


def token_logprobs(model: Transformer, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability of each sampled token and entropy of its distribution, both [B, T] f32."""
    rows = torch.cat([batch.prompts, batch.tokens], 1)[:, :-1]
    real = torch.cat([batch.prompts != PAD, batch.mask], 1)[:, :-1]
    logits = model(rows, real)[:, batch.prompts.shape[1] - 1 :]
    distribution = torch.log_softmax(logits / temperature, -1)
    picked = distribution.gather(-1, batch.tokens[..., None])[..., 0]
    return picked, -(distribution.exp() * distribution).sum(-1)


def kl_k3(logprobs: Tensor, other: Tensor) -> Tensor:
    """Estimate of KL(p || q) for each x drawn from p: q/p - 1 - log(q/p), never negative.

    `logprobs` and `other` are log p(x) and log q(x) of the same tokens.
    """
    log_ratio = other - logprobs
    return torch.expm1(log_ratio) - log_ratio


def clipped_objective(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """min(r A, clip(r, 1 - low, 1 + high) A) of each token, and where the clip is what counts."""
    plain = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return torch.minimum(plain, clipped), clipped < plain


def grpo_loss(
    logprobs: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    mask: Tensor,
    total_tokens: int,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    reference: Tensor | None = None,
    kl_coef: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """This rank's part of the loss and of three metrics [clipped, KL behaviour, KL reference].

    logprobs, behaviour, mask (and reference) are [B, T], advantages [B]. Everything is a sum over this
    rank's tokens divided by `total_tokens`, the count over *all* ranks: the sum over ranks of losses,
    gradients and metrics is then the mean over all tokens, however unequal the ranks' shares are (a mean
    of per-rank means would not be).
    """
    weight = mask.float() / total_tokens
    ratio = torch.exp(logprobs - behaviour)
    objective, clipped = clipped_objective(ratio, advantages[:, None], clip_low, clip_high)
    kl = torch.zeros_like(logprobs) if reference is None else kl_k3(logprobs, reference)
    loss = ((kl_coef * kl - objective) * weight).sum()
    with torch.no_grad():
        kl_behaviour = kl_k3(behaviour, logprobs)
        parts = torch.stack([(x * weight).sum() for x in (clipped.float(), kl_behaviour, kl)])
    return loss, parts


def reduce_and_step(
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    max_norm: float,
    extra: Tensor,
    reduce: Reduce | None,
) -> tuple[float, Tensor]:
    """Sum gradients and `extra` [K] over ranks in one call of `reduce`, clip, step; (norm, extra).

    One flat tensor, because 2 MB in one all-reduce cost less than 40 small ones. Ranks that start from
    equal weights stay bit-equal: all apply the same sum.
    """
    parameters = [p for p in model.parameters() if p.grad is not None]
    if reduce is not None:
        flat = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None] + [extra])
        reduce(flat)
        *grads, extra = flat.split([p.numel() for p in parameters] + [len(extra)])
        for p, grad in zip(parameters, grads, strict=True):
            p.grad = grad.view_as(p)
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(norm), extra


def make_optimizer(model: Transformer, config: RunConfig) -> torch.optim.AdamW:
    """AdamW; its second moment remembers 50 steps, not torch's 1,000, which is longer than a run."""
    return torch.optim.AdamW(model.parameters(), config.lr, betas=(0.9, 0.98), weight_decay=config.weight_decay)


def anneal(optimizer: torch.optim.Optimizer, step: int, config: RunConfig) -> float:
    """Set the learning rate of `step` (from 0), falling linearly to `config.lr_final` of it; return it."""
    share = min(step / max(config.steps - 1, 1), 1.0)
    rate = config.lr * (1 - share * (1 - config.lr_final))
    for parameters in optimizer.param_groups:
        parameters["lr"] = rate
    return rate


def train_step(
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    groups: Sequence[Group],
    total_tokens: int,
    config: RunConfig,
    reduce: Reduce | None = None,
    reference: Transformer | None = None,
) -> Metrics:
    """One optimizer step on this rank's `groups`; `total_tokens` is the sum of `group.count` over all ranks.

    With `reduce`, every rank calls this for the same step and ends with the same weights.
    """
    batch = collate(groups).to(model.device)
    logprobs, entropy = token_logprobs(model, batch, config.temperature)
    held = None
    if reference is not None and config.kl_coef:
        with torch.no_grad():
            held, _ = token_logprobs(reference, batch, config.temperature)
    loss, parts = grpo_loss(
        logprobs,
        batch.behaviour,
        batch.advantages,
        batch.mask,
        total_tokens,
        config.clip_low,
        config.clip_high,
        held,
        config.kl_coef,
    )
    loss.backward()
    mean_entropy = (entropy.detach() * batch.mask).sum() / total_tokens
    extra = torch.cat([loss.detach()[None], parts, mean_entropy[None]])
    norm, extra = reduce_and_step(model, optimizer, config.max_grad_norm, extra, reduce)
    total, clipped, kl_behaviour, kl_reference, nats = extra.tolist()
    return Metrics(total, clipped, kl_behaviour, kl_reference, nats, norm)
