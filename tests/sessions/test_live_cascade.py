"""A cascade as what speaks in a Live session: over the real core."""

from typing import Any

import numpy as np
import pytest

from duologue.engines.engine import (
    ResponseEnded,
    SpeechGenerated,
    ToolCallEnded,
    ToolCallStarted,
    TranscriptDelta,
    TranscriptFinal,
    Usage,
)
from duologue.sessions import live_events as live
from duologue.sessions.items import FunctionOutputItem, InputText, MessageItem
from duologue.sessions.live_cascade import DELEGATE
from duologue.sessions.live_config import ClientDelegation, LiveConfig, ResponsesDelegation
from duologue.sessions.session_config import FunctionTool
from tests.live_bench import LiveBench

TOOL = FunctionTool("get_weather", "The weather")


def pcm(ms: int) -> bytes:
    return (1000).to_bytes(2, "little") * (24 * ms)


class Talk(LiveBench):
    """With an engine that answers as it is told."""

    @property
    def generation(self) -> int:
        return int(self.requests()[-1].generation)

    def answer(self, text: str, ms: int) -> None:
        self.tell(SpeechGenerated(session="s", generation=self.generation, pcm=pcm(ms), text=text))

    def end(self) -> None:
        usage = Usage(input_tokens=5, output_tokens=3)
        self.tell(
            ResponseEnded(session="s", generation=self.generation, reason="completed", usage=usage)
        )

    def call(self, name: str) -> None:
        where: Any = {"session": "s", "generation": self.generation, "call_id": "c1"}
        self.tell(ToolCallStarted(**where, name=name))
        self.tell(ToolCallEnded(**where, arguments="{}"))
        self.end()

    def utter(self, text: str) -> None:
        """The user says something, and is done."""
        self.sound(960, 0.9)
        utterance = self.core.listening._utterance
        assert utterance is not None
        self.tell(TranscriptDelta(session="s", utterance=utterance.item_id, delta=text[:3]))
        self.sound(800, 0.0)
        self.tell(TranscriptFinal(session="s", utterance=utterance.item_id, text=text, seconds=1.0))

    def texts(self, kind: type[Any]) -> str:
        return "".join(event.delta for event in self.all(kind))

    def prompt(self) -> str:
        return str(self.requests()[-1].request.messages)


def test_what_the_user_says_is_written_once_and_answered() -> None:
    talk = Talk()
    talk.utter("Hello there.")
    assert talk.texts(live.InputTranscript) == "Hello there."
    assert len(talk.requests()) == 1
    talk.answer("Good day to you.", 1200)
    talk.end()
    talk.pass_time(2.0)
    assert talk.texts(live.OutputTranscript) == "Good day to you."
    assert sum(talk.sounding()) == 30
    talk.utter("And again.")
    assert talk.texts(live.InputTranscript) == "Hello there. And again."


def test_an_interruption_silences_the_answer_and_its_transcript() -> None:
    talk = Talk()
    talk.utter("Hello.")
    talk.answer("One two three four five six seven eight nine ten.", 5000)
    talk.end()
    talk.pass_time(1.0)
    talk.sound(640, 0.9)
    heard = len(talk.sounding())
    talk.pass_time(0.5)
    assert not any(talk.sounding()[heard:])
    said = talk.texts(live.OutputTranscript)
    assert said
    assert "One two three four five six seven eight nine ten.".startswith(said)
    assert "six" not in said
    talk.sound(800, 0.0)
    assert "ten" not in talk.prompt()


def test_commentary_is_said_when_nobody_speaks() -> None:
    talk = Talk()
    talk.sound(640, 0.9)
    talk.command(live.AppendContext("c", "commentary", "The soup is ready."))
    assert [event.kind for event in talk.all(live.ContextAppended)] == ["commentary"]
    assert not talk.requests()
    talk.sound(800, 0.0)
    assert len(talk.requests()) == 1
    assert "The soup is ready." in talk.prompt()
    talk.answer("It is.", 400)
    talk.end()
    talk.pass_time(1.0)
    assert len(talk.requests()) == 1
    talk.command(live.AppendContext("d", "commentary", "Tea, too."))
    assert len(talk.requests()) == 2
    assert "Tea, too." in talk.prompt()


def test_thinking_and_instructions_are_known_but_ask_for_nothing() -> None:
    talk = Talk()
    talk.command(live.AppendContext("t", "thinking", "It is late."))
    talk.command(live.AppendContext("i", "instructions", "Be kind."))
    talk.pass_time(3.0)
    assert not talk.requests()
    assert [event.client_event_id for event in talk.all(live.ContextAppended)] == ["t", "i"]
    talk.utter("Hello.")
    assert "It is late." in talk.prompt()
    assert "Be kind." in talk.prompt()


def test_a_task_is_handed_to_the_client_and_its_word_is_passed_on() -> None:
    talk = Talk(LiveConfig(model="m", voice="v", delegation=ClientDelegation()))
    talk.utter("What is the news?")
    assert [tool.name for tool in talk.requests()[-1].request.tools] == [DELEGATE.name]
    talk.call(DELEGATE.name)
    [made] = talk.all(live.DelegationCreated)
    assert made.target == "client"
    assert made.offset_ms > 0
    talk.command(live.AppendContext("a", "thinking", "Still looking.", made.delegation_id))
    assert len(talk.requests()) == 1
    talk.command(live.AppendContext("b", "commentary", "All is well.", made.delegation_id))
    assert len(talk.requests()) == 2
    assert "Still looking." in talk.prompt()
    assert "All is well." in talk.prompt()


def test_a_delegation_is_acknowledged_after_its_delay() -> None:
    talk = Talk(LiveConfig(model="m", delegation=ClientDelegation(400)))
    talk.utter("What is the news?")
    talk.call(DELEGATE.name)
    talk.pass_time(0.3)
    assert len(talk.requests()) == 1
    talk.pass_time(0.2)
    assert len(talk.requests()) == 2
    assert "looking into it" in talk.requests()[-1].request.instructions


def test_a_backend_is_told_of_as_the_responses_api_would() -> None:
    config = LiveConfig(
        model="m",
        delegation=ResponsesDelegation(tools=(TOOL,), shown={"model": "luna"}),
    )
    talk = Talk(config)
    talk.utter("How is the weather?")
    talk.call("get_weather")
    [made] = talk.all(live.DelegationCreated)
    told = talk.all(live.ResponseTold)
    assert [event.event["type"] for event in told] == [
        "response.created",
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
    ]
    assert {event.delegation_id for event in told} == {made.delegation_id}
    assert told[-1].event["response"]["model"] == "luna"
    talk.command(live.CreateResponseItem("o", FunctionOutputItem("", "c1", "Rain.")))
    talk.command(live.CreateResponse("r"))
    assert len(talk.requests()) == 2
    assert "Rain." in talk.prompt()
    again = talk.all(live.ResponseTold)[len(told)]
    assert (again.event["type"], again.client_event_id) == ("response.created", "r")


def test_a_session_begins_with_its_history_and_both_instructions() -> None:
    history = (MessageItem("item_input0", "user", (InputText("I am Ada."),)),)
    config = LiveConfig(
        model="m",
        instructions="Be kind.",
        history=history,
        delegation=ResponsesDelegation(instructions="Be exact.", tools=(TOOL,)),
    )
    talk = Talk(config)
    talk.utter("Hello.")
    request = talk.requests()[-1].request
    assert request.instructions == "Be kind.\n\nBe exact."
    assert "I am Ada." in talk.prompt()


def test_a_fixture_interrupts_what_is_being_said() -> None:
    talk = Talk()
    talk.utter("Hello.")
    talk.answer("A long answer that goes on.", 4000)
    talk.pass_time(0.5)
    talk.command(live.PlayFixture("f", np.full(960, 3, np.int16)))
    before = len(talk.sounding())
    talk.pass_time(2.0)
    assert sum(talk.sounding()[before:]) <= 2
    assert talk.all(live.FixturePlayed)


def test_turns_are_marked_for_those_who_ask() -> None:
    talk = Talk(LiveConfig(model="m", turn_marks=True))
    talk.utter("Hello.")
    talk.answer("Good day.", 400)
    talk.end()
    talk.pass_time(2.0)
    marks = [(mark.speaker, mark.state) for mark in talk.all(live.TurnMarked)]
    assert marks == [
        ("user", "started"),
        ("user", "ended"),
        ("assistant", "started"),
        ("assistant", "ended"),
    ]
    assert not Talk().all(live.TurnMarked)


@pytest.mark.parametrize("kind", ["instructions", "thinking", "commentary"])
def test_each_kind_of_context_is_acknowledged_in_its_own_words(kind: Any) -> None:
    talk = Talk()
    talk.command(live.AppendContext("e", kind, "x"))
    [told] = talk.all(live.ContextAppended)
    assert (told.kind, told.client_event_id) == (kind, "e")
