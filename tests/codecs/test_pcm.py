"""PCM: exact conversions, bounded results, and streams cut anywhere."""

import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from duologue.codecs import pcm
from duologue.codecs.media import MalformedDataError, MediaValueError

int16s = arrays(np.int16, st.integers(0, 300), elements=st.integers(-32768, 32767))
floats = arrays(np.float32, st.integers(0, 300), elements=st.floats(width=32))
units = arrays(np.float32, st.integers(0, 300), elements=st.floats(-1, 1, width=32))


def full_scale_sine(amplitude: float = 1.0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return (amplitude * np.sin(2 * np.pi * np.arange(8000) / 80)).astype(np.float32)


def test_bytes_are_little_endian_words() -> None:
    samples = pcm.int16_from_bytes(b"\x01\x00\xff\xff\x00\x80")
    assert samples.tolist() == [1, -1, -32768]
    assert samples.dtype == np.int16
    assert pcm.bytes_from_int16(samples) == b"\x01\x00\xff\xff\x00\x80"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_bytes_is_read(kind: type) -> None:
    assert pcm.int16_from_bytes(kind(b"\x02\x01")).tolist() == [0x0102]


@pytest.mark.parametrize("convert", [pcm.int16_from_bytes, pcm.float_from_bytes])
def test_half_a_sample_is_refused(convert: Any) -> None:
    with pytest.raises(MalformedDataError, match="3 bytes"):
        convert(b"abc")


def test_every_int16_survives_as_bytes_and_as_float() -> None:
    samples = np.arange(-32768, 32768).astype(np.int16)
    data = struct.pack("<65536h", *range(-32768, 32768))
    assert pcm.bytes_from_int16(samples) == data
    assert np.array_equal(pcm.int16_from_bytes(data), samples)
    scaled = pcm.float_from_int16(samples)
    assert scaled.dtype == np.float32
    assert scaled.min() == -1 and scaled.max() == np.float32(32767 / 32768)
    assert np.array_equal(pcm.int16_from_float(scaled), samples)
    assert pcm.bytes_from_float(pcm.float_from_bytes(data)) == data


def test_floats_round_half_to_even() -> None:
    halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 0.51], np.float32) / 32768
    assert pcm.int16_from_float(halves).tolist() == [0, 2, 2, 0, -2, 1]


def test_floats_beyond_full_scale_saturate_and_nan_is_silence() -> None:
    wild = np.array([1, 2, math.inf, 3e38, -1, -2, -math.inf, math.nan, 0.5], np.float32)
    before = wild.copy()
    top = 32767
    expected = [top, top, top, top, -32768, -32768, -32768, 0, 16384]
    assert pcm.int16_from_float(wild).tolist() == expected
    assert np.array_equal(wild, before, equal_nan=True)


@given(floats)
def test_any_floats_become_the_nearest_int16(samples: Any) -> None:
    result = pcm.int16_from_float(samples)
    for value, got in zip(samples.tolist(), result.tolist(), strict=True):
        if math.isnan(value):
            assert got == 0
        else:
            assert got == round(min(max(value * 32768, -32768.0), 32767.0))


@given(int16s)
def test_conversion_to_what_it_is_already_gives_the_same_array(samples: Any) -> None:
    assert pcm.to_int16(samples) is samples
    scaled = pcm.to_float(samples)
    assert pcm.to_float(scaled) is scaled
    assert np.array_equal(pcm.to_int16(scaled), samples)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_a_stream_cut_anywhere_gives_the_samples_of_the_whole(data: bytes, cuts: list[int]) -> None:
    reader = pcm.Pcm16Reader()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    parts = [reader.feed(data[a:b]) for a, b in zip(edges, edges[1:], strict=False)]
    whole = data[: len(data) - len(data) % 2]
    assert np.array_equal(np.concatenate(parts), pcm.int16_from_bytes(whole))
    assert reader.pending == len(data) % 2


def test_a_stream_that_ends_within_a_sample_says_so_once() -> None:
    reader = pcm.Pcm16Reader()
    assert reader.feed(b"\x01\x00\x02").tolist() == [1]
    with pytest.raises(MalformedDataError):
        reader.close()
    reader.close()
    assert reader.feed(b"\x05\x00").tolist() == [5]


def test_what_a_reader_gave_stays_when_the_bytes_change() -> None:
    data = bytearray(b"\x01\x00")
    samples = pcm.Pcm16Reader().feed(data)
    data[0] = 9
    assert samples.tolist() == [1]


def test_silence_is_zeros_of_the_asked_kind() -> None:
    assert pcm.silence(2, np.int16).tolist() == [0, 0]
    assert pcm.silence(2, np.int16).dtype == np.int16
    assert pcm.silence(0, np.float32).dtype == np.float32
    with pytest.raises(MediaValueError):
        pcm.silence(-1, np.int16)


def test_a_full_scale_sine_is_3_db_below_a_full_scale_constant() -> None:
    assert pcm.rms_dbfs(np.ones(100, np.float32)) == 0
    assert pcm.rms_dbfs(full_scale_sine()) == pytest.approx(-3.01, abs=0.01)
    assert pcm.peak_dbfs(full_scale_sine()) == pytest.approx(0, abs=1e-6)
    assert pcm.peak_dbfs(full_scale_sine(0.1)) == pytest.approx(-20, abs=1e-5)


def test_the_peak_may_be_negative() -> None:
    assert pcm.peak_dbfs(np.array([100, -32768], np.int16)) == 0


@pytest.mark.parametrize("level", [pcm.rms_dbfs, pcm.peak_dbfs])
@pytest.mark.parametrize(
    "samples",
    [
        np.zeros(0, np.int16),
        np.zeros(10, np.int16),
        np.zeros(10, np.float32),
        np.full(10, math.nan, np.float32),
        np.full(10, 1e-30, np.float32),
    ],
)
def test_silence_and_nothing_have_the_least_level(level: Any, samples: Any) -> None:
    assert level(samples) == pcm.MIN_DBFS


@given(int16s)
def test_levels_are_the_same_for_both_kinds(samples: Any) -> None:
    scaled = pcm.float_from_int16(samples)
    assert pcm.rms_dbfs(samples) == pytest.approx(pcm.rms_dbfs(scaled))
    assert pcm.peak_dbfs(samples) == pytest.approx(pcm.peak_dbfs(scaled))
    assert pcm.MIN_DBFS <= pcm.rms_dbfs(samples) <= pcm.peak_dbfs(samples) + 1e-9 <= 1e-9


@pytest.mark.parametrize("level", [pcm.rms_dbfs, pcm.peak_dbfs])
def test_a_level_of_something_else_is_refused(level: Any) -> None:
    with pytest.raises(MediaValueError):
        level(np.zeros(3))


def test_gain_is_in_decibels_and_saturates() -> None:
    samples = np.array([1000, -1000, 20000, -20000, 0], np.int16)
    assert pcm.gain(samples, 20).tolist() == [10000, -10000, 32767, -32768, 0]
    louder = pcm.gain(np.array([0.05, -0.5, 0.5], np.float32), 20)
    assert louder.dtype == np.float32
    assert louder.tolist() == pytest.approx([0.5, -1, 1])


@pytest.mark.parametrize("decibels", [math.nan, math.inf, -math.inf, 121, -121])
def test_a_gain_is_within_bounds(decibels: float) -> None:
    with pytest.raises(MediaValueError, match="a gain"):
        pcm.gain(np.zeros(1, np.int16), decibels)


@given(int16s)
def test_a_gain_of_nothing_changes_nothing(samples: Any) -> None:
    assert np.array_equal(pcm.gain(samples, 0), samples)


def test_a_mix_saturates() -> None:
    loud = np.array([30000, -30000, 5], np.int16)
    assert pcm.mix(loud, loud, np.array([1, 1, 1], np.int16)).tolist() == [32767, -32768, 11]
    half = np.array([0.75, -0.75, 0.25], np.float32)
    assert pcm.mix(half, half).tolist() == [1, -1, 0.5]
    assert loud.tolist() == [30000, -30000, 5]


@given(st.lists(arrays(np.int16, 20, elements=st.integers(-32768, 32767)), min_size=1, max_size=5))
def test_a_mix_is_the_sum_within_bounds_in_any_order(parts: list[Any]) -> None:
    expected = np.clip(np.sum(parts, axis=0, dtype=np.int64), -32768, 32767)
    assert np.array_equal(pcm.mix(*parts), expected)
    assert np.array_equal(pcm.mix(*parts[::-1]), expected)


@pytest.mark.parametrize("other", [np.zeros(2, np.float32), np.zeros(3, np.int16)])
def test_a_mix_needs_one_kind_and_length(other: Any) -> None:
    with pytest.raises(MediaValueError, match="does not mix"):
        pcm.mix(np.zeros(2, np.int16), other)


def test_a_ramp_goes_from_one_gain_to_the_other() -> None:
    flat = np.full(5, 1000, np.int16)
    assert pcm.ramp(flat, 1, 0).tolist() == [1000, 750, 500, 250, 0]
    assert pcm.ramp(flat, 0.5, 0.5).tolist() == [500] * 5
    assert flat.tolist() == [1000] * 5


@pytest.mark.parametrize("first, last", [(-0.1, 1), (0, 1.1), (math.nan, 1), (0, math.nan)])
def test_a_ramp_stays_within_full_scale(first: float, last: float) -> None:
    with pytest.raises(MediaValueError):
        pcm.ramp(np.zeros(3, np.int16), first, last)


def test_a_fade_in_rises_linearly_and_leaves_the_rest() -> None:
    flat = np.full(6, 1000, np.int16)
    assert pcm.fade_in(flat, 4).tolist() == [0, 250, 500, 750, 1000, 1000]
    assert pcm.fade_in(flat.astype(np.float32) / 1000, 2).tolist() == [0, 0.5, 1, 1, 1, 1]
    assert flat.tolist() == [1000] * 6


def test_a_fade_out_ends_in_silence() -> None:
    flat = np.full(6, 1000, np.int16)
    assert pcm.fade_out(flat, 4).tolist() == [1000, 1000, 750, 500, 250, 0]
    assert flat.tolist() == [1000] * 6


@pytest.mark.parametrize("fade", [pcm.fade_in, pcm.fade_out])
def test_a_fade_of_nothing_changes_nothing(fade: Any) -> None:
    assert fade(np.full(3, 7, np.int16), 0).tolist() == [7, 7, 7]
    assert fade(np.zeros(0, np.int16), 5).tolist() == []
    with pytest.raises(MediaValueError):
        fade(np.zeros(3, np.int16), -1)


def test_a_fade_longer_than_the_sound_covers_all_of_it() -> None:
    assert pcm.fade_out(np.full(4, 1000, np.int16), 99).tolist() == [750, 500, 250, 0]


@given(units, st.integers(0, 400))
def test_fades_never_make_a_sample_louder_and_mirror_each_other(samples: Any, length: int) -> None:
    rising = pcm.fade_in(samples, length)
    assert np.all(np.abs(rising) <= np.abs(samples))
    assert np.array_equal(pcm.fade_out(samples[::-1], length), rising[::-1])
