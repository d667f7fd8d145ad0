"""The delay that a network asks for."""

import random

import pytest

from duologue.codecs.delay_target import LEAST, MOST, DelayTarget

CLOCK = 48_000


def fed(late: list[float], target: DelayTarget | None = None, start: int = 0) -> DelayTarget:
    target = target or DelayTarget(CLOCK)
    for number, delay in enumerate(late, start):
        target.push(number * 960, number * 0.02 + delay)
    return target


def test_an_even_network_asks_for_the_least() -> None:
    assert fed([0.05] * 500).seconds == LEAST


@pytest.mark.parametrize("spread", [0.02, 0.06, 0.15])
def test_jitter_is_covered_for_nearly_all_packets(spread: float) -> None:
    chance = random.Random(1)
    target = fed([chance.uniform(0, spread) for _ in range(1000)])
    assert 0.9 * spread <= target.seconds <= spread + LEAST + 0.01


def test_a_network_that_calms_down_asks_for_less_again() -> None:
    chance = random.Random(1)
    target = fed([chance.uniform(0, 0.2) for _ in range(500)])
    before = target.seconds
    fed([0.0] * 700, target, start=500)
    assert target.seconds < before / 3


def test_the_delay_is_bounded_whatever_comes() -> None:
    assert fed([0.0, 3.0, 0.0, 9.0, -5.0, 1e6, 0.0] * 50).seconds <= MOST


def test_the_age_of_what_is_played_is_its_delay_over_the_fastest_packet() -> None:
    target = fed([0.03, 0.01, 0.02])
    assert target.age(960, 0.02 + 0.01 + 0.04) == pytest.approx(0.04)
    assert DelayTarget(CLOCK).age(5, 1.0) == 0.0
