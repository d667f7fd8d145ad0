"""A frame-locked model without a model: it says what it hears, a frame late. For tests and load."""

import time
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.engines.duplex import BeginDuplex, DuplexChoice, DuplexSpec, ForcedKind
from duologue.engines.duplex_backend import DuplexBackend
from duologue.engines.duplex_limits import DuplexLimits
from duologue.engines.duplex_model import DuplexInvalid, Prompt
from duologue.engines.engine import EngineSpec
from duologue.engines.lockstep import UNFORCED, StepInput, StepOutput
from duologue.engines.model_thread import ModelThread
from duologue.engines.pulse import Pulse
from duologue.engines.script import ScriptedOptions
from duologue.models.moshi.moshi_config import SamplingChoice
from duologue.models.moshi.prompting_frames import ForcedFrame

PADDING = 0
"""The token that says nothing; the others are characters."""

HUSHED = 1
"""The agent's only code: be silent."""

_CHARACTERS = 0x110000


class DuplexScriptOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``text``: what it says while it hears sound, a word every ``word_ticks``, over and over.

    ``tick_ms``: how long a step takes, and ``session_ms`` for each session in it, in addition.
    ``recognizer``: the script of what writes down beside it what users say; without one, nobody
    does.
    """

    model: str = "scripted-duplex"
    voices: tuple[str, ...] = ("tone",)
    text: str = "I hear you, and I say it again."
    word_ticks: int = 4
    tick_ms: float = 0.0
    session_ms: float = 0.0
    start_failure: str = ""
    recognizer: ScriptedOptions | None = None
    limits: DuplexLimits = DuplexLimits(slots=32)


class EchoState(msgspec.Struct):
    """A slot's state. ``pcm``: float32 ``[samples]``, what it says next; ``sounded``: frames with
    sound that it heard."""

    pcm: NDArray[np.float32]
    sounded: int = 0
    steps: int = 0


class EchoStepper:
    """See :class:`duologue.engines.lockstep.Stepper`.

    A word's token is its place in the script, after those of characters.
    """

    row_limits: tuple[int, ...]
    user_limits: tuple[int, ...] = (1,)

    def __init__(self, options: DuplexScriptOptions, frame_samples: int) -> None:
        self.slots = options.limits.slots
        self.frame_samples = frame_samples
        self.words = tuple(f" {word}" for word in options.text.split())
        self.row_limits = (_CHARACTERS + len(self.words), HUSHED + 1)
        self._options = options
        self._states = [self._new() for _ in range(self.slots)]
        # Kept, as many slots' worth of fresh memory would cost more than the step.
        self._pcm = np.zeros((self.slots, frame_samples), np.float32)
        self._text = np.full(self.slots, PADDING, np.int64)

    def step(self, inputs: StepInput) -> StepOutput:
        pcm, text = self._pcm, self._text
        active = np.flatnonzero(inputs.active)
        for slot in active:
            pcm[slot] = 0
            text[slot] = PADDING
            state = self._states[slot]
            state.steps += 1
            if not inputs.listening[slot]:
                continue
            if inputs.forced[slot, 1] != HUSHED:
                pcm[slot] = state.pcm
            state.pcm = inputs.pcm[slot].copy()
            text[slot] = self._word(state, int(inputs.forced[slot, 0]))
        wait_s = (self._options.tick_ms + self._options.session_ms * len(active)) / 1000
        if wait_s:
            time.sleep(wait_s)
        return StepOutput(pcm, text, inputs.active & inputs.listening)

    def _word(self, state: EchoState, forced: int) -> int:
        if not state.pcm.any():
            return PADDING if forced == UNFORCED else forced
        word, rest = divmod(state.sounded, self._options.word_ticks)
        state.sounded += 1
        if forced != UNFORCED:
            return forced
        return PADDING if rest or not self.words else _CHARACTERS + word % len(self.words)

    def reset(self, slot: int, choice: SamplingChoice) -> None:
        self._states[slot] = self._new()

    def choose(self, slot: int, choice: SamplingChoice) -> None:
        """There is nothing to choose."""

    def copy(self, source: int, target: int) -> None:
        self.restore(target, self.save(source))

    def save(self, slot: int) -> EchoState:
        state = self._states[slot]
        return EchoState(state.pcm.copy(), state.sounded, state.steps)

    def release(self, slot: int) -> None:
        """Nothing: a state takes no memory that another one could use."""

    def restore(self, slot: int, saved: EchoState) -> None:
        self._states[slot] = EchoState(saved.pcm.copy(), saved.sounded, saved.steps)

    def _new(self) -> EchoState:
        return EchoState(np.zeros(self.frame_samples, np.float32))


class EchoText:
    """See :class:`duologue.engines.duplex_model.FrameText`."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def push(self, token: int) -> str:
        if token == PADDING:
            return ""
        return chr(token) if token < _CHARACTERS else self._words[token - _CHARACTERS]

    def fork(self) -> "EchoText":
        return self


class EchoModel:
    """See :class:`duologue.engines.duplex_model.DuplexModel`."""

    def __init__(self, options: DuplexScriptOptions, frames: DuplexSpec | None = None) -> None:
        """RuntimeError if the options say so."""
        if options.start_failure:
            raise RuntimeError(options.start_failure)
        frames = frames or DuplexSpec(instructions=True, recordings=True)
        self.stepper = EchoStepper(options, frames.frame_samples)
        self.sizes = tuple(2**power for power in range(10))
        self.spec = EngineSpec(
            model=options.model,
            voices=options.voices,
            default_voice=options.voices[0],
            context_tokens=0,
            description="A script; there is no model.",
            calls_tools=False,
            duplex=frames,
        )

    def choice(self, asked: DuplexChoice, base: SamplingChoice | None = None) -> SamplingChoice:
        return SamplingChoice()

    def prompt(self, begin: BeginDuplex) -> Prompt:
        """A frame for each character of the instructions."""
        if begin.voice and begin.voice not in self.spec.voices:
            raise DuplexInvalid(f"there is no voice {begin.voice}")
        frames = self.forced("instructions", begin.instructions)
        return Prompt(frames, begin.instructions if frames else None)

    def forced(self, kind: ForcedKind, text: str) -> list[ForcedFrame]:
        """A character a frame; what is not to be said goes in unheard."""
        heard = None if kind == "commentary" else (0,)
        return [ForcedFrame((ord(character), UNFORCED), heard) for character in text]

    def hush(self, frames: int) -> list[ForcedFrame]:
        return [ForcedFrame((PADDING, HUSHED))] * frames

    def text(self) -> EchoText:
        return EchoText(self.stepper.words)


def create_backend(options: bytes, pulse: Pulse) -> DuplexBackend[EchoState]:
    """A scripted backend from the msgpack of :class:`DuplexScriptOptions`."""
    script = msgspec.msgpack.decode(options, type=DuplexScriptOptions)
    return DuplexBackend(
        lambda: EchoModel(script),
        script.limits,
        ModelThread("duplex", pulse),
        pulse,
        lambda: time.monotonic_ns() / 1e9,
    )
