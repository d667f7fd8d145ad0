"""Shorter and longer speech at the same pitch."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from duologue.codecs.media import Int16Samples
from duologue.codecs.time_stretch import grow, shrink

RATE = 16_000
MOST = RATE // 80


def buzz(hertz: float, seconds: float = 0.04) -> Int16Samples:
    time = np.arange(int(seconds * RATE)) / RATE
    wave = sum(np.sin(2 * np.pi * hertz * k * time) / k for k in range(1, 8))
    samples: Int16Samples = (5000 * wave).astype(np.int16)
    return samples


def pitch(samples: Int16Samples) -> float:
    spectrum = np.abs(np.fft.rfft(samples.astype(float) * np.hanning(len(samples)), 1 << 16))
    return float(np.argmax(spectrum) * RATE / (1 << 16))


@pytest.mark.parametrize("hertz", [110, 160, 220])
def test_a_period_goes_or_comes_and_the_pitch_stays(hertz: float) -> None:
    samples = buzz(hertz)
    shorter, longer = shrink(samples, RATE, MOST), grow(samples, RATE, MOST)
    assert len(samples) - MOST <= len(shorter) < len(samples) < len(longer) <= len(samples) + MOST
    step = np.abs(np.diff(samples.astype(int))).max()
    for changed in (shorter, longer):
        assert pitch(changed) == pytest.approx(pitch(samples), rel=0.03)
        assert np.abs(np.diff(changed.astype(int))).max() <= 1.05 * step
        assert (changed[0], changed[-1]) == (samples[0], samples[-1])


def test_noise_is_left_alone_unless_it_must_go() -> None:
    noise = np.random.default_rng(1).integers(-5000, 5000, 640).astype(np.int16)
    assert shrink(noise, RATE, MOST) is noise
    assert grow(noise, RATE, MOST) is noise
    assert len(shrink(noise, RATE, MOST, force=True)) < len(noise)


def test_near_silence_is_cut_by_as_much_as_is_asked_for() -> None:
    quiet = np.random.default_rng(1).integers(-20, 20, 640).astype(np.int16)
    assert len(shrink(quiet, RATE, 150)) == 640 - 150
    assert len(grow(quiet, RATE, 150)) == 640 + 150


@given(st.lists(st.integers(-32768, 32767), max_size=700), st.integers(0, 300), st.booleans())
def test_any_sound_survives(values: list[int], most: int, force: bool) -> None:
    samples = np.array(values, np.int16)
    assert 0 <= len(samples) - len(shrink(samples, RATE, most, force)) <= most
    assert 0 <= len(grow(samples, RATE, most)) - len(samples) <= most
