"""The resampler: one result for every chunking, true tones, and a bounded delay."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from duologue.codecs.media import MediaValueError
from duologue.codecs.pcm import float_from_int16
from duologue.codecs.resample import MAX_RATE, Quality, Resampler

PAIRS = [
    (24000, 16000),
    (8000, 16000),
    (16000, 8000),
    (24000, 8000),
    (48000, 16000),
    (16000, 24000),
    (22050, 24000),
]
pairs = st.sampled_from([*PAIRS, (44100, 16000), (16000, 16000), (11025, 48000)])
kinds = st.sampled_from([np.int16, np.float32])


def noise(samples: int) -> Any:
    return np.random.default_rng(samples).integers(-20000, 20000, samples).astype(np.int16)


def tone(rate: int, frequency: float, seconds: float = 0.5) -> Any:
    time = np.arange(round(rate * seconds)) / rate
    return (0.5 * np.sin(2 * np.pi * frequency * time)).astype(np.float32)


def one_pass(source: int, target: int, samples: Any, quality: Quality = Quality.SPEECH) -> Any:
    resampler = Resampler(source, target, samples.dtype.type, quality)
    return np.concatenate((resampler.push(samples), resampler.flush()))


def level(samples: Any) -> float:
    """dB relative to a sine of the amplitude of `tone`, over the middle half."""
    middle = samples[len(samples) // 4 : 3 * len(samples) // 4].astype(np.float64)
    return float(10 * np.log10(np.mean(middle**2) / 0.125 + 1e-20))


@settings(max_examples=200)
@given(
    pairs,
    st.sampled_from(Quality),
    kinds,
    kinds,
    st.lists(st.integers(0, 700), max_size=8),
)
def test_any_chunking_gives_the_samples_of_one_pass(
    pair: tuple[int, int], quality: Quality, given_kind: Any, kind: Any, sizes: list[int]
) -> None:
    whole = noise(sum(sizes))
    samples = whole if given_kind is np.int16 else float_from_int16(whole)
    together = Resampler(*pair, kind, quality)
    expected = np.concatenate((together.push(samples), together.flush()))
    apart = Resampler(*pair, kind, quality)
    parts, at = [], 0
    for size in sizes:
        parts.append(apart.push(samples[at : at + size]))
        at += size
    out = np.concatenate((*parts, apart.flush()))
    assert out.dtype == kind
    assert np.array_equal(out, expected)
    source, target = pair
    assert len(out) == (2 * len(whole) * target + source) // (2 * source)


@pytest.mark.parametrize("quality", Quality)
@pytest.mark.parametrize("source, target", PAIRS)
def test_a_tone_keeps_its_place_and_its_level(source: int, target: int, quality: Quality) -> None:
    out = one_pass(source, target, tone(source, 440), quality)
    ideal = tone(target, 440)
    assert len(out) == len(ideal)
    assert level(out - ideal) < (-55 if quality is Quality.QUICK else -75)


@pytest.mark.parametrize("source, target, edge", [(24000, 16000, 7200), (8000, 16000, 3600)])
def test_speech_quality_is_flat_to_nine_tenths_of_the_lower_half_rate(
    source: int, target: int, edge: int
) -> None:
    for frequency in (100, edge // 2, edge):
        assert level(one_pass(source, target, tone(source, frequency))) == pytest.approx(
            0, abs=0.05
        )


@pytest.mark.parametrize(
    "source, target, frequency", [(24000, 16000, 9000), (48000, 16000, 12000), (24000, 8000, 4500)]
)
def test_what_would_fold_back_is_80_db_down(source: int, target: int, frequency: int) -> None:
    assert level(one_pass(source, target, tone(source, frequency))) < -80


def test_quick_quality_lets_aliases_through_and_speech_does_not() -> None:
    hiss = tone(24000, 10000)
    assert level(one_pass(24000, 16000, hiss, Quality.QUICK)) > -6
    assert level(one_pass(24000, 16000, hiss, Quality.SPEECH)) < -80


def most_held(source: int, target: int, quality: Quality) -> float:
    resampler = Resampler(source, target, np.int16, quality)
    packet = noise(source // 100)
    worst = 0.0
    for _ in range(60):
        resampler.push(packet)
        worst = max(worst, resampler.held)
    return worst * 1000


@pytest.mark.parametrize(
    "source, target, ms",
    [
        (24000, 16000, 1.6),
        (48000, 16000, 1.6),
        (8000, 16000, 3.1),
        (16000, 8000, 3.1),
        (24000, 8000, 3.1),
        (16000, 24000, 1.6),
        (22050, 24000, 7.8),
    ],
)
def test_speech_quality_holds_back_no_more_than_stated(source: int, target: int, ms: float) -> None:
    assert 0 < most_held(source, target, Quality.SPEECH) <= ms


@pytest.mark.parametrize("source, target", PAIRS)
def test_speech_quality_holds_back_no_more_than_stated_for_single_samples(
    source: int, target: int
) -> None:
    resampler = Resampler(source, target, np.float32)
    bound = 24 / min(source, target) + 1 / np.gcd(source, target)
    for _ in range(source // 20):
        resampler.push(np.zeros(1, np.float32))
        assert resampler.held <= bound


@pytest.mark.parametrize(
    "quality, ms",
    [(Quality.QUICK, 0.4), (Quality.LOW, 65), (Quality.MEDIUM, 125), (Quality.HIGH, 125)],
)
def test_the_library_s_filters_hold_back_no_more_than_stated(quality: Quality, ms: float) -> None:
    assert 0 < most_held(8000, 16000, quality) <= ms


@pytest.mark.parametrize("quality", Quality)
def test_equal_rates_pass_the_samples_untouched(quality: Quality) -> None:
    samples = noise(321)
    resampler = Resampler(16000, 16000, np.int16, quality)
    assert resampler.push(samples) is samples
    assert resampler.held == 0
    assert len(resampler.flush()) == 0
    as_float = Resampler(16000, 16000, np.float32, quality)
    assert np.array_equal(as_float.push(samples), float_from_int16(samples))


@pytest.mark.parametrize("quality", Quality)
@pytest.mark.parametrize("end", ["reset", "flush"])
def test_a_new_stream_remembers_nothing_of_the_last(quality: Quality, end: str) -> None:
    samples = noise(4000)
    resampler = Resampler(24000, 16000, np.int16, quality)
    resampler.push(samples[::-1])
    getattr(resampler, end)()
    assert resampler.held == 0
    out = np.concatenate((resampler.push(samples), resampler.flush()))
    assert np.array_equal(out, one_pass(24000, 16000, samples, quality))


@pytest.mark.parametrize("quality", Quality)
def test_nothing_in_gives_nothing_out(quality: Quality) -> None:
    resampler = Resampler(24000, 16000, np.float32, quality)
    resampler.reset()
    assert len(resampler.flush()) == 0
    assert len(resampler.push(np.zeros(0, np.int16))) == 0
    assert len(resampler.flush()) == 0


def test_int16_output_saturates_where_the_filter_overshoots() -> None:
    square = np.where(np.arange(4800) // 40 % 2 == 0, 32767, -32768).astype(np.int16)
    out = one_pass(24000, 16000, square)
    assert out.max() == 32767 and out.min() == -32768
    floats = one_pass(24000, 16000, float_from_int16(square))
    assert floats.max() > 1
    assert np.array_equal(out[floats > 1], np.full(np.sum(floats > 1), 32767))


def test_a_constant_stays_constant_in_every_phase() -> None:
    flat = np.full(2400, 0.5, np.float32)
    out = one_pass(22050, 24000, flat)
    assert np.allclose(out[200:-200], 0.5, atol=1e-6)


def test_samples_need_not_lie_one_after_the_other() -> None:
    samples = noise(6000)
    for quality in (Quality.SPEECH, Quality.HIGH):
        out = one_pass(24000, 16000, samples[::3], quality)
        assert np.array_equal(out, one_pass(24000, 16000, samples[::3].copy(), quality))


@pytest.mark.parametrize(
    "source, target", [(0, 16000), (16000, 0), (-8000, 8000), (8000, MAX_RATE + 1)]
)
def test_a_rate_is_within_bounds(source: int, target: int) -> None:
    with pytest.raises(MediaValueError, match="cannot resample"):
        Resampler(source, target, np.int16)


def test_an_odd_ratio_needs_another_quality() -> None:
    with pytest.raises(MediaValueError, match="too odd"):
        Resampler(44101, 16000, np.int16)
    assert len(one_pass(44101, 16000, noise(44101), Quality.LOW)) == 16000


@pytest.mark.parametrize("samples", [np.zeros(4), np.zeros((4, 2), np.int16)])
def test_what_is_not_mono_sound_is_refused(samples: Any) -> None:
    with pytest.raises(MediaValueError):
        Resampler(24000, 16000, np.int16).push(samples)
