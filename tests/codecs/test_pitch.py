"""The period of a voice, found and repeated."""

import numpy as np
import pytest

from duologue.codecs.media import Int16Samples
from duologue.codecs.pitch import find_period, repeat_period

RATE = 16_000


def buzz(hertz: float, seconds: float = 0.1, rate: int = RATE) -> Int16Samples:
    time = np.arange(int(seconds * rate)) / rate
    wave = sum(np.sin(2 * np.pi * hertz * k * time) / k for k in range(1, 8))
    samples: Int16Samples = (5000 * wave).astype(np.int16)
    return samples


@pytest.mark.parametrize("hertz", [85, 120, 180, 250, 350])
@pytest.mark.parametrize("rate", [8000, 16_000, 24_000])
def test_a_voices_period_is_found(hertz: float, rate: int) -> None:
    period = find_period(buzz(hertz, rate=rate), rate, rate)
    assert period is not None
    assert period.likeness > 0.95
    ratio = period.samples * hertz / rate
    assert abs(ratio - round(ratio)) < 0.05
    assert round(ratio) >= 1


def test_noise_and_silence_are_like_nothing() -> None:
    noise = np.random.default_rng(1).integers(-5000, 5000, 1600).astype(np.int16)
    found, silence = find_period(noise, RATE, RATE), find_period(noise * 0, RATE, RATE)
    assert found is not None and found.likeness < 0.5
    assert silence is not None and silence.likeness == 0.0


def test_too_few_samples_have_no_period() -> None:
    assert find_period(buzz(200)[:79], RATE, RATE) is None
    assert find_period(buzz(200), RATE, 39) is None
    assert repeat_period(buzz(200)[:79], 3, RATE).tolist() == [0, 0, 0]


@pytest.mark.parametrize("hertz", [100, 200, 300])
def test_a_voice_goes_on_without_a_break(hertz: float) -> None:
    whole = buzz(hertz, 0.08)
    history, rest = whole[:640], whole[640:]
    more = repeat_period(history, len(rest), RATE)
    assert len(more) == len(rest)
    assert np.corrcoef(more, rest)[0, 1] > 0.95
    joined = np.concatenate((history, more)).astype(int)
    assert np.abs(np.diff(joined)).max() <= 1.1 * np.abs(np.diff(whole.astype(int))).max()
    assert len(repeat_period(history, 0, RATE)) == 0
