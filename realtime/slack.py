"""How much sooner or later a paced stream should be ticked for its sound to be just in time.

Sound that is made as time passes (an echo, a model with a steady beat) waits for the next tick, and
what it waits is delay for the whole call. Its phase was chosen when it began, with a piece that may
have been early or late. Each piece tells how much later it could have come.
"""

import math

from duologue.realtime.pacer import PERIOD, SLOTS, STEP

LEAST = -0.0005
"""Seconds that all but LATE of the pieces must have had to spare. With less, ticks come later."""
KEPT = 0.0005
"""Seconds to spare that are left, at least, by ticks that come sooner."""
LATE = 0.2
"""Share of the pieces that may be late: they go out when they come."""
MOST = 0.1
"""Seconds to spare from which sound is taken to be made ahead: there the phase says nothing."""
WINDOW = 1.0
"""Seconds that are looked at together, so between two changes: 50 pieces of 20 ms."""
LONGEST = 64
"""Windows in a row that must agree for ticks to come sooner, where that was too soon before, again
and again."""
FARTHEST = SLOTS // 2
"""Steps by which ticks come later at most at a time."""
AS_TIME_PASSES = 0.1
"""By how much the sound of a window may be more or less than the window lasted: a piece of 80 ms at
either end."""
_COUNTED = 1000
"""Pieces of a window that are looked at; more are too small to tell anything."""


class Slack:
    """Of one stream. Pure: all times are arguments, in seconds on one clock."""

    def __init__(self) -> None:
        self.live = False
        """Whether the sound of the last window was made as time passed, and used up."""
        self.patience = 1
        """Windows in a row that must agree for ticks to come sooner: 1 to LONGEST."""
        self._since: float | None = None
        self._spare: list[float] = []
        self._given = 0.0
        self._agreeing = 0
        self._least = math.inf

    def begin(self, now: float) -> None:
        """A stream begins to sound, in a phase that was chosen for it just now."""
        self.live = False
        self.patience = 1
        self._start_anew(now)

    def starve(self, now: float) -> None:
        """There was silence in a tick for want of sound, and a phase was chosen anew."""
        self._be_patient()
        self._start_anew(now)

    def end(self) -> None:
        """What was being played has been ended: no more of it is to come."""
        self.live = False
        self._since = None

    def note(self, spare: float, seconds: float, now: float) -> None:
        """A piece of `seconds` has come, `spare` seconds before the tick that needs it; below 0,
        after it."""
        if self._since is None:
            self._start_anew(now)
            return
        if len(self._spare) < _COUNTED:
            self._spare.append(spare)
        self._given += seconds

    def steps(self, now: float) -> int:
        """By how many of the pacer's steps ticks should come later from now on, up to FARTHEST, or,
        below 0, sooner, up to SLOTS - 1."""
        if self._since is None or now - self._since < WINDOW or not self._spare:
            return 0
        least = sorted(self._spare)[int(LATE * len(self._spare))]
        as_time_passes = abs(self._given / (now - self._since) - 1) <= AS_TIME_PASSES
        self.live = as_time_passes and least < MOST
        self._look_anew(now)
        if least < LEAST:
            self._be_patient()
            return min(FARTHEST, math.ceil((KEPT - least) / STEP))
        self._agreeing += 1
        self._least = min(self._least, least)
        if self._agreeing < self.patience:
            return 0
        sooner = 0
        # A whole frame that waits is part of the phase only where no more than that is made.
        if self.live or self._least < PERIOD:
            sooner = max(0, min(SLOTS - 1, math.floor((self._least - KEPT) / STEP)))
        self._start_anew(now)
        return -sooner

    def _be_patient(self) -> None:
        self.patience = min(LONGEST, 2 * self.patience)
        self._agreeing, self._least = 0, math.inf

    def _start_anew(self, now: float) -> None:
        self._agreeing, self._least = 0, math.inf
        self._look_anew(now)

    def _look_anew(self, now: float) -> None:
        self._since = now
        self._spare.clear()
        self._given = 0.0
