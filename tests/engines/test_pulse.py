import time

import pytest

from duologue.engines.pulse import Pulse, Reading


def test_nothing_runs_at_first() -> None:
    assert Pulse().reading(0) == Reading(0, 0.0)


def test_a_finished_step_counts_and_no_longer_runs() -> None:
    pulse = Pulse()
    with pulse.step():
        pass
    assert pulse.reading(time.monotonic_ns()) == Reading(1, 0.0)


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
