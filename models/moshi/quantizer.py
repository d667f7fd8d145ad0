"""Mimi's split residual vector quantizer (Défossez et al. 2024, arXiv:2410.00037, 3.3).

The first codebook is distilled from a speech model and quantizes the latent by itself
(*semantic*); the others quantize it in turn, each what the one before left (*acoustic*).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from duologue.models.moshi.moshi_config import QuantizerConfig


class ResidualQuantizer(nn.Module):
    """``codebooks``: ``[levels, bins, dimension]``."""

    codebooks: Tensor

    def __init__(self, levels: int, config: QuantizerConfig) -> None:
        super().__init__()
        inside, outside = config.dimension, config.outer_dimension
        self.input_proj = nn.Conv1d(outside, inside, 1, bias=False)
        self.output_proj = nn.Conv1d(inside, outside, 1, bias=False)
        self.register_buffer("codebooks", torch.zeros(levels, config.bins, inside))

    def encode(self, latent: Tensor, levels: int) -> Tensor:
        """``[slots, outer_dimension, frames]`` to codes, int64 ``[slots, levels, frames]``."""
        rest = self.input_proj(latent).transpose(1, 2)
        codes = []
        for codebook in self.codebooks[:levels]:
            # |x - e|² without |x|², which is the same for every entry e.
            distance = codebook.square().sum(-1) - 2 * (rest @ codebook.T)
            nearest = distance.argmin(dim=-1)
            rest = rest - functional.embedding(nearest, codebook)
            codes.append(nearest)
        return torch.stack(codes, dim=1)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes ``[slots, levels, frames]`` to ``[slots, outer_dimension, frames]``."""
        total = functional.embedding(codes[:, 0], self.codebooks[0])
        for level in range(1, codes.shape[1]):
            total = total + functional.embedding(codes[:, level], self.codebooks[level])
        return self.output_proj(total.transpose(1, 2))


class SplitQuantizer(nn.Module):
    """A semantic and an acoustic quantizer of the same latent."""

    def __init__(self, config: QuantizerConfig) -> None:
        super().__init__()
        self.semantic_levels = config.n_q_semantic
        self.rvq_first = ResidualQuantizer(config.n_q_semantic, config)
        self.rvq_rest = ResidualQuantizer(config.n_q - config.n_q_semantic, config)

    def encode(self, latent: Tensor, levels: int) -> Tensor:
        """``[slots, outer_dimension, frames]`` to codes ``[slots, levels, frames]``."""
        codes = self.rvq_first.encode(latent, self.semantic_levels)
        acoustic_levels = levels - self.semantic_levels
        if acoustic_levels <= 0:
            return codes
        return torch.cat([codes, self.rvq_rest.encode(latent, acoustic_levels)], dim=1)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes ``[slots, levels, frames]`` to ``[slots, outer_dimension, frames]``."""
        latent = self.rvq_first.decode(codes[:, : self.semantic_levels])
        if codes.shape[1] > self.semantic_levels:
            latent = latent + self.rvq_rest.decode(codes[:, self.semantic_levels :])
        return latent
