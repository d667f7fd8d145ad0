"""How much delay a stream needs, from how unevenly its packets arrive.

A packet's lateness is its transit above the least of the last WINDOW seconds. A histogram of
lateness that forgets (as in WebRTC's NetEq) gives the delay that QUANTILE of the packets meet.
"""

from collections import deque

import numpy as np

LEAST = 0.02
"""Seconds: playout asks for a packet's length at a time, and a packet may come just after."""
MOST = 0.4
WINDOW = 2.0
QUANTILE = 0.95
BUCKET = 0.005
FORGET = 0.993
"""Weight of the past at each packet: half of it is gone after 100, 2 s of speech."""


class DelayTarget:
    """One source. `now` is in seconds; timestamps do not wrap."""

    def __init__(self, clock_rate: int) -> None:
        self._clock_rate = clock_rate
        self._origin: tuple[float, int] | None = None
        self._transits: deque[tuple[float, float]] = deque()
        self._histogram = np.zeros(int(MOST / BUCKET) + 1)
        self._pushed = 0
        self.seconds = LEAST
        """The delay to aim at, LEAST to MOST."""

    def push(self, timestamp: int, now: float) -> None:
        """A packet arrived, late or not."""
        if self._origin is None:
            self._origin = (now, timestamp)
        transit = now - self._origin[0] - (timestamp - self._origin[1]) / self._clock_rate
        if self._transits and abs(transit - self.base) > 2 * MOST + WINDOW:
            # No path changes like that: the sender's timeline has jumped.
            self._origin, transit = (now, timestamp), 0.0
            self._transits.clear()
        self._remember(transit, now)
        late = transit - self.base
        bucket = min(int(late / BUCKET + 0.5), len(self._histogram) - 1)
        self._pushed += 1
        # Of the first 143 packets each counts the same.
        keep = min(FORGET, 1 - 1 / self._pushed)
        self._histogram *= keep
        self._histogram[bucket] += 1 - keep
        reached = int(np.searchsorted(np.cumsum(self._histogram), QUANTILE))
        self.seconds = min(LEAST + reached * BUCKET, MOST)

    @property
    def base(self) -> float:
        """The least transit of the window."""
        return self._transits[0][1] if self._transits else 0.0

    def age(self, timestamp: float, now: float) -> float:
        """How long after the fastest possible arrival of this timestamp it is now: the delay of
        what is played now."""
        if self._origin is None:
            return 0.0
        since = (timestamp - self._origin[1]) / self._clock_rate
        return now - self._origin[0] - since - self.base

    def _remember(self, transit: float, now: float) -> None:
        """Keep what can still become the least: transits rise from the front to the back."""
        transits = self._transits
        while transits and transits[-1][1] >= transit:
            transits.pop()
        transits.append((now, transit))
        while transits[0][0] < now - WINDOW and len(transits) > 1:
            transits.popleft()
