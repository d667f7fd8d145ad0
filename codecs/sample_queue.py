"""Sound that waits to be played: pieces as they came, bounded, read in other sizes.

Where `AudioRing` copies into one buffer and knows positions, this keeps the pieces and gives views
of them: what is written once and read once, 50 times a second and session, costs little.
"""

from collections import deque

import numpy as np

from duologue.codecs.media import Int16Samples, MediaValueError, RingFullError


class SampleQueue:
    """At most `bound` int16 mono samples. Refuses what does not fit."""

    def __init__(self, bound: int) -> None:
        """MediaValueError if `bound` is below 1."""
        if bound < 1:
            raise MediaValueError(f"a queue holds at least one sample, not {bound}")
        self.bound = bound
        self._pieces: deque[Int16Samples] = deque()
        self._held = 0

    def __len__(self) -> int:
        """Samples held."""
        return self._held

    @property
    def room(self) -> int:
        return self.bound - self._held

    def write(self, samples: Int16Samples) -> None:
        """Append; whoever gives samples no longer writes to them.

        MediaValueError unless int16 and mono; RingFullError, and nothing is taken, if they do not
        fit.
        """
        if samples.dtype != np.int16 or samples.ndim != 1:
            raise MediaValueError(f"{samples.dtype} of {samples.shape} in a queue of int16")
        count = len(samples)
        if count > self.bound - self._held:
            raise RingFullError(f"{count} samples do not fit into {self.room}")
        if count:
            self._pieces.append(samples)
            self._held += count

    def read(self, count: int) -> Int16Samples:
        """The oldest `count`, or all that are held if fewer. Not to be written to."""
        if count < 0:
            raise MediaValueError(f"cannot read {count} samples")
        pieces: list[Int16Samples] = []
        missing = min(count, self._held)
        self._held -= missing
        while missing:
            piece = self._pieces[0]
            if len(piece) > missing:
                self._pieces[0] = piece[missing:]
                piece = piece[:missing]
            else:
                self._pieces.popleft()
            pieces.append(piece)
            missing -= len(piece)
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int16)

    def clear(self) -> int:
        """Empty it; how many samples were held."""
        held, self._held = self._held, 0
        self._pieces.clear()
        return held
