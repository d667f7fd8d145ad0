"""How long a model's ticks take, by the number of sessions in them; pure."""

import math

GAIN = 0.125
DEVIATION_GAIN = 0.25
DEVIATIONS = 4.0
"""Of mean and deviation, and how many of these lie below the bound: RFC 6298, section 2."""


class _Size:
    """Ticks of one size: their smoothed mean and mean deviation, in seconds."""

    def __init__(self, seconds: float) -> None:
        self.mean = seconds
        self.deviation = 0.0

    def add(self, seconds: float) -> None:
        error = seconds - self.mean
        self.deviation += DEVIATION_GAIN * (abs(error) - self.deviation)
        self.mean += GAIN * error

    @property
    def bound(self) -> float:
        return self.mean + DEVIATIONS * self.deviation


class TickTimes:
    """An upper bound of a tick's duration, learnt from the ticks that were run."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}

    def add(self, sessions: int, seconds: float) -> None:
        """A tick for so many sessions took so long."""
        if sessions in self._sizes:
            self._sizes[sessions].add(seconds)
        else:
            self._sizes[sessions] = _Size(seconds)

    def of(self, sessions: int) -> float:
        """What a tick for `sessions` takes at most, in seconds; infinite when nothing is known.

        A size that was never run counts as the next smaller one that was, in proportion; but
        never less than a smaller tick takes, nor more than a larger one. A larger tick that was
        quicker than a smaller one is old news.
        """
        smaller = [(timed.bound, size) for size, timed in self._sizes.items() if size <= sessions]
        larger = [timed.bound for size, timed in self._sizes.items() if size > sessions]
        if not smaller:
            return min(larger, default=math.inf)
        least, size = max(smaller)
        most = min((bound for bound in larger if bound >= least), default=math.inf)
        return min(least * (sessions / size), most)


class Unhurried(TickTimes):
    """Takes any tick for short enough: who has too many sessions for a device wants it so."""

    def of(self, sessions: int) -> float:
        return 0.0
