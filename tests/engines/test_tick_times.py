import math

from hypothesis import given, strategies as st

from duologue.engines.tick_times import TickTimes

SECONDS = st.floats(0.001, 1.0)


def measured(*ticks: tuple[int, float]) -> TickTimes:
    times = TickTimes()
    for sessions, seconds in ticks:
        times.add(sessions, seconds)
    return times


def test_nothing_is_promised_before_anything_was_measured() -> None:
    assert TickTimes().of(1) == math.inf


def test_one_more_counts_in_proportion() -> None:
    assert math.isclose(measured((4, 0.04)).of(5), 0.05)


def test_a_smaller_tick_takes_no_longer_than_a_larger_one_did() -> None:
    assert measured((32, 0.04)).of(1) == 0.04


def test_ticks_that_vary_have_a_higher_bound() -> None:
    steady = measured(*[(2, 0.03)] * 20)
    varying = measured(*[(2, 0.02), (2, 0.04)] * 10)
    assert varying.of(2) > 0.04 > steady.of(2)


def test_what_was_slow_once_is_forgotten() -> None:
    times = measured((2, 0.5), *[(2, 0.03)] * 100)
    assert times.of(2) < 0.04


@given(st.lists(st.tuples(st.integers(1, 20), SECONDS), min_size=1), st.integers(1, 30))
def test_a_larger_tick_is_never_thought_shorter(
    ticks: list[tuple[int, float]], sessions: int
) -> None:
    times = measured(*ticks)
    smallest = min(size for size, _ in ticks)
    if sessions >= smallest:
        assert times.of(sessions) <= times.of(sessions + 1)
