"""Where session time comes from."""

import time
from collections.abc import Callable


class MonotonicClock:
    """CLOCK_MONOTONIC in seconds: the same for all processes of a machine."""

    def now(self) -> float:
        return time.monotonic()  # noqa: TID251 - the one place that reads it


def wall_clock(now: float) -> Callable[[float], int]:
    """Turns session time into nanoseconds since 1970, from what both clocks say `now`."""
    base_ns = time.time_ns() - round(now * 1e9)
    return lambda at: base_ns + round(at * 1e9)


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> float:
        """Move on; returns the new time."""
        self._now += seconds
        return self._now
