"""One response by itself: its items, the order of its events, its one end."""

import math
from itertools import pairwise

import pytest

from duologue.engines import engine
from duologue.sessions import effects
from duologue.sessions.errors import ProtocolError
from duologue.sessions.history import History
from duologue.sessions.items import FunctionCallItem, MessageItem, OutputAudio, OutputText
from duologue.sessions.playback import BYTES_PER_MS
from duologue.sessions.playout import Playout
from duologue.sessions.responses import LiveResponse, ResponseSettings
from duologue.sessions.session_config import AudioFormat
from duologue.sessions.turns import Generation

ADDRESS = {"session": "s", "generation": 1}


class Answer:
    """A response of which a test is the engine."""

    def __init__(self, conversation=True, lead=5.0, delta_ms=200, seconds=0.0) -> None:
        self.done = []
        self.now = 0.0
        self.history = History(100, 10_000)
        self.playout = Playout("s", self.history, self.done, lambda command: None, False)
        numbers = iter(range(1, 99))
        self.response = LiveResponse(
            id="r",
            generation=1,
            session_id="s",
            settings=ResponseSettings(
                "conv" if conversation else None, "audio", "v", AudioFormat.PCM, 9, None, seconds
            ),
            history=self.history if conversation else None,
            playout=self.playout,
            effects=self.done,
            new_id=lambda prefix: f"{prefix}_{next(numbers)}",
            lead=lead,
            delta_ms=delta_ms,
        )
        self.response.begin()

    def says(self, text, ms):
        pcm = bytes(BYTES_PER_MS * ms)
        self.response.receive(engine.SpeechGenerated(**ADDRESS, pcm=pcm, text=text), self.now)

    def writes(self, text):
        self.response.receive(engine.TextGenerated(**ADDRESS, text=text), self.now)

    def calls(self, call_id="c", *deltas, arguments=None):
        started = engine.ToolCallStarted(**ADDRESS, call_id=call_id, name="get")
        self.response.receive(started, self.now)
        for delta in deltas:
            more = engine.ToolCallDelta(**ADDRESS, call_id=call_id, delta=delta)
            self.response.receive(more, self.now)
        if arguments is not None:
            ended = engine.ToolCallEnded(**ADDRESS, call_id=call_id, arguments=arguments)
            self.response.receive(ended, self.now)

    def ends(self, reason="completed", failure=None, **usage):
        end = engine.ResponseEnded(
            **ADDRESS, reason=reason, usage=engine.Usage(**usage), failure=failure
        )
        self.response.end(end, self.now)

    def wait(self, seconds):
        until = self.now + seconds
        while (deadline := self.response.next_deadline()) <= until:
            self.now = max(self.now, deadline)
            self.response.pump(self.now)
            assert self.response.next_deadline() > self.now
        self.now = until

    def all(self, kind):
        return [effect for effect in self.done if isinstance(effect, kind)]

    @property
    def names(self):
        return [type(effect).__name__ for effect in self.done]

    @property
    def view(self):
        (end,) = self.all(effects.ResponseDone)
        return end.response


@pytest.fixture
def answer():
    return Answer


# -- text -----------------------------------------------------------------------------------


def test_text_is_told_in_the_order_that_clients_rely_on(answer):
    a = answer()
    a.writes("Hel")
    a.writes("lo")
    a.ends(input_tokens=7, output_tokens=2)
    assert a.names == [
        "ResponseCreated",
        "OutputItemAdded",
        "ItemAdded",
        "ContentPartAdded",
        "TextDelta",
        "TextDelta",
        "TextDone",
        "ContentPartDone",
        "OutputItemDone",
        "ItemDone",
        "ResponseDone",
    ]
    assert a.view.output == (MessageItem("item_1", "assistant", (OutputText("Hello"),)),)
    assert a.view.usage.text == engine.Usage(input_tokens=7, output_tokens=2)


def test_an_answer_without_a_word_is_complete_and_empty(answer):
    a = answer()
    a.ends()
    assert (a.view.status, a.view.output) == ("completed", ())


def test_outside_the_conversation_no_item_is_added_to_it(answer):
    a = answer(conversation=False)
    a.says("One.", 100)
    a.calls("c", arguments="{}")
    a.ends()
    assert not a.all(effects.ItemAdded) and not a.all(effects.ItemDone)
    assert len(a.history) == 0
    assert len(a.view.output) == 2
    assert a.view.conversation_id is None


# -- speech ---------------------------------------------------------------------------------


def test_speech_leaves_in_short_stretches(answer):
    a = answer(delta_ms=200)
    a.says("One.", 500)
    assert [len(d.pcm) // BYTES_PER_MS for d in a.all(effects.AudioDelta)] == [200, 200, 100]


def test_text_leaves_when_it_is_made_and_sound_when_there_is_room(answer):
    a = answer(lead=1.0)
    a.says("One. ", 1000)
    a.says("Two. ", 1000)
    a.says("Three.", 1000)
    assert "".join(d.delta for d in a.all(effects.TranscriptDeltaSaid)) == "One. Two. Three."
    assert sum(len(d.pcm) for d in a.all(effects.AudioDelta)) == 1200 * BYTES_PER_MS
    a.ends()
    assert not a.all(effects.ResponseDone)
    a.wait(1.9)
    assert a.all(effects.ResponseDone)
    assert sum(len(d.pcm) for d in a.all(effects.AudioDelta)) == 3000 * BYTES_PER_MS


def test_with_an_unlimited_lead_everything_leaves_at_once(answer):
    a = answer(lead=math.inf)
    a.says("Long.", 60_000)
    a.ends()
    assert a.view.status == "completed"
    assert a.response.next_deadline() == math.inf


def test_text_without_a_sound_is_told(answer):
    a = answer()
    a.says("…", 0)
    a.ends()
    assert a.view.output[0].content == (OutputAudio("…"),)
    assert not a.all(effects.AudioDelta)


def test_sound_without_text_tells_no_words(answer):
    a = answer()
    a.says("", 100)
    assert not a.all(effects.TranscriptDeltaSaid)


def test_a_new_kind_of_output_begins_a_new_item(answer):
    a = answer()
    a.says("One.", 100)
    a.writes("Two.")
    a.says("Three.", 100)
    a.ends()
    assert [type(item.content[0]) for item in a.view.output] == [
        OutputAudio,
        OutputText,
        OutputAudio,
    ]
    assert [done.output_index for done in a.all(effects.OutputItemDone)] == [0, 1, 2]


def test_the_engine_learns_about_every_second_how_much_was_sent(answer):
    a = answer(lead=1.0)
    a.says("Long.", 6000)
    a.wait(10.0)
    sent = [e.command.sent_ms for e in a.all(effects.ToEngine)]
    assert sent[0] == 1200
    assert len(sent) >= 4
    assert all(1000 <= later - earlier <= 1200 for earlier, later in pairwise(sent))


def test_an_engine_that_has_said_its_last_is_told_no_more(answer):
    a = answer(lead=1.0)
    a.says("Long.", 4000)
    a.ends()
    before = len(a.all(effects.ToEngine))
    a.wait(10.0)
    assert len(a.all(effects.ToEngine)) == before


def test_audio_is_counted_by_the_second(answer):
    a = answer(seconds=2.0)
    a.says("One.", 1500)
    a.ends()
    usage = a.view.usage
    assert (usage.input_audio_tokens, usage.output_audio_tokens) == (20, 30)


# -- calls ----------------------------------------------------------------------------------


def test_a_call_streams_its_arguments(answer):
    a = answer()
    a.calls("c", '{"a"', ":1}", arguments='{"a":1}')
    a.ends()
    assert [d.delta for d in a.all(effects.ArgumentsDelta)] == ['{"a"', ":1}"]
    assert a.all(effects.ArgumentsDone)[0].arguments == '{"a":1}'
    assert a.view.output == (FunctionCallItem("item_1", "c", "get", '{"a":1}'),)


def test_a_call_that_was_not_ended_is_incomplete(answer):
    a = answer()
    a.calls("c", '{"a"')
    a.ends()
    assert a.view.output[0] == FunctionCallItem("item_1", "c", "get", '{"a"', "incomplete")
    assert not a.all(effects.ArgumentsDone)


def test_calls_beside_each_other_keep_apart(answer):
    a = answer()
    a.calls("c1", "1")
    a.calls("c2", "2")
    a.response.receive(engine.ToolCallDelta(**ADDRESS, call_id="c1", delta="!"), 0.0)
    a.response.receive(engine.ToolCallEnded(**ADDRESS, call_id="c2", arguments="22"), 0.0)
    a.ends()
    assert [item.arguments for item in a.view.output] == ["1!", "22"]
    assert [item.status for item in a.view.output] == ["incomplete", "completed"]


def test_words_about_a_call_that_nobody_made_are_dropped(answer):
    a = answer()
    a.says("One.", 100)
    before = len(a.done)
    a.response.receive(engine.ToolCallDelta(**ADDRESS, call_id="x", delta="!"), 0.0)
    a.response.receive(engine.ToolCallEnded(**ADDRESS, call_id="x", arguments="{}"), 0.0)
    assert len(a.done) == before


def test_speech_before_a_call_is_done_when_its_sound_has_left(answer):
    a = answer(lead=1.0)
    a.says("Let me see.", 3000)
    a.calls("c", arguments="{}")
    assert [d.output_index for d in a.all(effects.OutputItemDone)] == [1]
    a.wait(2.0)
    assert [d.output_index for d in a.all(effects.OutputItemDone)] == [1, 0]
    a.calls("d", arguments="{}")
    a.ends()
    assert len(a.all(effects.OutputItemDone)) == 3


def test_speech_that_had_left_is_done_when_a_call_begins(answer):
    a = answer()
    a.says("Let me see.", 300)
    a.calls("c")
    assert [d.output_index for d in a.all(effects.OutputItemDone)] == [0]
    a.calls("d")
    assert [d.output_index for d in a.all(effects.OutputItemDone)] == [0]


# -- ending ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "status", "why"),
    [
        ("completed", "completed", None),
        ("max_output_tokens", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
        ("cancelled", "cancelled", "client_cancelled"),
    ],
)
def test_the_engines_reason_becomes_the_status(answer, reason, status, why):
    a = answer()
    a.writes("x")
    a.ends(reason)
    assert (a.view.status, a.view.reason) == (status, why)
    assert a.view.output[0].status == ("completed" if status == "completed" else "incomplete")


def test_a_failure_is_shown_in_its_own_words_or_in_ours(answer):
    a, b = answer(), answer()
    a.ends("failed", engine.EngineFailure("upstream_error", "It said no."))
    b.ends("failed")
    assert a.view.error == ProtocolError("upstream_error", "It said no.")
    assert b.view.error == ProtocolError("engine_error", "The model failed.")


def test_a_response_ends_once(answer):
    a = answer()
    a.ends()
    a.ends()
    a.response.cancel("client_cancelled")
    a.response.fail(ProtocolError("engine_error", "x"))
    a.writes("late")
    a.response.pump(1.0)
    assert a.names.count("ResponseDone") == 1
    assert not a.all(effects.TextDelta)


def test_nothing_counts_after_the_engines_last_word(answer):
    a = answer(lead=1.0)
    a.says("Long.", 4000)
    a.ends()
    a.says("More.", 1000)
    a.ends("failed")
    a.wait(9.0)
    assert a.view.status == "completed"
    assert sum(len(d.pcm) for d in a.all(effects.AudioDelta)) == 4000 * BYTES_PER_MS


def test_a_cancelled_response_sends_no_more_and_keeps_what_was_sent(answer):
    a = answer(lead=1.0)
    a.says("One. ", 1200)
    a.says("Two.", 1000)
    a.response.cancel("turn_detected")
    assert a.response.engine is Generation.CANCELLING
    assert a.view.reason == "turn_detected"
    assert a.view.output[0].content == (OutputAudio("One. Two."),)
    assert a.history.get("item_1").content == (OutputAudio("One."),)
    assert a.response.next_deadline() == math.inf
    sent = len(a.all(effects.AudioDelta))
    a.wait(5.0)
    assert len(a.all(effects.AudioDelta)) == sent


def test_a_response_that_was_made_is_still_cancelled_while_its_sound_waits(answer):
    a = answer(lead=1.0)
    a.says("One. ", 1200)
    a.says("Two.", 1000)
    a.ends()
    a.response.cancel("client_cancelled")
    assert a.response.engine is Generation.CLOSED
    assert a.view.status == "cancelled"


def test_a_failure_in_the_middle_keeps_the_words_that_were_sent(answer):
    a = answer(lead=1.0)
    a.says("One. ", 1200)
    a.says("Two.", 1000)
    a.response.fail(ProtocolError("engine_unavailable", "gone"))
    assert a.view.status == "failed"
    assert a.history.get("item_1").content == (OutputAudio("One."),)


def test_a_clause_that_the_engine_broke_off_is_not_counted_as_said(answer):
    a = answer()
    a.says("One two three four five six.", 600)
    a.ends("failed")
    assert a.history.get("item_1").content == (OutputAudio("One two"),)


def test_sound_that_will_never_be_sent_is_let_go_of(answer):
    a = answer(lead=1.0)
    for _ in range(10):
        a.says("One. ", 1000)
    (spoken,) = a.response.spoken_items
    a.response.cancel("turn_detected")
    assert sum(len(clause.pcm) for clause in spoken.clauses) <= 2000 * BYTES_PER_MS


# -- deleted while it is made ---------------------------------------------------------------


def test_an_item_that_was_deleted_while_it_was_made_is_done_but_not_in_the_conversation(answer):
    a = answer()
    a.says("One.", 100)
    a.history.delete("item_1")
    a.says("Two.", 100)
    a.ends()
    assert a.all(effects.OutputItemDone) and not a.all(effects.ItemDone)
    assert len(a.history) == 0
