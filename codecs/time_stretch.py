"""Shorter and longer speech at the same pitch: a period taken out, or put in (WSOLA)."""

import numpy as np

from duologue.codecs.media import Int16Samples
from duologue.codecs.pitch import find_period

LIKE = 0.75
"""How alike two periods must be for one to stand for both, -1 to 1."""
QUIET = 60.0
"""Root mean square, of 32768, below which anything may be cut: nobody hears it."""


def shrink(samples: Int16Samples, rate: int, most: int, force: bool = False) -> Int16Samples:
    """`samples` without one period of at most `most`; unchanged where there is none to spare.

    `force` cuts whatever is least unlike.
    """
    lag = _lag(samples, rate, most, force)
    if lag is None:
        return samples
    return np.concatenate((_crossfade(samples[:lag], samples[lag : 2 * lag]), samples[2 * lag :]))


def grow(samples: Int16Samples, rate: int, most: int) -> Int16Samples:
    """`samples` with one period of at most `most` repeated; unchanged where there is none."""
    lag = _lag(samples, rate, most, False)
    if lag is None:
        return samples
    again = _crossfade(samples[lag : 2 * lag], samples[:lag])
    return np.concatenate((samples[:lag], again, samples[lag:]))


def _lag(samples: Int16Samples, rate: int, most: int, force: bool) -> int | None:
    period = find_period(samples, rate, most)
    if period is None:
        return None
    if period.likeness >= LIKE or force:
        return period.samples
    loudness = np.sqrt(np.mean(np.square(samples, dtype=np.float32)))
    return min(most, len(samples) // 2) if loudness < QUIET else None


def _crossfade(first: Int16Samples, second: Int16Samples) -> Int16Samples:
    ramp = np.arange(len(first), dtype=np.float32) / len(first)
    mixed: Int16Samples = np.rint(first * (1 - ramp) + second * ramp).astype(np.int16)
    return mixed
