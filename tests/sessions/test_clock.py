"""Session time."""

from duologue.sessions.clock import ManualClock, MonotonicClock


def test_the_real_clock_never_goes_back():
    clock = MonotonicClock()
    times = [clock.now() for _ in range(1000)]
    assert times == sorted(times)


def test_all_real_clocks_are_the_same():
    one, other = MonotonicClock(), MonotonicClock()
    first = one.now()
    second = other.now()
    assert first <= second <= one.now()


def test_a_manual_clock_stands_still_until_it_is_moved():
    clock = ManualClock(5.0)
    assert clock.now() == clock.now() == 5.0
    assert clock.advance(1.5) == clock.now() == 6.5


def test_a_manual_clock_begins_at_nothing():
    assert ManualClock().now() == 0.0
