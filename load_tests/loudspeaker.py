"""What is heard of a call: a loudspeaker that plays frames as they are decoded."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from load_tests.recordings import Samples

RATE = 48_000
"""Of what a WebRTC client decodes."""
BUFFER_SECONDS = 0.02
"""From handing a frame to the loudspeaker to hearing its first sample."""
SILENT_BELOW = 100
"""Samples of a smaller magnitude are silence: 50 dB below full scale."""
LAG_SECONDS = 0.005
"""Frames of silence are left out while what waits is more than this: a burst of late frames must
not delay all that follows."""
_WINDOW = RATE // 1000


@dataclass(slots=True)
class Loudspeaker:
    """Mono int16 at 48 kHz; times in seconds on the client's clock."""

    pieces: list[tuple[float, Samples]] = field(default_factory=list)
    """All that was heard, each with the time of its first sample."""
    last_sound: float = -1.0
    """When the last sample that was not silent was heard, or will be."""
    _until: float = -1.0

    def play(self, samples: Samples, now: float) -> float | None:
        """A frame was decoded. When its first audible sample is heard; ``None`` for silence."""
        loud = np.flatnonzero(np.abs(samples.astype(np.int32)) >= SILENT_BELOW)
        if not len(loud) and self._until - now - BUFFER_SECONDS > LAG_SECONDS:
            return None
        start = max(now + BUFFER_SECONDS, self._until)
        self._until = start + len(samples) / RATE
        self.pieces.append((start, samples))
        if not len(loud):
            return None
        self.last_sound = start + int(loud[-1]) / RATE
        return start + int(loud[0]) / RATE

    def between(self, begin: float, end: float) -> Samples:
        """What was heard in this time, with silence where nothing was."""
        return stretch(self.pieces, begin, end)


def stretch(pieces: Sequence[tuple[float, Samples]], begin: float, end: float) -> Samples:
    """A stretch of time of what lies in pieces, each with the time of its first sample."""
    heard = np.zeros(max(0, round((end - begin) * RATE)), np.int16)
    for start, samples in pieces:
        at = round((start - begin) * RATE)
        if at >= len(heard) or at + len(samples) <= 0:
            continue
        part = samples[max(0, -at) : len(heard) - at]
        heard[max(0, at) : max(0, at) + len(part)] = part
    return heard


def fade_seconds(heard: Samples) -> float | None:
    """How long sound that ends in this took to fall from half of its loudness to a twentieth.

    Of a straight ramp that is 45 %. Loudness is that of the last periods of a voice before its end:
    what it was longer ago says nothing, as voices rise and fall by themselves. ``None`` when there
    was no sound, or nothing before the fade to compare it with.
    """
    count = len(heard) // _WINDOW
    windows = np.abs(heard[: count * _WINDOW].astype(np.int32)).reshape(count, _WINDOW)
    peaks = windows.max(axis=1)
    sounding = np.flatnonzero(peaks >= SILENT_BELOW)
    if len(sounding) == 0 or sounding[-1] < 60:
        return None
    end = int(sounding[-1])
    usual = int(peaks[end - 20 : end - 8].max())
    half = np.flatnonzero(peaks >= 0.5 * usual)
    low = np.flatnonzero(peaks >= max(SILENT_BELOW, 0.05 * usual))
    return (int(low[-1]) - int(half[-1])) / 1000
