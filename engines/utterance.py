"""One utterance as it is heard: its audio, and what has been recognised of it. No I/O, no tasks.

Positions are samples at 16 kHz, as the session counts them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from duologue.codecs.pcm import float_from_int16
from duologue.engines.engine import HEARD_RATE

MOST_SECONDS = 600
"""Audio that waits to be recognised; beyond, the oldest is lost."""

FOLD_SECONDS = 26
"""From here on the beginning is recognised for good, so that no result costs more than this."""

KEPT_SECONDS = 8
"""Audio before the fold that stays, for the turn detector."""

_STEP = HEARD_RATE // 50
_QUIET = 60.0
_QUIET_SHARE = 0.05
_RESULTS = 4
_SLACK = HEARD_RATE // 10
_CLICK_STEPS = 1
"""A sound no longer than this, in steps of 20 ms, adds no word."""

Int16 = npt.NDArray[np.int16]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Result:
    """The words up to a position."""

    until: int
    text: str


class Utterance:
    """Grows until it is closed. Audio before ``start`` was never heard."""

    def __init__(self, name: str, start: int) -> None:
        self.name = name
        self.start = start
        self.end = start
        self.closed_at: int | None = None
        self.folded = Result(start, "")
        self.folding = False
        self.drafted_until = start
        self.drafting = False
        self._pcm = bytearray()
        self._pcm_start = start
        self._results: list[Result] = []
        self._loudest = 0.0
        self._quiet_from = start
        self._measured = start

    def hear(self, start: int, pcm: bytes) -> None:
        """More audio. Of an overlap with what was heard the old wins; a gap is silence."""
        gap = start - self.end
        if gap > MOST_SECONDS * HEARD_RATE:
            self._pcm.clear()
            self._pcm_start = self._measured = start
        elif gap > 0:
            self._pcm += bytes(2 * gap)
        self._pcm += pcm[max(0, -2 * gap) :]
        self.end = self._pcm_start + len(self._pcm) // 2
        self._drop(self.end - MOST_SECONDS * HEARD_RATE)
        if self.folded.until < self._pcm_start:
            self.folded = Result(self._pcm_start, self.folded.text)
        self._measure()

    def close(self, end: int) -> None:
        """Nothing more belongs to it than what lies before `end`."""
        self.closed_at = self._within(end)

    def audio(self, start: int, until: int) -> Float32:
        """What was heard between two positions, as far as it is kept."""
        return float_from_int16(self._samples(start, until))

    @property
    def heard_until(self) -> int:
        return self.end if self.closed_at is None else self.closed_at

    def last(self, seconds: float, until: int) -> Float32:
        """The audio before a position, at most so many seconds of it."""
        until = self._within(until)
        return self.audio(until - int(seconds * HEARD_RATE), until)

    def open_part(self, until: int) -> Float32:
        """What lies between the fold and a position."""
        return self.audio(self.folded.until, self._within(until))

    def text_with(self, words: str) -> str:
        """The folded text and what follows it."""
        return f"{self.folded.text} {words}".strip()

    def learn(self, until: int, text: str) -> None:
        """The whole text up to a position is known."""
        self._results = [*self._results, Result(self._within(until), text)][-_RESULTS:]

    def known(self, until: int) -> str | None:
        """The whole text up to a position, if a result tells: one for this position, or one that
        differs from it by silence only."""
        until = self._within(until)
        for result in reversed(self._results):
            low, high = sorted((result.until, until))
            if low == high or (result.until >= until - _SLACK and self._is_quiet(low, high)):
                return result.text
        return self.folded.text if until <= self.folded.until and self.folded.text else None

    @property
    def words(self) -> str:
        """The whole text as it was recognised last, "" before that."""
        return self._results[-1].text if self._results else self.folded.text

    @property
    def long(self) -> bool:
        """Its beginning should be folded."""
        return self.end - self.folded.until > FOLD_SECONDS * HEARD_RATE

    def fold(self, until: int, text: str) -> None:
        """The words between the fold and `until` are `text`, for good."""
        self.folded = Result(until, self.text_with(text))
        self._drop(until - KEPT_SECONDS * HEARD_RATE)

    def pauses(self, samples: int) -> bool:
        """Whether something was said, and then nothing for at least so long."""
        return self._loudest > _QUIET and self.end - self._quiet_from >= samples

    @property
    def quiet_from(self) -> int:
        """Where the silence at the end began."""
        return self._quiet_from

    def _within(self, position: int) -> int:
        return max(self.start, min(position, self.heard_until))

    def _samples(self, start: int, until: int) -> Int16:
        first = max(0, start - self._pcm_start)
        last = max(first, until - self._pcm_start)
        return np.frombuffer(bytes(self._pcm[2 * first : 2 * last]), np.int16)

    def _drop(self, before: int) -> None:
        count = before - self._pcm_start
        if count > 0:
            del self._pcm[: 2 * count]
            self._pcm_start = before

    def _measure(self) -> None:
        """Follow the loudness in steps of 20 ms."""
        whole = (self.end - self._measured) // _STEP
        if not whole:
            return
        until = self._measured + whole * _STEP
        loudness = _loudness(self._samples(self._measured, until))
        self._loudest = max(self._loudest, float(loudness.max(initial=0.0)))
        loud = np.nonzero(loudness >= self._threshold)[0]
        if len(loud):
            self._quiet_from = self._measured + (int(loud[-1]) + 1) * _STEP
        self._measured = until

    @property
    def _threshold(self) -> float:
        return max(_QUIET, _QUIET_SHARE * self._loudest)

    def _is_quiet(self, start: int, until: int) -> bool:
        if start < self._pcm_start:
            return False
        loud = _loudness(self._samples(start, until)) >= self._threshold
        return int(loud.sum()) <= _CLICK_STEPS


def _loudness(samples: Int16) -> Float32:
    """Root mean square of each 20 ms, the last of them shorter."""
    padded = np.zeros(-(-len(samples) // _STEP) * _STEP, np.float32)
    padded[: len(samples)] = samples
    loudness: Float32 = np.sqrt(np.square(padded.reshape(-1, _STEP)).mean(axis=1))
    return loudness
