"""The rules that hold for ever, under thousands of random orders of events."""

import math
import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from duologue.engines import engine
from duologue.sessions import effects, events
from duologue.sessions.items import (
    FunctionOutputItem,
    InputAudio,
    InputText,
    MessageItem,
    OutputAudio,
)
from duologue.sessions.session_config import (
    SemanticVad,
    ServerVad,
    SessionLimits,
    SessionPatch,
    Transcription,
    TurnDetectionPatch,
    TurnPolicy,
)
from duologue.sessions.turns import Connection

ORDERS = int(os.environ.get("TEST_DUOLOGUE_ORDERS", "400"))
IDS = st.sampled_from(["a", "b", "c", "item_3", "item_5", "item_8", ""])
EVENT_IDS = st.one_of(st.none(), st.integers(0, 10**6).map(lambda n: f"client_{n}"))
MESSAGES = st.builds(
    lambda item_id, text, role: MessageItem(item_id, role, (InputText(text),)),
    IDS,
    st.sampled_from(["", "hello", "x" * 500]),
    st.sampled_from(["user", "system"]),
)
OTHER_ITEMS = st.one_of(
    st.builds(lambda i: MessageItem(i, "assistant", (OutputAudio("seeded words"),)), IDS),
    st.builds(lambda i: MessageItem(i, "user", (InputAudio(None),)), IDS),
    st.builds(lambda i, c: FunctionOutputItem(i, c, "out"), IDS, st.sampled_from(["c1", "c2"])),
)
PATCHES = st.one_of(
    st.just(SessionPatch(turn_detection=None)),
    st.just(SessionPatch(turn_detection=TurnDetectionPatch(SemanticVad, {"eagerness": "high"}))),
    st.just(SessionPatch(turn_detection=TurnDetectionPatch(ServerVad, {"idle_timeout_ms": 700}))),
    st.just(
        SessionPatch(
            turn_detection=TurnDetectionPatch(
                ServerVad, {"interrupt_response": False, "silence_duration_ms": 100}
            )
        )
    ),
    st.just(
        SessionPatch(turn_detection=TurnDetectionPatch(SemanticVad, {"create_response": False}))
    ),
    st.sampled_from(["one", "two"]).map(lambda v: SessionPatch({"voice": v})),
    st.sampled_from(list(TurnPolicy)).map(lambda p: SessionPatch({"turn_policy": p})),
    st.just(SessionPatch({"transcription": Transcription("t")})),
    st.sampled_from(["audio", "text"]).map(lambda m: SessionPatch({"modality": m})),
)
PARAMS = st.builds(
    events.ResponseParams,
    conversation=st.booleans(),
    modality=st.sampled_from([None, "text", "audio"]),
    input=st.one_of(
        st.none(),
        st.lists(IDS.map(events.ItemReference), max_size=2).map(tuple),
        MESSAGES.map(lambda m: (m,)),
    ),
)
CLIENT = st.one_of(
    st.builds(events.UpdateSession, EVENT_IDS, PATCHES),
    st.builds(events.CommitAudio, EVENT_IDS),
    st.builds(events.ClearAudio, EVENT_IDS),
    st.builds(events.ClearOutput, EVENT_IDS),
    st.builds(
        events.CreateItem,
        EVENT_IDS,
        st.one_of(MESSAGES, OTHER_ITEMS),
        st.one_of(st.none(), IDS, st.just("root")),
        st.one_of(st.none(), st.just(bytes(64))),
    ),
    st.builds(events.DeleteItem, EVENT_IDS, IDS),
    st.builds(events.RetrieveItem, EVENT_IDS, IDS),
    st.builds(events.TruncateItem, EVENT_IDS, IDS, st.integers(0, 1), st.integers(0, 4000)),
    st.builds(events.CreateResponse, EVENT_IDS, PARAMS),
    st.builds(events.CancelResponse, EVENT_IDS, st.one_of(st.none(), IDS)),
)
STEPS = st.one_of(
    st.tuples(st.just("client"), CLIENT),
    st.tuples(st.just("voice"), st.integers(1, 12)),
    st.tuples(st.just("silence"), st.integers(1, 30)),
    st.tuples(st.just("wait"), st.floats(0, 3)),
    st.tuples(
        st.just("engine"),
        st.tuples(
            st.sampled_from(["text", "speech", "call", "args", "called", "end", "fail", "cut"]),
            st.integers(0, 3),
        ),
    ),
    st.tuples(st.just("transcript"), st.sampled_from(["delta", "final", "failed"])),
    st.tuples(st.just("judge"), st.floats(0, 1)),
    st.tuples(st.just("align"), st.booleans()),
    st.tuples(st.just("report"), st.integers(0, 3000)),
    st.tuples(st.just("connection"), st.sampled_from(["lost", "ready", "detach", "attach"])),
)


class Play:
    """Plays steps and checks every rule after each of them."""

    def __init__(self, talk) -> None:
        self.t = talk
        self.open: dict[str, str] = {}
        self.done: set[str] = set()
        self.seen = 0
        self.generation_of: dict[str, int] = {}
        self.playing: str | None = None
        self.ducked = False
        self.cuts: dict[str, float] = {}

    def step(self, kind, what) -> None:
        before = len(self.t.done)
        getattr(self, kind)(what)
        self.check_effects()
        if kind == "client":
            self.check_answer(what, self.t.done[before:])

    def client(self, event) -> None:
        self.t.receive(event)

    def voice(self, frames) -> None:
        self.t.hear(frames * 0.032, 0.9)

    def silence(self, frames) -> None:
        self.t.hear(frames * 0.032, 0.0)

    def wait(self, seconds) -> None:
        self.t.wait(seconds)

    def engine(self, what) -> None:
        kind, age = what
        asked = self.t.commands(engine.Respond)
        if not asked:
            return
        number = asked[max(0, len(asked) - 1 - age)].generation
        common = {"session": "s", "generation": number}
        message = {
            "text": lambda: engine.TextGenerated(**common, text=f"<{number}>"),
            "speech": lambda: engine.SpeechGenerated(
                **common, text=f"<{number}> word. ", pcm=bytes(48 * 700)
            ),
            "call": lambda: engine.ToolCallStarted(**common, call_id=f"c{number}", name="f"),
            "args": lambda: engine.ToolCallDelta(**common, call_id=f"c{number}", delta="{"),
            "called": lambda: engine.ToolCallEnded(**common, call_id=f"c{number}", arguments="{}"),
            "end": lambda: engine.ResponseEnded(**common, reason="completed"),
            "cut": lambda: engine.ResponseEnded(**common, reason="max_output_tokens"),
            "fail": lambda: engine.ResponseEnded(
                **common, reason="failed", failure=engine.EngineFailure("engine_error", "no")
            ),
        }[kind]()
        self.t.receive(message)

    def transcript(self, kind) -> None:
        opened = self.t.all(effects.OpenUtterance) + self.t.all(effects.SupplyUtterance)
        if not opened:
            return
        utterance = opened[-1].utterance
        self.t.receive(
            {
                "delta": engine.TranscriptDelta(session="s", utterance=utterance, delta="w "),
                "final": engine.TranscriptFinal(
                    session="s", utterance=utterance, text="words", seconds=1.0
                ),
                "failed": engine.TranscriptFailed(session="s", utterance=utterance, message="no"),
            }[kind]
        )

    def judge(self, probability) -> None:
        if self.t.commands(engine.JudgeTurn):
            self.t.judges(probability)

    def align(self, matching) -> None:
        asked = self.t.commands(engine.AlignSpeech)
        if asked:
            text = asked[-1].text if matching else "other"
            words = (engine.WordTime(text, 300),)
            self.t.receive(
                engine.SpeechAligned(session="s", reference=asked[-1].reference, words=words)
            )

    def report(self, played_ms) -> None:
        added = self.t.all(effects.OutputItemAdded)
        if added:
            self.t.receive(events.PlaybackReported(added[-1].item.id, played_ms))

    def connection(self, kind) -> None:
        self.t.receive(
            {
                "lost": events.EngineLost(),
                "ready": events.EngineReady(),
                "detach": events.Detached(resumable=True),
                "attach": events.Attached(),
            }[kind]
        )

    # -- the rules --------------------------------------------------------------------------

    def check_effects(self) -> None:
        for effect in self.t.done[self.seen :]:
            response_id = getattr(effect, "response_id", None)
            if isinstance(effect, effects.ResponseCreated):
                assert effect.response.id not in self.open
                self.open[effect.response.id] = "open"
            elif isinstance(effect, effects.ResponseDone):
                assert self.open.pop(effect.response.id) == "open"
                assert effect.response.status != "in_progress"
                self.done.add(effect.response.id)
            elif isinstance(
                effect, effects.PlaybackStarted | effects.PlaybackStopped | effects.PlaybackCleared
            ):
                assert response_id in self.done or response_id in self.open
            elif response_id is not None:
                assert response_id in self.open, f"{effect} after its response was done"
            self.check_playout(effect)
            if isinstance(effect, effects.TextDelta | effects.TranscriptDeltaSaid):
                number = int(effect.delta.split("<")[1].split(">")[0])
                assert self.generation_of.setdefault(effect.response_id, number) == number
        self.seen = len(self.t.done)
        numbers = list(self.generation_of.values())
        assert len(numbers) == len(set(numbers))

    def check_playout(self, effect) -> None:
        """One response at a time begins and ends to be heard; what is ducked comes back."""
        match effect:
            case effects.PlaybackStarted(response_id):
                assert self.playing is None
                self.playing = response_id
            case effects.PlaybackStopped(response_id) | effects.PlaybackCleared(response_id):
                assert self.playing == response_id
                self.playing = None
            case effects.DuckPlayout():
                assert not self.ducked
                self.ducked = True
            case effects.RestorePlayout():
                assert self.ducked
                self.ducked = False
            case effects.FlushPlayout():
                self.ducked = False

    def check_answer(self, event, taken) -> None:
        """Exactly one answer or one error, which names the client's event."""
        if self.t.session.connection is not Connection.ATTACHED:
            return
        wrong = [
            effect.error
            for effect in taken
            if isinstance(effect, effects.ErrorReported)
            and effect.error.code != "engine_unavailable"
        ]
        assert len(wrong) <= 1
        if wrong and event.event_id is not None:
            assert wrong[0].event_id == event.event_id
        answers = Counter(type(effect) for effect in taken)
        expected = {
            events.UpdateSession: effects.SessionUpdated,
            events.CommitAudio: effects.InputCommitted,
            events.ClearAudio: effects.InputCleared,
            events.DeleteItem: effects.ItemDeleted,
            events.RetrieveItem: effects.ItemRetrieved,
            events.TruncateItem: effects.ItemTruncated,
            events.CreateItem: effects.ItemAdded,
            events.CreateResponse: effects.ResponseCreated,
        }.get(type(event))
        if expected is not None:
            assert answers[expected] == (0 if wrong else 1)

    def check_heard(self) -> None:
        """Of an item that was cut, the conversation keeps no word that ends after the cut."""
        playback = self.t.session.answering.playout.playback
        for item in self.t.session.history:
            spoken = playback.item(item.id)
            if spoken is None or spoken.cut_ms is None:
                continue
            before = self.cuts.setdefault(item.id, spoken.cut_ms)
            assert spoken.cut_by_client or spoken.cut_ms <= before
            self.cuts[item.id] = spoken.cut_ms
            if isinstance(item, MessageItem) and item.content:
                kept = item.content[0].transcript
                assert spoken.transcript.startswith(kept)
                whole = sum(
                    len(clause.text) for clause in spoken.clauses if clause.start_ms < spoken.cut_ms
                )
                assert len(kept) <= whole

    def finish(self) -> None:
        """Every response that was created is done, at the latest when the client goes."""
        self.t.receive(events.Attached())
        self.t.receive(events.Detached())
        self.check_effects()
        assert self.open == {}
        assert self.t.session.next_deadline() == math.inf
        playback = self.t.session.answering.playout.playback
        playback.tidy(self.t.now + 1000.0)
        for item in self.t.session.history:
            spoken = playback.item(item.id)
            assert spoken is None or not any(clause.pcm for clause in spoken.clauses)
        assert len(self.t.all(effects.CleanUp)) == 1


@pytest.mark.timeout(600)
@settings(
    max_examples=ORDERS,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    steps=st.lists(STEPS, min_size=5, max_size=40),
    plays_out=st.booleans(),
    lead=st.sampled_from([0.5, 5.0, math.inf]),
)
def test_the_rules_hold_in_any_order_of_events(talk, steps, plays_out, lead):
    limits = SessionLimits(audio_lead=lead, max_items=30, max_buffer_seconds=5.0)
    play = Play(talk(limits, plays_out=plays_out))
    for kind, what in steps:
        play.step(kind, what)
        play.check_heard()
    play.finish()
