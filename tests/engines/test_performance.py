"""A script on a clock that the test moves by hand."""

from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import numpy as np
import pytest

from duologue.codecs.picture import encode_jpeg, frame_of
from duologue.codecs.video_pattern import read_pattern
from duologue.engines.engine import (
    Acknowledge,
    AlignSpeech,
    CancelResponse,
    CloseSession,
    Command,
    ConfigureListening,
    DropUtterance,
    EndUtterance,
    EngineFailure,
    Hear,
    JudgeTurn,
    Message,
    OpenSession,
    Output,
    PictureGenerated,
    Prepare,
    Respond,
    ResponseEnded,
    ResponseRequest,
    See,
    SpeechAligned,
    SpeechGenerated,
    TextGenerated,
    TextPart,
    Tool,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallStarted,
    TranscriptDelta,
    TranscriptFinal,
    TurnJudged,
    UtterancePart,
)
from duologue.engines.performance import MS, Performance, spread_words
from duologue.engines.pulse import Pulse
from duologue.engines.script import Clause, Reply, ScriptedOptions
from duologue.engines.stamps import find_stamps, read_stamp, tone, tone_hz

BEGIN_NS = 1_000 * MS
TWO_CLAUSES = (Clause("Good day.", 250), Clause(" How are you?", 100))
Kind = TypeVar("Kind", bound=Output)


@dataclass
class Stage:
    """A performance, its outputs with their times, and its clock."""

    options: ScriptedOptions
    now_ns: int = BEGIN_NS
    said: list[tuple[float, Output]] = field(default_factory=list)
    pulse: Pulse = field(default_factory=Pulse)

    def __post_init__(self) -> None:
        self.performance = Performance(self.options, self.pulse, self._say)
        self.take(OpenSession(session="s"))

    def _say(self, output: Output) -> None:
        self.said.append(((self.now_ns - BEGIN_NS) / MS, output))

    def take(self, *commands: Command) -> None:
        for command in commands:
            self.performance.take(command, self.now_ns)

    def run(self, ms: float = 60_000) -> None:
        """Let time pass, stopping at whatever is due."""
        end_ns = self.now_ns + int(ms * MS)
        while (due_ns := self.performance.next_due_ns) is not None and due_ns <= end_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.performance.fire(self.now_ns)
        self.now_ns = end_ns

    def outputs(self, kind: type[Kind]) -> list[Kind]:
        return [output for _, output in self.said if isinstance(output, kind)]

    def times(self, kind: type[Kind]) -> list[float]:
        return [ms for ms, output in self.said if isinstance(output, kind)]

    def end(self) -> ResponseEnded:
        (end,) = self.outputs(ResponseEnded)
        return end


def stage(reply: Reply | None = None, **options: object) -> Stage:
    given = ScriptedOptions() if reply is None else ScriptedOptions(replies=(reply,))
    return Stage(msgspec.structs.replace(given, **options))


def respond(text: str = "hello", generation: int = 1, **fields: object) -> Respond:
    messages = (Message("user", (TextPart(text),)),)
    request = ResponseRequest(instructions="", messages=messages)
    return Respond(generation, msgspec.structs.replace(request, **fields), session="s")


# -- speech ---------------------------------------------------------------------------------


def test_chunks_are_due_at_the_pace_of_speech() -> None:
    play = stage(Reply(clauses=TWO_CLAUSES, first_ms=40))
    play.take(respond())
    play.run()
    assert play.times(SpeechGenerated) == [40, 140, 240, 290]
    assert [len(chunk.pcm) for chunk in play.outputs(SpeechGenerated)] == [4800, 4800, 2400, 4800]
    assert play.end().reason == "completed"


def test_a_chunk_says_when_it_was_due_and_what_it_is() -> None:
    play = stage(Reply(clauses=TWO_CLAUSES, first_ms=40))
    play.take(respond(generation=9))
    play.run()
    stamps = [read_stamp(chunk.pcm) for chunk in play.outputs(SpeechGenerated)]
    assert all(stamps)
    told = [(s.sequence, (s.due_ns - BEGIN_NS) / MS, s.clause, s.generation) for s in stamps if s]
    assert told == [(0, 40, 0, 9), (1, 140, 0, 9), (2, 240, 0, 9), (3, 290, 1, 9)]
    assert len(find_stamps(b"".join(c.pcm for c in play.outputs(SpeechGenerated)))) == 4


def test_a_clause_has_its_text_on_its_first_chunk() -> None:
    play = stage(Reply(clauses=TWO_CLAUSES))
    play.take(respond())
    play.run()
    texts = [chunk.text for chunk in play.outputs(SpeechGenerated)]
    assert texts == ["Good day.", "", "", " How are you?"]


def test_deadlines_do_not_drift_when_the_clock_is_late() -> None:
    play = stage(Reply(clauses=TWO_CLAUSES, first_ms=0))
    play.take(respond())
    for late_ms in (33, 107, 277, 299):
        play.now_ns = BEGIN_NS + late_ms * MS
        play.performance.fire(play.now_ns)
    stamps = [read_stamp(chunk.pcm) for chunk in play.outputs(SpeechGenerated)]
    assert [(s.due_ns - BEGIN_NS) / MS for s in stamps if s] == [0, 100, 200, 250]


def test_due_times_lie_on_whole_milliseconds() -> None:
    play = stage(Reply(clauses=TWO_CLAUSES, first_ms=10))
    play.now_ns += 123_456
    play.take(respond())
    assert play.performance.next_due_ns == BEGIN_NS + 11 * MS


def test_a_pace_of_zero_says_everything_at_once() -> None:
    play = stage(Reply(clauses=TWO_CLAUSES, first_ms=40, pace=0))
    play.take(respond())
    play.run()
    assert play.times(SpeechGenerated) == [40, 40, 40, 40]
    assert play.times(ResponseEnded) == [40]


def test_a_pace_of_two_takes_half_the_time() -> None:
    play = stage(Reply(clauses=TWO_CLAUSES, first_ms=0, pace=2))
    play.take(respond())
    play.run()
    assert play.times(SpeechGenerated) == [0, 50, 100, 125]


def test_speed_shortens_the_speech() -> None:
    play = stage(Reply(clauses=(Clause("Good day.", 300),)))
    play.take(respond(speed=1.5))
    play.run()
    assert sum(len(c.pcm) for c in play.outputs(SpeechGenerated)) == 2 * 24_000 // 5


def test_a_voice_has_its_own_tone() -> None:
    play = stage(Reply(clauses=(Clause("Good day.", 100),)))
    play.take(respond(voice="high"))
    play.run()
    (chunk,) = play.outputs(SpeechGenerated)
    assert chunk.pcm[100:] == tone(tone_hz(0, 0, 1), 0, 2400)[100:]


def test_a_last_chunk_too_short_for_a_stamp_has_none() -> None:
    play = stage(Reply(clauses=(Clause("Hi.", 3),)), chunk_ms=2)
    play.take(respond(speed=1.2))
    play.run()
    assert [read_stamp(c.pcm) is None for c in play.outputs(SpeechGenerated)] == [False, True]


def test_speech_waits_for_the_listener_when_there_is_a_window() -> None:
    play = stage(Reply(clauses=(Clause("One two.", 500),), first_ms=0, pace=0), window_ms=200)
    play.take(respond())
    play.run(1000)
    assert len(play.outputs(SpeechGenerated)) == 2
    play.take(Acknowledge(1, 100, session="s"))
    play.run(1000)
    assert len(play.outputs(SpeechGenerated)) == 3
    play.take(Acknowledge(1, 50, session="s"), Acknowledge(1, 500, session="s"))
    play.run(1000)
    assert len(play.outputs(SpeechGenerated)) == 5
    assert play.end().reason == "completed"


def test_what_waited_for_the_listener_is_due_when_it_is_let_go() -> None:
    play = stage(Reply(clauses=(Clause("One two.", 400),), first_ms=0), window_ms=100)
    play.take(respond())
    play.run(1000)
    play.take(Acknowledge(1, 1000, session="s"))
    play.run(1000)
    stamps = [read_stamp(c.pcm) for c in play.outputs(SpeechGenerated)]
    assert [(s.due_ns - BEGIN_NS) / MS for s in stamps if s] == [0, 1000, 1100, 1200]


# -- text and tools -------------------------------------------------------------------------


def test_text_comes_word_by_word() -> None:
    play = stage(Reply(clauses=TWO_CLAUSES, first_ms=10), word_ms=5)
    play.take(respond(modality="text"))
    play.run()
    assert "".join(piece.text for piece in play.outputs(TextGenerated)) == "Good day. How are you?"
    assert play.times(TextGenerated) == [10, 15, 20, 25, 30]
    assert play.outputs(SpeechGenerated) == []


def test_a_tool_call_streams_its_arguments() -> None:
    play = stage()
    arguments = '{"city": "Reykjavik"}'
    play.take(respond(f"get_weather {arguments}", generation=4, tools=(Tool("get_weather"),)))
    play.run()
    (start,) = play.outputs(ToolCallStarted)
    assert (start.call_id, start.name) == ("call_4_0", "get_weather")
    deltas = play.outputs(ToolCallDelta)
    assert len(deltas) == 3
    assert "".join(delta.delta for delta in deltas) == arguments
    (end,) = play.outputs(ToolCallEnded)
    assert (end.call_id, end.arguments) == ("call_4_0", arguments)
    assert play.end().reason == "completed"


def test_an_answer_ends_at_its_token_limit() -> None:
    play = stage(Reply(clauses=TWO_CLAUSES))
    play.take(respond(max_output_tokens=3))
    play.run()
    assert "".join(c.text for c in play.outputs(SpeechGenerated)) == "Good day. How"
    assert play.end().reason == "max_output_tokens"
    assert play.end().usage.output_tokens == 3


def test_an_answer_within_its_limit_is_completed() -> None:
    play = stage(Reply(clauses=TWO_CLAUSES))
    play.take(respond(max_output_tokens=5))
    play.run()
    assert play.end().reason == "completed"


def test_the_script_can_end_an_answer_for_another_reason() -> None:
    play = stage(Reply(clauses=TWO_CLAUSES, ending="content_filter"))
    play.take(respond())
    play.run()
    assert play.end().reason == "content_filter"


@pytest.mark.parametrize("modality", ["audio", "text"])
@pytest.mark.parametrize(("after", "made"), [(0, 0), (2, 2), (100, None)])
def test_an_answer_fails_after_so_many_steps(modality: str, after: int, made: int | None) -> None:
    failure = EngineFailure("engine_error", "on purpose")
    play = stage(Reply(clauses=TWO_CLAUSES, failure=failure, failure_after=after))
    play.take(respond(modality=modality))
    play.run()
    steps = play.outputs(SpeechGenerated) + play.outputs(TextGenerated)
    assert made is None or len(steps) == made
    assert play.end().reason == "failed"
    assert play.end().failure == failure


def test_a_prompt_that_does_not_fit_fails() -> None:
    play = stage(context_tokens=3)
    play.take(respond("one two three four"))
    end = play.end()
    assert end.failure is not None
    assert (end.reason, end.failure.code) == ("failed", "context_too_long")


def test_usage_counts_words() -> None:
    play = stage(Reply(clauses=TWO_CLAUSES))
    play.take(respond("one two three", instructions="be kind"))
    play.run()
    assert (play.end().usage.input_tokens, play.end().usage.output_tokens) == (5, 5)


# -- cancel and close -----------------------------------------------------------------------


def test_a_cancel_ends_the_answer_at_once_and_nothing_follows() -> None:
    play = stage(Reply(clauses=TWO_CLAUSES, first_ms=0))
    play.take(respond())
    play.run(150)
    play.take(CancelResponse(1, session="s"))
    play.run()
    assert play.times(SpeechGenerated) == [0, 100]
    assert play.times(ResponseEnded) == [150]
    assert play.end().reason == "cancelled"
    assert play.end().usage.output_tokens == 2


def test_a_cancel_of_an_ended_or_unknown_answer_changes_nothing() -> None:
    play = stage(Reply(clauses=TWO_CLAUSES))
    play.take(CancelResponse(1, session="s"), respond())
    play.run()
    play.take(CancelResponse(1, session="s"), Acknowledge(1, 5, session="s"))
    play.run()
    assert play.end().reason == "completed"


def test_a_parked_answer_can_be_cancelled() -> None:
    play = stage(Reply(clauses=TWO_CLAUSES, pace=0), window_ms=100)
    play.take(respond())
    play.run()
    play.take(CancelResponse(1, session="s"), Acknowledge(1, 1000, session="s"))
    play.run()
    assert len(play.outputs(SpeechGenerated)) == 1
    assert play.end().reason == "cancelled"


def test_answers_of_one_session_run_side_by_side() -> None:
    play = stage(Reply(clauses=TWO_CLAUSES, first_ms=0))
    play.take(respond(generation=1), respond(generation=2))
    play.run()
    assert [c.generation for c in play.outputs(SpeechGenerated)][:4] == [1, 2, 1, 2]
    assert {end.generation for end in play.outputs(ResponseEnded)} == {1, 2}


def test_nothing_is_said_to_a_closed_session() -> None:
    play = stage(transcripts=("hello there",), judge_ms=50)
    play.take(respond(), Hear("u", 0, bytes(2), session="s"), JudgeTurn("u", 1, session="s"))
    play.take(EndUtterance("u", 1, session="s"), CloseSession(session="s"))
    play.run()
    assert play.said == []
    assert play.performance.sessions == 0
    play.take(respond(), CloseSession(session="s"))
    play.run()
    assert play.said == []


def test_a_hung_answer_is_a_step_that_never_ends() -> None:
    play = stage(Reply(clauses=TWO_CLAUSES, hang=True))
    play.take(respond())
    play.run()
    play.take(CancelResponse(1, session="s"), Acknowledge(1, 5000, session="s"))
    play.take(CloseSession(session="s"))
    play.run()
    assert play.outputs(ResponseEnded) == []
    assert play.pulse.reading(2**62).running_s > 0


# -- listening ------------------------------------------------------------------------------


def test_an_utterance_is_called_by_its_length() -> None:
    play = stage()
    play.take(Hear("u", 16_000, bytes(2 * 19_200), session="s"))
    play.take(EndUtterance("u", 16_000 + 19_200, session="s"))
    play.run()
    (final,) = play.outputs(TranscriptFinal)
    assert (final.utterance, final.text, final.seconds) == ("u", "utterance of 1.2 s", 1.2)
    assert play.times(TranscriptFinal) == [20]


def test_scripted_transcripts_take_turns() -> None:
    play = stage(transcripts=("first", "second"))
    for name in ("a", "b", "c"):
        play.take(Hear(name, 0, bytes(2), session="s"), EndUtterance(name, 1, session="s"))
        play.run(100)
    assert [final.text for final in play.outputs(TranscriptFinal)] == ["first", "second", "first"]


def test_partial_transcripts_join_to_the_final_one() -> None:
    play = stage(transcripts=("one two three four",))
    for start in range(0, 16_000, 1600):
        play.take(Hear("u", start, bytes(3200), session="s"))
    heard = len(play.outputs(TranscriptDelta))
    assert heard == 3
    play.take(EndUtterance("u", 16_000, session="s"))
    play.run()
    joined = "".join(delta.delta for delta in play.outputs(TranscriptDelta))
    assert joined == "one two three four" == play.outputs(TranscriptFinal)[0].text


def test_there_are_no_partial_transcripts_unless_asked_for() -> None:
    play = stage(transcripts=("one two",))
    play.take(ConfigureListening(partials=False, session="s"))
    play.take(Hear("u", 0, bytes(64_000), session="s"), EndUtterance("u", 32_000, session="s"))
    play.run()
    assert play.outputs(TranscriptDelta) == []
    assert len(play.outputs(TranscriptFinal)) == 1


def test_nothing_is_said_about_a_dropped_utterance() -> None:
    play = stage()
    play.take(Hear("u", 0, bytes(2), session="s"), EndUtterance("u", 1, session="s"))
    play.take(DropUtterance("u", session="s"))
    play.run()
    assert play.said == []


def test_an_utterance_without_audio_has_an_empty_transcript() -> None:
    play = stage()
    play.take(EndUtterance("u", 0, session="s"))
    assert play.outputs(TranscriptFinal) == [TranscriptFinal("u", "", 0.0, session="s")]


def test_turns_are_judged_as_the_script_says() -> None:
    play = stage(probabilities=(0.2, 0.9))
    play.take(*[JudgeTurn("u", at, session="s") for at in (10, 20, 30)])
    judged = [(turn.at, turn.probability) for turn in play.outputs(TurnJudged)]
    assert judged == [(10, 0.2), (20, 0.9), (30, 0.2)]


def test_a_judgement_takes_its_time() -> None:
    play = stage(judge_ms=12)
    play.take(JudgeTurn("u", 10, session="s"))
    play.run()
    assert play.times(TurnJudged) == [12]


def test_the_answer_is_chosen_by_what_was_said() -> None:
    play = stage(transcripts=("tell me a long story",))
    play.take(Hear("u", 0, bytes(2), session="s"))
    messages = (Message("user", (UtterancePart("u", 1),)),)
    play.take(Respond(1, ResponseRequest(instructions="", messages=messages), session="s"))
    play.run()
    assert sum(bool(chunk.text) for chunk in play.outputs(SpeechGenerated)) == 10


# -- the rest -------------------------------------------------------------------------------


def test_words_are_spread_evenly_and_join_to_the_text() -> None:
    words = spread_words("  Good day,  my friend", 24_000)
    assert [word.end_ms for word in words] == [250, 500, 750, 1000]
    assert [word.text for word in words] == ["  Good ", "day,  ", "my ", "friend"]
    assert spread_words(" ", 24_000) == ()


def test_words_that_were_cut_off_end_after_the_audio() -> None:
    play = stage(replies=(Reply(clauses=(Clause("Hi there", 1000),)),))
    play.take(AlignSpeech("item_1", "Hi there", bytes(48 * 600), session="s"))
    (aligned,) = play.outputs(SpeechAligned)
    assert [word.end_ms for word in aligned.words] == [500, 1000]


def test_an_alignment_is_answered_with_its_reference() -> None:
    play = stage()
    play.take(AlignSpeech("item_1", "Hi there", bytes(48_000), session="s"))
    (aligned,) = play.outputs(SpeechAligned)
    assert aligned.reference == "item_1"
    assert [word.end_ms for word in aligned.words] == [500, 1000]


def test_requests_are_kept_to_be_looked_at() -> None:
    play = stage()
    asked = respond("look at me")
    play.take(Prepare(asked.request, session="s"), asked)
    assert list(play.performance.requests) == [asked]
    assert play.said == []


# -- pictures -------------------------------------------------------------------------------


def test_speech_may_have_pictures_that_say_their_numbers() -> None:
    play = stage(
        Reply(clauses=TWO_CLAUSES, first_ms=0),
        picture_rate=20.0,
        picture_width=64,
        picture_height=32,
    )
    play.take(respond(generation=4))
    play.run()
    pictures = play.outputs(PictureGenerated)
    assert [picture.at_ms for picture in pictures] == [50.0 * n for n in range(7)]
    lumas = [
        np.frombuffer(picture.pixels, np.uint8)[: 64 * 32].reshape(32, 64) for picture in pictures
    ]
    assert [read_pattern(luma) for luma in lumas] == list(range(7))
    assert {picture.generation for picture in pictures} == {4}
    assert play.times(PictureGenerated)[:3] == [0, 0, 100]


def test_what_a_camera_shows_is_in_the_request_until_it_is_off() -> None:
    play = stage(Reply(clauses=TWO_CLAUSES))
    red = encode_jpeg(frame_of(np.full((32, 48, 3), (200, 40, 40), np.uint8)), 48)
    play.take(See(session="s", jpeg=red), respond(generation=1))
    play.take(See(session="s", jpeg=b""), respond(generation=2))
    seen, blind = (asked.request.messages[-1].parts for asked in play.performance.requests)
    assert "red, 48 x 32 pixels" in seen[-1].text
    assert len(blind) == 1
