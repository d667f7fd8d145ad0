"""The clock of all measurements: CLOCK_MONOTONIC in seconds, by which speech is stamped."""

import time


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def nanoseconds(value: int) -> float:
    """A stamp's nanoseconds on this clock as seconds."""
    return value / 1e9
