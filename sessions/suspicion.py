"""Hushing at the first sign of a voice, before it is certain that there is one.

A voice detector is sure of speech later than it suspects it. While the assistant is heard and the
server plays out, a frame that may be speech mutes it at once; the session's own threshold confirms
that soon, or the assistant goes on where it stopped. Times are session seconds.
"""

import math
from typing import Final

SUSPECT: Final = 0.15
"""Probability of speech that is enough to hush."""
HUSH: Final = 0.2
"""Seconds within which the suspicion is confirmed or dropped."""
REST: Final = 1.0
"""Seconds after a wrong suspicion in which there is no other: noise must not chop up an answer."""


class Suspicion:
    """Whether somebody may have begun to speak."""

    def __init__(self) -> None:
        self._until = math.inf
        self._rests_until = -math.inf

    @property
    def active(self) -> bool:
        return self._until < math.inf

    def next_deadline(self) -> float:
        """When :meth:`expires` becomes true; infinite when nothing is suspected."""
        return self._until

    def rises(self, probability: float, now: float) -> bool:
        """A frame was heard: whether a suspicion begins with it."""
        if self.active or probability < SUSPECT or now < self._rests_until:
            return False
        self._until = now + HUSH
        return True

    def expires(self, now: float) -> bool:
        """Whether the suspicion was not confirmed in time, and so ends."""
        if now < self._until:
            return False
        self._until = math.inf
        self._rests_until = now + REST
        return True

    def end(self) -> None:
        """It was confirmed, or does not matter any more."""
        self._until = math.inf
