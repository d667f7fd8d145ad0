"""Codec and language model as one step: a frame of sound in, a frame of sound and a text token out.

Every slot has a session of its own; all of them move by one frame a step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from duologue.models.moshi.language_model import LanguageModel, LanguageState
from duologue.models.moshi.mimi import DecoderState, EncoderState, Mimi
from duologue.models.moshi.sampling import Sampling
from duologue.models.moshi.streaming_state import StreamingState


@dataclass(slots=True, eq=False)
class DuplexState(StreamingState):
    """All that a session is, but for what it was asked to say."""

    language: LanguageState
    encoder: EncoderState
    decoder: DecoderState
    sampling: Sampling


@dataclass(frozen=True, slots=True, eq=False)
class DuplexInput:
    """One frame for every slot.

    ``pcm``: float32 ``[slots, samples]``. ``forced``: int64 ``[slots, 1 + agent_codebooks]``.
    ``heard``: int64 ``[slots, user_codebooks]``, the user's codes of slots that are not
    ``listening``. ``listening`` and ``active``: bool ``[slots]``. Slots that do not listen are
    being prompted: their sound is not decoded either. ``pages`` and ``rings``, int64 ``[slots]``:
    a page that a slot is given for this step, or -1, and how long its ring is.
    """

    pcm: Tensor
    forced: Tensor
    heard: Tensor
    listening: Tensor
    active: Tensor
    pages: Tensor | None = None
    rings: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DuplexOutput:
    """``pcm``: float32 ``[slots, samples]``, zeros where ``ready`` is false. ``text``: int64
    ``[slots]``; ``codes``: int64 ``[slots, agent_codebooks]``. ``ready``: bool ``[slots]``."""

    pcm: Tensor
    text: Tensor
    codes: Tensor
    ready: Tensor


class DuplexNetwork:
    """Raises :exc:`ValueError` where the codec has fewer codebooks than the language model."""

    def __init__(self, language: LanguageModel, mimi: Mimi) -> None:
        if mimi.config.quantizer.bins != language.config.card:
            raise ValueError("codec and language model have different codebooks")
        levels = max(language.config.agent_codebooks, language.config.user_codebooks)
        if mimi.config.quantizer.n_q < levels:
            raise ValueError(f"the codec has fewer than {levels} codebooks")
        self.language = language
        self.mimi = mimi

    @property
    def frame_samples(self) -> int:
        return self.mimi.config.frame_samples

    def new_state(
        self, slots: int, kv_dtype: torch.dtype | None = None, pages: int | None = None
    ) -> DuplexState:
        """See :func:`duologue.models.moshi.paged_kv.new_state` for ``pages``."""
        device = self.language.initial.device
        return DuplexState(
            language=self.language.new_state(slots, kv_dtype, pages),
            encoder=self.mimi.new_encoder_state(slots),
            decoder=self.mimi.new_decoder_state(slots),
            sampling=Sampling.new(slots, device),
        )

    def step(self, frame: DuplexInput, state: DuplexState) -> DuplexOutput:
        """Move every active slot by a frame. Nothing in here waits for the device."""
        config = self.language.config
        temporal = state.language.temporal
        if frame.rings is not None:
            temporal.ring.copy_(frame.rings)
        if frame.pages is not None:
            temporal.give(frame.pages)
        listening = frame.listening & frame.active
        codes = self.mimi.encode(frame.pcm, config.user_codebooks, state.encoder, listening)
        heard = torch.where(frame.listening[:, None], codes[:, :, 0], frame.heard)
        made = self.language.step(heard, frame.forced, state.sampling, state.language, frame.active)
        ready = made.ready & listening
        # Codes that are not there yet would be read outside of the codebooks.
        sound = self.mimi.decode(made.codes.clamp(min=0)[:, :, None], state.decoder, ready)
        pcm = torch.where(ready[:, None], sound, torch.zeros_like(sound))
        return DuplexOutput(pcm, made.text, made.codes, ready)

    def encode_voice(self, pcm: Tensor) -> Tensor:
        """A recording, float32 ``[samples]`` at the codec's rate, to codes, int64
        ``[frames, agent_codebooks]``. Samples beyond the last whole frame are left out."""
        whole = pcm.shape[0] - pcm.shape[0] % self.frame_samples
        codes = self.mimi.encode(pcm[None, :whole], self.language.config.agent_codebooks)
        return codes[0].T
