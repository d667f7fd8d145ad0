"""Voices by name, whatever model speaks them."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

SLOWEST = 0.25
FASTEST = 1.5


def never() -> bool:
    """The flag of speech that nobody will cancel."""
    return False


class Synthesizer(Protocol):
    """A model that turns text into speech."""

    @property
    def rate(self) -> int:
        """The sample rate of its speech, in Hz."""

    @property
    def voices(self) -> tuple[str, ...]:
        """The names of its voices, best first; at least one."""

    def synthesize(
        self, text: str, *, voice: str, speed: float, cancelled: Callable[[], bool]
    ) -> npt.NDArray[np.float32]:
        """Say `text`: float32 within -1 to 1, one channel at `rate`.

        Any text will do: numbers, markdown and the like are turned into words first, and the result
        is empty where nothing is left to say. `speed` is a factor of 0.25 to 1.5. Once
        `cancelled()` is true the call ends within some 20 ms, with an empty result; the flag is
        read on another thread. Raises ValueError for a voice that is not in `voices` or a speed
        out of range.
        """


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice and the model that has it."""

    name: str
    synthesizer: Synthesizer


_OPENAI = {
    "alloy": "bf_emma",
    "ash": "am_michael",
    "ballad": "bm_fable",
    "cedar": "am_michael",
    "coral": "af_bella",
    "echo": "am_fenrir",
    "fable": "bm_fable",
    "marin": "af_heart",
    "nova": "af_bella",
    "onyx": "am_fenrir",
    "sage": "bf_emma",
    "shimmer": "bf_isabella",
    "verse": "bm_george",
}
"""The names that OpenAI's clients send, and which of ours stand in for them."""


class VoiceCatalogue:
    """The voices of several synthesizers under one roof."""

    def __init__(self, synthesizers: Sequence[Synthesizer], default: str = "") -> None:
        """The first synthesizer with a voice of some name has that name.

        `default` is the voice for a session that names none; "" takes the first one. Raises
        ValueError without any voice, or for a default that is not there.
        """
        self._voices: dict[str, Voice] = {}
        for synthesizer in synthesizers:
            for name in synthesizer.voices:
                self._voices.setdefault(name, Voice(name, synthesizer))
        if not self._voices:
            raise ValueError("no synthesizer has a voice")
        self.names = tuple(self._voices)
        if default and default not in self._voices:
            raise ValueError(f"no voice is called {default!r}; there are {', '.join(self.names)}")
        self.default = default or self.names[0]

    def find(self, name: str) -> Voice:
        """The voice of this name, or the one that stands in for it; "" is the default.

        A name of OpenAI's has its fixed stand-in where that voice is loaded. Any other name is
        given one by its spelling, the same on every call and every start. Case does not matter.
        """
        wanted = name.strip().lower()
        if not wanted:
            return self._voices[self.default]
        for candidate in (wanted, _OPENAI.get(wanted, wanted)):
            if candidate in self._voices:
                return self._voices[candidate]
        return self._voices[self.names[zlib.crc32(wanted.encode()) % len(self.names)]]


def check_request(synthesizer: Synthesizer, voice: str, speed: float) -> None:
    """Raise ValueError for a voice the synthesizer does not have or a speed it cannot speak at."""
    if voice not in synthesizer.voices:
        raise ValueError(f"no voice is called {voice!r}; there are {', '.join(synthesizer.voices)}")
    if not SLOWEST <= speed <= FASTEST:
        raise ValueError(f"speed is from {SLOWEST} to {FASTEST}, not {speed}")
