"""A causal transformer whose steps arrive one or a few at a time, with a ring of keys.

Once a session is older than the window, a new key takes the place of the oldest; positions go
on counting (RoPE depends on differences alone, Su et al. 2021, arXiv:2104.09864).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from duologue.models.moshi.moshi_config import Norm, TransformerConfig
from duologue.models.moshi.paged_kv import PagedState, PagePool, attend, new_state, ring_pages
from duologue.models.moshi.ranks import Peers, Summed
from duologue.models.moshi.streaming_state import StreamingState, update


@dataclass(slots=True, eq=False)
class RingKv(StreamingState):
    """Keys and values of one layer, ``[slots, heads, places, channels]``.

    Place ``p % places`` holds position ``p``. What an empty slot holds is never looked at.
    """

    keys: Tensor
    values: Tensor

    def reset(self, slots: Tensor) -> None:
        """Nothing: a slot's offset says which places are its own."""

    def tensors_of(self, slot: int) -> Iterator[Tensor]:
        """Nothing: a layer can't tell by itself what was written."""
        return iter(())


@dataclass(slots=True, eq=False)
class TransformerState(StreamingState):
    """``offset``: int64 ``[slots]``, steps seen."""

    offset: Tensor
    layers: list[RingKv]

    def tensors_of(self, slot: int) -> Iterator[Tensor]:
        """Without the places that were never written."""
        yield self.offset[slot]
        written = min(int(self.offset[slot]), self.layers[0].keys.shape[2])
        for layer in self.layers:
            yield layer.keys[slot, :, :written]
            yield layer.values[slot, :, :written]


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Where this call's steps are. ``cos`` and ``sin``: ``[slots, 1, steps, channels / 2]``;
    ``visible``: bool ``[slots, 1, steps, places]``; ``places``: ring places to write,
    ``[slots, steps]``, or ``None`` where there is no ring; ``first``: the first step's position,
    ``[slots]``."""

    cos: Tensor
    sin: Tensor
    visible: Tensor
    places: Tensor | None
    first: Tensor


class RmsNorm(nn.Module):
    """Root mean square layer norm (arXiv:1910.07467), computed in float32 if ``wide``."""

    def __init__(self, dim: int, eps: float, wide: bool) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(dim))
        self.eps = eps
        self.wide = wide

    def forward(self, x: Tensor) -> Tensor:
        y = x.float() if self.wide else x
        scale = torch.rsqrt(self.eps + y.square().mean(-1, keepdim=True))
        return (y * (self.alpha.to(scale.dtype) * scale)).to(x.dtype)


class WideLayerNorm(nn.LayerNorm):
    """Layer norm computed in float32."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float()).to(x.dtype)


def make_norm(kind: Norm, dim: int) -> nn.Module:
    """The norms of the published configurations, with their epsilons."""
    match kind:
        case "layer_norm":
            return nn.LayerNorm(dim, eps=1e-5)
        case "layer_norm_f32":
            return WideLayerNorm(dim, eps=1e-8)
        case "rms_norm":
            return RmsNorm(dim, eps=1e-5, wide=False)
        case "rms_norm_f32":
            return RmsNorm(dim, eps=1e-8, wide=True)


class GatedMlp(nn.Module):
    """A feed-forward layer gated with SiLU (arXiv:2002.05202)."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.linear_in = nn.Linear(dim, 2 * hidden, bias=False)
        self.linear_out = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.linear_in(x).chunk(2, dim=-1)
        return self.linear_out(functional.silu(gate) * value)


class Mlp(nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(dim, hidden, bias=False)
        self.linear2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(functional.gelu(self.linear1(x)))


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Turn pairs of ``[slots, heads, steps, channels]`` by their position's angles."""
    wide = x.float()
    if interleaved:
        real, imaginary = wide.unflatten(-1, (-1, 2)).unbind(-1)
    else:
        real, imaginary = wide.chunk(2, dim=-1)
    turned = (real * cos - imaginary * sin, real * sin + imaginary * cos)
    if interleaved:
        return torch.stack(turned, dim=-1).flatten(-2).to(x.dtype)
    return torch.cat(turned, dim=-1).to(x.dtype)


def split_heads(projected: Tensor, heads: int, kv_repeat: int) -> tuple[Tensor, Tensor, Tensor]:
    """``[slots, steps, channels]`` to queries, keys and values ``[slots, heads, steps, …]``."""
    kv_heads = heads // kv_repeat
    per_head = projected.unflatten(-1, (heads + 2 * kv_heads, -1)).transpose(1, 2)
    queries, keys, values = per_head.split([heads, kv_heads, kv_heads], dim=1)
    return queries, keys, values


FusedAttention = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]
"""Queries, a ring's keys and values, the first step's position and the window to what they see."""


class Attention(nn.Module):
    """Self-attention over the ring, or over the steps of this call alone.

    ``fused``: what attends to rings on a device of its own kind; ``None``: torch.
    """

    fused: FusedAttention | None = None

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.d_model
        rows = (config.own_heads + 2 * config.own_kv_heads) * config.channels
        self.in_proj = nn.Linear(dim, rows, bias=False)
        self.out_proj = nn.Linear(config.own_heads * config.channels, dim, bias=False)

    def forward(self, x: Tensor, steps: Steps, ring: RingKv | None) -> Tensor:
        config = self.config
        q, k, v = split_heads(self.in_proj(x), config.own_heads, config.kv_repeat)
        q = rotate(q, steps.cos, steps.sin, config.interleaved)
        k = rotate(k, steps.cos, steps.sin, config.interleaved)
        if ring is not None and steps.places is not None:
            places = steps.places[:, None, :, None].expand_as(k)
            ring.keys.scatter_(2, places, k)
            ring.values.scatter_(2, places, v)
            k, v = ring.keys, ring.values
        if config.kv_repeat > 1:
            k = k.repeat_interleave(config.kv_repeat, dim=1)
            v = v.repeat_interleave(config.kv_repeat, dim=1)
        if self.fused is not None and ring is not None:
            y = self.fused(q, k, v, steps.first, config.context)
        else:
            y = functional.scaled_dot_product_attention(q, k, v, steps.visible)
        return self.out_proj(y.transpose(1, 2).flatten(-2))

    def step(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        pool: PagePool,
        state: PagedState,
        active: Tensor,
    ) -> Tensor:
        """One step, ``[slots, d_model]``, over pages."""
        config = self.config
        q, k, v = split_heads(self.in_proj(x)[:, None], config.own_heads, config.kv_repeat)
        q = rotate(q, cos[:, None, None], sin[:, None, None], config.interleaved)[:, :, 0]
        k = rotate(k, cos[:, None, None], sin[:, None, None], config.interleaved)[:, :, 0]
        y = attend(q, k, v[:, :, 0], pool, state, active, config.context)
        return self.out_proj(y.flatten(-2))


class LayerScale(nn.Module):
    """A learnt scale of a residual (Touvron et al. 2021, arXiv:2103.17239)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class TransformerLayer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        dim = config.d_model
        self.self_attn = Attention(config)
        self.norm1 = make_norm(config.norm, dim)
        self.norm2 = make_norm(config.norm, dim)
        self.mlp = (GatedMlp if config.gating else Mlp)(dim, config.hidden // config.shards)
        self.layer_scale_1 = LayerScale(dim) if config.layer_scale else nn.Identity()
        self.layer_scale_2 = LayerScale(dim) if config.layer_scale else nn.Identity()

    def forward(self, x: Tensor, steps: Steps, ring: RingKv | None) -> Tensor:
        x = x + self.layer_scale_1(self.self_attn(self.norm1(x), steps, ring))
        return x + self.layer_scale_2(self.mlp(self.norm2(x)))

    def step(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        pool: PagePool,
        state: PagedState,
        active: Tensor,
    ) -> Tensor:
        """One step, ``[slots, d_model]``, over pages."""
        attended = self.self_attn.step(self.norm1(x), cos, sin, pool, state, active)
        x = x + self.layer_scale_1(attended)
        return x + self.layer_scale_2(self.mlp(self.norm2(x)))


def _frequencies(config: TransformerConfig, device: torch.device | None) -> Tensor:
    channels = config.channels
    exponents = torch.arange(channels // 2, dtype=torch.float32, device=device)
    return torch.exp(exponents * (-math.log(config.max_period) * 2 / channels))


FusedLayers = Callable[[Tensor, Tensor, Tensor, PagedState, Tensor], Tensor]
"""All layers of a step: ``x``, ``cos``, ``sin``, the state and who is active to ``x``."""


class TemporalTransformer(nn.Module):
    """One step a call, over keys and values in pages.

    ``fused``: what computes layers on a device of its own kind; ``None``: torch. ``peers``: the
    other ranks, where this is one part of a transformer that several of them have.
    """

    frequencies: Tensor
    fused: FusedLayers | None = None
    peers: Peers | None = None

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList([TransformerLayer(config) for _ in range(config.num_layers)])
        self.set_constants()

    def set_constants(self, device: torch.device | None = None) -> None:
        """Compute what is no weight, on a device or where tensors are made by default."""
        self.register_buffer("frequencies", _frequencies(self.config, device), persistent=False)

    def join(self, peers: Peers) -> None:
        """Add up with the other ranks what attention and feed-forward layers give."""
        self.peers = peers
        for layer in self.layers:
            assert isinstance(layer, TransformerLayer)
            layer.self_attn.out_proj = Summed(layer.self_attn.out_proj, peers)
            last = "linear_out" if isinstance(layer.mlp, GatedMlp) else "linear2"
            setattr(layer.mlp, last, Summed(getattr(layer.mlp, last), peers))

    @property
    def ring_pages(self) -> tuple[int, int]:
        """Pages of a slot's ring, and places in a page."""
        return ring_pages(self.config.context)

    def new_state(
        self, slots: int, kv_dtype: torch.dtype | None = None, pages: int | None = None
    ) -> PagedState:
        """Empty slots, in the dtype of the weights unless another one is named."""
        config = self.config
        weight = next(self.layers[0].norm1.parameters())
        return new_state(
            layers=config.num_layers,
            slots=slots,
            context=config.context,
            heads=config.own_kv_heads,
            channels=config.channels,
            dtype=kv_dtype or weight.dtype,
            device=weight.device,
            pages=pages,
        )

    def forward(self, x: Tensor, state: PagedState, active: Tensor) -> Tensor:
        """``[slots, d_model]`` to the same shape. Slots that are not active stay where they are;
        their output means nothing. Of several ranks, the first one's ``x`` is taken."""
        if self.peers is not None:
            self.peers.share(x)
        angles = state.offset.float()[:, None] * self.frequencies
        cos, sin = torch.cos(angles), torch.sin(angles)
        if self.fused is not None:
            x = self.fused(x, cos, sin, state, active)
        else:
            for layer, pool in zip(self.layers, state.pools, strict=True):
                x = layer.step(x, cos, sin, pool, state, active)
        state.advance(active)
        return x


class Transformer(nn.Module):
    """``extra_keys``: places of the ring beyond the window."""

    frequencies: Tensor

    def __init__(self, config: TransformerConfig, extra_keys: int = 0) -> None:
        super().__init__()
        self.config = config
        self.places = config.context + extra_keys
        self.layers = nn.ModuleList([TransformerLayer(config) for _ in range(config.num_layers)])
        self.set_constants()

    def set_constants(self, device: torch.device | None = None) -> None:
        """Compute what is no weight, on a device or where tensors are made by default."""
        self.register_buffer("frequencies", _frequencies(self.config, device), persistent=False)

    def new_state(self, slots: int) -> TransformerState:
        """Empty rings, in the dtype of the weights."""
        config = self.config
        weight = self.layers[0].self_attn.out_proj.weight
        shape = (
            slots,
            config.own_kv_heads,
            self.places,
            config.channels,
        )
        return TransformerState(
            offset=torch.zeros(slots, dtype=torch.int64, device=weight.device),
            layers=[
                RingKv(
                    keys=weight.new_zeros(shape),
                    values=weight.new_zeros(shape),
                )
                for _ in self.layers
            ],
        )

    def forward(
        self, x: Tensor, state: TransformerState | None, active: Tensor | None = None
    ) -> Tensor:
        """``[slots, steps, d_model]`` to the same shape. The positions of slots that are not
        active stay where they are; their output means nothing."""
        count = x.shape[1]
        steps = self._steps(count, x.device, state)
        for index, layer in enumerate(self.layers):
            x = layer(x, steps, None if state is None else state.layers[index])
        if state is not None:
            update(state.offset, state.offset + count, active)
        return x

    def _steps(self, count: int, device: torch.device, state: TransformerState | None) -> Steps:
        ahead = torch.arange(count, device=device)
        if state is None:
            positions = ahead[None]
            held = ahead[None]
            places = None
        else:
            positions = state.offset[:, None] + ahead
            last = positions[:, -1:]
            # The newest position with the place's remainder; negative: nothing was written there.
            held = last - (last - torch.arange(self.places, device=device)) % self.places
            places = positions % self.places
        age = positions[:, :, None] - held[:, None, :]
        visible = (held[:, None, :] >= 0) & (age >= 0) & (age < self.config.context)
        angles = positions.float()[:, None, :, None] * self.frequencies
        return Steps(
            torch.cos(angles),
            torch.sin(angles),
            visible[:, None],
            places,
            positions[:, 0].contiguous(),
        )
