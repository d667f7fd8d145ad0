"""When what happened in a turn: from the end of the user's speech to the end of the answer.

Pure: events, effects and their times go in, records come out. Times are seconds on the session's
clock.
"""

from dataclasses import dataclass
from typing import Literal

from duologue.engines.engine import (
    SPOKEN_RATE,
    Respond,
    ResponseEnded,
    SpeechGenerated,
    TextGenerated,
    TranscriptFinal,
)
from duologue.sessions import effects
from duologue.sessions.effects import Effect
from duologue.sessions.events import Event

GAP_S = 0.04
"""A listener who has nothing to play for longer than this hears it."""

ANSWERS_KEPT = 64
"""Answers of one session that may be under way; the oldest is forgotten for one more."""


@dataclass(slots=True)
class AnswerTimes:
    """One answer of the engine. ``first_text``: of an answer in text; ``tokens``: as the engine
    counts them; ``speech_s``: seconds of speech that it made."""

    generation: int
    asked: float
    first_text: float | None = None
    last_text: float | None = None
    first_speech: float | None = None
    ended: float | None = None
    reason: str = ""
    tokens: int = 0
    speech_s: float = 0.0

    @property
    def first_output(self) -> float | None:
        return self.first_speech if self.first_text is None else self.first_text

    @property
    def token_s(self) -> float | None:
        """Seconds a token after the first, of an answer in text."""
        if self.first_text is None or self.last_text is None or self.tokens < 2:
            return None
        return (self.last_text - self.first_text) / (self.tokens - 1)

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of work for a second of speech; a listener's pace bounds it from below."""
        if self.ended is None or not self.speech_s:
            return None
        return (self.ended - self.asked) / self.speech_s


@dataclass(slots=True)
class TurnTimes:
    """One response as it was sent. ``stopped``: the end of the user's speech was noticed, if the
    user spoke. ``gaps``: pauses in which the listener had nothing left to play."""

    response_id: str
    status: str
    done: float
    answer: AnswerTimes | None
    stopped: float | None = None
    transcribed: float | None = None
    first_sent: float | None = None
    sent_s: float = 0.0
    gaps: int = 0
    gap_s: float = 0.0
    interrupted: Literal["", "speech", "client"] = ""

    @property
    def begin(self) -> float:
        """When the turn began to be the server's."""
        times = (self.stopped, self.answer.asked if self.answer else None, self.first_sent)
        return min(time for time in (*times, self.done) if time is not None)

    def waterfall(self) -> tuple[tuple[str, float, float], ...]:
        """Its stages: name, beginning and end, in seconds since :attr:`begin`."""
        answer = self.answer
        output = answer.first_output if answer else None
        spans = (
            ("transcript", self.stopped, self.transcribed),
            ("decision", self.stopped, answer.asked if answer else None),
            ("engine", answer.asked if answer else None, output),
            ("release", output, self.first_sent),
            ("sending", self.first_sent, self.done),
        )
        return tuple(
            (name, max(0.0, start - self.begin), max(0.0, end - self.begin))
            for name, start, end in spans
            if start is not None and end is not None
        )

    def line(self) -> str:
        """The waterfall in one line of a log, in milliseconds."""
        stages = ", ".join(
            f"{name} {1000 * start:.0f}-{1000 * end:.0f}" for name, start, end in self.waterfall()
        )
        said = f", {self.sent_s:.1f} s of speech" if self.sent_s else ""
        gaps = f", {self.gaps} gaps of {1000 * self.gap_s:.0f} ms" if self.gaps else ""
        return f"{self.response_id} {self.status}: {stages} ms{said}{gaps}"


class _Sent:
    """Speech of one response, as its listener plays it."""

    def __init__(self, now: float) -> None:
        self.first = now
        self.seconds = 0.0
        self.played_until = now
        self.gaps = 0
        self.gap_s = 0.0

    def add(self, seconds: float, now: float) -> None:
        gap = now - self.played_until
        if gap > GAP_S:
            self.gaps += 1
            self.gap_s += gap
        self.played_until = max(self.played_until, now) + seconds
        self.seconds += seconds


class TurnWatch:
    """Watches one session."""

    def __init__(self) -> None:
        self._answers: dict[int, AnswerTimes] = {}
        self._newest: AnswerTimes | None = None
        self._stopped: float | None = None
        self._transcribed: float | None = None
        self._sent: dict[str, _Sent] = {}

    def event(self, event: Event, now: float) -> AnswerTimes | None:
        """An answer of the engine that is over, when this ends one."""
        match event:
            case TranscriptFinal():
                self._transcribed = now
            case SpeechGenerated(generation=generation, pcm=pcm):
                if answer := self._answers.get(generation):
                    answer.first_speech = answer.first_speech or now
                    answer.speech_s += len(pcm) / (2 * SPOKEN_RATE)
            case TextGenerated(generation=generation):
                if answer := self._answers.get(generation):
                    answer.first_text = answer.first_text or now
                    answer.last_text = now
            case ResponseEnded(generation=generation):
                if answer := self._answers.pop(generation, None):
                    answer.ended, answer.reason = now, event.reason
                    answer.tokens = event.usage.output_tokens
                    return answer
            case _:
                pass
        return None

    def effect(self, effect: Effect, now: float) -> TurnTimes | None:
        """A response that is done, when this says so."""
        match effect:
            case effects.ToEngine(command=Respond(generation=generation)):
                if len(self._answers) >= ANSWERS_KEPT:
                    del self._answers[next(iter(self._answers))]
                self._newest = self._answers[generation] = AnswerTimes(generation, now)
            case effects.SpeechStopped():
                self._stopped, self._transcribed = now, None
            case effects.SpeechStarted():
                self._stopped = self._transcribed = None
            case effects.AudioDelta():
                sent = self._sent.setdefault(effect.response_id, _Sent(now))
                sent.add(len(effect.pcm) / (2 * SPOKEN_RATE), now)
            case effects.TextDelta():
                self._sent.setdefault(effect.response_id, _Sent(now))
            case effects.ResponseDone():
                return self._finish(effect.response, now)
            case _:
                pass
        return None

    def _finish(self, response: effects.ResponseView, now: float) -> TurnTimes:
        sent = self._sent.pop(response.id, None)
        turn = TurnTimes(
            response.id,
            response.status,
            now,
            self._newest,
            self._stopped,
            self._transcribed,
            sent.first if sent else None,
        )
        if sent is not None:
            turn.sent_s, turn.gaps, turn.gap_s = sent.seconds, sent.gaps, sent.gap_s
        if response.status == "cancelled":
            turn.interrupted = "speech" if response.reason == "turn_detected" else "client"
        self._newest = self._stopped = self._transcribed = None
        return turn
