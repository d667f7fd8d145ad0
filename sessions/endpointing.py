"""Probabilities of speech in, the edges of a user's turn out.

Silence is counted in media time, so that audio sent faster than real time is heard as it would
have been. When no samples arrive for a while (a muted or DTX client), elapsed time counts as
silence too. Positions are samples at 16 kHz.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from duologue.sessions.session_config import (
    Eagerness,
    SemanticVad,
    ServerVad,
    SessionLimits,
    TurnDetection,
)
from duologue.sessions.turns import USER, User, UserSignal, step

RATE = 16_000
FRAME = 512
STALL = 0.1
"""Seconds without samples after which time itself counts as silence."""
HYSTERESIS = 0.15
"""A voiced stretch goes on down to this much below the threshold."""
JUDGEMENTS = (0.2, 0.4, 0.6, 0.8)
"""Seconds of silence at which the turn detector is asked, unless its last answer is still due."""
TAIL = RATE // 10
"""What belongs to an utterance after its last voiced frame: the end of a soft consonant."""
REACH = 10 * RATE
"""How far back an utterance may begin; what was heard before is gone."""
PATIENCE: Mapping[Eagerness, float] = {"low": 3.0, "medium": 1.5, "auto": 1.0, "high": 0.6}
"""Seconds of silence that end a turn whatever the turn detector thinks."""
_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Started:
    """The user began to speak at ``at``."""

    at: int


@dataclass(frozen=True, slots=True)
class Paused:
    """Silent for long enough to draft an answer to what was said up to ``until``."""

    until: int


@dataclass(frozen=True, slots=True)
class JudgementDue:
    """Ask the turn detector about the audio up to ``at``."""

    at: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The user goes on: it was a pause."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The turn is over. Speech ended by ``until``; the silence that ended it, by ``end``."""

    until: int
    end: int


Edge = Started | Paused | JudgementDue | Resumed | Ended


class Endpointer:
    """One user's turns. Every method returns the edges it found, in order."""

    def __init__(self, detection: TurnDetection | None, limits: SessionLimits) -> None:
        self._limits = limits
        self.state = User.SILENT
        self._heard_end = 0
        self._voice_end = 0
        self._arrival = -math.inf
        self._paused_at: int | None = None
        self._judged = 0
        self._asked = False
        self._sure = False
        self.configure(detection)

    def configure(self, detection: TurnDetection | None) -> None:
        """Change the rules; a turn that is under way goes on under the new ones."""
        self._detection = detection
        self._speculate_after = self._limits.speculation_after
        self._threshold = 0.5
        if not isinstance(detection, SemanticVad):
            self._sure = False
        match detection:
            case ServerVad():
                self._threshold = detection.threshold
                self._patience = detection.silence_duration_ms / 1000
                self._speculate_after = min(self._speculate_after, self._patience)
            case SemanticVad():
                self._patience = PATIENCE[detection.eagerness]
            case None:
                self.reset()

    @property
    def paused(self) -> bool:
        """Silent for long enough that an answer may have been drafted."""
        return self._paused_at is not None

    def reset(self) -> None:
        """Forget the turn under way: the client has ended it in its own way."""
        self.state = step(USER, self.state, UserSignal.TURN_OVER)
        self._forget_pause()

    def received(self, now: float) -> None:
        """Samples have arrived."""
        self._arrival = now

    def frame(self, end: int, probability: float, now: float) -> list[Edge]:
        """A frame of 512 samples that ended at ``end`` is speech with this probability."""
        self._heard_end = end
        self._arrival = now
        if self._detection is None:
            return []
        voiced = probability >= self._threshold
        if self.state is User.SPEAKING and not voiced:
            voiced = probability >= max(self._threshold - HYSTERESIS, 0.01)
        if not voiced:
            self.state = step(USER, self.state, UserSignal.SILENCE)
            return self._pass_thresholds(now)
        before, self.state = self.state, step(USER, self.state, UserSignal.VOICE)
        self._voice_end = end
        if before is User.SILENT:
            self._forget_pause()
            return [Started(max(0, end - FRAME))]
        if before is User.PAUSING:
            drafted = self._paused_at is not None
            self._forget_pause()
            return [Resumed()] if drafted else []
        return []

    def judged(self, at: int, probability: float, now: float) -> list[Edge]:
        """The turn detector's answer; one about an earlier pause is ignored."""
        asked = isinstance(self._detection, SemanticVad)
        if not asked or self._paused_at is None or at < self._paused_at:
            return []
        self._asked = False
        if probability >= self._limits.turn_threshold:
            self._sure = True
        return self._pass_thresholds(now)

    def handle_timer(self, now: float) -> list[Edge]:
        """Time has passed."""
        return self._pass_thresholds(now)

    def next_deadline(self) -> float:
        """When silence reaches the next threshold if no more samples come."""
        if self.state is User.SILENT:
            return math.inf
        counted = (self._heard_end - self._voice_end) / RATE
        return self._arrival + max(STALL, self._next_threshold() - counted)

    def _silence(self, now: float) -> float:
        counted = (self._heard_end - self._voice_end) / RATE
        stalled = now - self._arrival
        return counted + stalled if stalled + _EPSILON >= STALL else counted

    def _next_threshold(self) -> float:
        if self._paused_at is None:
            return self._speculate_after
        return min(self._release_threshold(), self._judgement_threshold())

    def _judgement_threshold(self) -> float:
        if not isinstance(self._detection, SemanticVad) or self._sure or self._asked:
            return math.inf
        return JUDGEMENTS[self._judged] if self._judged < len(JUDGEMENTS) else math.inf

    def _release_threshold(self) -> float:
        if self._sure:
            return min(self._limits.release_after, self._patience)
        return self._patience

    def _pass_thresholds(self, now: float) -> list[Edge]:
        if self.state is User.SILENT:
            return []
        edges: list[Edge] = []
        counted = self._silence(now)
        silence = counted + _EPSILON
        if self._paused_at is None:
            if counted <= 0 or silence < self._speculate_after:
                return edges
            self.state = step(USER, self.state, UserSignal.SILENCE)
            self._paused_at = self._heard_end
            edges.append(Paused(self._until))
        due = False
        while silence >= self._judgement_threshold():
            self._judged += 1
            due = True
        if silence >= self._release_threshold():
            edges.append(Ended(self._until, self._heard_end))
            self.reset()
        elif due:
            self._asked = True
            edges.append(JudgementDue(self._heard_end))
        return edges

    @property
    def _until(self) -> int:
        return min(self._voice_end + TAIL, self._heard_end)

    def _forget_pause(self) -> None:
        self._paused_at = None
        self._judged = 0
        self._asked = False
        self._sure = False
