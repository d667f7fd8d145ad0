"""Media values: positions in time, sound and pictures, and the errors of this layer.

CodecError
├── MediaValueError     a value that cannot be media: dtype, shape, rate or range
├── RateMismatchError   two rates in one operation
├── MalformedDataError  bytes that are not what they should be
└── RingFullError       a ring whose policy is to refuse
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

Int16Samples = NDArray[np.int16]
Float32Samples = NDArray[np.float32]
Samples = Int16Samples | Float32Samples

AnySamples = TypeVar("AnySamples", bound=Samples)
"""One of the two kinds of samples, the same in the argument and in the result."""

SampleType = TypeVar("SampleType", bound=np.int16 | np.float32)

SAMPLE_DTYPES = (np.dtype(np.int16), np.dtype(np.float32))


class CodecError(Exception):
    """Anything this layer refuses."""


class MediaValueError(CodecError, ValueError):
    """A value of the wrong dtype, shape, rate or range."""


class RateMismatchError(CodecError, ValueError):
    """Two positions, or a sound and a position, at different rates."""


class MalformedDataError(CodecError, ValueError):
    """Bytes that cannot be decoded."""


class RingFullError(CodecError):
    """A ring with the policy REFUSE has no room for all of a write."""


@dataclass(frozen=True, slots=True)
class MediaTime:
    """A position or a length: `samples` at `rate` a second.

    Negative before the origin. Rates never mix: arithmetic and order between two rates raise
    RateMismatchError, and equality is false. Convert with `at_rate`.
    """

    samples: int
    rate: int

    def __post_init__(self) -> None:
        if type(self.samples) is not int or type(self.rate) is not int:
            raise MediaValueError(
                f"samples and rate are whole numbers, not {self.samples!r} and {self.rate!r}"
            )
        if self.rate < 1:
            raise MediaValueError(f"a rate is at least 1, not {self.rate}")

    @classmethod
    def from_seconds(cls, seconds: float, rate: int) -> Self:
        """The nearest position at `rate` (half to even); MediaValueError unless finite."""
        if not math.isfinite(seconds):
            raise MediaValueError(f"a time is finite, not {seconds}")
        return cls(round(Fraction(seconds) * rate), rate)

    @classmethod
    def from_ms(cls, ms: float, rate: int) -> Self:
        """The nearest position at `rate` (half to even); MediaValueError unless finite."""
        if not math.isfinite(ms):
            raise MediaValueError(f"a time is finite, not {ms}")
        return cls(round(Fraction(ms) * rate / 1000), rate)

    @property
    def seconds(self) -> float:
        return self.samples / self.rate

    @property
    def ms(self) -> float:
        return self.samples * 1000 / self.rate

    @property
    def whole_ms(self) -> int:
        """Milliseconds rounded down, so that a count never runs ahead of the media."""
        return self.samples * 1000 // self.rate

    def at_rate(self, rate: int) -> "MediaTime":
        """The same instant counted at another rate, rounded down."""
        return MediaTime(self.samples * rate // self.rate, rate)

    def plus(self, samples: int) -> "MediaTime":
        """`samples` later, or earlier when negative."""
        return MediaTime(self.samples + samples, self.rate)

    def __add__(self, other: "MediaTime") -> "MediaTime":
        return MediaTime(self.samples + self._same_rate(other), self.rate)

    def __sub__(self, other: "MediaTime") -> "MediaTime":
        return MediaTime(self.samples - self._same_rate(other), self.rate)

    def __lt__(self, other: "MediaTime") -> bool:
        return self.samples < self._same_rate(other)

    def __le__(self, other: "MediaTime") -> bool:
        return self.samples <= self._same_rate(other)

    def __gt__(self, other: "MediaTime") -> bool:
        return self.samples > self._same_rate(other)

    def __ge__(self, other: "MediaTime") -> bool:
        return self.samples >= self._same_rate(other)

    def _same_rate(self, other: "MediaTime") -> int:
        if self.rate != other.rate:
            raise RateMismatchError(f"{self.rate} Hz and {other.rate} Hz do not mix")
        return other.samples


@dataclass(frozen=True, slots=True, eq=False)
class AudioChunk:
    """Mono sound: `samples` int16 or float32 in [-1, 1), shape (n,); the first is at `start`.

    `samples` is a read-only view of what was given; whoever gives it no longer writes to it.
    """

    samples: Samples
    rate: int
    start: MediaTime

    def __post_init__(self) -> None:
        samples = checked_samples(self.samples)
        if self.start.rate != self.rate:
            raise RateMismatchError(
                f"sound at {self.rate} Hz cannot start at a position at {self.start.rate} Hz"
            )
        object.__setattr__(self, "samples", _read_only(samples))

    @classmethod
    def join(cls, chunks: Sequence["AudioChunk"]) -> "AudioChunk":
        """One chunk of consecutive ones; MediaValueError if none, if they leave a gap or overlap,
        or if their dtypes differ."""
        if not chunks:
            raise MediaValueError("nothing to join")
        for before, after in zip(chunks, chunks[1:], strict=False):
            if before.end != after.start:
                raise MediaValueError(f"{after.start} does not follow {before.end}")
            if before.samples.dtype != after.samples.dtype:
                raise MediaValueError(f"{before.samples.dtype} before {after.samples.dtype}")
        first = chunks[0]
        samples: Samples = np.concatenate([chunk.samples for chunk in chunks])
        return cls(samples, first.rate, first.start)

    @property
    def end(self) -> MediaTime:
        """The position after the last sample."""
        return self.start.plus(len(self.samples))

    @property
    def duration(self) -> MediaTime:
        return MediaTime(len(self.samples), self.rate)

    def split(self, samples: int) -> tuple["AudioChunk", "AudioChunk"]:
        """The first `samples` and the rest; either may be empty. MediaValueError if negative."""
        if samples < 0:
            raise MediaValueError(f"cannot split at {samples}")
        at = min(samples, len(self.samples))
        return (
            AudioChunk(self.samples[:at], self.rate, self.start),
            AudioChunk(self.samples[at:], self.rate, self.start.plus(at)),
        )

    def __len__(self) -> int:
        return len(self.samples)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AudioChunk):
            return NotImplemented
        return (
            self.start == other.start
            and self.samples.dtype == other.samples.dtype
            and np.array_equal(self.samples, other.samples)
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class VideoFrame:
    """A picture: `pixels` RGB uint8 of shape (height, width, 3), shown at `time`.

    `pixels` is a read-only view of what was given; whoever gives it no longer writes to it.
    """

    pixels: NDArray[np.uint8]
    time: MediaTime

    def __post_init__(self) -> None:
        pixels = self.pixels
        if getattr(pixels, "dtype", None) != np.uint8:
            raise MediaValueError(f"pixels are a uint8 array, not {_kind(pixels)}")
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.size == 0:
            raise MediaValueError(f"pixels have the shape (height, width, 3), not {pixels.shape}")
        object.__setattr__(self, "pixels", _read_only(pixels))

    @property
    def width(self) -> int:
        return int(self.pixels.shape[1])

    @property
    def height(self) -> int:
        return int(self.pixels.shape[0])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VideoFrame):
            return NotImplemented
        return self.time == other.time and np.array_equal(self.pixels, other.pixels)

    __hash__ = None  # type: ignore[assignment]


def checked_samples(samples: AnySamples) -> AnySamples:
    """`samples` as given if it is int16 or float32 of shape (n,), else MediaValueError."""
    if getattr(samples, "dtype", None) not in SAMPLE_DTYPES:
        raise MediaValueError(f"samples are an int16 or float32 array, not {_kind(samples)}")
    if samples.ndim != 1:
        raise MediaValueError(f"samples are mono, of shape (n,), not {samples.shape}")
    return samples


def _kind(value: object) -> str:
    return f"{getattr(value, 'dtype', type(value).__name__)}"


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view
