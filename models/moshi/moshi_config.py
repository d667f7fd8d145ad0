"""Sizes of the networks, as the published configurations name them; pure data, no torch."""

from dataclasses import dataclass, field
from math import prod
from typing import Literal

Norm = Literal["layer_norm", "layer_norm_f32", "rms_norm", "rms_norm_f32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """A causal transformer that sees its last ``context`` steps.

    ``hidden`` is the width of the feed-forward layer, of each half where it is gated.
    ``max_period``: the longest period of the rotary positions (RoPE), in steps.
    ``interleaved``: whether a rotated pair lies side by side or half a head apart.
    ``shards``: the ranks that heads and feed-forward layers are shared out to.
    """

    d_model: int
    num_heads: int
    num_layers: int
    hidden: int
    context: int
    kv_repeat: int = 1
    norm: Norm = "rms_norm_f32"
    gating: bool = True
    layer_scale: bool = False
    max_period: float = 10_000.0
    interleaved: bool = True
    shards: int = 1

    def __post_init__(self) -> None:
        if self.d_model % self.num_heads or self.num_heads % self.kv_repeat:
            raise ValueError(f"{self.d_model} channels do not split into {self.num_heads} heads")
        if self.context < 1:
            raise ValueError(f"a context of {self.context} steps")
        if self.shards < 1:
            raise ValueError(f"{self.shards} ranks")
        kv_heads = self.num_heads // self.kv_repeat
        for count, what in (
            (kv_heads, "heads with keys" if self.kv_repeat > 1 else "attention heads"),
            (self.hidden, "channels of a feed-forward layer"),
        ):
            if count % self.shards:
                raise ValueError(f"{count} {what} do not split into {self.shards} equal parts")

    @property
    def channels(self) -> int:
        """Channels of a head."""
        return self.d_model // self.num_heads

    @property
    def own_heads(self) -> int:
        """Heads of one rank."""
        return self.num_heads // self.shards

    @property
    def own_kv_heads(self) -> int:
        """Heads of one rank that have keys and values."""
        return self.own_heads // self.kv_repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class SeanetConfig:
    """The convolutions of Mimi; ``ratios`` in the order of the decoder."""

    channels: int = 1
    dimension: int = 512
    n_filters: int = 64
    n_residual_layers: int = 1
    ratios: tuple[int, ...] = (8, 6, 5, 4)
    kernel_size: int = 7
    residual_kernel_size: int = 3
    last_kernel_size: int = 3
    dilation_base: int = 2
    compress: int = 2

    @property
    def hop(self) -> int:
        """Samples a latent step."""
        return prod(self.ratios)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizerConfig:
    """``n_q`` codebooks of ``bins`` entries, the first ``n_q_semantic`` of them semantic."""

    dimension: int = 256
    outer_dimension: int = 512
    n_q: int = 32
    n_q_semantic: int = 1
    bins: int = 2048


def _mimi_transformer() -> TransformerConfig:
    return TransformerConfig(
        d_model=512,
        num_heads=8,
        num_layers=8,
        hidden=2048,
        context=250,
        norm="layer_norm",
        gating=False,
        layer_scale=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MimiConfig:
    """Mimi: 24 kHz sound in frames of 1,920 samples, 12.5 a second.

    ``extra_keys`` is how many keys its transformers' rings hold beyond the window. A frame is
    ``stride`` steps; with ``stride - 1`` extra keys (``None``) a stream is what the whole would
    be, with 0 the first step of each frame misses its oldest key, as in Kyutai's own streaming.
    """

    sample_rate: int = 24_000
    stride: int = 2
    seanet: SeanetConfig = field(default_factory=SeanetConfig)
    quantizer: QuantizerConfig = field(default_factory=QuantizerConfig)
    transformer: TransformerConfig = field(default_factory=_mimi_transformer)
    extra_keys: int | None = None

    def __post_init__(self) -> None:
        if self.transformer.d_model != self.seanet.dimension:
            raise ValueError("Mimi's transformers are as wide as its latents")

    @property
    def frame_samples(self) -> int:
        return self.seanet.hop * self.stride

    @property
    def frame_rate(self) -> float:
        """Frames a second."""
        return self.sample_rate / self.frame_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthConfig:
    """The transformer over the codebooks of one frame, with weights of its own for each step.

    ``schedule[k]`` names the set of weights of step ``k``; ``hidden`` has one width a set.
    ``low_rank``: embeddings are this narrow and projected. ``final_norm``: a norm before each
    step's logits.
    """

    d_model: int
    num_heads: int
    num_layers: int
    hidden: tuple[int, ...]
    schedule: tuple[int, ...]
    kv_repeat: int = 1
    norm: Norm = "rms_norm_f32"
    final_norm: Norm | None = None
    low_rank: int | None = None
    multi_linear: bool = True

    def __post_init__(self) -> None:
        if len(self.hidden) != max(self.schedule) + 1:
            raise ValueError(f"{len(self.hidden)} widths for {max(self.schedule) + 1} sets")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoshiConfig:
    """The language model: text, the agent's codes and the user's codes, a column a frame.

    ``agent_codebooks`` are generated and heard by the user; the other ``n_q`` less those are
    the user's. ``delays`` has one entry a row of the column: text, agent, user; in frames.
    ``text_padding``: the token of a frame without text.
    """

    n_q: int
    agent_codebooks: int
    card: int
    text_card: int
    delays: tuple[int, ...]
    temporal: TransformerConfig
    depth: DepthConfig
    text_card_out: int
    text_padding: int = 3
    text_end_padding: int = 0
    bias_proj: bool = False

    def __post_init__(self) -> None:
        if len(self.delays) != self.n_q + 1:
            raise ValueError(f"{len(self.delays)} delays for {self.n_q + 1} streams")
        if not 1 <= self.agent_codebooks <= self.n_q:
            raise ValueError(f"{self.agent_codebooks} of {self.n_q} codebooks are the agent's")
        if len(self.depth.schedule) != self.agent_codebooks:
            raise ValueError("the depth transformer has one step for each of the agent's codebooks")

    @property
    def user_codebooks(self) -> int:
        return self.n_q - self.agent_codebooks

    @property
    def max_delay(self) -> int:
        return max(self.delays)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingChoice:
    """How a session's tokens are chosen. Temperature 0 is greedy; ``top_k`` 0 is all tokens.

    ``seed``: sessions with the same seed and input say the same.
    """

    text_temperature: float = 0.7
    text_top_k: int = 25
    audio_temperature: float = 0.8
    audio_top_k: int = 250
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.text_temperature, self.audio_temperature) < 0:
            raise ValueError("a temperature below 0")
        if min(self.text_top_k, self.audio_top_k) < 0:
            raise ValueError("fewer than 0 tokens to choose among")


GREEDY = SamplingChoice(text_temperature=0, text_top_k=0, audio_temperature=0, audio_top_k=0)
