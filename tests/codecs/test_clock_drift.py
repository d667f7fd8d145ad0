"""How two clocks drift apart."""

import random

import pytest

from duologue.codecs.clock_drift import ClockDrift

CLOCK = 48_000


def packets(ppm: float, seconds: float, jitter: float, drift: ClockDrift) -> None:
    chance = random.Random(1)
    count = int(seconds / 0.1)
    for number in range(count):
        sent = number * 0.1 / (1 + ppm / 1e6)
        drift.push(number * CLOCK // 10, sent + 0.05 + chance.uniform(0, jitter))


@pytest.mark.parametrize("ppm", [-200.0, -20.0, 0.0, 50.0, 300.0])
def test_the_drift_is_found_through_the_jitter(ppm: float) -> None:
    drift = ClockDrift(CLOCK)
    packets(ppm, 900, 0.02, drift)
    assert drift.ppm == pytest.approx(ppm, abs=6)


def test_nothing_is_said_before_it_is_known() -> None:
    drift = ClockDrift(CLOCK)
    packets(300, 50, 0.0, drift)
    assert drift.ppm == 0.0


def test_a_path_that_changes_is_no_clock() -> None:
    drift = ClockDrift(CLOCK)
    for number in range(6000):
        drift.push(number * CLOCK // 10, number * 0.1 + (0.3 if number > 3000 else 0.0))
    assert abs(drift.ppm) < 20
    steep = ClockDrift(CLOCK)
    packets(5000, 300, 0.0, steep)
    assert steep.ppm == 0.0


def test_a_timeline_that_jumps_begins_anew() -> None:
    drift = ClockDrift(CLOCK)
    packets(100, 900, 0.0, drift)
    for number in range(6000):
        drift.push(10**12 + number * CLOCK // 10, 900 + number * 0.1)
    assert drift.ppm == pytest.approx(0.0, abs=6)


def test_a_stream_with_long_pauses_is_measured_all_the_same() -> None:
    drift = ClockDrift(CLOCK)
    for number in range(60):
        drift.push(number * CLOCK * 30, number * 30 / (1 + 100e-6))
    assert drift.ppm == pytest.approx(100, abs=10)
