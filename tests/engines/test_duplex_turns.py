"""A model that listens while it speaks, as an engine that takes turns."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from duologue.engines.duplex import HUSH_TICKS
from duologue.engines.duplex_limits import DuplexLimits
from duologue.engines.duplex_script import DuplexScriptOptions, EchoModel
from duologue.engines.duplex_turns import DuplexTurns, DuplexTurnsStream, Persona
from duologue.engines.engine import (
    AlignSpeech,
    CancelResponse,
    EndUtterance,
    Hear,
    JudgeTurn,
    Message,
    Output,
    Respond,
    ResponseEnded,
    ResponseRequest,
    SpeechAligned,
    SpeechGenerated,
    SpeechOffered,
    TextGenerated,
    TextPart,
    TranscriptFailed,
    TranscriptFinal,
    TurnJudged,
)
from duologue.engines.in_process import open_in_process
from duologue.engines.scribes import Scribes
from duologue.engines.script import ScriptedOptions
from duologue.engines.scripted import ScriptedBackend
from duologue.engines.spoken_turns import PAUSE_TICKS
from tests.patience import PATIENCE_S
from tests.talker import PERIOD_S, Clock, setting

pytestmark = pytest.mark.anyio

LOUD = np.full(1920, 3000, np.int16)
SILENT = np.zeros(1920, np.int16)
Kind = TypeVar("Kind")


class Talk:
    def __init__(self, stream: DuplexTurnsStream, clock: Clock) -> None:
        self.stream = stream
        self.clock = clock

    def hear(self, samples: np.ndarray, rate: int = 24_000, instructions: str = "") -> None:
        """A period passes, and the user says this."""
        self.clock.now += PERIOD_S
        self.stream.listen(samples, rate, Persona("tone", instructions))

    async def next(self, kind: type[Kind]) -> Kind:
        """The next output of a kind; others on the way are passed over."""
        with anyio.fail_after(PATIENCE_S):
            while True:
                output: Output = await self.stream.receive()
                if isinstance(output, kind):
                    return output

    async def until_offered(self, samples: np.ndarray) -> int:
        """Say this until the model begins to speak; how many frames it took."""
        with anyio.fail_after(PATIENCE_S):
            frames = 0
            while True:
                frames += 1
                self.hear(samples)
                with anyio.move_on_after(0.05):
                    await self.next(SpeechOffered)
                    return frames

    def ask(self, generation: int, text: str = "", modality: str = "audio") -> None:
        messages = (Message("user", (TextPart(text),)),) if text else ()
        request = ResponseRequest(
            instructions="",
            messages=messages,
            modality="text" if modality == "text" else "audio",
        )
        self.stream.send(Respond(session="s", generation=generation, request=request))


@asynccontextmanager
async def talking() -> AsyncIterator[Talk]:
    options = DuplexScriptOptions(text="one two", word_ticks=2, limits=DuplexLimits(slots=2))
    async with setting(EchoModel(options), options.limits) as here:
        turns = DuplexTurns(here.duplex, here.engine)
        assert turns.ready
        yield Talk(await turns.open("s"), here.clock)


async def test_what_the_model_says_by_itself_is_offered_and_answers_who_asks() -> None:
    async with talking() as talk:
        talk.hear(LOUD)
        await talk.next(SpeechOffered)
        talk.ask(1)
        said = [await talk.next(SpeechGenerated)]
        for _ in range(3):
            talk.hear(LOUD)
            said.append(await talk.next(SpeechGenerated))
        assert [one.generation for one in said] == [1] * 4
        assert "".join(one.text for one in said) == " one two"
        assert not any(said[0].pcm) and said[1].pcm == LOUD.tobytes()
        for _ in range(PAUSE_TICKS):
            talk.hear(SILENT)
            await talk.next(SpeechGenerated)
        talk.hear(SILENT)
        ended = await talk.next(ResponseEnded)
        assert (ended.generation, ended.reason) == (1, "completed")
        assert ended.usage.output_tokens == 14


async def test_an_offer_is_repeated_and_keeps_what_was_said() -> None:
    async with talking() as talk:
        for _ in range(2):
            await talk.until_offered(LOUD)
        talk.ask(1)
        said = [await talk.next(SpeechGenerated) for _ in range(5)]
        assert "".join(one.text for one in said) == " one two one"


async def test_an_answer_that_is_cancelled_ends_and_the_model_is_silent() -> None:
    async with talking() as talk:
        talk.hear(LOUD)
        await talk.next(SpeechOffered)
        talk.ask(1)
        await talk.next(SpeechGenerated)
        talk.stream.send(CancelResponse(session="s", generation=1))
        assert (await talk.next(ResponseEnded)).reason == "cancelled"
        assert await talk.until_offered(LOUD) >= HUSH_TICKS


async def test_text_is_all_there_is_where_text_was_asked_for() -> None:
    async with talking() as talk:
        talk.hear(LOUD)
        await talk.next(SpeechOffered)
        talk.ask(1, modality="text")
        assert (await talk.next(TextGenerated)).text == " one"


async def test_an_answer_to_which_the_model_says_nothing_ends_empty() -> None:
    async with talking() as talk:
        talk.hear(SILENT)
        talk.ask(1, "are you there?")
        with anyio.fail_after(PATIENCE_S):
            while True:
                talk.hear(SILENT)
                with anyio.move_on_after(0.01):
                    ended = await talk.next(ResponseEnded)
                    break
        assert (ended.reason, ended.usage.output_tokens) == ("completed", 0)


async def test_a_second_answer_at_the_same_time_fails() -> None:
    async with talking() as talk:
        talk.ask(1)
        talk.ask(2)
        ended = await talk.next(ResponseEnded)
        assert (ended.generation, ended.reason) == (2, "failed")


async def test_sound_that_comes_faster_than_time_is_not_lost() -> None:
    async with talking() as talk:
        talk.hear(np.tile(LOUD, 20))
        await talk.next(SpeechOffered)
        talk.ask(1)
        said = 0
        while said < 21:
            talk.clock.now += PERIOD_S
            talk.stream.listen(SILENT, 24_000, Persona("tone"))
            with anyio.move_on_after(0.05):
                one = await talk.next(SpeechGenerated)
                said += any(one.pcm)
                if said == 20:
                    break
        assert said == 20


async def test_sound_of_another_rate_is_fitted() -> None:
    async with talking() as talk:
        for _ in range(4):
            talk.hear(np.full(1280, 3000, np.int16), rate=16_000)
        await talk.next(SpeechOffered)


async def test_who_the_model_is_to_be_is_told_before_it_hears() -> None:
    async with talking() as talk:
        talk.hear(LOUD, instructions="be kind")
        await talk.next(SpeechOffered)
        talk.hear(LOUD, instructions="be bold")
        talk.ask(1)
        await talk.next(SpeechGenerated)


async def test_questions_about_speech_are_answered_at_once() -> None:
    async with talking() as talk:
        talk.stream.send(JudgeTurn(session="s", utterance="u", at=5))
        assert (await talk.next(TurnJudged)).probability == 1.0
        talk.stream.send(AlignSpeech(session="s", reference="r", text="a", pcm=b""))
        assert (await talk.next(SpeechAligned)).words == ()
        talk.stream.send(EndUtterance(session="s", utterance="u", end=5))
        assert (await talk.next(TranscriptFailed)).utterance == "u"


async def test_a_recogniser_beside_the_model_writes_down_what_the_user_says() -> None:
    options = DuplexScriptOptions(limits=DuplexLimits(slots=1))
    script = ScriptedBackend(ScriptedOptions(transcripts=("Good day.",)))
    async with (
        setting(EchoModel(options), options.limits) as here,
        open_in_process(script) as recognizer,
        Scribes(recognizer) as scribes,
    ):
        turns = DuplexTurns(here.duplex, here.engine, scribes)
        assert turns.spec.recognizer == "scripted"
        stream = await turns.open("s")
        talk = Talk(stream, here.clock)
        written: Output | None = None
        while not isinstance(written, TranscriptFinal):
            # Those before it has its place fail.
            await anyio.lowlevel.checkpoint()
            stream.send(Hear("u", 0, bytes(3200), session="s"))
            stream.send(EndUtterance("u", 1600, session="s"))
            with anyio.fail_after(PATIENCE_S):
                written = await stream.receive()
        assert written.text == "Good day."
        talk.hear(LOUD)
        await talk.next(SpeechOffered)
        await stream.aclose()
        with anyio.fail_after(PATIENCE_S):
            while recognizer.sessions:
                await anyio.lowlevel.checkpoint()
