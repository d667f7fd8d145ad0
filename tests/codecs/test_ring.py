"""The rings, against a list: policies, positions, and memory."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from duologue.codecs.media import (
    MediaTime,
    MediaValueError,
    RateMismatchError,
    RingFullError,
)
from duologue.codecs.ring import AudioRing, Policy

RATE = 16000

writes = st.tuples(st.just("write"), st.integers(0, 40))
reads = st.tuples(st.just("read"), st.integers(0, 40))
clears = st.tuples(st.just("clear"), st.just(0))


def ring(bound: int = 10, policy: Policy = Policy.WAIT, start: int = 0) -> AudioRing[np.int16]:
    return AudioRing(bound, RATE, policy, np.int16, start)


def count(first: int, last: int) -> Any:
    return np.arange(first, last).astype(np.int16)


def at(samples: int) -> MediaTime:
    return MediaTime(samples, RATE)


def held(of: AudioRing[np.int16]) -> list[int]:
    samples: list[int] = of.slice(of.start, of.end).samples.tolist()
    return samples


class ListModel:
    """What a ring is: a list of samples, and the position of the first."""

    def __init__(self, bound: int, policy: Policy, start: int) -> None:
        self.bound, self.policy, self.start = bound, policy, start
        self.samples: list[int] = []
        self.dropped = 0

    def write(self, samples: list[int]) -> int | None:
        """How many were taken, None for a refusal."""
        joined = self.samples + samples
        lost = len(joined) - self.bound
        if lost <= 0:
            self.samples = joined
            return len(samples)
        if self.policy is Policy.REFUSE:
            return None
        if self.policy is Policy.DROP_OLDEST:
            self.samples = joined[lost:]
            self.start += lost
            self.dropped += lost
            return len(samples)
        self.samples = joined[: self.bound]
        self.dropped += lost if self.policy is Policy.DROP_NEWEST else 0
        return len(samples) - lost

    def take(self, samples: int) -> list[int]:
        taken, self.samples = self.samples[:samples], self.samples[samples:]
        self.start += len(taken)
        return taken


@settings(max_examples=300)
@given(
    st.integers(1, 30),
    st.sampled_from(Policy),
    st.integers(-1000, 2**40),
    st.lists(writes | reads | clears, max_size=40),
)
def test_a_ring_does_what_a_list_does(
    bound: int, policy: Policy, start: int, steps: list[tuple[str, int]]
) -> None:
    model, tested = ListModel(bound, policy, start), ring(bound, policy, start)
    written = 0
    for step, size in steps:
        if step == "write":
            samples = count(written, written + size)
            written += size
            expected = model.write(samples.tolist())
            if expected is None:
                with pytest.raises(RingFullError):
                    tested.write(samples)
            else:
                assert tested.write(samples) == expected
        elif step == "read":
            before = tested.start
            chunk = tested.read(size)
            assert chunk.samples.tolist() == model.take(size)
            assert chunk.start == before
        else:
            assert tested.clear() == len(model.take(bound))
        assert held(tested) == model.samples
        assert (len(tested), tested.room) == (len(model.samples), bound - len(model.samples))
        assert (tested.start.samples, tested.dropped) == (model.start, model.dropped)
        assert tested.end == tested.start.plus(len(model.samples))


@given(st.lists(st.integers(0, 3000), max_size=20), st.integers(1, 20_000))
def test_a_history_holds_the_last_samples_through_all_its_growth(
    sizes: list[int], bound: int
) -> None:
    history = ring(bound, Policy.DROP_OLDEST)
    total = 0
    for size in sizes:
        history.write(count(total, total + size))
        total += size
    first = max(total - bound, 0)
    assert (history.start, history.end) == (at(first), at(total))
    assert np.array_equal(history.slice(at(first), at(total)).samples, count(first, total))


@given(st.integers(0, 60), st.integers(-20, 80), st.integers(0, 60))
def test_a_slice_is_what_is_held_of_the_range(written: int, start: int, length: int) -> None:
    history = ring(25, Policy.DROP_OLDEST)
    for sample in range(written):
        history.write(count(sample, sample + 1))
    chunk = history.slice(at(start), at(start + length))
    oldest = max(written - 25, 0)
    expected = [n for n in range(start, start + length) if oldest <= n < written]
    assert chunk.samples.tolist() == expected
    if expected:
        assert chunk.start == at(expected[0])
    assert history.start <= chunk.start <= chunk.end <= history.end


def test_wait_tells_how_many_it_took() -> None:
    full = ring(10, Policy.WAIT)
    assert full.write(count(0, 7)) == 7
    assert full.write(count(7, 14)) == 3
    assert full.write(count(10, 14)) == 0
    assert held(full) == list(range(10)) and full.dropped == 0


def test_drop_oldest_moves_the_start() -> None:
    full = ring(10, Policy.DROP_OLDEST)
    full.write(count(0, 8))
    assert full.write(count(8, 13)) == 5
    assert (full.start, full.end, full.dropped) == (at(3), at(13), 3)
    assert full.write(count(13, 50)) == 37
    assert (full.start, full.end, full.dropped) == (at(40), at(50), 40)
    assert held(full) == list(range(40, 50))


def test_drop_newest_loses_what_does_not_fit() -> None:
    full = ring(10, Policy.DROP_NEWEST)
    assert full.write(count(0, 13)) == 10
    assert (held(full), full.end, full.dropped) == (list(range(10)), at(10), 3)


def test_refuse_takes_nothing_of_what_does_not_fit() -> None:
    full = ring(10, Policy.REFUSE)
    full.write(count(0, 8))
    with pytest.raises(RingFullError, match="3 samples do not fit into 2"):
        full.write(count(8, 11))
    assert held(full) == list(range(8))
    assert full.write(count(8, 10)) == 2


def test_a_read_takes_from_the_start_and_a_slice_takes_nothing() -> None:
    queue = ring(start=100)
    queue.write(count(0, 6))
    assert queue.slice(at(102), at(104)).samples.tolist() == [2, 3]
    chunk = queue.read(4)
    assert (chunk.start, chunk.end) == (at(100), at(104))
    assert queue.slice(at(100), at(104)).samples.tolist() == []
    assert queue.read(99).samples.tolist() == [4, 5]
    assert queue.read(99).samples.tolist() == []


def test_what_was_read_stays_when_the_ring_is_written() -> None:
    queue = ring(4)
    queue.write(count(0, 4))
    first, looked_at = queue.read(2), queue.slice(at(2), at(4))
    queue.write(count(50, 52))
    queue.read(4)
    queue.write(count(60, 64))
    assert first.samples.tolist() == [0, 1] and looked_at.samples.tolist() == [2, 3]


def test_a_ring_holds_float_samples_too() -> None:
    queue = AudioRing(4, RATE, Policy.WAIT, np.float32)
    queue.write(np.array([0.5, -0.25], np.float32))
    chunk = queue.read(2)
    assert chunk.samples.dtype == np.float32 and chunk.samples.tolist() == [0.5, -0.25]
    assert queue.rate == RATE


@pytest.mark.parametrize(
    "samples", [np.zeros(2, np.float32), np.zeros(2), np.zeros((2, 1), np.int16)]
)
def test_a_ring_takes_only_its_own_kind(samples: Any) -> None:
    with pytest.raises(MediaValueError):
        ring().write(samples)


@pytest.mark.parametrize("bound, rate", [(0, RATE), (-1, RATE), (1, 0)])
def test_a_ring_has_a_bound_and_a_rate(bound: int, rate: int) -> None:
    with pytest.raises(MediaValueError):
        AudioRing(bound, rate, Policy.WAIT, np.int16)


def test_ranges_that_make_no_sense_are_refused() -> None:
    queue = ring()
    with pytest.raises(MediaValueError, match="is before"):
        queue.slice(at(2), at(1))
    with pytest.raises(MediaValueError, match="cannot read"):
        queue.read(-1)
    for start, end in ((MediaTime(0, 8000), at(1)), (at(0), MediaTime(1, 8000))):
        with pytest.raises(RateMismatchError):
            queue.slice(start, end)


def test_an_idle_ring_with_a_large_bound_costs_next_to_nothing() -> None:
    tracemalloc.start()
    rings = [AudioRing(30 * RATE, RATE, Policy.DROP_OLDEST, np.int16) for _ in range(100)]
    for each in rings:
        each.write(count(0, 320))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < len(rings) * 4096


def buffer_size(of: AudioRing[np.int16]) -> int:
    return len(of._buffer)


def test_memory_never_exceeds_the_bound_and_is_given_back() -> None:
    queue = ring(20_000)
    while queue.write(count(0, 700)) == 700:
        assert buffer_size(queue) <= 20_000
    assert buffer_size(queue) == 20_000
    queue.read(19_999)
    assert buffer_size(queue) == 20_000
    queue.read(1)
    assert buffer_size(queue) == 0
    queue.write(count(0, 700))
    queue.read(700)
    assert buffer_size(queue) > 0
    queue.clear()
    assert buffer_size(queue) == 0
    assert queue.end == at(20_700)


def test_growth_doubles_so_that_each_sample_is_moved_a_bounded_number_of_times() -> None:
    history = ring(10**6, Policy.DROP_OLDEST)
    sizes = set()
    for _ in range(2000):
        history.write(count(0, 320))
        sizes.add(buffer_size(history))
    assert len(sizes) <= 11
