"""One answer with stand-ins: its order, its window, its one end."""

import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from hypothesis import given, settings, strategies as st

from duologue.engines.engine import (
    ImagePart,
    Message,
    Output,
    Respond,
    ResponseEnded,
    ResponseRequest,
    SpeechGenerated,
    TextGenerated,
    TextPart,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallStarted,
    ToolInvocation,
    Usage,
    UtterancePart,
)
from duologue.engines.fairness import Rank
from duologue.engines.language import (
    Began,
    CallDelta,
    CallEnded,
    CallStarted,
    Finished,
    Generated,
    LanguageError,
    TextPiece,
)
from duologue.engines.pulse import Pulse
from duologue.engines.recognition import RecognitionFailed
from duologue.engines.reply import Reply
from duologue.engines.speaking import DRAFT_WINDOW_MS, WINDOW_MS, Voices, length_ms
from duologue.engines.stand_ins import StandInLanguage, StandInSynthesizer
from duologue.models.voice import VoiceCatalogue
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

USAGE = Usage(input_tokens=11, cached_tokens=5, output_tokens=7)
END = Finished("completed", USAGE)
Pieces = list[Generated | Exception | anyio.Event]


class Stage:
    """An answer's surroundings."""

    def __init__(self) -> None:
        self.language = StandInLanguage()
        self.synthesizer = StandInSynthesizer(voices=("tone", "other"))
        self.voices = Voices(VoiceCatalogue([self.synthesizer]), Pulse())
        self.outputs: list[Output] = []
        self.transcripts: dict[tuple[str, int | None], str | Exception] = {}
        self.ranks: list[Rank] = []
        self.now = 0.0
        self.changed = anyio.Event()

    async def transcribe(self, name: str, until: int | None, rank: Callable[[], Rank]) -> str:
        await anyio.lowlevel.checkpoint()
        self.ranks.append(rank())
        text = self.transcripts.get((name, until), "")
        if isinstance(text, Exception):
            raise text
        return text

    def emit(self, output: Output) -> None:
        self.outputs.append(output)
        self.changed.set()
        self.changed = anyio.Event()

    def reply(self, pieces: Pieces, **fields: Any) -> Reply:
        self.language.answers.append(pieces)
        fields.setdefault("messages", (Message("user", (TextPart("hi"),)),))
        request = ResponseRequest(instructions="", **fields)
        command = Respond(session="s", generation=3, request=request)
        return Reply(
            command, self.language, self.voices, self.transcribe, self.emit, lambda: self.now
        )

    async def run(self, pieces: Pieces, **fields: Any) -> list[Output]:
        with anyio.fail_after(PATIENCE_S):
            await self.reply(pieces, **fields).run()
        return self.outputs

    async def until(self, met: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not met():
                await self.changed.wait()

    async def arrive(self) -> None:
        """Until the voice is at its gate."""
        with anyio.fail_after(PATIENCE_S):
            await anyio.to_thread.run_sync(self.synthesizer.gate.arrived.acquire)

    @property
    def text(self) -> str:
        return "".join(o.text for o in self.outputs if isinstance(o, SpeechGenerated))

    @property
    def ends(self) -> list[ResponseEnded]:
        return [output for output in self.outputs if isinstance(output, ResponseEnded)]


@pytest.fixture
def stage() -> Stage:
    return Stage()


@asynccontextmanager
async def running(reply: Reply) -> AsyncIterator[None]:
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(reply.run)
            try:
                yield
            except BaseException:
                group.cancel_scope.cancel()
                raise


def words(text: str) -> Pieces:
    """The text as a model streams it."""
    head, *rest = text.split(" ")
    return [TextPiece(head), *(TextPiece(f" {word}") for word in rest)]


# -- in order -------------------------------------------------------------------------------


async def test_speech_says_the_text_to_the_letter_clause_by_clause(stage: Stage) -> None:
    said = "Well, hello there!  It's nice to *meet* you.\nHow are you today? 🙂"
    outputs = await stage.run([Began(11, 5), *words(said), END])
    assert stage.text == said
    assert len(stage.synthesizer.said) >= 3
    assert stage.synthesizer.said[0] == "Well,"
    assert outputs[-1] == ResponseEnded(session="s", generation=3, reason="completed", usage=USAGE)
    assert {output.generation for output in outputs} == {3}  # type: ignore[union-attr]


@pytest.mark.parametrize("modality", ["text", "audio"])
async def test_a_reply_that_is_over_is_in_no_cycle(stage: Stage, modality: str) -> None:
    gc.disable()
    try:
        reply = stage.reply([*words("Hello there."), END], modality=modality)
        with anyio.fail_after(PATIENCE_S):
            await reply.run()
        gone = weakref.ref(reply)
        del reply
        assert gone() is None
    finally:
        gc.enable()


async def test_the_first_clause_is_spoken_while_the_model_goes_on(stage: Stage) -> None:
    more = anyio.Event()
    reply = stage.reply([*words("Hello there. And"), more, *words(" then some."), END])
    async with running(reply):
        await stage.until(lambda: stage.text == "Hello there.")
        assert stage.language.read[-1] == TextPiece(" And")
        more.set()
    assert stage.text == "Hello there. And then some."


async def test_a_long_clause_comes_in_pieces_and_only_the_first_has_its_text(stage: Stage) -> None:
    outputs = await stage.run([TextPiece("a" * 350 + "."), END])
    speech = [output for output in outputs if isinstance(output, SpeechGenerated)]
    assert [round(length_ms(piece.pcm)) for piece in speech] == [1000, 1000, 1000, 500]
    assert [bool(piece.text) for piece in speech] == [True, False, False, False]
    assert [round(piece.clause_ms) for piece in speech] == [3500, 0, 0, 0]


async def test_text_without_a_sound_goes_along(stage: Stage) -> None:
    await stage.run([*words("... ---\n\nHello there. 🙂 🙂"), END])
    assert stage.text == "... ---\n\nHello there. 🙂 🙂"
    assert all(any(letter.isalnum() for letter in text) for text in stage.synthesizer.said[:1])


async def test_text_is_passed_on_as_it_comes(stage: Stage) -> None:
    outputs = await stage.run([*words("one two"), END], modality="text")
    assert [output.text for output in outputs if isinstance(output, TextGenerated)] == [
        "one",
        " two",
    ]
    assert stage.synthesizer.said == []
    assert stage.ends[0].usage == USAGE


@pytest.mark.parametrize("modality", ["audio", "text"])
async def test_an_empty_answer_is_complete(stage: Stage, modality: str) -> None:
    outputs = await stage.run([END], modality=modality)
    assert [type(output) for output in outputs] == [ResponseEnded]
    assert stage.ends[0].reason == "completed"


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
async def test_the_models_reason_is_kept_and_what_it_said_is_spoken(
    stage: Stage, reason: Any
) -> None:
    await stage.run([*words("Hello there. This breaks"), Finished(reason, USAGE)])
    assert stage.text == "Hello there. This breaks"
    assert stage.ends[0].reason == reason


async def test_the_voice_and_its_speed_are_the_requests(stage: Stage) -> None:
    outputs = await stage.run([TextPiece("abcdefghij."), END], voice="other", speed=0.5)
    (speech,) = (output for output in outputs if isinstance(output, SpeechGenerated))
    assert length_ms(speech.pcm) == 200


# -- calls ----------------------------------------------------------------------------------


async def test_a_call_comes_behind_what_was_said_before_it(stage: Stage) -> None:
    stage.synthesizer.gate.close()
    reply = stage.reply(
        [
            *words("Let me look."),
            CallStarted("call_1", "look"),
            CallDelta("call_1", '{"a":'),
            CallDelta("call_1", "1}"),
            CallEnded("call_1", '{"a":1}'),
            *words("Done now."),
            END,
        ]
    )
    async with running(reply):
        await stage.arrive()
        await anyio.wait_all_tasks_blocked()
        assert stage.outputs == []
        stage.synthesizer.gate.open()
    assert [type(output) for output in stage.outputs] == [
        SpeechGenerated,
        ToolCallStarted,
        ToolCallDelta,
        ToolCallDelta,
        ToolCallEnded,
        SpeechGenerated,
        ResponseEnded,
    ]
    assert stage.outputs[1] == ToolCallStarted(
        session="s", generation=3, call_id="call_1", name="look"
    )


async def test_silent_text_before_a_call_comes_before_it(stage: Stage) -> None:
    outputs = await stage.run(
        [TextPiece("\n\n"), CallStarted("c", "look"), CallEnded("c", "{}"), END]
    )
    assert [type(output) for output in outputs][:2] == [SpeechGenerated, ToolCallStarted]


async def test_a_call_in_a_written_answer_is_passed_on(stage: Stage) -> None:
    call = [CallStarted("c", "look"), CallDelta("c", "{}"), CallEnded("c", "{}")]
    outputs = await stage.run([*call, END], modality="text")
    assert [type(output) for output in outputs] == [
        ToolCallStarted,
        ToolCallDelta,
        ToolCallEnded,
        ResponseEnded,
    ]


# -- what was heard -------------------------------------------------------------------------


async def test_utterances_become_words_up_to_their_position(stage: Stage) -> None:
    stage.transcripts = {("u", 500): "what I said", ("v", None): "and before"}
    history = (
        Message("user", (UtterancePart("v"), TextPart("typed"))),
        Message("assistant", (TextPart("yes"),)),
        Message("user", (UtterancePart("u", 500), ImagePart("https://example.org/a.png"))),
    )
    await stage.run([END], messages=history, speculative=True)
    assert stage.language.requests[0].messages == (
        Message("user", (TextPart("and before"), TextPart("typed"))),
        Message("assistant", (TextPart("yes"),)),
        Message("user", (TextPart("what I said"), ImagePart("https://example.org/a.png"))),
    )
    assert set(stage.ranks) == {Rank.DRAFT_FIRST}


async def test_noise_is_not_answered(stage: Stage) -> None:
    history = (Message("user", (TextPart("hi"),)), Message("user", (UtterancePart("u", 9),)))
    outputs = await stage.run([END], messages=history)
    assert [type(output) for output in outputs] == [ResponseEnded]
    assert stage.ends[0].reason == "completed"
    assert stage.language.requests == []


async def test_noise_earlier_on_is_left_out(stage: Stage) -> None:
    history = (
        Message("user", (UtterancePart("u"),)),
        Message("assistant", (), (ToolInvocation("c", "look", "{}"),)),
        Message("tool", (), (), "c"),
        Message("user", (TextPart("hi"),)),
    )
    await stage.run([END], messages=history)
    assert stage.language.requests[0].messages == history[1:]


async def test_an_answer_may_be_asked_for_without_any_history(stage: Stage) -> None:
    await stage.run([*words("Hello!"), END], messages=())
    assert stage.text == "Hello!"


# -- failures -------------------------------------------------------------------------------


@pytest.mark.parametrize("modality", ["audio", "text"])
async def test_a_models_failure_ends_the_answer_with_its_words(stage: Stage, modality: str) -> None:
    error = LanguageError.of("upstream_error", "It is away.")
    await stage.run([*words("Hello there. And"), error], modality=modality)
    (end,) = stage.ends
    assert stage.outputs[-1] is end
    assert end.reason == "failed"
    assert end.failure == error.failure


async def test_what_could_not_be_recognised_is_said_so(stage: Stage) -> None:
    stage.transcripts = {("u", None): RecognitionFailed("no German here")}
    await stage.run([END], messages=(Message("user", (UtterancePart("u"),)),))
    (end,) = stage.ends
    assert end.failure is not None
    assert end.failure.code == "engine_error"
    assert "no German here" in end.failure.message


@pytest.mark.parametrize("where", ["voice", "model"])
async def test_an_unexpected_failure_ends_the_answer_without_details(
    stage: Stage, where: str
) -> None:
    pieces: Pieces = [*words("Hello there. And so on."), END]
    if where == "voice":
        stage.synthesizer.failure = RuntimeError("secret detail")
    else:
        pieces.insert(2, RuntimeError("secret detail"))
    await stage.run(pieces)
    (end,) = stage.ends
    assert stage.outputs[-1] is end
    assert end.failure is not None
    assert end.failure.code == "engine_error"
    assert "secret" not in end.failure.message


# -- cancelling -----------------------------------------------------------------------------


async def test_a_cancel_is_answered_at_once_and_nothing_follows(stage: Stage) -> None:
    stage.synthesizer.gate.close()
    reply = stage.reply([Began(11, 5), *words("Hello there. And so"), anyio.Event()])
    async with running(reply):
        await stage.arrive()
        await anyio.wait_all_tasks_blocked()
        reply.cancel()
        (end,) = stage.outputs
        assert isinstance(end, ResponseEnded)
        assert (end.reason, end.usage.input_tokens) == ("cancelled", 11)
        assert end.usage.output_tokens > 0
        reply.cancel()
    assert stage.outputs == [end]
    assert stage.synthesizer.cancelled == ["Hello there."]
    assert stage.language.left == 1


async def test_a_cancel_before_the_start_is_answered(stage: Stage) -> None:
    reply = stage.reply([*words("Hello there."), END])
    reply.cancel()
    await reply.run()
    assert [end.reason for end in stage.outputs] == ["cancelled"]  # type: ignore[union-attr]


async def test_an_abandoned_answer_says_nothing_more(stage: Stage) -> None:
    reply = stage.reply([*words("Hello there. And"), anyio.Event()])
    async with running(reply):
        await stage.until(lambda: bool(stage.text))
        before = len(stage.outputs)
        reply.abandon()
    assert len(stage.outputs) == before
    assert stage.language.left == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 60), st.booleans(), st.sampled_from(["audio", "text"]))
def test_whenever_it_is_cancelled_an_answer_has_one_end_and_nothing_after(
    steps: int, abandon: bool, modality: str
) -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.transcripts = {("u", None): "hello"}
        call = [CallStarted("c", "look"), CallDelta("c", "{}"), CallEnded("c", "{}")]
        pieces: Pieces = [Began(1, 0), *words("Hello there. I look:"), *call, *words("So."), END]
        reply = stage.reply(
            pieces, messages=(Message("user", (UtterancePart("u"),)),), modality=modality
        )
        async with running(reply):
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            count = len(stage.outputs)
            if abandon:
                reply.abandon()
            else:
                reply.cancel()
        if abandon:
            assert len(stage.outputs) == count
            assert len(stage.ends) <= 1
        else:
            assert len(stage.ends) == 1
            assert isinstance(stage.outputs[-1], ResponseEnded)
            assert len(stage.outputs) <= count + 1
        assert stage.language.left == len(stage.language.requests)

    anyio.run(scenario)


# -- the window -----------------------------------------------------------------------------

SENTENCE = "x" * 148 + "."
"""Some 1.5 s of speech."""


def endless(sentences: int) -> Pieces:
    return [TextPiece(f" {SENTENCE}\n") for _ in range(sentences)]


def spoken_ms(stage: Stage) -> float:
    return sum(length_ms(o.pcm) for o in stage.outputs if isinstance(o, SpeechGenerated))


@pytest.mark.parametrize(("draft", "window"), [(False, WINDOW_MS), (True, DRAFT_WINDOW_MS)])
async def test_speech_waits_for_its_listener_and_so_does_the_model(
    stage: Stage, draft: bool, window: int
) -> None:
    reply = stage.reply([*endless(60), END], speculative=draft)
    async with running(reply):
        await stage.until(lambda: spoken_ms(stage) >= window)
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        assert spoken_ms(stage) < window + 1500
        assert len(stage.language.read) < window / 1480 + 10
        sent = 0
        while not stage.ends:
            sent = int(spoken_ms(stage))
            reply.acknowledge(sent)
            await stage.until(lambda at=sent: spoken_ms(stage) > at or bool(stage.ends))  # type: ignore[misc]
            assert spoken_ms(stage) - sent < WINDOW_MS + 1500
    assert stage.ends[0].reason == "completed"
    assert stage.text == "".join(f" {SENTENCE}\n" for _ in range(60))


async def test_a_cancel_is_not_held_up_by_a_closed_window(stage: Stage) -> None:
    reply = stage.reply([*endless(60), END])
    async with running(reply):
        await stage.until(lambda: spoken_ms(stage) >= WINDOW_MS)
        await anyio.wait_all_tasks_blocked()
        reply.cancel()
    assert [end.reason for end in stage.ends] == ["cancelled"]


# -- urgency --------------------------------------------------------------------------------


async def test_the_model_is_urgent_until_the_first_clause_and_again_when_speech_runs_out(
    stage: Stage,
) -> None:
    gates = [anyio.Event() for _ in range(3)]
    reply = stage.reply(
        [TextPiece("Hello"), TextPiece(" there. "), gates[0], TextPiece("x"), gates[1], END]
    )
    stage.synthesizer.gate.close()
    async with running(reply):
        await stage.arrive()
        await anyio.wait_all_tasks_blocked()
        assert stage.language.ranks == [Rank.FIRST, Rank.FIRST, Rank.LATER]
        stage.synthesizer.gate.open()
        await stage.until(lambda: bool(stage.text))
        stage.now = 60.0
        gates[0].set()
        await anyio.wait_all_tasks_blocked()
        assert stage.language.ranks[-1] is Rank.FIRST
        gates[1].set()


async def test_a_draft_is_less_urgent_until_somebody_listens(stage: Stage) -> None:
    gate = anyio.Event()
    reply = stage.reply([TextPiece("Hello there. "), gate, TextPiece("x"), END], speculative=True)
    async with running(reply):
        await stage.until(lambda: bool(stage.text))
        await anyio.wait_all_tasks_blocked()
        assert stage.language.ranks[0] is Rank.DRAFT_FIRST
        assert stage.language.ranks[-1] in (Rank.DRAFT_LATER, Rank.DRAFT_FIRST)
        reply.acknowledge(20)
        stage.now = 60.0
        gate.set()
    assert stage.language.ranks[-1] is Rank.FIRST


async def test_a_written_draft_is_a_draft(stage: Stage) -> None:
    await stage.run([TextPiece("a"), END], modality="text", speculative=True)
    assert set(stage.language.ranks) == {Rank.DRAFT_FIRST}
