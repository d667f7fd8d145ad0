"""One session of a frame-locked model, between its commands and its ticks; pure."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, TypeVar

from duologue.engines.duplex import (
    BeginDuplex,
    DuplexFailed,
    DuplexOutput,
    FrameHeard,
    TextForced,
)
from duologue.engines.duplex_model import FrameText
from duologue.engines.lockstep import Resting
from duologue.models.moshi.moshi_config import SamplingChoice

Saved = TypeVar("Saved")

FRAMES_KEPT = 3
"""Frames that are kept for a session that is being resumed."""

ORDERS = 64
"""Commands, other than frames, that may wait for one session."""


class DuplexState(Enum):
    """``NEW``: it has a place. ``PROMPTING``: in a slot, and not begun yet."""

    NEW = "new"
    PROMPTING = "prompting"
    RUNNING = "running"
    PARKED = "parked"
    CLOSED = "closed"


@dataclass(slots=True)
class _Forced:
    """Frames that are still to be forced, and whose answer is due after them. ``heard``: the user
    is listened to meanwhile."""

    reference: str
    left: int
    heard: bool
    start: int = -1


class DuplexSession(Generic[Saved]):
    """``tick`` is the one that is next. The lockstep's script of forced frames is mirrored here as
    numbers, to tell when a text is through."""

    def __init__(self, name: str, say: Callable[[DuplexOutput], None], now: float) -> None:
        self.name = name
        self.say = say
        self.state = DuplexState.NEW
        self.tick = 0
        self.slot = -1
        self.begin = BeginDuplex(session=name)
        self.choice = SamplingChoice()
        self.text: FrameText | None = None
        self.resting: Resting[Saved] | None = None
        self.orders = 0
        self.early: deque[FrameHeard] = deque(maxlen=FRAMES_KEPT)
        self.heard_at = now
        self.resume_after = -math.inf
        self.announce = False
        """Whether its beginning is to be told once its prompt is through."""
        self._script: deque[_Forced] = deque()

    def fail(
        self, code: str, message: str, reference: str = "", retry_after_s: float = 0.0
    ) -> None:
        """Say that something can't be done."""
        self.say(
            DuplexFailed(
                session=self.name,
                code=code,
                message=message,
                reference=reference,
                retry_after_s=retry_after_s,
            )
        )

    def force(self, frames: int, *, heard: bool, reference: str = "") -> None:
        """So many frames are forced after those that are."""
        self._script.append(_Forced(reference, frames, heard))

    def moved(self) -> None:
        """The session went a frame further: one of what is forced is through, if anything is.

        Called before :attr:`tick` counts the frame; ``text`` that is through ends before the tick
        that comes next.
        """
        if not self._script:
            return
        first = self._script[0]
        if first.start < 0:
            first.start = self.tick
        first.left -= 1

    def tell_forced(self) -> None:
        """Answer for the texts that are through."""
        while self._script and self._script[0].left <= 0:
            self._answer(self._script.popleft())

    def drop_forced(self, *, all_of_it: bool = False) -> None:
        """What is forced is dropped, but not a prompt."""
        kept: deque[_Forced] = deque()
        for forced in self._script:
            if forced.heard or all_of_it:
                self._answer(forced)
            else:
                kept.append(forced)
        self._script = kept

    def copy_to(self, other: "DuplexSession[Saved]") -> None:
        """What the other one is, being a fork. Answers for the texts go to this one alone."""
        other.tick = self.tick
        other.begin = self.begin
        other.text = self.text.fork() if self.text else None
        other._script = deque(replace(forced, reference="") for forced in self._script)

    def _answer(self, forced: _Forced) -> None:
        if forced.reference:
            start = self.tick if forced.start < 0 else forced.start
            self.say(
                TextForced(
                    session=self.name, reference=forced.reference, start=start, end=self.tick
                )
            )
