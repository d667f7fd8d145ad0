"""The transformer over the codebooks of one frame (Défossez et al. 2024, arXiv:2410.00037, 3.4).

Step ``k`` sees the frame's hidden state and the text or code before it, and gives the logits of
codebook ``k``. Every step has weights of its own. Nothing is carried to the next frame.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from duologue.models.moshi.moshi_config import DepthConfig, MoshiConfig
from duologue.models.moshi.transformer import GatedMlp, make_norm, split_heads

Choose = Callable[[Tensor, int], Tensor]
"""Logits ``[slots, card]`` of a codebook to its codes, int64 ``[slots]``."""

NO_TOKEN = -1
"""Stands where a stream has no input: its embedding is zero."""


class TokenEmbedding(nn.Embedding):
    """``low_rank``: a narrow table, projected."""

    def __init__(self, tokens: int, dim: int, low_rank: int | None = None) -> None:
        super().__init__(tokens, low_rank or dim)
        self.low_rank = None if low_rank is None else nn.Linear(low_rank, dim, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 ``[…]`` to ``[…, dim]``."""
        y = super().forward(tokens.clamp(min=0))
        y = torch.where((tokens == NO_TOKEN)[..., None], torch.zeros_like(y), y)
        return y if self.low_rank is None else self.low_rank(y)


class DepthLayer(nn.Module):
    def __init__(self, config: DepthConfig) -> None:
        super().__init__()
        dim, sets = config.d_model, len(config.hidden)
        inner = dim + 2 * dim // config.kv_repeat
        self.config = config
        self.in_projs = nn.ModuleList([nn.Linear(dim, inner, bias=False) for _ in range(sets)])
        self.out_projs = nn.ModuleList([nn.Linear(dim, dim, bias=False) for _ in range(sets)])
        self.gating = nn.ModuleList([GatedMlp(dim, hidden) for hidden in config.hidden])
        self.norm1 = make_norm(config.norm, dim)
        self.norm2 = make_norm(config.norm, dim)

    def forward(self, x: Tensor, weights: int, earlier: list[tuple[Tensor, Tensor]]) -> Tensor:
        """``[slots, 1, dim]`` to the same; appends this step's key and value to ``earlier``."""
        config = self.config
        projected = self.in_projs[weights](self.norm1(x))
        q, k, v = split_heads(projected, config.num_heads, config.kv_repeat)
        if config.kv_repeat > 1:
            k = k.repeat_interleave(config.kv_repeat, dim=1)
            v = v.repeat_interleave(config.kv_repeat, dim=1)
        earlier.append((k, v))
        keys = torch.cat([key for key, _ in earlier], dim=2)
        values = torch.cat([value for _, value in earlier], dim=2)
        y = functional.scaled_dot_product_attention(q, keys, values)
        x = x + self.out_projs[weights](y.transpose(1, 2).flatten(-2))
        return x + self.gating[weights](self.norm2(x))


class DepthTransformer(nn.Module):
    def __init__(self, config: MoshiConfig) -> None:
        super().__init__()
        depth = config.depth
        dim, steps = depth.d_model, config.agent_codebooks
        self.schedule = depth.schedule
        inputs = len(depth.hidden) if depth.multi_linear else 1
        self.inputs = nn.ModuleList(
            [nn.Linear(config.temporal.d_model, dim, bias=False) for _ in range(inputs)]
        )
        self.text_emb = TokenEmbedding(config.text_card + 1, dim, depth.low_rank)
        self.emb = nn.ModuleList(
            [TokenEmbedding(config.card + 1, dim, depth.low_rank) for _ in range(steps - 1)]
        )
        self.layers = nn.ModuleList([DepthLayer(depth) for _ in range(depth.num_layers)])
        self.norms = nn.ModuleList(
            [
                nn.Identity() if depth.final_norm is None else make_norm(depth.final_norm, dim)
                for _ in range(steps)
            ]
        )
        self.linears = nn.ModuleList(
            [nn.Linear(dim, config.card, bias=config.bias_proj) for _ in range(steps)]
        )

    def forward(self, hidden: Tensor, text: Tensor, choose: Choose) -> Tensor:
        """A frame's hidden state ``[slots, d_model]`` and text ``[slots]`` to its codes
        ``[slots, steps]``; what ``choose`` says goes into the next step."""
        earlier: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.layers]
        token, codes = text, []
        for step, weights in enumerate(self.schedule):
            project = self.inputs[weights if len(self.inputs) > 1 else 0]
            embed = self.text_emb if step == 0 else self.emb[step - 1]
            x = (project(hidden) + embed(token))[:, None]
            for layer, steps in zip(self.layers, earlier, strict=True):
                x = layer(x, weights, steps)
            token = choose(self.linears[step](self.norms[step](x[:, 0])), step)
            codes.append(token)
        return torch.stack(codes, dim=1)
