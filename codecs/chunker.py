"""Packets of any size in, frames of one size out."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from duologue.codecs.media import AudioChunk, MediaTime, MediaValueError, Samples, checked_samples


class Chunker:
    """Cuts one stream into frames of `size` samples.

    The first sample pushed is at `start`; positions count samples from there, without gaps.
    """

    def __init__(self, size: int, start: MediaTime) -> None:
        """MediaValueError if `size` is below 1."""
        if size < 1:
            raise MediaValueError(f"a frame has at least one sample, not {size}")
        self._size = size
        self._position = start
        self._kept: Samples | None = None

    @property
    def pending(self) -> int:
        """Samples kept for the next frame, 0 to size - 1."""
        return 0 if self._kept is None else len(self._kept)

    @property
    def position(self) -> MediaTime:
        """Where the next frame starts."""
        return self._position

    def push(self, samples: Samples) -> list[AudioChunk]:
        """The frames that `samples` completes. They share no memory with it.

        MediaValueError unless mono int16 or float32, and if the dtype changes within a frame.
        """
        checked_samples(samples)
        kept: NDArray[Any] = samples[:0] if self._kept is None else self._kept
        if kept.dtype != samples.dtype:
            raise MediaValueError(f"{samples.dtype} after {kept.dtype}")
        joined: NDArray[Any] = np.concatenate((kept, samples))
        whole = len(joined) - len(joined) % self._size
        frames = [self._frame(joined[at : at + self._size]) for at in range(0, whole, self._size)]
        rest = joined[whole:]
        # A copy when frames came out, so that a few samples do not keep a whole packet alive.
        self._kept = (rest.copy() if whole else rest) if len(rest) else None
        return frames

    def flush(self) -> AudioChunk | None:
        """The last frame, filled up with silence, if samples are kept. Positions go on after it."""
        if self._kept is None:
            return None
        padded: Samples = np.zeros(self._size, self._kept.dtype)
        padded[: len(self._kept)] = self._kept
        self._kept = None
        return self._frame(padded)

    def reset(self, start: MediaTime) -> None:
        """Forget what is kept; the next sample is at `start`."""
        self._kept = None
        self._position = start

    def _frame(self, samples: Samples) -> AudioChunk:
        frame = AudioChunk(samples, self._position.rate, self._position)
        self._position = frame.end
        return frame
