"""PCM: little-endian 16-bit bytes, int16 and float32, and simple work on samples.

float32 is int16 / 32768, so full scale is [-1, 1) and int16 -> float32 -> int16 is exact. Towards
int16, values round half to even and saturate; NaN becomes 0.

Levels are in dBFS where a constant of magnitude 1 is 0, so a full-scale sine has an RMS of -3.01.
"""

import math
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from duologue.codecs.media import (
    AnySamples,
    Float32Samples,
    Int16Samples,
    MalformedDataError,
    MediaValueError,
    Samples,
    SampleType,
    checked_samples,
)

SAMPLE_BYTES = 2
MIN_DBFS = -127.0
"""The level of silence and of nothing: the least that RFC 6464, section 3 can express."""

MAX_GAIN_DB = 120.0

_LITTLE_ENDIAN = np.dtype("<i2")
_SCALE = np.float32(32768.0)
_UNIT = np.float32(1 / 32768)
_MINUS_ONE = np.float32(-1.0)
_ONE = np.float32(1.0)
_LOWEST = np.float32(-32768.0)
_HIGHEST = np.float32(32767.0)


def int16_from_bytes(data: bytes | bytearray | memoryview) -> Int16Samples:
    """Samples of whole little-endian words; read-only if `data` is bytes.

    The result shares the memory of `data` on little-endian machines. MalformedDataError if the
    length is odd.
    """
    if len(data) % SAMPLE_BYTES:
        raise MalformedDataError(f"16-bit PCM of {len(data)} bytes ends within a sample")
    return np.frombuffer(data, _LITTLE_ENDIAN).astype(np.int16, copy=False)


def bytes_from_int16(samples: Int16Samples) -> bytes:
    return samples.astype(_LITTLE_ENDIAN, copy=False).tobytes()


def float_from_int16(samples: Int16Samples) -> Float32Samples:
    scaled = samples.astype(np.float32)
    scaled *= _UNIT
    return scaled


def int16_from_float(samples: Float32Samples) -> Int16Samples:
    """Rounded half to even and saturated; NaN becomes 0. `samples` is left as it is."""
    bounded = _bounded(samples, _MINUS_ONE, _HIGHEST * _UNIT)
    bounded *= _SCALE
    return _rounded(bounded)


def to_float(samples: Samples) -> Float32Samples:
    """Either kind as float32; the very array if it is already."""
    if samples.dtype == np.int16:
        return float_from_int16(cast(Int16Samples, samples))
    return cast(Float32Samples, samples)


def to_int16(samples: Samples) -> Int16Samples:
    """Either kind as int16; the very array if it is already."""
    if samples.dtype == np.int16:
        return cast(Int16Samples, samples)
    return int16_from_float(cast(Float32Samples, samples))


def float_from_bytes(data: bytes | bytearray | memoryview) -> Float32Samples:
    """As `int16_from_bytes`, scaled."""
    return float_from_int16(int16_from_bytes(data))


def bytes_from_float(samples: Float32Samples) -> bytes:
    return bytes_from_int16(int16_from_float(samples))


class Pcm16Reader:
    """Joins a byte stream cut anywhere into int16 samples, keeping an odd byte for the next."""

    __slots__ = ("_odd",)

    def __init__(self) -> None:
        self._odd = b""

    @property
    def pending(self) -> int:
        """Bytes kept: 0 or 1."""
        return len(self._odd)

    def feed(self, data: bytes | bytearray | memoryview) -> Int16Samples:
        """The samples complete so far. They share no memory with `data`."""
        joined = self._odd + bytes(data)
        whole = len(joined) - len(joined) % SAMPLE_BYTES
        self._odd = joined[whole:]
        return int16_from_bytes(memoryview(joined)[:whole])

    def close(self) -> None:
        """End the stream; MalformedDataError if half a sample is left, which is dropped."""
        odd, self._odd = self._odd, b""
        if odd:
            raise MalformedDataError("16-bit PCM ends within a sample")


def silence(samples: int, dtype: type[SampleType]) -> NDArray[SampleType]:
    """Zeros; MediaValueError if `samples` is negative."""
    if samples < 0:
        raise MediaValueError(f"silence is not {samples} samples long")
    return np.zeros(samples, dtype)


def rms_dbfs(samples: Samples) -> float:
    """Root mean square level, at least MIN_DBFS; NaN counts as 0."""
    if not len(samples):
        return MIN_DBFS
    wide = _to_unit(samples)
    return _decibels(math.sqrt(float(wide.dot(wide)) / len(wide)))


def peak_dbfs(samples: Samples) -> float:
    """The largest magnitude, at least MIN_DBFS; NaN counts as 0."""
    if not len(samples):
        return MIN_DBFS
    wide = _to_unit(samples)
    return _decibels(max(float(wide.max()), -float(wide.min())))


def gain(samples: AnySamples, decibels: float) -> AnySamples:
    """A louder or quieter copy, saturating at full scale.

    MediaValueError if `decibels` is outside +-MAX_GAIN_DB or NaN.
    """
    if not abs(decibels) <= MAX_GAIN_DB:
        raise MediaValueError(f"a gain is within {MAX_GAIN_DB} dB of 0, not {decibels}")
    return _scaled(samples, np.float32(10 ** (decibels / 20)))


def mix(first: AnySamples, *others: AnySamples) -> AnySamples:
    """The sum, saturating at full scale: int16 to its range, float32 to [-1, 1].

    MediaValueError unless all have one dtype and length.
    """
    for other in others:
        if other.dtype != first.dtype or other.shape != first.shape:
            raise MediaValueError(
                f"{first.dtype} of {first.shape} does not mix with {other.dtype} of {other.shape}"
            )
    whole = first.dtype == np.int16
    total: NDArray[Any] = first.astype(np.int32 if whole else np.float32)
    for other in others:
        total += other
    lowest, highest = (-32768, 32767) if whole else (-1, 1)
    np.maximum(total, lowest, out=total)
    np.minimum(total, highest, out=total)
    return cast(AnySamples, total.astype(first.dtype, copy=False))


def ramp(samples: AnySamples, first: float, last: float) -> AnySamples:
    """A copy whose gain goes linearly from `first` at its first sample to `last` at its last.

    Gains are in [0, 1], so the result cannot clip; MediaValueError outside.
    """
    if not (0 <= first <= 1 and 0 <= last <= 1):
        raise MediaValueError(f"gains are in [0, 1], not {first} and {last}")
    return _scaled(samples, np.linspace(first, last, len(samples), dtype=np.float32))


def fade_in(samples: AnySamples, length: int) -> AnySamples:
    """A copy whose first `length` samples rise from silence: sample k has the gain k / length.

    A shorter sound rises over all of it. MediaValueError if `length` is negative.
    """
    return _faded(samples, length, slice(None))


def fade_out(samples: AnySamples, length: int) -> AnySamples:
    """A copy whose last `length` samples fall to silence: `fade_in` reversed in time."""
    return _faded(samples, length, slice(None, None, -1))


def _faded(samples: AnySamples, length: int, direction: slice) -> AnySamples:
    if length < 0:
        raise MediaValueError(f"a fade is not {length} samples long")
    faded = samples.copy()
    slope = _slope(min(length, len(samples)))
    part = faded[direction][: len(slope)]
    part[:] = _scaled(part, slope)
    return cast(AnySamples, faded)


@lru_cache(maxsize=32)
def _slope(length: int) -> Float32Samples:
    return np.arange(length, dtype=np.float32) / np.float32(max(length, 1))


def _scaled(samples: AnySamples, factor: Float32Samples | np.float32) -> AnySamples:
    scaled: Float32Samples = samples * factor
    if samples.dtype == np.int16:
        return cast(AnySamples, _rounded(_bounded(scaled, _LOWEST, _HIGHEST)))
    return cast(AnySamples, _bounded(scaled, _MINUS_ONE, _ONE))


def _bounded(values: Float32Samples, lowest: np.float32, highest: np.float32) -> Float32Samples:
    """A copy; NaN stays NaN."""
    bounded: Float32Samples = np.maximum(values, lowest)
    np.minimum(bounded, highest, out=bounded)
    return bounded


def _rounded(values: Float32Samples) -> Int16Samples:
    """Of `values` within int16's range or NaN, which it overwrites."""
    np.rint(values, out=values)
    # Of bounded values only NaN makes the sum of squares NaN: the cheapest test.
    if math.isnan(values.dot(values)):
        values[np.isnan(values)] = 0
    return values.astype(np.int16)


def _to_unit(samples: Samples) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    checked_samples(samples)
    wide = samples.astype(np.float64)
    if samples.dtype == np.int16:
        wide *= 1 / 32768
    elif math.isnan(wide.sum()):
        wide[np.isnan(wide)] = 0
    return wide


def _decibels(magnitude: float) -> float:
    if magnitude <= 0:
        return MIN_DBFS
    return max(20 * math.log10(magnitude), MIN_DBFS)
