"""What is said to a frame-locked model in Live: utterances, and their words on the timeline."""

import itertools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from duologue.engines.duplex import DuplexSpec, FrameHeard
from duologue.engines.engine import (
    HEARD_RATE,
    ConfigureListening,
    EndUtterance,
    Hear,
    TranscriptDelta,
    TranscriptFailed,
    TranscriptFinal,
)
from duologue.models.silero_vad import SileroVad
from duologue.sessions import live_events as live
from duologue.sessions.live_config import LiveConfig
from duologue.sessions.live_duplex import DuplexVoice, duplex_pace
from duologue.sessions.live_listening import LONGEST, LiveListening
from duologue.sessions.live_session import LiveSession

SPEC = DuplexSpec()
PACKET = 480  # samples at 24 kHz: 20 ms


class Loudness:
    """A voice detector that takes everything loud for speech."""

    def stream(self) -> "Loudness":
        return self

    def push(self, frame: npt.NDArray[Any]) -> float:
        return float(np.abs(frame).max() > 0.05)


class Room:
    def __init__(self, marks: bool = False) -> None:
        self.now = 50.0
        self.model: list[Any] = []
        self.told: list[Any] = []
        self.events: list[Any] = []
        ids = itertools.count()
        self.session = LiveSession(
            LiveConfig(model="m", turn_marks=marks),
            duplex_pace(SPEC),
            self.now,
            self.now + 3600,
            lambda prefix: f"{prefix}_{next(ids)}",
        )
        self.listening = LiveListening(self.session, cast(SileroVad, Loudness()), self.told.append)
        self.session.voice = DuplexVoice(self.session, SPEC, self.model.append, self.listening)

    def take(self) -> None:
        self.events += self.session.take_events()

    def wait(self, seconds: float) -> None:
        """Nothing comes of the microphone."""
        end = self.now + seconds
        while self.session.next_deadline() <= end:
            self.now = max(self.now, self.session.next_deadline())
            self.session.handle_timer(self.now)
            self.take()
        self.now = end

    def hear(self, seconds: float, level: int) -> None:
        tone = np.full(PACKET, level, np.int16)
        tone[::2] *= -1
        tone = np.repeat(tone[: PACKET // 8], 8)
        for _ in range(round(seconds * 24_000 / PACKET)):
            self.wait(0.02)
            self.session.hear(tone, None, self.now)
        self.take()

    def write(self, *written: Any) -> None:
        for one in written:
            self.listening.told(one, self.now)
        self.take()

    def all(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def utterances(self) -> Sequence[str]:
        return tuple(dict.fromkeys(one.utterance for one in self.told if isinstance(one, Hear)))

    def ends(self) -> Sequence[EndUtterance]:
        return [one for one in self.told if isinstance(one, EndUtterance)]


def test_what_is_said_between_two_pauses_goes_to_the_recogniser_whole() -> None:
    room = Room()
    room.hear(1.0, 0)
    room.hear(2.0, 8000)
    room.hear(1.0, 0)
    assert isinstance(room.told[0], ConfigureListening)
    heard = [one for one in room.told if isinstance(one, Hear)]
    assert len(room.utterances()) == len(room.ends()) == 1
    for before, after in itertools.pairwise(heard):
        assert after.start == before.start + len(before.pcm) // 2
    (end,) = room.ends()
    assert abs(heard[0].start - 0.7 * HEARD_RATE) < 0.1 * HEARD_RATE
    assert abs(end.end - 3.1 * HEARD_RATE) < 0.1 * HEARD_RATE
    # The model hears all of it, and not utterances.
    assert len([one for one in room.model if isinstance(one, FrameHeard)]) == 1 + 50


def test_words_are_written_when_they_come_and_none_twice() -> None:
    room = Room()
    room.hear(1.0, 8000)
    (name,) = room.utterances()
    room.write(TranscriptDelta(name, "Is it", session=""))
    room.hear(1.0, 0)
    room.write(TranscriptFinal(name, "Is it raining?", 1.0, session=""))
    first, second = room.all(live.InputTranscript)
    assert (first.delta, second.delta) == ("Is it", " raining?")
    assert 0 <= first.start_ms < first.end_ms == second.start_ms < second.end_ms
    assert second.end_ms == 2000


def test_a_later_utterance_begins_with_a_space() -> None:
    room = Room()
    for text in ("Good day.", "Good night."):
        room.hear(1.0, 8000)
        room.hear(1.0, 0)
        room.write(TranscriptFinal(room.utterances()[-1], text, 1.0, session=""))
    said = [one.delta for one in room.all(live.InputTranscript)]
    assert said == ["Good day.", " Good night."]


def test_a_recogniser_that_fails_is_not_heard_of() -> None:
    room = Room()
    room.hear(1.0, 8000)
    room.hear(1.0, 0)
    room.write(TranscriptFailed(room.utterances()[0], "gone", session=""))
    assert room.all(live.InputTranscript) == room.all(live.LiveError) == []
    room.hear(1.0, 8000)
    room.hear(1.0, 0)
    assert len(room.ends()) == 2


def test_a_microphone_that_sends_nothing_more_is_silent() -> None:
    room = Room()
    room.hear(1.0, 8000)
    assert room.ends() == []
    room.wait(1.0)
    assert len(room.ends()) == 1


def test_who_is_muted_says_nothing() -> None:
    room = Room()
    room.session.receive(live.Mute("m"), room.now)
    room.hear(1.0, 8000)
    assert room.utterances() == ()


def test_somebody_who_does_not_pause_is_written_in_parts() -> None:
    room = Room()
    seconds = LONGEST / HEARD_RATE
    room.hear(seconds + 3, 8000)
    (end,) = room.ends()
    assert abs(end.end - LONGEST) < HEARD_RATE
    assert len(room.utterances()) == 2
    second = next(
        one for one in room.told if isinstance(one, Hear) and one.utterance != end.utterance
    )
    assert second.start >= end.end


def test_turns_of_the_user_are_marked_where_they_are_wanted() -> None:
    room = Room(marks=True)
    room.hear(1.0, 0)
    room.hear(1.0, 8000)
    room.hear(1.0, 0)
    started, ended = room.all(live.TurnMarked)
    assert (started.speaker, started.state) == ("user", "started")
    assert (ended.speaker, ended.state) == ("user", "ended")
    assert 600 <= started.offset_ms <= 1000 <= 2000 <= ended.offset_ms <= 2700
    unmarked = Room()
    unmarked.hear(1.0, 8000)
    assert unmarked.all(live.TurnMarked) == []


def test_nothing_is_written_after_the_end() -> None:
    room = Room()
    room.hear(1.0, 8000)
    room.session.close("close_requested", room.now)
    room.write(TranscriptDelta(room.utterances()[0], "Hello", session=""))
    assert isinstance(room.events[-1], live.Closed)
