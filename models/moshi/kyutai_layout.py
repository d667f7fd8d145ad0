"""Kyutai's checkpoints: their configuration and the names of their tensors.

As the ``moshi`` package writes them (0.2.13; ``models/loaders.py``, ``models/lm.py``); NVIDIA's
PersonaPlex has the same names. A folder without the sizes of the language model in a
``config.json`` holds a 7B model.
"""

import re
from collections.abc import Iterator

import msgspec
import torch
from torch import Tensor

from duologue.models.moshi.moshi_config import (
    DepthConfig,
    MimiConfig,
    MoshiConfig,
    Norm,
    QuantizerConfig,
    SeanetConfig,
    TransformerConfig,
)

CODEBOOK_EPSILON = 1e-5
"""An entry that was used less than this is divided by this instead."""

Tensors = dict[str, Tensor]


class UnsupportedCheckpoint(ValueError):
    """The checkpoint needs something these networks do not have."""


class LanguageSettings(msgspec.Struct, frozen=True):
    """``config.json``, with the defaults of the reference's ``LMModel``."""

    dim: int
    n_q: int
    dep_q: int
    card: int
    text_card: int
    delays: tuple[int, ...]
    num_heads: int
    num_layers: int
    depformer_dim: int
    depformer_num_heads: int
    depformer_num_layers: int
    context: int
    text_card_out: int | None = None
    hidden_scale: float = 4
    kv_repeat: int = 1
    norm: Norm = "layer_norm"
    gating: str = "none"
    layer_scale: float | None = None
    positional_embedding: str = "sin"
    max_period: float = 10_000
    norm_emb: bool = False
    bias_proj: bool = False
    cross_attention: bool = False
    demux_second_stream: bool = False
    demux_second_text_stream: bool = False
    quantize: bool = False
    lora: bool = False
    existing_text_padding_id: int = 3
    existing_text_end_padding_id: int = 0
    depformer_dim_feedforward: int | tuple[int, ...] | None = None
    depformer_gating: str | None = None
    depformer_kv_repeat: int | None = None
    depformer_layer_scale: float | None = None
    depformer_multi_linear: bool = False
    depformer_weights_per_step: bool = False
    depformer_weights_per_step_schedule: tuple[int, ...] | None = None
    depformer_low_rank_embeddings: int | None = None
    depformer_pos_emb: str = "sin"
    depformer_norm: Norm | None = None
    conditioners: dict[str, object] | None = None


_DELAYS_7B = (0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1)


def settings_7b() -> LanguageSettings:
    """The 7B models. PersonaPlex has depth steps for the user's codebooks, which are not made."""
    return LanguageSettings(
        dim=4096,
        n_q=16,
        dep_q=8,
        card=2048,
        text_card=32_000,
        delays=_DELAYS_7B,
        num_heads=32,
        num_layers=32,
        hidden_scale=4.125,
        context=3000,
        norm="rms_norm_f32",
        gating="silu",
        positional_embedding="rope",
        depformer_dim=1024,
        depformer_dim_feedforward=int(4.125 * 1024),
        depformer_num_heads=16,
        depformer_num_layers=6,
        depformer_multi_linear=True,
        depformer_weights_per_step=True,
        depformer_gating="silu",
        depformer_pos_emb="none",
    )


def language_config(settings: LanguageSettings) -> MoshiConfig:
    """The sizes as ours. Raises :exc:`UnsupportedCheckpoint`.

    A model that generates all its streams was trained to predict the user as well; the user is
    there, so only the agent's half is generated.
    """
    _refuse(settings)
    agent = settings.dep_q if settings.dep_q < settings.n_q else settings.n_q // 2
    schedule = settings.depformer_weights_per_step_schedule or tuple(range(settings.dep_q))
    schedule = schedule[:agent]
    sets = max(schedule) + 1
    widths = settings.depformer_dim_feedforward
    if widths is None:
        widths = int(settings.hidden_scale * settings.depformer_dim)
    if isinstance(widths, int):
        widths = (widths,) * sets
    feedforward = int(settings.hidden_scale * settings.dim)
    gated = settings.gating == "silu"
    return MoshiConfig(
        n_q=settings.n_q,
        agent_codebooks=agent,
        card=settings.card,
        text_card=settings.text_card,
        text_card_out=settings.text_card_out or settings.text_card,
        delays=settings.delays,
        text_padding=settings.existing_text_padding_id,
        text_end_padding=settings.existing_text_end_padding_id,
        bias_proj=settings.bias_proj,
        temporal=TransformerConfig(
            d_model=settings.dim,
            num_heads=settings.num_heads,
            num_layers=settings.num_layers,
            hidden=gated_width(settings.dim, feedforward) if gated else feedforward,
            context=settings.context,
            kv_repeat=settings.kv_repeat,
            norm=settings.norm,
            gating=gated,
            layer_scale=settings.layer_scale is not None,
            max_period=settings.max_period,
            interleaved=settings.positional_embedding == "rope",
        ),
        depth=DepthConfig(
            d_model=settings.depformer_dim,
            num_heads=settings.depformer_num_heads,
            num_layers=settings.depformer_num_layers,
            hidden=tuple(gated_width(settings.depformer_dim, width) for width in widths[:sets]),
            schedule=schedule,
            kv_repeat=settings.depformer_kv_repeat or settings.kv_repeat,
            norm=settings.norm,
            final_norm=settings.depformer_norm,
            low_rank=settings.depformer_low_rank_embeddings,
            multi_linear=settings.depformer_multi_linear,
        ),
    )


def _refuse(settings: LanguageSettings) -> None:
    depth_gating = settings.depformer_gating or settings.gating
    reasons = {
        "quantized weights": settings.quantize,
        "LoRA weights beside the model's": settings.lora,
        "cross-attention": settings.cross_attention,
        "two streams of text": settings.demux_second_stream or settings.demux_second_text_stream,
        "normalized embeddings": settings.norm_emb,
        "conditions": bool(settings.conditioners),
        "no depth transformer": settings.dep_q == 0,
        "a depth transformer that shares its weights": not settings.depformer_weights_per_step,
        "layer scales in the depth transformer": settings.depformer_layer_scale is not None,
        f"{settings.gating} gating": settings.gating not in ("silu", "none"),
        f"{depth_gating} gating in the depth transformer": depth_gating != "silu",
        f"{settings.positional_embedding} positions": settings.positional_embedding
        not in ("rope", "rope_concat"),
        "positions in the depth transformer": settings.depformer_pos_emb != "none",
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnsupportedCheckpoint(f"the checkpoint has {reason}")


def gated_width(dim: int, feedforward: int) -> int:
    """The width of each half of a gated layer that has the weights of a plain one."""
    return 21 * dim // 8 if feedforward == 4 * dim else 2 * feedforward // 3


_LANGUAGE_NAMES = [
    (r"^depformer_in\.", "depth.inputs."),
    (r"^depformer_emb\.", "depth.emb."),
    (r"^depformer_text_emb\.", "depth.text_emb."),
    (r"^depformer_norms\.", "depth.norms."),
    (r"^linears\.", "depth.linears."),
    (r"^(transformer\.layers\.\d+)\.gating\.", r"\1.mlp."),
    (r"^(transformer\.layers\.\d+)\.(linear[12])\.", r"\1.mlp.\2."),
    (r"^(transformer\.layers\.\d+\.self_attn)\.(in|out)_projs\.0\.", r"\1.\2_proj."),
    (r"^(transformer\.layers\.\d+\.self_attn)\.in_proj_weight$", r"\1.in_proj.weight"),
    (r"^depformer\.(layers\.\d+)\.self_attn\.", r"depth.\1."),
    (r"^depformer\.(layers\.\d+)\.", r"depth.\1."),
]
_STACKED = re.compile(r"^(depth\.layers\.\d+\.)(in|out)_proj[._]weight$")
_APART = ("condition_provider.", "fuser.", "extra_heads.")


def language_tensors(tensors: Tensors, config: MoshiConfig) -> Tensors:
    """A language model's tensors under our names, without those of steps that are not made."""
    named: Tensors = {}
    for name, tensor in tensors.items():
        if name.startswith(_APART):
            continue
        for pattern, replacement in _LANGUAGE_NAMES:
            name = re.sub(pattern, replacement, name)
        if stacked := _STACKED.match(name):
            width = config.depth.d_model
            rows = width if stacked[2] == "out" else width + 2 * width // config.depth.kv_repeat
            for index, part in enumerate(tensor.split(rows)):
                named[f"{stacked[1]}{stacked[2]}_projs.{index}.weight"] = part
        elif name.endswith(".alpha"):
            named[name] = tensor.flatten()
        else:
            named[name] = tensor
    return {name: tensor for name, tensor in named.items() if not _unmade(name, config)}


_OF_A_STEP = re.compile(r"^depth\.(emb|norms|linears)\.(\d+)\.")
_OF_A_SET = re.compile(r"^depth\.(?:inputs|layers\.\d+\.(?:in_projs|out_projs|gating))\.(\d+)\.")


def _unmade(name: str, config: MoshiConfig) -> bool:
    if step := _OF_A_STEP.match(name):
        return int(step[2]) >= config.agent_codebooks - (step[1] == "emb")
    weights = _OF_A_SET.match(name)
    return weights is not None and int(weights[1]) >= len(config.depth.hidden)


class _Seanet(msgspec.Struct, frozen=True):
    channels: int = 1
    dimension: int = 128
    n_filters: int = 32
    n_residual_layers: int = 3
    ratios: tuple[int, ...] = (8, 5, 4, 2)
    kernel_size: int = 7
    residual_kernel_size: int = 3
    last_kernel_size: int = 7
    dilation_base: int = 2
    compress: int = 2
    true_skip: bool = True


class _Quantizer(msgspec.Struct, frozen=True):
    dimension: int
    n_q: int
    bins: int
    n_q_semantic: int = 1


class _Transformer(msgspec.Struct, frozen=True):
    d_model: int
    num_heads: int
    num_layers: int
    context: int
    dim_feedforward: int = 2048
    layer_scale: float | None = None
    max_period: float = 10_000
    gating: str = "none"
    norm: Norm = "layer_norm"
    positional_embedding: str = "sin"


class MimiSettings(msgspec.Struct, frozen=True):
    """A codec's own configuration, where a checkpoint has one."""

    sample_rate: float
    frame_rate: float
    seanet: _Seanet
    quantizer: _Quantizer
    transformer: _Transformer


def mimi_config(settings: MimiSettings) -> MimiConfig:
    """The sizes as ours. Raises :exc:`UnsupportedCheckpoint`."""
    seanet, quantizer, transformer = settings.seanet, settings.quantizer, settings.transformer
    rope = transformer.positional_embedding in ("rope", "rope_concat")
    if not seanet.true_skip or transformer.gating != "none" or not rope:
        raise UnsupportedCheckpoint("the codec is not built as Mimi is")
    sizes = SeanetConfig(
        channels=seanet.channels,
        dimension=seanet.dimension,
        n_filters=seanet.n_filters,
        n_residual_layers=seanet.n_residual_layers,
        ratios=seanet.ratios,
        kernel_size=seanet.kernel_size,
        residual_kernel_size=seanet.residual_kernel_size,
        last_kernel_size=seanet.last_kernel_size,
        dilation_base=seanet.dilation_base,
        compress=seanet.compress,
    )
    return MimiConfig(
        sample_rate=round(settings.sample_rate),
        stride=round(settings.sample_rate / sizes.hop / settings.frame_rate),
        seanet=sizes,
        quantizer=QuantizerConfig(
            dimension=quantizer.dimension,
            outer_dimension=seanet.dimension,
            n_q=quantizer.n_q,
            n_q_semantic=quantizer.n_q_semantic,
            bins=quantizer.bins,
        ),
        transformer=TransformerConfig(
            d_model=transformer.d_model,
            num_heads=transformer.num_heads,
            num_layers=transformer.num_layers,
            hidden=transformer.dim_feedforward,
            context=transformer.context,
            norm=transformer.norm,
            gating=False,
            layer_scale=transformer.layer_scale is not None,
            max_period=transformer.max_period,
            interleaved=transformer.positional_embedding == "rope",
        ),
    )


_MIMI_NAMES = [
    (r"(\.conv)+\.", ".conv."),
    (r"(\.convtr)+\.", ".convtr."),
    (r"^(encoder|decoder)_transformer\.transformer\.", r"\1_transformer."),
    (r"\.(linear[12])\.", r".mlp.\1."),
    (r"\.(in|out)_projs\.0\.", r".\1_proj."),
    (r"\.in_proj_weight$", ".in_proj.weight"),
]
_CODEBOOK = re.compile(r"^(quantizer\.\w+)\.vq\.layers\.(\d+)\._codebook\.(\w+)$")
_SUMS = ("embedding_sum", "embed_sum", "embed_avg")
_USAGES = ("cluster_usage", "cluster_size")


def mimi_tensors(tensors: Tensors) -> Tensors:
    """A codec's tensors under our names."""
    named: Tensors = {}
    levels: dict[str, dict[int, tuple[Tensors, Tensors]]] = {}
    for name, tensor in tensors.items():
        if part := _CODEBOOK.match(name):
            sums, usages = levels.setdefault(part[1], {}).setdefault(int(part[2]), ({}, {}))
            if part[3] in _SUMS:
                sums[name] = tensor
            elif part[3] in _USAGES:
                usages[name] = tensor
            continue
        for pattern, replacement in _MIMI_NAMES:
            name = re.sub(pattern, replacement, name)
        named[name] = tensor
    for prefix, found in levels.items():
        entries = [found[level] for level in sorted(found)]
        named[f"{prefix}.codebooks"] = torch.stack(list(_codebooks(entries)))
    return named


def _codebooks(levels: list[tuple[Tensors, Tensors]]) -> Iterator[Tensor]:
    for sums, usages in levels:
        (total,), (usage,) = sums.values(), usages.values()
        yield total / usage.clamp(min=CODEBOOK_EPSILON)[:, None]
