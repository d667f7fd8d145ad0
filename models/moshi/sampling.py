"""Choosing tokens: greedy, or at a temperature among the k likeliest, each session by itself.

The noise of a draw is a function of the session's seed, its frame, the stream and the token, so
what a session draws depends on no other session, and nothing but the frame has to be stored.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from duologue.models.moshi.streaming_state import StreamingState

# The multipliers of SplitMix64 (Steele et al. 2014, doi:10.1145/2660193.2660195) as int64.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


@dataclass(slots=True, eq=False)
class Sampling(StreamingState):
    """How each slot chooses; zeros are greedy.

    Temperatures: float32 ``[slots]``, at least 0; 0 is greedy. ``top_k``: int64 ``[slots]``;
    0 is all tokens. ``seed``: int64 ``[slots]``.
    """

    text_temperature: Tensor
    text_top_k: Tensor
    audio_temperature: Tensor
    audio_top_k: Tensor
    seed: Tensor

    @staticmethod
    def new(slots: int, device: torch.device | str = "cpu") -> "Sampling":
        def floats() -> Tensor:
            return torch.zeros(slots, device=device)

        def integers() -> Tensor:
            return torch.zeros(slots, dtype=torch.int64, device=device)

        return Sampling(floats(), integers(), floats(), integers(), integers())


def choose(
    logits: Tensor, temperature: Tensor, top_k: Tensor, seed: Tensor, frame: Tensor, stream: int
) -> Tensor:
    """Logits ``[slots, tokens]`` to tokens, int64 ``[slots]``; the rest is ``[slots]`` each.

    A draw is the largest of the logits with Gumbel noise, which has softmax's distribution.
    """
    logits = logits.float()
    greedy = logits.argmax(dim=-1)
    ranked = logits.sort(dim=-1, descending=True).values
    last = torch.where(top_k > 0, top_k, logits.shape[-1]).clamp(max=logits.shape[-1]) - 1
    least = ranked.gather(-1, last[:, None])
    allowed = torch.where(logits >= least, logits, -torch.inf)
    tokens = torch.arange(logits.shape[-1], device=logits.device)
    noise = gumbel(seed, frame, stream, tokens)
    scale = torch.where(temperature > 0, temperature, torch.ones_like(temperature))
    drawn = (allowed / scale[:, None] + noise).argmax(dim=-1)
    return torch.where(temperature > 0, drawn, greedy)


def gumbel(seed: Tensor, frame: Tensor, stream: int, tokens: Tensor) -> Tensor:
    """Noise float32 ``[slots, tokens]`` from ``seed`` and ``frame``, both ``[slots]``."""
    key = mix(mix(seed) + frame * 64 + stream)
    bits = mix(key[:, None] + tokens) >> 40 & 0xFFFFFF
    uniform = (bits.float() + 0.5) / 2**24
    return cast(Tensor, -torch.log(-torch.log(uniform)))


def mix(x: Tensor) -> Tensor:
    """SplitMix64's finalizer; int64 arithmetic wraps around, and shifts must not drag signs."""
    x = x + _GOLDEN
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * _FIRST
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * _SECOND
    return x ^ (x >> 31 & (1 << 33) - 1)
