import time

import pytest

from duologue.engines.pulse import BOUNDS_S, Durations, Pulse, Stopwatch


def test_nothing_runs_at_first() -> None:
    reading = Pulse().reading(0)
    assert (reading.steps, reading.running_s) == (0, 0.0)
    assert reading.step_times == reading.waits == Durations()


def test_a_finished_step_counts_and_no_longer_runs() -> None:
    pulse = Pulse()
    with pulse.step():
        pass
    reading = pulse.reading(time.monotonic_ns())
    assert (reading.steps, reading.running_s) == (1, 0.0)
    assert sum(reading.step_times.counts) == 1


def test_a_step_that_is_no_block_of_code_runs_from_its_begin_to_its_end() -> None:
    pulse = Pulse()
    first, second = pulse.begin(), pulse.begin()
    pulse.end(second)
    reading = pulse.reading(time.monotonic_ns() + 5_000_000_000)
    assert reading.steps == 1
    assert reading.running_s >= 5.0
    pulse.end(first)
    reading = pulse.reading(time.monotonic_ns())
    assert (reading.steps, reading.running_s) == (2, 0.0)


def test_a_failed_step_no_longer_runs() -> None:
    pulse = Pulse()
    with pytest.raises(ZeroDivisionError), pulse.step():
        raise ZeroDivisionError
    assert pulse.reading(time.monotonic_ns()).running_s == 0.0


def test_the_oldest_running_step_is_the_one_that_is_told() -> None:
    pulse = Pulse()
    with pulse.step():
        began = time.monotonic_ns()
        with pulse.step():
            reading = pulse.reading(began + 5_000_000_000)
    assert reading.running_s >= 5.0


def test_a_reading_is_never_negative() -> None:
    pulse = Pulse()
    with pulse.step():
        assert pulse.reading(0).running_s == 0.0


def test_durations_are_counted_by_their_class() -> None:
    watch = Stopwatch()
    for seconds in (0.0, 0.001, 0.0011, 2.0, 100.0):
        watch.add(seconds)
    found = watch.reading()
    assert found.sum_s == pytest.approx(102.0021)
    cumulative = dict(found.cumulative())
    assert (cumulative[0.001], cumulative[0.003], cumulative[3.0]) == (2, 3, 4)
    assert cumulative[float("inf")] == 5
    assert len(cumulative) == len(BOUNDS_S) + 1


def test_a_reading_tells_what_the_process_has_used() -> None:
    reading = Pulse().reading(0)
    assert reading.cpu_s > 0
    assert reading.peak_bytes > 1_000_000
