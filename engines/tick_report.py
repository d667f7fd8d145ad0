"""What an operator is told of a frame-locked model's ticks; pure."""

from collections import deque
from collections.abc import Mapping

from duologue.engines.tick_scheduler import Counts

TICKS_KEPT = 1024
"""Ticks that the quantiles are of: 82 seconds at 12.5 a second."""


class TickReport:
    """The last ticks' durations, and what was counted since the start."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=TICKS_KEPT)
        self._sessions = 0
        self._counts = Counts()
        self.ticks = 0

    def add(self, sessions: int, seconds: float, counts: Counts) -> None:
        """A tick of so many sessions; `counts` are all sessions' since the start."""
        self._seconds.append(seconds)
        self._sessions = sessions
        self._counts = counts
        self.ticks += 1

    def quantile(self, share: float) -> float:
        """Of the last ticks' durations, in seconds; 0 before the first."""
        if not self._seconds:
            return 0.0
        ordered = sorted(self._seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def gauges(self, seated: int) -> Mapping[str, float]:
        """By name, as they leave the worker with its heartbeat."""
        return {
            "ticks": self.ticks,
            "tick_p50_s": self.quantile(0.5),
            "tick_p99_s": self.quantile(0.99),
            "slots_taken": seated,
            "frames": self._counts.steps,
            "frames_silent": self._counts.silent,
            "frames_dropped": self._counts.dropped,
            "frames_missed": self._counts.missed,
        }
