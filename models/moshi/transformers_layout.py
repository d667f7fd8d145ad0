"""The transformers library's checkpoints of Mimi and Moshi: configuration and tensor names.

As ``MimiModel`` and ``MoshiForConditionalGeneration`` write them (5.24; also the names of the
published ``kyutai/mimi`` and ``kyutai/moshika``). Heads there have their rotated pairs half a
head apart; rows are put back in Kyutai's order, where they lie side by side.
"""

import re
from collections.abc import Callable

import msgspec
import torch
from torch import Tensor

from duologue.models.moshi.kyutai_layout import CODEBOOK_EPSILON, Tensors, UnsupportedCheckpoint
from duologue.models.moshi.moshi_config import (
    DepthConfig,
    MimiConfig,
    MoshiConfig,
    QuantizerConfig,
    SeanetConfig,
    TransformerConfig,
)


class _Rope(msgspec.Struct, frozen=True):
    rope_theta: float = 10_000.0
    rope_type: str = "default"


class MimiSettings(msgspec.Struct, frozen=True):
    """``MimiConfig``."""

    sampling_rate: int = 24_000
    audio_channels: int = 1
    hidden_size: int = 512
    num_filters: int = 64
    num_residual_layers: int = 1
    upsampling_ratios: tuple[int, ...] = (8, 6, 5, 4)
    kernel_size: int = 7
    last_kernel_size: int = 3
    residual_kernel_size: int = 3
    dilation_growth_rate: int = 2
    compress: int = 2
    codebook_size: int = 2048
    codebook_dim: int | None = 256
    vector_quantization_hidden_dimension: int = 256
    num_quantizers: int = 32
    num_semantic_quantizers: int = 1
    use_conv_shortcut: bool = False
    num_hidden_layers: int = 8
    intermediate_size: int = 2048
    num_attention_heads: int = 8
    num_key_value_heads: int = 8
    sliding_window: int = 250
    rope_parameters: _Rope = _Rope()


class DepthSettings(msgspec.Struct, frozen=True):
    """``MoshiDepthConfig``."""

    hidden_size: int = 1024
    num_hidden_layers: int = 6
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    ffn_dim: int = 5632
    num_codebooks: int = 8


class MoshiSettings(msgspec.Struct, frozen=True):
    """``MoshiConfig``. Delays are not in it: one frame for all codebooks but the first."""

    audio_encoder_config: MimiSettings
    depth_decoder_config: DepthSettings
    vocab_size: int = 32_000
    hidden_size: int = 4096
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int = 32
    audio_vocab_size: int = 2048
    sliding_window: int = 3000
    ffn_dim: int = 22_528
    num_codebooks: int = 8
    hidden_act: str = "silu"
    rope_parameters: _Rope = _Rope()


def mimi_config(settings: MimiSettings) -> MimiConfig:
    """The sizes as ours. Raises :exc:`UnsupportedCheckpoint`."""
    if settings.use_conv_shortcut or settings.rope_parameters.rope_type != "default":
        raise UnsupportedCheckpoint("the codec is not built as Mimi is")
    return MimiConfig(
        sample_rate=settings.sampling_rate,
        stride=2,
        seanet=SeanetConfig(
            channels=settings.audio_channels,
            dimension=settings.hidden_size,
            n_filters=settings.num_filters,
            n_residual_layers=settings.num_residual_layers,
            ratios=settings.upsampling_ratios,
            kernel_size=settings.kernel_size,
            residual_kernel_size=settings.residual_kernel_size,
            last_kernel_size=settings.last_kernel_size,
            dilation_base=settings.dilation_growth_rate,
            compress=settings.compress,
        ),
        quantizer=QuantizerConfig(
            dimension=settings.vector_quantization_hidden_dimension,
            outer_dimension=settings.hidden_size,
            n_q=settings.num_quantizers,
            n_q_semantic=settings.num_semantic_quantizers,
            bins=settings.codebook_size,
        ),
        transformer=TransformerConfig(
            d_model=settings.hidden_size,
            num_heads=settings.num_attention_heads,
            num_layers=settings.num_hidden_layers,
            hidden=settings.intermediate_size,
            context=settings.sliding_window,
            kv_repeat=settings.num_attention_heads // settings.num_key_value_heads,
            norm="layer_norm",
            gating=False,
            layer_scale=True,
            max_period=settings.rope_parameters.rope_theta,
        ),
    )


def language_config(settings: MoshiSettings) -> MoshiConfig:
    """The sizes as ours. Raises :exc:`UnsupportedCheckpoint`."""
    if settings.hidden_act != "silu" or settings.rope_parameters.rope_type != "default":
        raise UnsupportedCheckpoint("the language model is not built as Moshi is")
    depth, codebooks = settings.depth_decoder_config, settings.num_codebooks
    acoustic = [1] * (codebooks - 1)
    return MoshiConfig(
        n_q=2 * codebooks,
        agent_codebooks=depth.num_codebooks,
        card=settings.audio_vocab_size,
        text_card=settings.vocab_size,
        text_card_out=settings.vocab_size,
        delays=(0, 0, *acoustic, 0, *acoustic),
        temporal=TransformerConfig(
            d_model=settings.hidden_size,
            num_heads=settings.num_attention_heads,
            num_layers=settings.num_hidden_layers,
            hidden=settings.ffn_dim // 2,
            context=settings.sliding_window,
            kv_repeat=settings.num_attention_heads // settings.num_key_value_heads,
            max_period=settings.rope_parameters.rope_theta,
        ),
        depth=DepthConfig(
            d_model=depth.hidden_size,
            num_heads=depth.num_attention_heads,
            num_layers=depth.num_hidden_layers,
            hidden=(depth.ffn_dim // 2,) * depth.num_codebooks,
            schedule=tuple(range(depth.num_codebooks)),
            kv_repeat=depth.num_attention_heads // depth.num_key_value_heads,
        ),
    )


def side_by_side(weight: Tensor, heads: int) -> Tensor:
    """Rows ``[heads * channels, …]`` with pairs half a head apart to pairs side by side."""
    split = weight.unflatten(0, (heads, 2, -1))
    return split.transpose(1, 2).flatten(0, 2)


_MIMI_NAMES = [
    (r"^encoder\.encoder_(seanet|transformer)\.", r"encoder_\1."),
    (r"^decoder\.decoder_(seanet|transformer)\.", r"decoder_\1."),
    (r"^encoder\.downsample\.", "downsample."),
    (r"^decoder\.upsample\.", "upsample."),
    (r"^(encoder|decoder)_seanet\.", r"\1."),
    (r"^(encoder|decoder)\.layers\.", r"\1.model."),
    (r"\.mlp\.fc([12])\.", r".mlp.linear\1."),
    (r"\.input_layernorm\.", ".norm1."),
    (r"\.post_attention_layernorm\.", ".norm2."),
    (r"\.self_attn_layer_scale\.", ".layer_scale_1."),
    (r"\.mlp_layer_scale\.", ".layer_scale_2."),
    (r"\.o_proj\.", ".out_proj."),
    (r"\.semantic_residual_vector_quantizer\.", ".rvq_first."),
    (r"\.acoustic_residual_vector_quantizer\.", ".rvq_rest."),
]
_CODEBOOK = re.compile(r"^(quantizer\.\w+)\.layers\.(\d+)\.codebook\.(\w+)$")
_PART = re.compile(r"^(.*\.self_attn\.)([qkv])_proj\.(?:linear\.)?weight$")


def mimi_tensors(tensors: Tensors, config: MimiConfig) -> Tensors:
    """A codec's tensors under our names."""
    named: Tensors = {}
    codebooks: dict[str, dict[int, dict[str, Tensor]]] = {}
    for name, tensor in tensors.items():
        for pattern, replacement in _MIMI_NAMES:
            name = re.sub(pattern, replacement, name)
        if part := _CODEBOOK.match(name):
            codebooks.setdefault(part[1], {}).setdefault(int(part[2]), {})[part[3]] = tensor
            continue
        if name.startswith("upsample.") or _is_transposed(name, config):
            name = name.replace(".conv.", ".convtr.")
        named[name] = tensor
    for prefix, levels in codebooks.items():
        named[f"{prefix}.codebooks"] = torch.stack(
            [
                level["embed_sum"] / level["cluster_usage"].clamp(min=CODEBOOK_EPSILON)[:, None]
                for _, level in sorted(levels.items())
            ]
        )
    heads = config.transformer.num_heads
    return _joined(named, lambda _: (heads, heads // config.transformer.kv_repeat))


def _is_transposed(name: str, config: MimiConfig) -> bool:
    """Whether a layer of the decoder widens its input: the second of each group."""
    match = re.match(r"^decoder\.model\.(\d+)\.conv\.", name)
    if match is None:
        return False
    group = 2 + config.seanet.n_residual_layers
    index = int(match[1])
    return 1 <= index <= group * len(config.seanet.ratios) and (index - 1) % group == 1


def _joined(tensors: Tensors, heads: Callable[[str], tuple[int, int]]) -> Tensors:
    """Queries, keys and values of each attention in one tensor, with Kyutai's order of rows.

    ``heads`` gives the query and key heads of the attention of that name; none: no positions.
    """
    parts: dict[str, dict[str, Tensor]] = {}
    named: Tensors = {}
    for name, tensor in tensors.items():
        if part := _PART.match(name):
            parts.setdefault(part[1], {})[part[2]] = tensor
        else:
            named[name] = tensor
    for prefix, found in parts.items():
        queries, keys = heads(prefix)
        q, k = side_by_side(found["q"], queries), side_by_side(found["k"], keys)
        named[f"{prefix}in_proj.weight"] = torch.cat([q, k, found["v"]])
    return named


_LANGUAGE_NAMES = [
    (r"^embed_tokens\.", "emb."),
    (r"^decoder\.model\.embed_tokens\.", "text_emb."),
    (r"^decoder\.model\.layers\.", "transformer.layers."),
    (r"^decoder\.model\.norm\.weight$", "out_norm.alpha"),
    (r"^decoder\.lm_head\.", "text_linear."),
    (r"^depth_decoder\.(text_)?embed_tokens\.", r"depth.\1emb."),
    (r"\.input_layernorm\.weight$", ".norm1.alpha"),
    (r"\.post_attention_layernorm\.weight$", ".norm2.alpha"),
    (r"\.o_proj\.linear\.", ".out_proj."),
]
_DEPTH_LAYER = re.compile(r"^depth_decoder\.layers\.(\d+)\.(.*)$")
_DEPTH_HEADS = re.compile(r"^depth_decoder\.(input_projections|lm_heads)\.weight$")
_AUDIO_ENCODER = "audio_encoder."


def codec_part(tensors: Tensors) -> Tensors:
    """The codec's tensors in a checkpoint of all networks."""
    return {
        name.removeprefix(_AUDIO_ENCODER): tensor
        for name, tensor in tensors.items()
        if name.startswith(_AUDIO_ENCODER)
    }


def language_tensors(tensors: Tensors, config: MoshiConfig) -> Tensors:
    """A language model's tensors under our names."""
    named: Tensors = {}
    depth: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(_AUDIO_ENCODER):
            continue
        if layer := _DEPTH_LAYER.match(name):
            depth.setdefault(f"depth.layers.{layer[1]}.", {})[layer[2]] = tensor
        elif heads := _DEPTH_HEADS.match(name):
            part = "inputs" if heads[1] == "input_projections" else "linears"
            for step, weight in enumerate(tensor):
                named[f"depth.{part}.{step}.weight"] = weight
        else:
            for pattern, replacement in _LANGUAGE_NAMES:
                name = re.sub(pattern, replacement, name)
            name = re.sub(r"\.mlp\.fc1\.", ".mlp.linear_in.", name)
            named[re.sub(r"\.mlp\.fc2\.", ".mlp.linear_out.", name)] = tensor
    for prefix, found in depth.items():
        named.update(_depth_layer(prefix, found))
    temporal = config.temporal
    heads_of = (temporal.own_heads, temporal.own_kv_heads)
    return _joined(named, lambda _: heads_of)


def _depth_layer(prefix: str, found: dict[str, Tensor]) -> Tensors:
    """One layer, whose tensors are stacked by step, ``[steps, out, in]``."""
    attention = [found[f"self_attn.{part}_proj.linear.weight"] for part in "qkv"]
    stacked = {
        "in_projs.{}.weight": torch.cat(attention, dim=1),
        "out_projs.{}.weight": found["self_attn.o_proj.linear.weight"],
        "gating.{}.linear_in.weight": found["mlp.fc1.weight"],
        "gating.{}.linear_out.weight": found["mlp.fc2.weight"],
    }
    named = {
        prefix + name.format(step): weight
        for name, weights in stacked.items()
        for step, weight in enumerate(weights)
    }
    named[f"{prefix}norm1.alpha"] = found["input_layernorm.weight"]
    named[f"{prefix}norm2.alpha"] = found["post_attention_layernorm.weight"]
    return named
