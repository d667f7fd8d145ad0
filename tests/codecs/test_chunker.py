"""The chunker: packets of any size in, the same samples out in frames of one."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from duologue.codecs.chunker import Chunker
from duologue.codecs.media import AudioChunk, MediaTime, MediaValueError


def count(first: int, last: int) -> Any:
    return np.arange(first, last, dtype=np.int16)


@given(
    st.lists(st.integers(0, 120), max_size=12),
    st.integers(1, 50),
    st.integers(-(10**6), 10**12),
    st.sampled_from([np.int16, np.float32]),
)
def test_frames_and_the_flushed_rest_are_the_samples_that_came_in(
    sizes: list[int], size: int, start: int, dtype: Any
) -> None:
    whole = np.arange(sum(sizes)).astype(dtype)
    chunker = Chunker(size, MediaTime(start, 16000))
    frames: list[AudioChunk] = []
    at = 0
    for packet in sizes:
        frames += chunker.push(whole[at : at + packet])
        at += packet
        assert chunker.pending == at % size
        assert chunker.position == MediaTime(start + at - at % size, 16000)
    last = chunker.flush()
    assert (last is None) == (len(whole) % size == 0)
    frames += [last] if last else []
    assert all(len(frame) == size and frame.samples.dtype == dtype for frame in frames)
    assert [frame.start.samples for frame in frames] == list(
        range(start, start + size * len(frames), size)
    )
    padding = np.zeros(-len(whole) % size, dtype)
    out = np.concatenate([frame.samples for frame in frames]) if frames else whole
    assert np.array_equal(out, np.concatenate((whole, padding)))


def test_positions_go_on_after_the_padding_of_a_flush() -> None:
    chunker = Chunker(4, MediaTime(0, 8000))
    chunker.push(count(0, 1))
    last = chunker.flush()
    assert last is not None and last.samples.tolist() == [0, 0, 0, 0]
    (frame,) = chunker.push(count(5, 9))
    assert frame.start == MediaTime(4, 8000)
    assert frame.samples.tolist() == [5, 6, 7, 8]


def test_a_reset_forgets_the_rest_and_moves() -> None:
    chunker = Chunker(4, MediaTime(0, 8000))
    chunker.push(count(0, 3))
    chunker.reset(MediaTime(100, 16000))
    assert chunker.pending == 0
    (frame,) = chunker.push(count(5, 9))
    assert frame.start == MediaTime(100, 16000) and frame.samples.tolist() == [5, 6, 7, 8]


def test_frames_stay_when_the_packet_is_overwritten() -> None:
    chunker = Chunker(2, MediaTime(0, 8000))
    packet = count(0, 3)
    (first,) = chunker.push(packet)
    packet[:] = 99
    (second,) = chunker.push(packet[:1])
    assert first.samples.tolist() == [0, 1] and second.samples.tolist() == [2, 99]


def test_a_kept_sample_does_not_keep_its_packet_alive() -> None:
    chunker = Chunker(1000, MediaTime(0, 8000))
    chunker.push(count(0, 1001))
    kept = chunker._kept
    assert kept is not None and kept.base is None


def test_the_kind_of_samples_may_change_only_between_frames() -> None:
    chunker = Chunker(2, MediaTime(0, 8000))
    chunker.push(count(0, 1))
    with pytest.raises(MediaValueError, match="float32 after int16"):
        chunker.push(np.zeros(1, np.float32))
    assert chunker.pending == 1
    chunker.push(count(1, 2))
    assert len(chunker.push(np.zeros(2, np.float32))) == 1


@pytest.mark.parametrize("size", [0, -160])
def test_a_frame_has_at_least_one_sample(size: int) -> None:
    with pytest.raises(MediaValueError):
        Chunker(size, MediaTime(0, 8000))


@pytest.mark.parametrize("samples", [np.zeros(4), np.zeros((4, 1), np.int16)])
def test_what_is_not_mono_sound_is_refused_at_once(samples: Any) -> None:
    chunker = Chunker(100, MediaTime(0, 8000))
    with pytest.raises(MediaValueError):
        chunker.push(samples)
    assert chunker.pending == 0
