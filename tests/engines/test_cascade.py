"""The whole backend: with stand-ins, and with the embedded models where they are."""

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest

from duologue.codecs.pcm import bytes_from_int16, int16_from_bytes
from duologue.codecs.resample import Resampler
from duologue.engines import eyes
from duologue.engines.cascade import (
    CascadeBackend,
    CascadeConfig,
    Parts,
    create_backend,
    load_parts,
    usual_capacity,
)
from duologue.engines.cascade_session import CascadeSession
from duologue.engines.chat_endpoint_impl import ChatEndpointStage
from duologue.engines.engine import (
    AlignSpeech,
    CancelResponse,
    CloseSession,
    Command,
    ConfigureListening,
    EndUtterance,
    EngineError,
    Hear,
    ImagePart,
    JudgeTurn,
    Message,
    OpenSession,
    Output,
    Respond,
    ResponseEnded,
    ResponseRequest,
    See,
    SpeechAligned,
    SpeechGenerated,
    TextPart,
    TranscriptDelta,
    TranscriptFinal,
    TurnJudged,
    Usage,
    UtterancePart,
)
from duologue.engines.language import Finished, LanguageError, TextPiece
from duologue.engines.llama_prompts import LlamaStage
from duologue.engines.pulse import Pulse
from duologue.engines.stand_ins import (
    StandInDetector,
    StandInLanguage,
    StandInRecognizer,
    StandInSynthesizer,
)
from duologue.engines.transformers_stage import TransformersStage
from duologue.engines.vllm_stage import VllmStage
from duologue.engines.voice_backend import PiperVoice
from duologue.models.vision import WEIGHTS
from duologue.models.weights import locate
from duologue.models.whisper import Whisper
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

END = Finished("completed", Usage())
PAPER = CascadeConfig(
    recognizer="/r",
    turn_detector="/t",
    language=LlamaStage(path="/l.gguf"),
    kokoro="/k",
    piper=(PiperVoice(path="/p", name="joe"),),
    description="Stand-ins.",
)


class Stage:
    """A backend that runs, and what it says to each session."""

    def __init__(self, backend: CascadeBackend) -> None:
        self.backend = backend
        self.outputs: dict[str, list[Output]] = {}
        self._send, self.commands = anyio.create_memory_object_stream[Command](64)
        self._changed = anyio.Event()

    def emit(self, output: Output) -> None:
        self.outputs.setdefault(output.session, []).append(output)
        self._changed.set()
        self._changed = anyio.Event()

    async def tell(self, *commands: Command) -> None:
        for command in commands:
            await self._send.send(command)

    def tell_at_once(self, *commands: Command) -> None:
        for command in commands:
            self._send.send_nowait(command)

    async def until(self, session: str, met: Callable[[list[Any]], bool]) -> list[Any]:
        with anyio.fail_after(PATIENCE_S):
            while not met(self.outputs.get(session, [])):
                await self._changed.wait()
        return self.outputs[session]

    def close(self) -> None:
        self._send.close()


@asynccontextmanager
async def running(backend: CascadeBackend) -> AsyncIterator[Stage]:
    stage = Stage(backend)

    async def run(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        await backend.run(stage.commands, stage.emit, task_status=task_status)

    with stage.commands, anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as group:
            try:
                await group.start(run)
                yield stage
            finally:
                stage.close()


def has(kind: type[Any], count: int = 1) -> Callable[[list[Any]], bool]:
    return lambda outputs: sum(isinstance(output, kind) for output in outputs) >= count


def stand_in(**fields: Any) -> tuple[CascadeBackend, StandInLanguage]:
    language = StandInLanguage()
    language.answers = [[TextPiece("Hello. "), END]]
    parts = Parts(
        StandInRecognizer(),
        StandInDetector(),
        (StandInSynthesizer(voices=("one", "two")), StandInSynthesizer(voices=("joe",))),
    )
    config = msgspec.structs.replace(PAPER, **fields)
    return CascadeBackend(config, Pulse(), language=language, load=lambda _: parts), language


def respond(session: str, generation: int, text: str, **fields: Any) -> Respond:
    message = Message("user", (TextPart(text),))
    request = ResponseRequest(instructions="", messages=(message,), **fields)
    return Respond(session=session, generation=generation, request=request)


async def test_it_says_what_it_serves_once_it_has_started() -> None:
    backend, _ = stand_in(capacity=3, default_voice="joe")
    async with running(backend) as stage:
        spec = backend.spec
        assert (spec.model, spec.context_tokens, spec.sees) == ("stand-in", 1000, False)
        assert (spec.voices, spec.default_voice) == (("one", "two", "joe"), "joe")
        assert spec.description == "Stand-ins."
        assert backend.capacity == 3
        assert stage.outputs == {}


async def test_sessions_are_answered_side_by_side_and_apart() -> None:
    backend, language = stand_in()
    async with running(backend) as stage:
        language.answers = [[TextPiece("For a. "), END], [TextPiece("For b. "), END]]
        await stage.tell(OpenSession(session="a"), OpenSession(session="b"))
        await stage.tell(respond("a", 1, "x"), respond("b", 1, "x"))
        for session in "ab":
            outputs = await stage.until(session, has(ResponseEnded))
            said = "".join(o.text for o in outputs if isinstance(o, SpeechGenerated))
            assert said in ("For a. ", "For b. ")
            assert {output.session for output in outputs} == {session}


async def test_of_many_asked_at_once_the_first_is_with_the_model_before_the_last_is_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend, language = stand_in(capacity=20)
    waiting: list[int] = []
    take = CascadeSession.take

    def counted(self: CascadeSession, command: Command) -> None:
        take(self, command)
        if isinstance(command, Respond):
            waiting.append(len(waiting) + 1 - len(language.requests))

    async with running(backend) as stage:
        sessions = [f"s{number}" for number in range(20)]
        language.answers = [[END] for _ in sessions]
        await stage.tell(*(OpenSession(session=session) for session in sessions))
        await anyio.wait_all_tasks_blocked()
        monkeypatch.setattr(CascadeSession, "take", counted)
        stage.tell_at_once(*(respond(one, 1, "x", modality="text") for one in sessions))
        for session in sessions:
            await stage.until(session, has(ResponseEnded))
    assert len(waiting) == 20
    assert max(waiting) < 10


async def test_a_closed_session_hears_nothing_more_and_may_be_opened_again() -> None:
    backend, language = stand_in()
    async with running(backend) as stage:
        language.answers = [[TextPiece("Hello. "), anyio.Event()], [TextPiece("Again. "), END]]
        await stage.tell(OpenSession(session="a"), respond("a", 1, "x"))
        before = len(await stage.until("a", has(SpeechGenerated)))
        await stage.tell(
            CloseSession(session="a"), respond("a", 2, "late"), CloseSession(session="a")
        )
        await anyio.wait_all_tasks_blocked()
        assert len(stage.outputs["a"]) == before
        await stage.tell(OpenSession(session="a"), OpenSession(session="a"), respond("a", 1, "x"))
        outputs = await stage.until("a", has(ResponseEnded))
        said = [output.text for output in outputs[before:] if isinstance(output, SpeechGenerated)]
        assert "".join(said) == "Again. "


async def test_the_end_of_the_commands_is_the_end_of_everything() -> None:
    backend, language = stand_in()
    async with running(backend) as stage:
        language.answers = [[anyio.Event()]]
        await stage.tell(OpenSession(session="a"), respond("a", 1, "x"))
        await anyio.wait_all_tasks_blocked()
    assert language.closed
    assert stage.outputs == {}


async def test_a_stage_that_fails_at_the_rehearsal_fails_the_start() -> None:
    backend, language = stand_in()
    language.answers = [[LanguageError.of("engine_error", "no memory")]]
    with pytest.raises(BaseExceptionGroup) as caught:
        async with running(backend):
            raise AssertionError("it started")
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert "no memory" in str(error)
    assert language.closed


async def test_it_ends_when_its_language_model_has_gone() -> None:
    class Mortal(StandInLanguage):
        async def watch(self) -> None:
            await gone.wait()
            raise EngineError("it has gone")

    gone = anyio.Event()
    language = Mortal()
    language.remote = True
    parts = Parts(StandInRecognizer(), StandInDetector(), (StandInSynthesizer(voices=("joe",)),))
    backend = CascadeBackend(PAPER, Pulse(), language=language, load=lambda _: parts)
    with pytest.raises(BaseExceptionGroup) as caught, anyio.fail_after(PATIENCE_S):
        async with running(backend):
            gone.set()
            await anyio.sleep_forever()
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert str(error) == "it has gone"
    assert language.closed


def test_a_configuration_travels_as_msgpack() -> None:
    for language in (
        PAPER.language,
        VllmStage(path="/m", media_hosts=("a",)),
        TransformersStage(path="/m"),
        ChatEndpointStage(base_url="http://a/v1", model="m", headers={"X": "y"}),
    ):
        config = msgspec.structs.replace(PAPER, language=language)
        packed = msgspec.msgpack.encode(config)
        assert msgspec.msgpack.decode(packed, type=CascadeConfig) == config
        assert isinstance(create_backend(packed, Pulse()), CascadeBackend)


def test_kokoro_takes_twice_what_piper_does() -> None:
    assert usual_capacity(PAPER, 2) == 2
    assert usual_capacity(msgspec.structs.replace(PAPER, default_voice="joe"), 2) == 4
    assert usual_capacity(msgspec.structs.replace(PAPER, kokoro=""), 2) == 4
    assert usual_capacity(PAPER, 1) == 1


def test_a_cascade_needs_a_voice() -> None:
    with pytest.raises(ValueError, match="no voice"):
        load_parts(msgspec.structs.replace(PAPER, kokoro="", piper=()))


# -- with the embedded models -----------------------------------------------------------------

QUESTION = Path(__file__).parent.parent / "data" / "question.wav"


@pytest.fixture(scope="module")
def embedded() -> CascadeConfig:
    piper = next(locate("piper-joe").glob("*.onnx"))
    return CascadeConfig(
        recognizer=str(locate("whisper-tiny.en")),
        turn_detector=str(next(locate("smart-turn").glob("*.onnx"))),
        language=LlamaStage(path=str(next(locate("smollm2-135m-instruct").glob("*.gguf")))),
        piper=(PiperVoice(path=str(piper), name="joe"),),
        capacity=2,
    )


def heard(parts: Parts, text: str) -> np.ndarray[Any, np.dtype[np.int16]]:
    """The text in Piper's voice, at 16 kHz, with a little silence around it."""
    voice = parts.synthesizers[0]
    speech = voice.synthesize(text, voice="joe", speed=1.0, cancelled=lambda: False)
    resampler = Resampler(voice.rate, 16_000, np.int16)
    edge = np.zeros(3200, np.int16)
    return np.concatenate((edge, resampler.push(speech), resampler.flush(), edge))


def plain(text: str) -> list[str]:
    return "".join(c.lower() if c.isalnum() or c == " " else " " for c in text).split()


@pytest.fixture(scope="module")
def parts(embedded: CascadeConfig) -> Parts:
    return load_parts(embedded)


@pytest.mark.weights
async def test_a_spoken_turn_comes_back_as_speech_that_says_its_text(
    embedded: CascadeConfig, parts: Parts
) -> None:
    question = heard(parts, "Good morning. What could I cook for dinner tonight?")
    backend = CascadeBackend(embedded, load=lambda _: parts)
    until = len(question)
    asked = ResponseRequest(
        instructions="You are a friendly voice assistant.",
        messages=(Message("user", (UtterancePart("u", until),)),),
        speculative=True,
        max_output_tokens=40,
        temperature=0.0,
    )
    async with running(backend) as stage:
        await stage.tell(OpenSession(session="a"), ConfigureListening(session="a", partials=True))
        for start in range(0, until, 4800):
            pcm = bytes_from_int16(question[start : start + 4800])
            await stage.tell(Hear(session="a", utterance="u", start=start, pcm=pcm))
            seen = len(stage.outputs.get("a", []))
            with anyio.move_on_after(0.3):
                await stage.until("a", lambda outputs, seen=seen: len(outputs) > seen)  # type: ignore[misc]
        await stage.tell(
            JudgeTurn(session="a", utterance="u", at=until),
            Respond(session="a", generation=1, request=asked),
            EndUtterance(session="a", utterance="u", end=until),
        )
        outputs = await stage.until("a", has(ResponseEnded))
        outputs = await stage.until("a", has(TranscriptFinal))
        outputs = await stage.until("a", has(TurnJudged))
        (final,) = (output for output in outputs if isinstance(output, TranscriptFinal))
        assert plain(final.text) == plain("Good morning. What could I cook for dinner tonight?")
        deltas = "".join(o.delta for o in outputs if isinstance(o, TranscriptDelta))
        assert plain(deltas) == plain(final.text)
        (end,) = (output for output in outputs if isinstance(output, ResponseEnded))
        assert end.reason in ("completed", "max_output_tokens")
        assert end.usage.input_tokens > 20
        assert 0 < end.usage.output_tokens <= 40
        assert end.usage.cached_tokens > 0
        speech = [output for output in outputs if isinstance(output, SpeechGenerated)]
        said = "".join(output.text for output in speech)
        pcm = b"".join(output.pcm for output in speech)
        await stage.tell(
            AlignSpeech(session="a", reference="r", text=speech[0].text, pcm=speech[0].pcm)
        )
        aligned = (await stage.until("a", has(SpeechAligned)))[-1]
        assert "".join(word.text for word in aligned.words) == speech[0].text
        times = [word.end_ms for word in aligned.words]
        assert times == sorted(times)
    resampler = Resampler(24_000, 16_000, np.float32)
    audio = np.concatenate((resampler.push(int16_from_bytes(pcm)), resampler.flush()))
    understood = Whisper(Path(embedded.recognizer)).transcribe(audio).text
    words = plain(said)
    assert len(set(words) & set(plain(understood))) >= 0.7 * len(set(words))


@pytest.mark.weights
async def test_a_cancelled_answer_frees_everything_for_the_next(
    embedded: CascadeConfig, parts: Parts
) -> None:
    backend = CascadeBackend(embedded, load=lambda _: parts)
    async with running(backend) as stage:
        await stage.tell(OpenSession(session="a"), OpenSession(session="b"))
        for generation in range(1, 5):
            session = "ab"[generation % 2]
            await stage.tell(respond(session, generation, "Tell me a long story about the sea."))
            if generation > 2:
                await stage.until(
                    session,
                    lambda outputs, number=generation: any(  # type: ignore[misc]
                        isinstance(o, SpeechGenerated) and o.generation == number for o in outputs
                    ),
                )
            await stage.tell(CancelResponse(session=session, generation=generation))
            outputs = await stage.until(
                session,
                lambda outputs, number=generation: any(  # type: ignore[misc]
                    isinstance(o, ResponseEnded) and o.generation == number for o in outputs
                ),
            )
            assert isinstance(outputs[-1], ResponseEnded)
            assert outputs[-1].reason == "cancelled"
        await stage.tell(respond("a", 9, "Hello!", modality="text", max_output_tokens=20))
        outputs = await stage.until("a", lambda outputs: outputs[-1].generation == 9)
        await stage.until(
            "a",
            lambda outputs: isinstance(outputs[-1], ResponseEnded) and outputs[-1].generation == 9,
        )
        assert stage.outputs["a"][-1].reason in ("completed", "max_output_tokens")


# -- pictures -------------------------------------------------------------------------------

PICTURES = Path(__file__).parent.parent / "data" / "pictures"


def prompted(language: StandInLanguage) -> str:
    parts = language.requests[-1].messages[-1].parts
    return " ".join(part.text for part in parts if isinstance(part, TextPart))


async def test_what_the_camera_shows_is_in_the_prompt_of_the_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eyes, "FIRST_SECONDS", PATIENCE_S)
    backend, language = stand_in(vision=str(WEIGHTS))
    async with running(backend) as stage:
        assert backend.spec.sees
        language.answers = [[TextPiece("Yes. "), END] for _ in range(2)]
        await stage.tell(OpenSession(session="s"))
        seen = []
        for number, jpeg in enumerate(((PICTURES / "astronaut.jpg").read_bytes(), b"")):
            await stage.tell(See(session="s", jpeg=jpeg))
            await stage.tell(respond("s", number, "What do you see?"))
            await stage.until("s", has(ResponseEnded, number + 1))
            seen.append(prompted(language))
        assert "a person who looks happy" in seen[0]
        assert "seconds ago" in seen[0]
        assert seen[1] == "What do you see?"


async def test_pictures_of_either_lane_reach_a_model_without_eyes_in_words() -> None:
    backend, language = stand_in(vision=str(WEIGHTS))
    async with running(backend) as stage:
        jpeg = base64.b64encode((PICTURES / "astronaut.jpg").read_bytes()).decode()
        picture = ImagePart(f"data:image/jpeg;base64,{jpeg}")
        message = Message("user", (picture, TextPart("Who is that?")))
        for batch in (False, True):
            language.answers = [[TextPiece("Eileen. "), END]]
            name = "batch" if batch else "talk"
            request = ResponseRequest(instructions="", messages=(message,), modality="text")
            await stage.tell(OpenSession(session=name, batch=batch))
            await stage.tell(Respond(session=name, generation=1, request=request))
            await stage.until(name, has(ResponseEnded))
            assert prompted(language) == (
                "(The user shows a picture of a person who looks happy.) Who is that?"
            )
