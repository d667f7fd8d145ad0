"""The period of a voice, and its repetition: what concealment and time stretching are made of.

Period and similarity are those of WSOLA (Verhelst and Roelands, 1993): the lag at which the signal
is most like itself, by normalised cross-correlation.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from duologue.codecs.media import Int16Samples

SHORTEST = 0.0025
"""Seconds: 400 Hz."""
LONGEST = 0.0125
"""Seconds: 80 Hz."""


class Period(NamedTuple):
    samples: int
    likeness: float
    """-1 to 1; near 1 for a steady vowel, 0 for noise and for silence."""


def find_period(samples: Int16Samples, rate: int, longest: int) -> Period | None:
    """The lag at which the beginning of `samples` comes again, at most `longest` samples.

    None if there are too few to tell: they must last twice the shortest period.
    """
    shortest = int(SHORTEST * rate)
    longest = min(longest, int(LONGEST * rate), len(samples) // 2)
    if longest < shortest:
        return None
    signal = samples.astype(np.float32)
    width = longest
    window = signal[:width]
    products = np.correlate(signal[shortest : longest + width], window, "valid")
    sums = np.cumsum(np.square(signal, dtype=np.float64))
    ends = np.arange(shortest + width, longest + width + 1)
    energies = sums[ends - 1] - sums[ends - 1 - width]
    norms = np.sqrt(np.maximum(energies * sums[width - 1], 1.0))
    likeness: NDArray[np.float64] = products[: len(norms)] / norms
    best = int(np.argmax(likeness))
    return Period(shortest + best, float(likeness[best]))


def repeat_period(history: Int16Samples, count: int, rate: int) -> Int16Samples:
    """`count` samples that go on where `history` ended, by repeating its last period."""
    reverse = history[::-1]
    period = find_period(reverse, rate, len(history) // 2)
    if period is None or not count:
        return np.zeros(count, np.int16)
    lag = period.samples
    cycle = history[-lag:].astype(np.float32)
    # Where the cycle closes, its end is faded into what lay before its beginning.
    overlap = lag // 4
    ramp = np.linspace(0, 1, overlap, endpoint=False, dtype=np.float32)
    before = history[-lag - overlap : -lag].astype(np.float32)
    cycle[-overlap:] = cycle[-overlap:] * (1 - ramp) + before * ramp
    repeated = np.resize(np.concatenate((history[-lag:-overlap], cycle[-overlap:])), count)
    return repeated.astype(np.int16)
