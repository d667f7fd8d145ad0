"""Streaming sample-rate conversion: any chunking gives the samples of one pass.

Two filters stand behind one class. `Quality.SPEECH` is a short polyphase filter of our own; the
others are libsoxr's, which work in blocks of a power of two and so answer late and in bursts. How
many ms of input are held back at the worst moment, measured with soxr 1.1.0 and 10 ms packets:

    from -> to        SPEECH   QUICK   LOW   MEDIUM   HIGH   VERY_HIGH
    24000 -> 16000       1.6     0.1    20       38     37          77
    48000 -> 16000       1.5     0.1    20       38     37          77
     8000 -> 16000       3.0     0.3    62      118    116         111
    16000 ->  8000       3.0     0.1    62      118    115         111
    24000 ->  8000       3.0     0.1    40       75     73         153
    16000 -> 24000       1.6     0.2    20       38     37          77
    22050 -> 24000       7.7     0.1     1       43     42          41

SPEECH holds back 24 periods of the lower rate and one period common to both.

Measured from 24000 to 16000: SPEECH is flat to 7.2 kHz and what lies above 9 kHz, which would fold
back to below 7, is 80 dB down. QUICK interpolates without a filter against aliases. LOW is 13 dB
down at 7 kHz. MEDIUM and better are flat to 7.3 kHz and keep aliases below -115 dB.

So what is waited for (a voice detector, a recogniser, a reply) takes SPEECH, the default in both
directions; files and music may take HIGH.
"""

import enum
import math
from functools import lru_cache
from typing import Generic, Protocol, cast

import numpy as np
import soxr
from numpy.typing import NDArray

from duologue.codecs.media import (
    Float32Samples,
    MediaValueError,
    Samples,
    SampleType,
    checked_samples,
)
from duologue.codecs.pcm import to_float, to_int16

MAX_RATE = 384_000

_ZERO_CROSSINGS = 24
"""Of the filter's sinc on each side of its middle: delay against steepness."""

_KAISER_BETA = 7.857
"""80 dB: 0.1102 (80 - 8.7), Oppenheim & Schafer, Discrete-Time Signal Processing, 7.5.3."""

_MAX_TERM = 640
"""Bounds the filter's table: between the usual rates, 8000 to 48000, no term exceeds 441."""


class Quality(enum.Enum):
    SPEECH = "speech"
    QUICK = "QQ"
    LOW = "LQ"
    MEDIUM = "MQ"
    HIGH = "HQ"
    VERY_HIGH = "VHQ"


class _Filter(Protocol):
    def push(self, samples: Float32Samples) -> Float32Samples: ...

    def finish(self, outputs: int) -> Float32Samples:
        """The `outputs` samples still due."""
        ...


class Resampler(Generic[SampleType]):
    """One direction of one stream, mono.

    Output sample k is at the time k / target_rate of the input: the filters' delay is removed,
    only waited for. Of n input samples come floor(n * target / source + 1/2) by the end.
    With equal rates samples pass unfiltered, and may be the very array that was given.

    int16 output is rounded half to even and saturates. Give finite samples: NaN spreads over a
    filter's length.
    """

    def __init__(
        self,
        source_rate: int,
        target_rate: int,
        dtype: type[SampleType],
        quality: Quality = Quality.SPEECH,
    ) -> None:
        """`dtype` is the output's, np.int16 or np.float32; either kind may be pushed.

        MediaValueError for a rate outside 1..MAX_RATE, and for a pair of rates whose reduced ratio
        has a term above 640 (no two usual ones) with Quality.SPEECH.
        """
        for rate in (source_rate, target_rate):
            if not 1 <= rate <= MAX_RATE:
                raise MediaValueError(f"cannot resample at {rate} Hz")
        self.source_rate = source_rate
        self.target_rate = target_rate
        self.quality = quality
        self._dtype: type[SampleType] = dtype
        self._filter = self._new_filter()
        self._pushed = 0
        self._given = 0

    @property
    def held(self) -> float:
        """Seconds of input not yet given out; may be just below 0 when an output ran ahead."""
        return self._pushed / self.source_rate - self._given / self.target_rate

    def push(self, samples: Samples) -> NDArray[SampleType]:
        """What `samples` completes, possibly nothing."""
        checked_samples(samples)
        self._pushed += len(samples)
        return self._give(samples if self._filter is None else self._filter.push(to_float(samples)))

    def flush(self) -> NDArray[SampleType]:
        """The rest, as if silence followed. The next push starts a new stream."""
        due = (2 * self._pushed * self.target_rate + self.source_rate) // (2 * self.source_rate)
        rest = np.zeros(0, np.float32)
        if self._filter is not None and due > self._given:
            rest = self._filter.finish(due - self._given)
        self.reset()
        return self._give(rest, counted=False)

    def reset(self) -> None:
        """Forget what is held. The next push starts a new stream."""
        if self._pushed:
            self._filter = self._new_filter()
        self._pushed = self._given = 0

    def _give(self, samples: Samples, counted: bool = True) -> NDArray[SampleType]:
        if counted:
            self._given += len(samples)
        convert = to_int16 if self._dtype is np.int16 else to_float
        return cast(NDArray[SampleType], convert(samples))

    def _new_filter(self) -> _Filter | None:
        if self.source_rate == self.target_rate:
            return None
        if self.quality is Quality.SPEECH:
            return _PolyphaseFilter(self.source_rate, self.target_rate)
        return _SoxrFilter(self.source_rate, self.target_rate, self.quality)


class _SoxrFilter:
    """libsoxr in float32: its int16 output is dithered, and the dither depends on the chunking."""

    def __init__(self, source_rate: int, target_rate: int, quality: Quality) -> None:
        self._stream = soxr.ResampleStream(
            source_rate, target_rate, 1, dtype="float32", quality=quality.value
        )

    def push(self, samples: Float32Samples) -> Float32Samples:
        return cast(Float32Samples, self._stream.resample_chunk(np.ascontiguousarray(samples)))

    def finish(self, outputs: int) -> Float32Samples:
        rest = self._stream.resample_chunk(np.zeros(0, np.float32), last=True)
        return cast(Float32Samples, rest[:outputs])


class _PolyphaseFilter:
    """A Kaiser-windowed sinc, evaluated only where an output falls.

    With target / source reduced to up / down, `down` inputs make `up` outputs, each the product of
    one window of inputs with that output's taps. The product is a dot for each, rather than one
    matrix product, because BLAS sums a matrix in an order that depends on its height.
    """

    def __init__(self, source_rate: int, target_rate: int) -> None:
        divisor = math.gcd(source_rate, target_rate)
        self._down = source_rate // divisor
        if max(self._down, target_rate // divisor) > _MAX_TERM:
            raise MediaValueError(
                f"{source_rate} to {target_rate} Hz is too odd a ratio for speech quality"
            )
        self._taps, before = _polyphase_taps(target_rate // divisor, self._down)
        self._history = np.zeros(before, np.float32)

    def push(self, samples: Float32Samples) -> Float32Samples:
        up, width = self._taps.shape
        history = np.concatenate((self._history, samples))
        periods = max((len(history) - width) // self._down + 1, 0)
        step = history.itemsize
        windows: Float32Samples = np.ndarray(
            (periods, 1, width), np.float32, history, 0, (self._down * step, 0, step)
        )
        self._history = history[periods * self._down :].copy()
        outputs: Float32Samples = np.vecdot(windows, self._taps)
        return outputs.reshape(periods * up)

    def finish(self, outputs: int) -> Float32Samples:
        up, width = self._taps.shape
        periods = -(-outputs // up)
        missing = width + (periods - 1) * self._down - len(self._history)
        return self.push(np.zeros(max(missing, 0), np.float32))[:outputs]


@lru_cache(maxsize=64)
def _polyphase_taps(up: int, down: int) -> tuple[Float32Samples, int]:
    """Taps of shape (up, width), and how many inputs of a window lie before its period.

    Counted in steps of 1 / up of an input, output p of a period is at p * down and input i at
    i * up; the sinc crosses zero every max(up, down) steps.
    """
    crossing = max(up, down)
    half = _ZERO_CROSSINGS * crossing
    before = half // up
    after = ((up - 1) * down + half) // up
    inputs = np.arange(-before, after + 1) * up
    distance = np.arange(up)[:, np.newaxis] * down - inputs
    inside = np.clip(1 - (distance / half) ** 2, 0, None)
    window = np.i0(_KAISER_BETA * np.sqrt(inside)) / np.i0(_KAISER_BETA)
    taps = np.sinc(distance / crossing) * window * (np.abs(distance) < half)
    # Each output's taps sum to one, so that a constant stays the same constant in all phases.
    taps /= taps.sum(axis=1, keepdims=True)
    return taps.astype(np.float32), before
