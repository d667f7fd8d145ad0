"""Questions that are decided while a conversation goes on."""

from typing import Any

import pytest

from duologue.engines.engine import ResponseEnded, TextGenerated, TranscriptFinal, Usage
from duologue.sessions import live_events as live
from duologue.sessions.live_config import DecisionsDelegation, LiveConfig, Question, Trigger
from duologue.sessions.live_decisions import MOST_WAITING, picked
from tests.live_bench import LiveBench

URGENT = Question("predicate", "Is it urgent?", (), "urgent")
COLOUR = Question("choice", "Which colour?", (("red", "warm"), ("blue", ""), (True, "any")))
MOOD = Question("score", "How is the mood?", (("bad", ""), ("good", "")), "mood")


class Talk(LiveBench):
    def answer(self, text: str) -> None:
        """The model's answer to the question that it was asked last."""
        where: Any = {"session": "s", "generation": self.requests()[-1].generation}
        self.tell(TextGenerated(**where, text=text))
        usage = Usage(input_tokens=7, output_tokens=1)
        self.tell(ResponseEnded(**where, reason="completed", usage=usage))


def talk(*questions: Question, **config: Any) -> Talk:
    delegation = DecisionsDelegation(questions=questions or (URGENT,))
    return Talk(LiveConfig(model="m", delegation=delegation, **config))


def test_questions_are_asked_one_after_the_other_and_told_together() -> None:
    bench = talk(URGENT, COLOUR, MOOD)
    bench.command(live.CreateDecisionItem(None, {"role": "user"}, "user: I am late."))
    bench.command(live.CreateDecision("d"))
    asked = bench.requests()[-1].request
    assert "Is it urgent?" in asked.instructions
    assert "I am late." in asked.instructions
    assert asked.modality == "text"
    for text in ("Yes.", "I would say blue", "It is good!"):
        assert not bench.all(live.DecisionMade)
        bench.answer(text)
    [made] = bench.all(live.DecisionMade)
    answers: Any = made.decision["answers"]
    assert answers[0] == {"type": "predicate", "name": "urgent", "probability": 1.0}
    assert (answers[1]["choice"], answers[1]["confidence"]) == ("blue", 1.0)
    assert answers[2]["score"] == 1.0
    assert made.decision["usage"]["total_tokens"] == 24
    assert not bench.all(live.OutputTranscript)


def test_an_answer_that_fits_nothing_is_a_refusal() -> None:
    bench = talk()
    bench.command(live.CreateDecision("d"))
    bench.answer("Perhaps, perhaps not: who knows?")
    [made] = bench.all(live.DecisionMade)
    assert made.decision["answers"] == [{"type": "refusal", "name": "urgent"}]


@pytest.mark.parametrize(
    ("question", "text", "pick"),
    [
        (URGENT, "YES", 0),
        (URGENT, "no, it is not", 1),
        (URGENT, "yes and no", 0),
        (COLOUR, "The answer is: red.", 0),
        (COLOUR, "red or blue", 0),
        (COLOUR, "either blue or red", None),
        (COLOUR, "True", 2),
        (COLOUR, "", None),
        (COLOUR, "reddish", None),
    ],
)
def test_what_an_answer_picks(question: Question, text: str, pick: int | None) -> None:
    assert picked(question, text) == pick


def test_an_event_counts_once_and_only_so_many_wait() -> None:
    bench = talk()
    bench.command(live.CreateDecision("d"))
    bench.command(live.CreateDecision("d"))
    for number in range(MOST_WAITING):
        bench.command(live.CreateDecision(f"d{number}"))
    codes = [error.error.code for error in bench.all(live.LiveError)]
    assert codes == ["invalid_value", "rate_limit_exceeded"]
    for _ in range(MOST_WAITING):
        bench.answer("no")
    assert len(bench.all(live.DecisionMade)) == MOST_WAITING


def test_what_is_said_triggers_a_decision() -> None:
    trigger = Trigger("session.input_transcript.delta", (URGENT,), {})
    bench = Talk(LiveConfig(model="m", triggers=(trigger,)))
    bench.sound(960, 0.9)
    utterance = bench.core.listening._utterance
    assert utterance is not None
    bench.sound(800, 0.0)
    bench.tell(TranscriptFinal(session="s", utterance=utterance.item_id, text="Help!", seconds=1.0))
    asked = [r for r in bench.requests() if r.request.modality == "text"]
    assert len(asked) == 1
    bench.answer("yes")
    [made] = bench.all(live.DecisionMade)
    assert made.source_event_type == "session.input_transcript.delta"
    assert made.trigger_id
