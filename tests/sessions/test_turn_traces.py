from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from duologue.engines.engine import (
    Respond,
    ResponseEnded,
    ResponseRequest,
    SpeechGenerated,
)
from duologue.engines.tracing import Attributes
from duologue.sessions import effects
from duologue.sessions.ports import Unobserved
from duologue.sessions.session_config import AudioFormat
from duologue.sessions.turn_traces import TurnTraces

REQUEST = ResponseRequest(instructions="", messages=())


@dataclass
class Recorded:
    name: str
    begin: int
    parent: str
    attributes: dict[str, object]
    number: int
    finish: int | None = None
    failure: str = ""

    @property
    def traceparent(self) -> str:
        return f"span-{self.number}"

    def event(self, name: str, at_ns: int) -> None:
        raise AssertionError("the gateway has none")

    def end(self, at_ns: int, attributes: Mapping[str, object], failure: str = "") -> None:
        assert self.finish is None
        self.finish, self.failure = at_ns, failure
        self.attributes.update(attributes)


@dataclass
class Recorder:
    spans: list[Recorded] = field(default_factory=list)

    def start(
        self, name: str, at_ns: int, parent: str = "", attributes: Attributes | None = None
    ) -> Recorded:
        span = Recorded(name, at_ns, parent, dict(attributes or {}), len(self.spans))
        self.spans.append(span)
        return span

    def close(self) -> None:
        pass


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def traces(recorder: Recorder) -> TurnTraces:
    return TurnTraces(Unobserved(), recorder, lambda now: int(now * 1000))


def ask(generation: int) -> effects.ToEngine:
    return effects.ToEngine(Respond(generation, REQUEST, session="s"))


def done(status: effects.ResponseStatus = "completed") -> effects.ResponseDone:
    pcm = AudioFormat.PCM
    return effects.ResponseDone(
        effects.ResponseView("r", status, None, "audio", "v", pcm, None, None)
    )


def test_a_turn_is_one_span_with_its_stages_below(traces: TurnTraces, recorder: Recorder) -> None:
    traces.effect("s", effects.SpeechStopped(0, "i"), 1.0)
    traces.effect("s", ask(1), 1.1)
    assert traces.trace("s", 1) == "span-0"
    traces.event("s", SpeechGenerated(1, bytes(4800), session="s"), 1.3)
    traces.effect("s", effects.AudioDelta("r", "i", 0, 0, bytes(4800), AudioFormat.PCM), 1.4)
    traces.event("s", ResponseEnded(1, "completed", session="s"), 1.5)
    traces.effect("s", done(), 2.0)
    turn, *stages = recorder.spans
    assert (turn.name, turn.begin, turn.finish, turn.failure) == ("turn", 1000, 2000, "")
    assert turn.attributes["duologue.status"] == "completed"
    assert [(one.name, one.begin, one.finish) for one in stages] == [
        ("decision", 1000, 1100),
        ("engine", 1100, 1300),
        ("release", 1300, 1400),
        ("sending", 1400, 2000),
    ]
    assert {one.parent for one in stages} == {"span-0"}
    assert traces.trace("s", 1) == ""


def test_a_draft_that_was_given_up_ends_with_its_answer(
    traces: TurnTraces, recorder: Recorder
) -> None:
    traces.effect("s", ask(1), 1.0)
    traces.effect("s", ask(2), 2.0)
    traces.event("s", ResponseEnded(1, "cancelled", session="s"), 2.1)
    first, second = recorder.spans
    assert (first.finish, second.finish) == (2100, None)


def test_a_session_that_ends_leaves_no_span_open(traces: TurnTraces, recorder: Recorder) -> None:
    traces.effect("s", ask(1), 1.0)
    traces.effect("s", effects.CleanUp(), 3.0)
    traces.effect("s", effects.InputCleared(), 4.0)
    assert [span.finish for span in recorder.spans] == [3000]
    assert traces._sessions == {}


def test_a_failed_answer_is_a_failed_span(traces: TurnTraces, recorder: Recorder) -> None:
    traces.effect("s", ask(1), 1.0)
    traces.effect("s", done("failed"), 3.0)
    assert recorder.spans[0].failure == "failed"
