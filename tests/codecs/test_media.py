"""Media values: what they accept, and that rates never mix."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from duologue.codecs.media import (
    AudioChunk,
    CodecError,
    MalformedDataError,
    MediaTime,
    MediaValueError,
    RateMismatchError,
    RingFullError,
    VideoFrame,
)

rates = st.integers(1, 384_000)
positions = st.integers(-(2**40), 2**40)


def chunk(values: list[int], start: int = 0, rate: int = 16000) -> AudioChunk:
    return AudioChunk(np.array(values, np.int16), rate, MediaTime(start, rate))


@pytest.mark.parametrize(
    "error", [MediaValueError, RateMismatchError, MalformedDataError, RingFullError]
)
def test_every_error_of_the_layer_is_a_codec_error(error: type[Exception]) -> None:
    assert issubclass(error, CodecError)


def test_a_time_tells_seconds_and_milliseconds() -> None:
    time = MediaTime(12345, 24000)
    assert time.seconds == 12345 / 24000
    assert time.ms == 514.375
    assert time.whole_ms == 514


def test_whole_milliseconds_round_down_on_both_sides_of_the_origin() -> None:
    assert MediaTime(23, 24000).whole_ms == 0
    assert MediaTime(-1, 24000).whole_ms == -1


@pytest.mark.parametrize("samples, rate", [(1.0, 8000), (1, 8000.0), (True, 8000), ("1", 8000)])
def test_a_time_counts_whole_numbers(samples: Any, rate: Any) -> None:
    with pytest.raises(MediaValueError, match="whole numbers"):
        MediaTime(samples, rate)


def test_a_numpy_number_is_not_taken_for_a_count() -> None:
    with pytest.raises(MediaValueError):
        MediaTime(np.int64(1), 8000)  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [0, -8000])
def test_a_rate_is_positive(rate: int) -> None:
    with pytest.raises(MediaValueError, match="at least 1"):
        MediaTime(0, rate)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("make", [MediaTime.from_ms, MediaTime.from_seconds])
def test_a_time_is_not_made_of_infinity(make: Callable[..., MediaTime], value: float) -> None:
    with pytest.raises(MediaValueError, match="finite"):
        make(value, 8000)


def test_a_time_is_made_of_seconds_or_milliseconds() -> None:
    assert MediaTime.from_seconds(1.5, 24000) == MediaTime(36000, 24000)
    assert MediaTime.from_ms(-20, 8000) == MediaTime(-160, 8000)


def test_half_a_sample_rounds_to_even() -> None:
    assert [MediaTime.from_ms(ms, 500).samples for ms in (1, 3, 5, -1)] == [0, 2, 2, 0]


@given(st.integers(-(10**9), 10**9), rates.filter(lambda rate: rate >= 1000))
def test_whole_milliseconds_survive_the_way_there_and_back(ms: int, rate: int) -> None:
    assert round(MediaTime.from_ms(ms, rate).ms) == ms


@given(positions, rates, rates)
def test_another_rate_keeps_the_instant_to_within_a_sample(
    samples: int, rate: int, other: int
) -> None:
    time = MediaTime(samples, rate).at_rate(other)
    assert time.rate == other
    assert 0 <= samples * other - time.samples * rate < rate


@given(positions, positions, rates)
def test_times_of_one_rate_add_subtract_and_compare_as_their_counts(
    first: int, second: int, rate: int
) -> None:
    a, b = MediaTime(first, rate), MediaTime(second, rate)
    assert (a + b).samples == first + second
    assert (a - b) + b == a
    assert a.plus(second) == a + b
    assert (a < b, a <= b, a > b, a >= b, a == b) == (
        first < second,
        first <= second,
        first > second,
        first >= second,
        first == second,
    )


@pytest.mark.parametrize(
    "operation",
    [operator.add, operator.sub, operator.lt, operator.le, operator.gt, operator.ge],
)
def test_two_rates_do_not_mix(operation: Callable[[MediaTime, MediaTime], Any]) -> None:
    with pytest.raises(RateMismatchError, match="8000 Hz and 16000 Hz"):
        operation(MediaTime(8000, 8000), MediaTime(16000, 16000))


def test_one_instant_at_two_rates_is_not_equal() -> None:
    assert MediaTime(8000, 8000) != MediaTime(16000, 16000)


def test_a_chunk_knows_its_end_and_duration() -> None:
    sound = chunk([1, 2, 3], start=10)
    assert len(sound) == 3
    assert sound.end == MediaTime(13, 16000)
    assert sound.duration == MediaTime(3, 16000)


@pytest.mark.parametrize(
    "samples, words",
    [
        (np.zeros(3), "not float64"),
        (np.zeros(3, np.uint8), "not uint8"),
        ([0, 0], "not list"),
        (np.zeros((3, 2), np.int16), "mono"),
        (np.zeros((), np.float32), "mono"),
    ],
)
def test_a_chunk_refuses_what_is_not_mono_int16_or_float32(samples: Any, words: str) -> None:
    with pytest.raises(MediaValueError, match=words):
        AudioChunk(samples, 8000, MediaTime(0, 8000))


def test_a_chunk_starts_at_a_position_of_its_own_rate() -> None:
    with pytest.raises(RateMismatchError):
        AudioChunk(np.zeros(3, np.int16), 8000, MediaTime(0, 16000))


def test_a_chunk_is_read_only_and_leaves_the_given_array_writable() -> None:
    given_samples = np.zeros(3, np.int16)
    sound = AudioChunk(given_samples, 8000, MediaTime(0, 8000))
    with pytest.raises(ValueError, match="read-only"):
        sound.samples[0] = 1
    given_samples[0] = 1
    again = AudioChunk(sound.samples, 8000, MediaTime(0, 8000))
    assert again.samples is sound.samples


def test_chunks_are_equal_by_position_kind_and_samples() -> None:
    sound = chunk([1, 2])
    assert sound == chunk([1, 2])
    assert sound != chunk([1, 2], start=1)
    assert sound != chunk([1, 2], rate=8000)
    assert sound != chunk([1, 3])
    assert sound != AudioChunk(np.array([1, 2], np.float32), 16000, MediaTime(0, 16000))
    assert sound != "sound"


@given(st.lists(st.integers(-32768, 32767), max_size=20), st.integers(0, 25), st.integers(0, 10**9))
def test_the_two_parts_of_a_split_join_to_the_whole(values: list[int], at: int, start: int) -> None:
    sound = chunk(values, start)
    first, rest = sound.split(at)
    assert len(first) == min(at, len(values))
    assert AudioChunk.join([first, rest]) == sound


def test_a_split_is_not_before_the_start() -> None:
    with pytest.raises(MediaValueError):
        chunk([1]).split(-1)


def test_a_gap_an_overlap_or_another_kind_does_not_join() -> None:
    first = chunk([1, 2])
    for other in (chunk([3], start=3), chunk([3], start=1), chunk([3], start=2, rate=8000)):
        with pytest.raises(MediaValueError, match="does not follow"):
            AudioChunk.join([first, other])
    with pytest.raises(MediaValueError, match="float32"):
        AudioChunk.join([first, AudioChunk(np.zeros(1, np.float32), 16000, first.end)])


def test_nothing_does_not_join() -> None:
    with pytest.raises(MediaValueError, match="nothing"):
        AudioChunk.join([])


def test_a_frame_knows_its_size_and_is_read_only() -> None:
    frame = VideoFrame(np.zeros((480, 640, 3), np.uint8), MediaTime(3000, 90000))
    assert (frame.width, frame.height) == (640, 480)
    with pytest.raises(ValueError, match="read-only"):
        frame.pixels[0, 0, 0] = 1


@pytest.mark.parametrize(
    "pixels, words",
    [
        (np.zeros((4, 4, 3), np.int16), "not int16"),
        (b"\0" * 48, "not bytes"),
        (np.zeros((4, 4), np.uint8), "shape"),
        (np.zeros((4, 4, 4), np.uint8), "shape"),
        (np.zeros((0, 4, 3), np.uint8), "shape"),
    ],
)
def test_a_frame_refuses_what_is_not_a_picture(pixels: Any, words: str) -> None:
    with pytest.raises(MediaValueError, match=words):
        VideoFrame(pixels, MediaTime(0, 90000))


def test_frames_are_equal_by_time_and_pixels() -> None:
    black = np.zeros((2, 2, 3), np.uint8)
    frame = VideoFrame(black, MediaTime(0, 90000))
    assert frame == VideoFrame(black.copy(), MediaTime(0, 90000))
    assert frame != VideoFrame(black, MediaTime(1, 90000))
    assert frame != VideoFrame(black + np.uint8(1), MediaTime(0, 90000))
    assert frame != "frame"


@pytest.mark.parametrize(
    "value", [chunk([1]), VideoFrame(np.zeros((1, 1, 3), np.uint8), MediaTime(0, 1))]
)
def test_media_with_samples_or_pixels_has_no_hash(value: object) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(value)
