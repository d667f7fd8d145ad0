"""A language model's step on a CUDA device: matrix products, and kernels of our own between them.

It computes what :class:`~duologue.models.moshi.language_model.LanguageModel` computes with torch,
up to rounding, from the same weights.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from duologue.models.moshi import triton_attention as attention_kernels, triton_kernels as kernels
from duologue.models.moshi.depth_transformer import DepthTransformer
from duologue.models.moshi.language_model import NOT_GIVEN, LanguageModel
from duologue.models.moshi.mimi import Mimi
from duologue.models.moshi.moshi_config import MoshiConfig
from duologue.models.moshi.paged_kv import PagedState, page_places
from duologue.models.moshi.sampling import Sampling
from duologue.models.moshi.transformer import GatedMlp, TemporalTransformer, TransformerLayer


def can_fuse(config: MoshiConfig) -> bool:
    """False where one of a model's layers is of a kind, or smaller, than the published Moshi
    models have."""
    temporal, depth = config.temporal, config.depth
    if min(temporal.channels, page_places(temporal.context)) < 16 or depth.low_rank is not None:
        return False
    return all(norm.startswith("rms_norm") for norm in (temporal.norm, depth.norm))


def fuse(model: LanguageModel) -> bool:
    """Let a model on a CUDA device compute so, where it can."""
    if not can_fuse(model.config):
        return False
    model.fused = FusedLanguage(model)
    fuse_temporal(model.transformer)
    return True


def fuse_temporal(transformer: TemporalTransformer) -> None:
    """Let one on a CUDA device compute so, of a model that can."""
    transformer.fused = FusedTemporal(transformer.layers)


def fuse_codec(mimi: Mimi) -> None:
    """Let a codec on a CUDA device attend so."""
    for transformer in (mimi.encoder_transformer, mimi.decoder_transformer):
        for layer in transformer.layers:
            config = layer.self_attn.config
            if config.kv_repeat == 1 and config.d_model // config.num_heads >= 16:
                layer.self_attn.fused = attention_kernels.attend_ring


def packed(modules: list[nn.Parameter]) -> Tensor:
    """One tensor of several parameters of one shape, which become views of it."""
    together = torch.stack([one.data for one in modules])
    for one, part in zip(modules, together, strict=True):
        one.data = part
    return together


class FusedTemporal:
    """All layers of the temporal transformer. See
    :data:`duologue.models.moshi.transformer.FusedLayers`."""

    def __init__(self, layers: nn.ModuleList) -> None:
        self._layers = layers

    def __call__(
        self, x: Tensor, cos: Tensor, sin: Tensor, state: PagedState, active: Tensor
    ) -> Tensor:
        delta: Tensor | None = None
        for layer, pool in zip(self._layers, state.pools, strict=True):
            assert isinstance(layer, TransformerLayer)
            attention, mlp = layer.self_attn, layer.mlp
            y = kernels.add_norm(x, delta, layer.norm1)
            y = attention_kernels.attend(
                attention.in_proj(y), cos, sin, pool, state, active, attention.config
            )
            delta = layer.layer_scale_1(attention.out_proj(y))
            y = kernels.add_norm(x, delta, layer.norm2)
            delta = layer.layer_scale_2(_feed(mlp, y))
        return x if delta is None else x.add_(delta)


class FusedLanguage:
    """See :class:`duologue.models.moshi.language_model.Fused`."""

    def __init__(self, model: LanguageModel) -> None:
        self._tables = packed([one.weight for one in model.emb])
        self._norm = model.out_norm
        self._depth = FusedDepth(model.depth)

    def embed(self, text: Tensor, codes: Tensor) -> Tensor:
        return kernels.embed(text, codes, self._tables)

    def normalize(self, x: Tensor) -> Tensor:
        return kernels.add_norm(x, None, self._norm)

    def generate(
        self, hidden: Tensor, logits: Tensor, sampling: Sampling, offset: Tensor, given: Tensor
    ) -> Tensor:
        made = torch.empty_like(given)
        kernels.draw(
            logits,
            sampling.text_temperature,
            sampling.text_top_k,
            sampling.seed,
            offset,
            0,
            given[:, 0],
            NOT_GIVEN,
            made[:, 0],
        )
        self._depth(hidden, sampling, offset, given, made)
        return made


class FusedDepth:
    """The depth transformer and the choice of its codes."""

    def __init__(self, depth: DepthTransformer) -> None:
        self._depth = depth
        self._projection = packed([one.weight for one in depth.inputs])
        self._tables = [depth.text_emb.weight, *(one.weight for one in depth.emb)]

    def __call__(
        self, hidden: Tensor, sampling: Sampling, frame: Tensor, given: Tensor, out: Tensor
    ) -> None:
        """``hidden``: ``[slots, d_model]``. ``given`` and ``out``: int64 ``[slots, 1 + steps]``;
        the text of ``out`` is there, the codes are written."""
        depth = self._depth
        slots = hidden.shape[0]
        projected = functional.linear(hidden, self._projection.flatten(0, 1))
        config = depth.layers[0].config
        kept = hidden.new_empty(
            len(depth.layers),
            slots,
            2,
            config.num_heads // config.kv_repeat,
            len(depth.schedule),
            config.d_model // config.num_heads,
        )
        several = len(depth.inputs) > 1
        for step, weights in enumerate(depth.schedule):
            start = (weights if several else 0) * config.d_model
            base = projected[:, start : start + config.d_model]
            x = kernels.embed(base, out[:, step : step + 1], self._tables[step][None])
            delta: Tensor | None = None
            for layer, earlier in zip(depth.layers, kept, strict=True):
                y = kernels.add_norm(x, delta, layer.norm1)
                y = kernels.look_back(layer.in_projs[weights](y), earlier, step, config)
                delta = layer.out_projs[weights](y)
                y = kernels.add_norm(x, delta, layer.norm2)
                delta = _feed(layer.gating[weights], y)
            if delta is not None:
                x = x.add_(delta)
            logits = depth.linears[step](depth.norms[step](x))
            kernels.draw(
                logits,
                sampling.audio_temperature,
                sampling.audio_top_k,
                sampling.seed,
                frame,
                1 + step,
                given[:, 1 + step],
                NOT_GIVEN,
                out[:, 1 + step],
            )


def _feed(mlp: nn.Module, y: Tensor) -> Tensor:
    if isinstance(mlp, GatedMlp):
        return mlp.linear_out(kernels.gate(mlp.linear_in(y)))
    return mlp(y)
