"""What the user of a frame-locked model says, written down beside it.

The model hears everything by itself; here it is cut into utterances, as a cascade's is, and given
to a recogniser. What that writes becomes the session's input transcript, when it comes.
"""

from collections.abc import Callable
from typing import Final, Literal

import numpy as np

from duologue.codecs.media import Int16Samples
from duologue.codecs.resample import Resampler
from duologue.engines.engine import (
    HEARD_RATE,
    ConfigureListening,
    TranscriptDelta,
    TranscriptFailed,
    TranscriptFinal,
)
from duologue.engines.scribes import Heard, Written
from duologue.models.silero_vad import SileroVad
from duologue.sessions.effects import CloseUtterance, OpenUtterance
from duologue.sessions.endpointing import Edge, Ended, Endpointer, Started
from duologue.sessions.events import AudioReceived
from duologue.sessions.hearing import Hearing
from duologue.sessions.live_events import InputTranscript, TurnMarked
from duologue.sessions.live_mixer import RATE
from duologue.sessions.live_session import LiveSession
from duologue.sessions.live_transcript import Fragment, HeardTimeline, WrittenWords
from duologue.sessions.session_config import ServerVad, SessionLimits

LONGEST: Final = 60 * HEARD_RATE
"""Samples of an utterance; a longer one is cut."""
PER_MS: Final = HEARD_RATE // 1000
TURNS: Final = ServerVad()
PADDING: Final = TURNS.prefix_padding_ms * PER_MS
"""Samples before the first voiced frame that belong to an utterance."""


class LiveListening:
    """``tell`` takes what goes to the recogniser, and must not raise."""

    def __init__(
        self,
        session: LiveSession,
        vad: SileroVad,
        tell: Callable[[Heard], None],
    ) -> None:
        self._session = session
        self._hearing = Hearing("", vad, tell)
        self._endpointer = Endpointer(TURNS, SessionLimits())
        self._resampler = Resampler(RATE, HEARD_RATE, np.int16)
        self._timeline = HeardTimeline()
        self._words = WrittenWords()
        self._utterance: str | None = None
        self._start = 0
        self._free_from = 0
        tell(ConfigureListening(session="", partials=True))

    def hear(self, samples: Int16Samples, now: float) -> None:
        """Sound of the microphone, at 24 kHz."""
        narrow = self._resampler.push(samples)
        self._timeline.hear(len(narrow) / PER_MS, self._session.place(now))
        for event in self._hearing.accept_samples(narrow, judge=True):
            if isinstance(event, AudioReceived):
                self._endpointer.received(now)
                continue
            self._follow(self._endpointer.frame(event.end, event.probability, now), now)
            if self._utterance is not None and event.end - self._start >= LONGEST:
                self._endpointer.reset()
                self._follow([Ended(event.end, event.end)], now)

    def settle(self, now: float) -> None:
        """Time has passed: where no sound comes, that is silence."""
        self._follow(self._endpointer.handle_timer(now), now)

    def _follow(self, edges: list[Edge], now: float) -> None:
        for edge in edges:
            if isinstance(edge, Started):
                self._begin(max(self._free_from, edge.at - PADDING), now)
            elif isinstance(edge, Ended) and self._utterance is not None:
                self._hearing.perform(CloseUtterance(self._utterance, edge.until, edge.end))
                self._utterance, self._free_from = None, edge.end
                self._mark("ended", edge.end, now)

    def _begin(self, start: int, now: float) -> None:
        self._utterance, self._start = self._session.new_id("item"), start
        self._words.begin(self._utterance, self._timeline.place(start / PER_MS))
        self._hearing.perform(OpenUtterance(self._utterance, start))
        self._mark("started", start, now)

    def _mark(self, state: Literal["started", "ended"], position: int, now: float) -> None:
        self._session.awake(now)
        if self._session.config.turn_marks:
            place = self._timeline.place(position / PER_MS)
            self._session.events.append(TurnMarked("user", state, place))

    def told(self, written: Written, now: float) -> None:
        """The recogniser says something."""
        place = self._session.place(now)
        fragment: Fragment | None = None
        match written:
            case TranscriptDelta(utterance=name, delta=delta):
                fragment = self._words.add(name, delta, place)
            case TranscriptFinal(utterance=name, text=text):
                fragment = self._words.finish(name, text, place)
            case TranscriptFailed(utterance=name):
                self._words.forget(name)
        if fragment is not None and self._session.closed is None:
            self._session.events.append(
                InputTranscript(fragment.text, fragment.start_ms, fragment.end_ms)
            )
