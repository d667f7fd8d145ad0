"""What a Live session plays: one stream that never ends, a frame after the other.

Speech of the model waits in order and is spent at real time; a fixture of the client comes before
it; where there is neither, there are zeros. What has left is what was heard. Mono int16 at 24 kHz.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from duologue.codecs.media import Int16Samples
from duologue.codecs.pcm import fade_in, fade_out, int16_from_bytes

RATE: Final = 24_000
SAMPLES_PER_MS: Final = RATE // 1000
FADE: Final = RATE * 7 // 1000
"""Samples over which sound ends or begins in the middle: 7 ms, neither a click nor a word."""


@dataclass(frozen=True, slots=True)
class Frame:
    """``heard``: how far items were played, in order; ``fixture_over``: its last sample left."""

    samples: Int16Samples
    heard: tuple[tuple[str, float], ...] = ()
    fixture_over: bool = False


@dataclass(slots=True)
class _Stretch:
    """Sound of an item that waits; it ends at ``end`` samples of the item."""

    item_id: str
    samples: Int16Samples
    end: int


class LiveMixer:
    """``play`` what the model says, ``next_frame`` when one is due."""

    def __init__(self, frame_samples: int) -> None:
        self.frame_samples = frame_samples
        self._waiting: deque[_Stretch] = deque()
        self._item_id = ""
        self._item_end = 0
        self._fixture: Int16Samples | None = None
        self._ending: Int16Samples | None = None
        self._ducked = False
        self._fade_in = False
        self._audible = False

    @property
    def fixture(self) -> bool:
        """Whether one is playing."""
        return self._fixture is not None

    @property
    def waiting_ms(self) -> float:
        """Speech that waits."""
        return sum(len(stretch.samples) for stretch in self._waiting) / SAMPLES_PER_MS

    def play(self, item_id: str, pcm: bytes) -> None:
        """More of an item's speech."""
        samples = int16_from_bytes(pcm)
        if item_id != self._item_id:
            self._item_id, self._item_end = item_id, 0
        self._item_end += len(samples)
        if len(samples):
            self._waiting.append(_Stretch(item_id, samples, self._item_end))

    def play_fixture(self, samples: Int16Samples) -> None:
        """Play this before all speech. There must be none already."""
        assert self._fixture is None
        self._fixture = samples

    def flush(self) -> None:
        """End what is being said, and forget what waits. A fixture goes on."""
        self._fade_out()
        self._waiting.clear()
        self._ducked = self._fade_in = False

    def duck(self) -> None:
        """Fade out and hold what waits. Idempotent."""
        if not self._ducked:
            self._fade_out()
            self._ducked = True

    def restore(self) -> None:
        """Go on where it was held, faded in. Idempotent."""
        if self._ducked:
            self._ducked = False
            self._fade_in = True

    def _fade_out(self) -> None:
        """The next frame carries what is being said to its end, and no further."""
        if self._audible and not self._ducked and self._fixture is None:
            ending, _ = self._spend(FADE)
            self._ending = ending if len(ending) else self._ending

    def next_frame(self) -> Frame:
        """The next frame: always a whole one."""
        samples = np.zeros(self.frame_samples, np.int16)
        begin = 0
        if self._ending is not None:
            begin = len(self._ending)
            samples[:begin] = fade_out(self._ending, begin)
            self._ending = None
        if self._fixture is not None:
            return self._fixture_frame(samples, begin)
        heard: dict[str, float] = {}
        self._audible = False
        if not self._ducked:
            spoken, heard = self._spend(self.frame_samples - begin)
            if self._fade_in and len(spoken):
                spoken = fade_in(spoken, min(FADE, len(spoken)))
                self._fade_in = False
            samples[begin : begin + len(spoken)] = spoken
            self._audible = len(spoken) > 0
        return Frame(samples, tuple(heard.items()))

    def _fixture_frame(self, samples: Int16Samples, begin: int) -> Frame:
        """A frame of the fixture, behind what ends at ``begin``."""
        assert self._fixture is not None
        part = self._fixture[: self.frame_samples - begin]
        samples[begin : begin + len(part)] = part
        rest = self._fixture[len(part) :]
        self._fixture = rest if len(rest) else None
        self._audible = False
        return Frame(samples, (), self._fixture is None)

    def _spend(self, count: int) -> tuple[Int16Samples, dict[str, float]]:
        """Up to ``count`` samples of what waits, and how far each of their items was played."""
        pieces: list[Int16Samples] = []
        heard: dict[str, float] = {}
        while count > 0 and self._waiting:
            stretch = self._waiting[0]
            piece = stretch.samples[:count]
            stretch.samples = stretch.samples[count:]
            count -= len(piece)
            pieces.append(piece)
            heard[stretch.item_id] = (stretch.end - len(stretch.samples)) / SAMPLES_PER_MS
            if not len(stretch.samples):
                self._waiting.popleft()
        return (np.concatenate(pieces) if pieces else np.zeros(0, np.int16)), heard
