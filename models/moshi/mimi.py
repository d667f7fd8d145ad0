"""Mimi, the codec between 24 kHz sound and 12.5 frames of codes a second.

Défossez et al. 2024, "Moshi: a speech-text foundation model for real-time dialogue",
arXiv:2410.00037, section 3.3. It encodes and decodes a frame at a time for many sessions at
once; what it remembers of them is in :class:`EncoderState` and :class:`DecoderState`.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from duologue.models.moshi.moshi_config import MimiConfig
from duologue.models.moshi.quantizer import SplitQuantizer
from duologue.models.moshi.seanet import SeanetDecoder, SeanetEncoder
from duologue.models.moshi.streaming_conv import (
    ConvState,
    StreamingConv1d,
    StreamingConvTranspose1d,
)
from duologue.models.moshi.streaming_state import StreamingState
from duologue.models.moshi.transformer import Transformer, TransformerState


@dataclass(slots=True, eq=False)
class EncoderState(StreamingState):
    convolutions: list[ConvState]
    transformer: TransformerState
    downsample: ConvState


@dataclass(slots=True, eq=False)
class DecoderState(StreamingState):
    upsample: ConvState
    transformer: TransformerState
    convolutions: list[ConvState]


class Mimi(nn.Module):
    """A state makes a call one piece of a stream; without one the input is whole.

    ``active``, bool ``[slots]``, names the slots whose state moves on; ``None``: all.
    """

    def __init__(self, config: MimiConfig) -> None:
        super().__init__()
        self.config = config
        dimension, stride = config.seanet.dimension, config.stride
        extra = stride - 1 if config.extra_keys is None else config.extra_keys
        self.encoder = SeanetEncoder(config.seanet)
        self.encoder_transformer = Transformer(config.transformer, extra)
        self.downsample = StreamingConv1d(
            dimension, dimension, 2 * stride, stride=stride, bias=False, repeat_first=True
        )
        self.quantizer = SplitQuantizer(config.quantizer)
        self.upsample = StreamingConvTranspose1d(
            dimension, dimension, 2 * stride, stride=stride, groups=dimension, bias=False
        )
        self.decoder_transformer = Transformer(config.transformer, extra)
        self.decoder = SeanetDecoder(config.seanet)
        self.requires_grad_(False)

    def new_encoder_state(self, slots: int) -> EncoderState:
        return EncoderState(
            convolutions=self.encoder.new_states(slots),
            transformer=self.encoder_transformer.new_state(slots),
            downsample=self.downsample.new_state(slots),
        )

    def new_decoder_state(self, slots: int) -> DecoderState:
        return DecoderState(
            upsample=self.upsample.new_state(slots),
            transformer=self.decoder_transformer.new_state(slots),
            convolutions=self.decoder.new_states(slots),
        )

    def encode(
        self,
        pcm: Tensor,
        levels: int,
        state: EncoderState | None = None,
        active: Tensor | None = None,
    ) -> Tensor:
        """Sound, floats in [-1, 1], ``[slots, samples]``, to codes, int64
        ``[slots, levels, frames]``.

        Raises :exc:`ValueError` unless ``samples`` is a positive multiple of the frame.
        """
        samples = pcm.shape[-1]
        if samples == 0 or samples % self.config.frame_samples:
            raise ValueError(f"{samples} samples are not frames of {self.config.frame_samples}")
        if state is None:
            x = self.encoder(pcm[:, None], None)
            x = self.encoder_transformer(x.transpose(1, 2), None).transpose(1, 2)
            x = self.downsample(x, None)
        else:
            x = self.encoder(pcm[:, None], state.convolutions, active)
            x = self.encoder_transformer(x.transpose(1, 2), state.transformer, active)
            x = self.downsample(x.transpose(1, 2), state.downsample, active)
        return self.quantizer.encode(x, levels)

    def decode(
        self, codes: Tensor, state: DecoderState | None = None, active: Tensor | None = None
    ) -> Tensor:
        """Codes ``[slots, levels, frames]``, each at least 0 and below the quantizer's bins, to
        sound ``[slots, samples]``."""
        x = self.quantizer.decode(codes)
        if state is None:
            x = self.upsample(x, None)
            x = self.decoder_transformer(x.transpose(1, 2), None).transpose(1, 2)
            x = self.decoder(x, None)
        else:
            x = self.upsample(x, state.upsample, active)
            x = self.decoder_transformer(x.transpose(1, 2), state.transformer, active)
            x = self.decoder(x.transpose(1, 2), state.convolutions, active)
        return x[:, 0]
