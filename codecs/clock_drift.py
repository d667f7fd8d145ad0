"""How much faster one clock runs than another, from when packets arrive.

A packet's transit, its arrival minus its timestamp, is the path's delay plus what the clocks are
apart. The least of many transits is close to the path without its jitter (RFC 3550's sender and
receiver know nothing better), and how that least moves over minutes is the drift.
"""

from collections import deque

WINDOW = 10.0
"""Seconds of which the fastest packet counts."""
MEMORY = 60
"""Windows that the slope is taken over: ten minutes."""
LEAST = 6
"""Windows before anything is said."""
MAX_PPM = 1000.0
"""More than that is no clock, but a path that changes."""


class ClockDrift:
    """`push` what arrives; `ppm` is the sender's clock against ours, in parts per million."""

    def __init__(self, clock_rate: int) -> None:
        self._clock_rate = clock_rate
        self._first: tuple[float, int] | None = None
        self._window_end = 0.0
        self._least = 0.0
        self._points: deque[tuple[float, float]] = deque(maxlen=MEMORY)
        self.ppm = 0.0
        """Positive when the sender's clock is the faster. 0 until it is known."""

    def push(self, timestamp: int, now: float) -> None:
        """A packet with this timestamp, which does not wrap, arrived."""
        if self._first is None:
            self._begin(timestamp, now)
            return
        transit = now - self._first[0] - (timestamp - self._first[1]) / self._clock_rate
        if abs(transit) > 60:
            # No delay is that long: the sender's timeline has jumped.
            self._begin(timestamp, now)
            return
        if now < self._window_end:
            self._least = min(self._least, transit)
            return
        self._points.append((self._window_end - WINDOW / 2, self._least))
        self._window_end = max(self._window_end + WINDOW, now)
        self._least = transit
        self._fit()

    def _begin(self, timestamp: int, now: float) -> None:
        self._first = (now, timestamp)
        self._window_end = now + WINDOW
        self._least = 0.0
        self._points.clear()

    def _fit(self) -> None:
        """The median of the slopes between each point and the one half of all points later, which
        a few windows without a fast packet do not move (Theil and Sen)."""
        points = list(self._points)
        if len(points) < LEAST:
            return
        half = len(points) // 2
        slopes = sorted(
            (later[1] - earlier[1]) / (later[0] - earlier[0])
            for earlier, later in zip(points, points[half:], strict=False)
        )
        ppm = -1e6 * slopes[len(slopes) // 2]
        if abs(ppm) <= MAX_PPM:
            self.ppm = ppm
