"""The answers of a worker's batch lane: how many run, and in which order the others wait; pure.

First come, first served. ``now`` is in seconds on one monotonic clock.
"""

from collections.abc import Hashable

GAIN = 0.25
"""How much of the newest answer's duration goes into the mean."""

MOST_RETRY_S = 60.0


class BatchQueue:
    """`width` answers run at a time. How many may wait is up to who adds them."""

    def __init__(self, width: int, usual_s: float) -> None:
        """`usual_s` is what an answer takes, as long as none was measured."""
        self.width = width
        self._mean_s = usual_s
        self._waiting: dict[Hashable, None] = {}
        self._running: dict[Hashable, float] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    def __contains__(self, name: object) -> bool:
        return name in self._waiting or name in self._running

    def retry_after(self) -> float:
        """About when the next answer ends, in seconds: then there is room for one more."""
        return min(MOST_RETRY_S, max(1.0, self._mean_s / max(1, self.width)))

    def add(self, name: Hashable) -> None:
        """Raises ValueError when it is here already."""
        if name in self:
            raise ValueError(f"{name!r} is here already")
        self._waiting[name] = None

    def begin(self, now: float) -> Hashable | None:
        """The next one, which runs from now on; ``None``: nobody waits, or there is no room."""
        if not self._waiting or len(self._running) >= self.width:
            return None
        name = next(iter(self._waiting))
        del self._waiting[name]
        self._running[name] = now
        return name

    def runs(self, name: Hashable) -> bool:
        return name in self._running

    def end(self, name: Hashable, now: float) -> None:
        """It has run to its end; nothing happens when it does not run."""
        began = self._running.pop(name, None)
        if began is not None:
            self._mean_s += GAIN * (now - began - self._mean_s)

    def discard(self, name: Hashable) -> None:
        """It is not wanted any more, wherever it is; that tells nothing of durations."""
        self._waiting.pop(name, None)
        self._running.pop(name, None)

    def positions(self) -> dict[Hashable, int]:
        """The place of each one that waits; the next has 1."""
        return {name: place for place, name in enumerate(self._waiting, start=1)}
