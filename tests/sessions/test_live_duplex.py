"""A frame-locked model as what speaks in a Live session."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from duologue.engines.duplex import (
    DuplexFailed,
    DuplexParked,
    DuplexSpec,
    ForceText,
    FrameHeard,
    FrameSpoken,
    InterruptDuplex,
    TextForced,
)
from duologue.sessions import live_events as live
from duologue.sessions.items import InputText, MessageItem
from duologue.sessions.live_config import LiveChange, LiveConfig
from duologue.sessions.live_duplex import DuplexVoice, duplex_pace
from duologue.sessions.live_session import LiveSession

SPEC = DuplexSpec()
FRAME = SPEC.frame_samples
TICK = 0.08


class Duplex:
    """A session and its model's side, by hand."""

    def __init__(self, config: LiveConfig | None = None) -> None:
        self.now = 50.0
        self.sent: list[Any] = []
        self.events: list[Any] = []
        self.tick = 0
        ids = itertools.count()
        self.session = LiveSession(
            config or LiveConfig(model="m"),
            duplex_pace(SPEC),
            self.now,
            self.now + 3600,
            lambda prefix: f"{prefix}_{next(ids)}",
        )
        self.voice = DuplexVoice(self.session, SPEC, self.sent.append)
        self.session.voice = self.voice
        self.take()

    def take(self) -> None:
        self.events += self.session.take_events()

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self.session.next_deadline() <= end:
            self.now = max(self.now, self.session.next_deadline())
            self.session.handle_timer(self.now)
            self.take()
        self.now = end

    def speak(self, level: int = 3000, text: str = "") -> None:
        """The model's next frame comes now."""
        pcm = np.full(FRAME, level, "<i2").tobytes()
        self.voice.told(FrameSpoken(session="s", tick=self.tick, pcm=pcm, text=text), self.now)
        self.session.handle_timer(self.now)
        self.tick += 1
        self.take()

    def command(self, command: live.Command) -> None:
        self.session.receive(command, self.now)
        self.take()

    def all(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def sounding(self) -> list[bool]:
        return [bool(frame.samples.any()) for frame in self.all(live.OutputAudio)]


def test_its_clock_begins_with_a_frame_of_silence() -> None:
    [frame] = Duplex().sent
    assert isinstance(frame, FrameHeard)
    assert frame.pcm == bytes(2 * FRAME)


def test_what_is_heard_is_given_in_frames() -> None:
    duplex = Duplex()
    for _ in range(10):
        duplex.session.hear(np.ones(1000, np.int16), None, duplex.now)
    frames = duplex.sent[1:]
    assert [frame.sequence for frame in frames] == [1, 2, 3, 4, 5]
    assert {len(frame.pcm) for frame in frames} == {2 * FRAME}


def test_a_frame_leaves_as_soon_as_it_is_there_and_they_lie_one_after_the_other() -> None:
    duplex = Duplex()
    duplex.wait(TICK / 2)
    for _ in range(50):
        duplex.speak(text=" word")
        duplex.wait(TICK)
    assert sum(duplex.sounding()) == 50
    starts = [frame.start_ms for frame in duplex.all(live.OutputAudio)]
    assert starts == list(range(0, 80 * len(starts), 80))
    assert duplex.session.late_frames == 0
    words = duplex.all(live.OutputTranscript)
    assert [word.end_ms - word.start_ms for word in words] == [80] * 50
    assert words[10].start_ms - words[0].start_ms == 800


def test_a_late_frame_is_silence_once_and_does_not_shift_what_follows() -> None:
    duplex = Duplex()
    for _ in range(10):
        duplex.speak()
        duplex.wait(TICK)
    duplex.wait(5 * TICK)
    late = duplex.session.late_frames
    assert late > 0
    for _ in range(5):
        duplex.speak()
    for _ in range(20):
        duplex.speak()
        duplex.wait(TICK)
    frames = duplex.all(live.OutputAudio)
    lead_ms = frames[-1].end_ms - (duplex.now - 50.0) * 1000
    assert lead_ms <= 2 * 80 + 1
    assert duplex.session.mixer.waiting_ms <= 80


def test_what_nobody_would_hear_becomes_zeros() -> None:
    duplex = Duplex()
    for _ in range(5):
        duplex.speak(level=5)
        duplex.wait(TICK)
    assert not any(duplex.sounding())


@pytest.mark.parametrize("kind", ["instructions", "thinking", "commentary"])
def test_what_is_told_is_forced_and_answered_with_its_ticks(kind: Any) -> None:
    duplex = Duplex()
    duplex.speak()
    duplex.command(live.AppendContext("e", kind, "Say hello."))
    [forced] = [order for order in duplex.sent if isinstance(order, ForceText)]
    assert (forced.kind, forced.text) == (kind, "Say hello.")
    duplex.voice.told(
        TextForced(session="s", reference=forced.reference, start=5, end=9), duplex.now
    )
    duplex.take()
    [told] = duplex.all(live.ContextAppended)
    assert (told.kind, told.client_event_id) == (kind, "e")
    assert told.end_ms - told.start_ms == 320


def test_what_can_not_be_forced_is_told_to_whoever_asked() -> None:
    duplex = Duplex()
    duplex.command(live.AppendContext("e", "thinking", "x"))
    reference = duplex.sent[-1].reference
    duplex.voice.told(
        DuplexFailed(session="s", code="invalid_value", message="no", reference=reference),
        duplex.now,
    )
    duplex.take()
    [error] = duplex.all(live.LiveError)
    assert (error.error.code, error.error.event_id) == ("invalid_value", "e")


def test_a_fixture_hushes_the_model_and_is_heard_alone() -> None:
    duplex = Duplex()
    duplex.speak()
    duplex.wait(TICK)
    duplex.command(live.PlayFixture("f", np.full(2 * FRAME, 9, np.int16)))
    assert any(isinstance(order, InterruptDuplex) for order in duplex.sent)
    before = len(duplex.sounding())
    for _ in range(2):
        duplex.speak()
        duplex.wait(TICK)
    assert {int(f.samples.max()) for f in duplex.all(live.OutputAudio)[before:]} <= {9, 3000}
    assert duplex.all(live.FixturePlayed)


def test_a_model_that_rests_is_not_waited_for() -> None:
    duplex = Duplex()
    duplex.speak()
    duplex.voice.told(DuplexParked(session="s", tick=1, idle=True), duplex.now)
    duplex.wait(10 * TICK)
    assert duplex.session.late_frames == 0
    duplex.speak()
    duplex.wait(TICK)
    assert sum(duplex.sounding()) == 2


def test_its_turns_are_marked_for_those_who_ask() -> None:
    duplex = Duplex(LiveConfig(model="m", turn_marks=True))
    for level in [0, 3000, 3000, *[0] * 10]:
        duplex.speak(level)
        duplex.wait(TICK)
    assert [mark.state for mark in duplex.all(live.TurnMarked)] == ["started", "ended"]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (live.CreateResponse("e"), "unsupported"),
        (
            live.CreateResponseItem("e", MessageItem("", "user", (InputText("x"),))),
            "unsupported",
        ),
        (live.CreateDecision("e"), "unsupported"),
        (live.AppendContext("e", "commentary", "x", "dlg_1"), "delegation_not_found"),
    ],
)
def test_what_it_can_not_do_is_said(command: live.Command, code: str) -> None:
    duplex = Duplex()
    duplex.command(command)
    [error] = duplex.all(live.LiveError)
    assert (error.error.code, error.error.event_id) == (code, "e")


COMMANDS: list[Any] = [
    live.Mute("e"),
    live.Unmute("e"),
    live.PlayFixture("e", np.full(3000, 9, np.int16)),
    live.AppendContext("e", "commentary", "x"),
    live.AppendContext("e", "thinking", "x", "dlg_1"),
    live.CreateResponse("e"),
    live.CreateDecision("e"),
    live.Start("e", LiveConfig()),
    live.Update("e", LiveChange()),
    live.Close("e"),
]


@given(
    st.lists(
        st.sampled_from([*COMMANDS, "speak", "park", "fail", "forced", "hear"])
        | st.floats(0.0, 2.0),
        max_size=60,
    )
)
@settings(max_examples=100, deadline=None)
def test_no_order_of_events_breaks_it(steps: list[Any]) -> None:
    duplex = Duplex(LiveConfig(model="m", turn_marks=True))
    for step in steps:
        if isinstance(step, float):
            duplex.wait(step)
        elif step == "speak":
            duplex.speak(text="x")
        elif step == "hear":
            duplex.session.hear(np.ones(4000, np.int16), None, duplex.now)
        elif isinstance(step, str):
            output: Any = {
                "park": DuplexParked(session="s", tick=duplex.tick),
                "fail": DuplexFailed(session="s", code="odd", message="m"),
                "forced": TextForced(session="s", reference="text_1", start=1, end=2),
            }[step]
            duplex.voice.told(output, duplex.now)
        else:
            duplex.command(step)
    frames = duplex.all(live.OutputAudio)
    assert all(len(frame.samples) == FRAME for frame in frames)
    starts = [frame.start_ms for frame in frames]
    assert starts == sorted(set(starts))
    if duplex.session.closed is None:
        duplex.session.handle_timer(duplex.now)
        assert duplex.session.next_deadline() > duplex.now


def test_a_model_that_is_too_slow_stutters_and_is_heard() -> None:
    duplex = Duplex()
    duplex.speak()
    for _ in range(50):
        duplex.wait(2 * TICK)
        duplex.speak()
    sounding = duplex.sounding()
    assert sum(sounding) >= 40
    assert not all(sounding)
