"""A Moshi-family checkpoint as a frame-locked model: its voices, its prompts, its text."""

import hashlib
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import msgspec
import torch

from duologue.codecs.media import Float32Samples
from duologue.codecs.pcm import float_from_bytes
from duologue.engines.duplex import (
    RECORDING_SECONDS,
    BeginDuplex,
    DuplexChoice,
    DuplexSpec,
    ForcedKind,
)
from duologue.engines.duplex_backend import DuplexBackend
from duologue.engines.duplex_model import DuplexInvalid, Prompt
from duologue.engines.engine import EngineSpec
from duologue.engines.model_thread import ModelThread
from duologue.engines.moshi_crew import end_worker
from duologue.engines.moshi_impl import GRAPH_SIZES, MoshiStepper, SavedSlot
from duologue.engines.moshi_loading import load_stepper
from duologue.engines.moshi_options import MoshiOptions
from duologue.engines.moshi_voices import Voice, find_voices, read_sound, voice_name
from duologue.engines.pulse import Pulse
from duologue.models.moshi.checkpoint import (
    Checkpoint,
    read_checkpoint,
)
from duologue.models.moshi.duplex_network import DuplexNetwork
from duologue.models.moshi.forced_words import word_frames
from duologue.models.moshi.kyutai_layout import UnsupportedCheckpoint
from duologue.models.moshi.moshi_config import MoshiConfig, SamplingChoice
from duologue.models.moshi.prompting_frames import (
    SILENCE,
    SINE,
    ForcedFrame,
    PromptCodes,
    prompt_frames,
    wrap_role,
)
from duologue.models.moshi.text_tokens import TextStream, TextTokens, load_text_tokens

log = logging.getLogger("duologue.engines.worker")

RATE: Final = 24_000
KYUTAI_CARD: Final = 2048
RECORDINGS_KEPT: Final = 32
_VOICE_FRAMES: Final = int(RECORDING_SECONDS * 12.5)
PREFERRED_VOICE: Final = "NATF2"
"""Of PersonaPlex' voices."""


class MoshiModel:
    """See :class:`duologue.engines.duplex_model.DuplexModel`.

    A model of which we know no role prompts (anything but PersonaPlex) is told no instructions
    when a session begins, and has one voice.
    """

    def __init__(
        self,
        network: DuplexNetwork,
        tokens: TextTokens,
        stepper: MoshiStepper,
        spec: EngineSpec,
        *,
        voices: Mapping[str, Voice] | None = None,
        instructions: str = "",
    ) -> None:
        self.stepper = stepper
        self.sizes = GRAPH_SIZES
        self.spec = spec
        self._network = network
        self._tokens = tokens
        self._config: MoshiConfig = network.language.config
        self._voices = voices or {}
        self._instructions = instructions
        self._prompted = spec.duplex is not None and spec.duplex.instructions
        self._codes = _prompt_codes(network)
        self._recordings: OrderedDict[bytes, list[list[int]]] = OrderedDict()

    def choice(self, asked: DuplexChoice, base: SamplingChoice | None = None) -> SamplingChoice:
        usual = base or SamplingChoice(seed=secrets.randbits(63))

        def given(value: float | None, other: float) -> float:
            return other if value is None else value

        values = [
            given(asked.text_temperature, usual.text_temperature),
            given(asked.text_top_k, usual.text_top_k),
            given(asked.audio_temperature, usual.audio_temperature),
            given(asked.audio_top_k, usual.audio_top_k),
            given(asked.seed, usual.seed),
        ]
        if not all(0 <= value < 2**63 for value in values):
            raise DuplexInvalid("temperatures, numbers of tokens and seeds can't be negative")
        return SamplingChoice(
            text_temperature=values[0],
            text_top_k=int(values[1]),
            audio_temperature=values[2],
            audio_top_k=int(values[3]),
            seed=int(values[4]),
        )

    def prompt(self, begin: BeginDuplex) -> Prompt:
        if not self._prompted:
            if begin.voice and begin.voice not in self.spec.voices:
                raise DuplexInvalid(f"there is no voice {begin.voice}")
            return Prompt()
        voice = self._voice(begin)
        role = wrap_role(begin.instructions or self._instructions)
        frames = self._frames(voice, role)
        if not frames:
            return Prompt()
        told = repr((voice, role)).encode()
        return Prompt(frames, hashlib.sha256(told).hexdigest())

    def forced(self, kind: ForcedKind, text: str) -> list[ForcedFrame]:
        if kind == "commentary":
            words = [(word, self._tokens.encode(word)) for word in text.split()]
            return word_frames(self._config, words)
        return self._frames([], wrap_role(text) if kind == "instructions" else text.strip())

    def hush(self, frames: int) -> list[ForcedFrame]:
        return [ForcedFrame((self._config.text_padding, *self._codes.silence))] * frames

    def text(self) -> TextStream:
        silent = {self._config.text_padding, self._config.text_end_padding}
        return TextStream(self._tokens, frozenset(silent))

    def _frames(self, voice: list[list[int]], role: str) -> list[ForcedFrame]:
        tokens = self._tokens.encode(role) if role else []
        return prompt_frames(self._config, voice, tokens, self._codes)

    def _voice(self, begin: BeginDuplex) -> list[list[int]]:
        """Codes of the voice that is asked for. Raises DuplexInvalid."""
        if begin.recording:
            return self._encoded(begin.recording, float_from_bytes(begin.recording))
        name = begin.voice or self.spec.default_voice
        voice = self._voices.get(name)
        if voice is None:
            if begin.voice and begin.voice not in self.spec.voices:
                raise DuplexInvalid(f"there is no voice {begin.voice}")
            return []
        if voice.codes:
            return [list(frame) for frame in voice.codes[:_VOICE_FRAMES]]
        return self._encoded(voice.wav, read_sound(name, voice.wav, RATE))

    def _encoded(self, key: bytes, sound: Float32Samples) -> list[list[int]]:
        key = hashlib.sha256(key).digest()
        if key not in self._recordings:
            pcm = torch.from_numpy(sound[: int(RECORDING_SECONDS * RATE)].copy())
            codes = self._network.encode_voice(pcm.to(self._network.language.initial.device))
            self._recordings[key] = cast(list[list[int]], codes.tolist())
            if len(self._recordings) > RECORDINGS_KEPT:
                self._recordings.popitem(last=False)
        self._recordings.move_to_end(key)
        return self._recordings[key]


def _prompt_codes(network: DuplexNetwork) -> PromptCodes:
    """What a prompt is filled up with: as it was in training, or as this codec has it."""
    config = network.language.config
    if config.card == KYUTAI_CARD and (config.agent_codebooks, config.user_codebooks) == (8, 8):
        return PromptCodes(SILENCE, SINE)
    device = network.language.initial.device
    samples = torch.arange(4 * network.frame_samples, device=device)
    tone = 0.1 * torch.sin(2 * torch.pi * 440 / network.mimi.config.sample_rate * samples)
    silence = network.mimi.encode(torch.zeros_like(tone)[None], config.agent_codebooks)
    user = network.mimi.encode(tone[None], config.user_codebooks)
    return PromptCodes(tuple(silence[0, :, -1].tolist()), tuple(user[0, :, -1].tolist()))


# -- loading --------------------------------------------------------------------------------


def load_moshi(options: MoshiOptions, lost: Callable[[str], None] = end_worker) -> MoshiModel:
    """Load a checkpoint; blocks, for minutes where it is large. ``lost``: see
    :class:`duologue.engines.moshi_crew.FollowerCrew`.

    Raises UnsupportedCheckpoint, RuntimeError for a device that is not there or a rank that fails.
    """
    checkpoint = read_checkpoint(Path(options.folder))
    if checkpoint.language is None:
        raise UnsupportedCheckpoint(f"{options.folder} has a codec and no language model")
    if checkpoint.tokenizer is None:
        raise UnsupportedCheckpoint(f"{options.folder} has no tokenizer")
    if checkpoint.mimi.sample_rate != RATE:
        raise UnsupportedCheckpoint(f"its codec is not at {RATE} Hz")
    tokens = load_text_tokens(checkpoint.tokenizer)
    _check_vocabulary(tokens, checkpoint.language.text_card_out)
    voice = voice_name(options.default_voice)
    network, stepper = load_stepper(options, checkpoint, lost)
    folder = Path(options.folder)
    voices = find_voices(folder, checkpoint.voices, options.default_voice, network.language)
    return MoshiModel(
        network,
        tokens,
        stepper,
        _spec(options, checkpoint, network, tuple(voices), voice),
        voices=voices,
        instructions=options.instructions,
    )


def _check_vocabulary(tokens: TextTokens, size: int) -> None:
    """Every token that the model can choose has to be a piece of text."""
    try:
        tokens.piece(size - 1)
    except IndexError:
        raise UnsupportedCheckpoint(
            f"its tokenizer has fewer than the model's {size} tokens"
        ) from None


def _spec(
    options: MoshiOptions,
    checkpoint: Checkpoint,
    network: DuplexNetwork,
    there: Sequence[str],
    named: str,
) -> EngineSpec:
    prompted = checkpoint.kind == "personaplex"
    voices = tuple(there) or ("default",)
    preferred = named or PREFERRED_VOICE
    if named and named not in voices:
        raise UnsupportedCheckpoint(f"there is no voice {named}; there are: {', '.join(voices)}")
    return EngineSpec(
        model=options.name,
        voices=voices,
        default_voice=preferred if preferred in voices else voices[0],
        context_tokens=network.language.config.temporal.context,
        description=f"{options.name}, which listens while it speaks.",
        calls_tools=False,
        duplex=DuplexSpec(
            sample_rate=RATE,
            frame_samples=network.frame_samples,
            instructions=prompted,
            recordings=prompted,
        ),
    )


def create_backend(options: bytes, pulse: Pulse) -> DuplexBackend[SavedSlot]:
    """A backend from the msgpack of :class:`MoshiOptions`."""
    chosen = msgspec.msgpack.decode(options, type=MoshiOptions)
    return DuplexBackend(
        lambda: load_moshi(chosen),
        chosen.limits,
        ModelThread("moshi", pulse),
        pulse,
        lambda: time.monotonic_ns() / 1e9,
    )
