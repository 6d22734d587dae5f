"""A small decoder-only transformer (pre-norm, learnt positions) with a key-value cache for sampling.

Prompts of different length are padded on the LEFT, so that the last column of every row is its last
token and the next token's logits are those of the last column. Positions count from the first real
token of a row, and no real token sees a pad: the padding changes no logit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .task import PAD, VOCAB_SIZE


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes; the defaults make 0.6 M parameters."""

    vocab: int = VOCAB_SIZE
    layers: int = 3
    width: int = 128
    heads: int = 4
    context: int = 32  # longest row in tokens


@dataclass(slots=True)
class Cache:
    """Keys and values of the tokens so far: [B, heads, room, head width] for each layer.

    `real` [B, room] bool is False at pads, `used` counts the filled columns, and `position` [B] is the
    position that each row's next token will have.
    """

    keys: list[Tensor]
    values: list[Tensor]
    real: Tensor
    position: Tensor
    used: int

    def repeat(self, times: int) -> Cache:
        """Each row `times` times in place, so that a group of completions shares one prefill."""
        return Cache(
            [k.repeat_interleave(times, 0) for k in self.keys],
            [v.repeat_interleave(times, 0) for v in self.values],
            self.real.repeat_interleave(times, 0),
            self.position.repeat_interleave(times, 0),
            self.used,
        )


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and added to the stream [B, T, width]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of x [B, T, width], each [B, heads, T, head width]."""
        b, t, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        return q, k, v

    def mix(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """x after attention of q over k and v where `mask` is True, and after the feed-forward layer."""
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        hidden = F.gelu(self.up(self.norm2(x)), approximate="tanh")
        result: Tensor = x + self.down(hidden)
        return result


class Transformer(nn.Module):
    """tokens [B, T] int64, padded left with PAD, to logits [B, T, vocab] f32 of each next token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.width)
        self.place = nn.Embedding(config.context, config.width)
        blocks = [Block(config) for _ in range(config.layers)]
        self.blocks = cast(list[Block], nn.ModuleList(blocks))  # iterates and is indexed as a list
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab)
        # GPT-2's small start. From torch's embeddings of unit variance the model learnt its training sums by
        # heart and none of the held-out ones: 0 of 40 after 300 supervised steps on right answers, not 24.
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, 0.0, 0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.head.weight.device

    def forward(self, tokens: Tensor, real: Tensor | None = None) -> Tensor:
        """Logits of all columns. `real` [B, T] bool says which tokens are no pads (default: != PAD)."""
        x, mask, _ = self._start(tokens, real)
        for block in self.blocks:
            x = block.mix(x, *block.project(x), mask)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def prefill(self, prompts: Tensor, new_tokens: int) -> tuple[Tensor, Cache]:
        """Run prompts [B, P]; return next-token logits [B, vocab] and a cache with room for `new_tokens`."""
        x, mask, real = self._start(prompts, None)
        cache = Cache([], [], F.pad(real, (0, new_tokens)), real.sum(1), prompts.shape[1])
        for block in self.blocks:
            q, k, v = block.project(x)
            cache.keys.append(F.pad(k, (0, 0, 0, new_tokens)))
            cache.values.append(F.pad(v, (0, 0, 0, new_tokens)))
            x = block.mix(x, q, k, v, mask)
        return self.head(self.norm(x[:, -1])), cache

    def step(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Append one token a row, tokens [B], to `cache` in place; return next-token logits [B, vocab]."""
        x = (self.embed(tokens) + self.place(cache.position)).unsqueeze(1)
        here, cache.used = cache.used, cache.used + 1
        cache.real[:, here] = True
        cache.position += 1
        mask = cache.real[:, None, None, : cache.used]
        for block, keys, values in zip(self.blocks, cache.keys, cache.values, strict=True):
            q, k, v = block.project(x)
            keys[:, :, here], values[:, :, here] = k[:, :, 0], v[:, :, 0]
            x = block.mix(x, q, keys[:, :, : cache.used], values[:, :, : cache.used], mask)
        logits: Tensor = self.head(self.norm(x[:, 0]))
        return logits

    def _start(self, tokens: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The embedded tokens, the attention mask [B, 1, T, T] and `real`."""
        real = tokens != PAD if real is None else real
        length = tokens.shape[1]
        if length > self.config.context:
            raise ValueError(f"a row of {length} tokens, but the context is {self.config.context}")
        position = (real.cumsum(1) - 1).clamp_(min=0)
        causal = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        # A pad sees itself, or its softmax over nothing would be NaN.
        mask = (causal & real[:, None, :]) | torch.eye(length, dtype=torch.bool, device=tokens.device)
        return self.embed(tokens) + self.place(position), mask[:, None], real
