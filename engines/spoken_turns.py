"""Where a model that never stops speaks, and where it is silent; pure."""

from typing import Final, Literal

from duologue.codecs.media import Int16Samples
from duologue.codecs.pcm import rms_dbfs

SOUND_DBFS: Final = -50.0
"""A frame that is louder is speech."""

PAUSE_TICKS: Final = 10
"""Silence that ends a turn: 0.8 s of 80 ms frames; clients of Live split utterances there too."""

LONGEST_TICKS: Final = 750
"""A minute: longer turns are cut, as clients keep them whole."""

Verdict = Literal["quiet", "begins", "goes_on", "ends"]


class SpokenTurns:
    """The turns of one model's speech."""

    def __init__(self) -> None:
        self._ticks = 0
        self._quiet = 0
        self.speaking = False

    def push(self, samples: Int16Samples, text: str) -> Verdict:
        """What a frame is; the one that ``ends`` is silent, or the first beyond the longest."""
        sounds = bool(text.strip()) or rms_dbfs(samples) > SOUND_DBFS
        if not self.speaking:
            if not sounds:
                return "quiet"
            self.speaking, self._ticks, self._quiet = True, 1, 0
            return "begins"
        self._ticks += 1
        self._quiet = 0 if sounds else self._quiet + 1
        if self._quiet >= PAUSE_TICKS or self._ticks > LONGEST_TICKS:
            self.stop()
            return "ends"
        return "goes_on"

    def stop(self) -> None:
        """The turn is over whatever is heard; what comes next begins another."""
        self.speaking = False
