"""Where session time comes from."""

import time


class MonotonicClock:
    """CLOCK_MONOTONIC in seconds: the same for all processes of a machine."""

    def now(self) -> float:
        return time.monotonic()  # noqa: TID251 - the one place that reads it


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
