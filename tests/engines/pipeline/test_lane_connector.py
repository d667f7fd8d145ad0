"""A cascade whose voices are in workers of their own: its turns, its cancels, its losses."""

import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import msgspec
import numpy as np
import psutil
import pytest

from duologue.codecs.pcm import bytes_from_int16
from duologue.engines.cascade import CascadeBackend, CascadeConfig, Parts
from duologue.engines.engine import (
    CancelResponse,
    EndUtterance,
    EngineSpec,
    Hear,
    Message,
    Output,
    Respond,
    ResponseEnded,
    ResponseRequest,
    SpeechGenerated,
    TextGenerated,
    TextPart,
    ToolCallStarted,
    Usage,
    UtterancePart,
)
from duologue.engines.in_process import open_in_process
from duologue.engines.language import CallEnded, CallStarted, Finished, Generated, TextPiece
from duologue.engines.lifeline import WorkerConfig
from duologue.engines.llama_prompts import LlamaStage
from duologue.engines.pipeline.stage_graph import TTS
from duologue.engines.pulse import Pulse
from duologue.engines.remote import RemoteEngine, RemoteStream
from duologue.engines.speaking import Voices
from duologue.engines.stage_backend import HostedStage, StageBackend
from duologue.engines.stand_ins import (
    StandInDetector,
    StandInLanguage,
    StandInRecognizer,
    StandInSynthesizer,
)
from duologue.engines.supervisor import SupervisionRules, Supervisor
from duologue.engines.voice_backend import VoicesConfig
from duologue.models.voice import VoiceCatalogue
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

END = Finished("completed", Usage())
LONG = "a" * 1000 + ". "
"""A sentence that takes 10 s to say."""

Answer = Sequence[Generated | Exception | anyio.Event]


@dataclass
class Cast:
    """A cascade with its ears and its language model in this process."""

    language: StandInLanguage
    stream: RemoteStream
    engine: RemoteEngine

    def answer_with(self, *pieces: Generated | anyio.Event) -> None:
        self.language.answers.append(pieces)

    def ask(self, generation: int, *parts: TextPart | UtterancePart, **fields: object) -> None:
        message = Message("user", parts or (TextPart("hi"),))
        request = ResponseRequest(instructions="", messages=(message,))
        request = msgspec.structs.replace(request, **fields)
        self.stream.send(Respond(session="s", generation=generation, request=request))

    async def rest(self) -> list[Output]:
        """Up to the end of an answer."""
        outputs: list[Output] = []
        with anyio.fail_after(PATIENCE_S):
            while not outputs or not isinstance(outputs[-1], ResponseEnded):
                outputs.append(await self.stream.receive())
        return outputs

    async def first(self, kind: type[Output]) -> Output:
        with anyio.fail_after(PATIENCE_S):
            while not isinstance(output := await self.stream.receive(), kind):
                pass
        return output


@asynccontextmanager
async def cast(directories: Sequence[str]) -> AsyncIterator[Cast]:
    language = StandInLanguage()
    language.answers = [[TextPiece("Hello. "), END]]  # for the rehearsal
    backend = CascadeBackend(
        CascadeConfig(
            recognizer="/r",
            turn_detector="/t",
            language=LlamaStage(path="/l.gguf", family="qwen"),
            capacity=2,
            voice_workers=tuple(directories),
        ),
        language=language,
        load=lambda _: Parts(StandInRecognizer(), StandInDetector(), ()),
    )
    async with open_in_process(backend) as engine:
        stream = await engine.open("s")
        yield Cast(language, stream, engine)
        await stream.aclose()


@asynccontextmanager
async def voice_workers(count: int) -> AsyncIterator[list[Supervisor]]:
    """Real processes with a tone for a voice; nothing of them is left."""
    config = WorkerConfig(
        name="voices",
        backend="voices",
        directory="",
        options=msgspec.msgpack.encode(VoicesConfig(tone=True)),
        log_level="warning",
        heartbeat_s=0.1,
    )
    rules = SupervisionRules(backoff_s=0.01)
    supervisors = [Supervisor(config, rules) for _ in range(count)]
    others = set(psutil.Process().children())
    async with anyio.create_task_group() as group:
        for supervisor in supervisors:
            group.start_soon(supervisor.run)
        yield supervisors
        group.cancel_scope.cancel()
    assert set(psutil.Process().children()) <= others


@asynccontextmanager
async def placed(workers: int) -> AsyncIterator[tuple[Cast, list[Supervisor]]]:
    async with voice_workers(workers) as supervisors:
        async with cast([str(supervisor.directory) for supervisor in supervisors]) as here:
            yield here, supervisors


async def until(met: Callable[[], bool]) -> None:
    """Wait for what another process or thread does."""
    with anyio.fail_after(PATIENCE_S):
        while not met():  # noqa: ASYNC110
            await anyio.sleep(0.005)


def loud(seconds: float) -> bytes:
    samples = np.full(int(seconds * 16_000), 8000, np.int16)
    samples[::2] *= -1
    return bytes_from_int16(samples)


def said(outputs: Sequence[Output]) -> str:
    return "".join(output.text for output in outputs if isinstance(output, SpeechGenerated))


def seconds(outputs: Sequence[Output]) -> float:
    return sum(len(o.pcm) for o in outputs if isinstance(o, SpeechGenerated)) / 48_000


# -- turns ----------------------------------------------------------------------------------


async def test_a_spoken_turn_is_answered_by_a_voice_in_another_process() -> None:
    async with placed(1) as (here, _):
        here.answer_with(TextPiece("Hello there. "), TextPiece("How are you?"), END)
        here.stream.send(Hear(session="s", utterance="u", start=0, pcm=loud(0.5)))
        here.stream.send(EndUtterance(session="s", utterance="u", end=8000))
        here.ask(1, UtterancePart("u"))
        outputs = await here.rest()
        assert said(outputs) == "Hello there. How are you?"
        assert seconds(outputs) == pytest.approx(0.01 * len("HellothereHowareyou"))
        end = outputs[-1]
        assert isinstance(end, ResponseEnded) and end.reason == "completed"
        heard = here.language.requests[-1].messages[0].parts[0]
        assert heard == TextPart("w0 w1 w2 w3 w4")
        assert here.engine.spec.voices == ("tone",)
        assert here.engine.spec.default_voice == "tone"


async def test_a_call_comes_after_the_speech_before_it() -> None:
    async with placed(1) as (here, _):
        here.answer_with(
            TextPiece("One moment. "), CallStarted("c", "f"), CallEnded("c", "{}"), END
        )
        here.ask(1)
        kinds = [type(output) for output in await here.rest()]
        assert kinds.index(SpeechGenerated) < kinds.index(ToolCallStarted)


async def test_an_answer_in_text_needs_no_voice() -> None:
    async with placed(1) as (here, supervisors):
        here.answer_with(TextPiece("Hello."), END)
        here.ask(1, modality="text")
        outputs = await here.rest()
        assert [type(output) for output in outputs] == [TextGenerated, ResponseEnded]


async def test_two_replicas_serve_and_a_session_keeps_its_own() -> None:
    async with placed(2) as (here, supervisors):
        await until(lambda: all(one.state == "ready" for one in supervisors))
        other = await here.engine.open("t")
        for generation in (1, 2):
            here.answer_with(TextPiece("Hello there."), END)
            here.ask(generation)
            assert said(await here.rest()) == "Hello there."
        here.answer_with(TextPiece("Hello you."), END)
        request = ResponseRequest(instructions="", messages=(Message("user", (TextPart("a"),)),))
        other.send(Respond(session="t", generation=1, request=request))
        with anyio.fail_after(PATIENCE_S):
            while not isinstance(await other.receive(), ResponseEnded):
                pass
        # Three answers, two sessions, two places.
        await until(lambda: sum(one.sessions for one in supervisors) == 2)
        await other.aclose()


# -- cancels --------------------------------------------------------------------------------


class Gated:
    """Voices in this process, behind the same sockets, that can be held up."""

    def __init__(self) -> None:
        self.synthesizer = StandInSynthesizer()
        self.voices = Voices(VoiceCatalogue([self.synthesizer]), Pulse())
        self.backend = StageBackend(self._load, 4)

    async def _load(self) -> tuple[HostedStage, EngineSpec]:
        spec = EngineSpec(
            model="voices", voices=("tone",), default_voice="tone", context_tokens=0, stage=TTS
        )
        return self.voices, spec


async def test_an_interruption_stops_the_language_model_and_the_voice() -> None:
    gated = Gated()
    async with open_in_process(gated.backend) as voices, cast([str(voices.directory)]) as here:
        more = anyio.Event()
        here.answer_with(TextPiece("Hello there. "), more, END)
        left = here.language.left
        gated.synthesizer.gate.close()
        here.ask(1)
        await until(lambda: gated.synthesizer.said[-1] == "Hello there.")
        here.stream.send(CancelResponse(session="s", generation=1))
        outputs = await here.rest()
        end = outputs[-1]
        assert isinstance(end, ResponseEnded) and end.reason == "cancelled"
        assert said(outputs) == ""
        await until(lambda: bool(gated.synthesizer.cancelled) and here.language.left > left)
        assert gated.synthesizer.cancelled == ["Hello there."]
        gated.synthesizer.gate.open()
        here.answer_with(TextPiece("And now?"), END)
        here.ask(2)
        outputs = await here.rest()
        assert said(outputs) == "And now?"
        assert {output.generation for output in outputs} == {2}  # type: ignore[union-attr]


async def test_the_listener_s_window_holds_a_voice_elsewhere_back() -> None:
    async with placed(1) as (here, _):
        here.answer_with(*[TextPiece(LONG)] * 10, END)
        here.ask(1)
        outputs: list[Output] = []
        with anyio.fail_after(PATIENCE_S):
            while seconds(outputs) < 20:
                outputs.append(await here.stream.receive())
        with anyio.move_on_after(1.0):
            while True:
                outputs.append(await here.stream.receive())
        assert seconds(outputs) <= 30
        here.stream.send(CancelResponse(session="s", generation=1))
        await here.rest()


async def test_a_session_that_ends_leaves_its_place_at_the_voice() -> None:
    async with placed(1) as (here, supervisors):
        here.answer_with(TextPiece("Hello there."), END)
        here.ask(1)
        await here.rest()
        await here.stream.aclose()
        await until(lambda: not supervisors[0].sessions)


# -- losses ---------------------------------------------------------------------------------


async def test_a_turn_whose_voice_is_killed_fails_and_the_next_one_works() -> None:
    async with placed(1) as (here, supervisors):
        here.answer_with(TextPiece("Hello there. "), anyio.Event(), END)
        here.ask(1)
        await here.first(SpeechGenerated)
        pid = supervisors[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        end = (await here.rest())[-1]
        assert isinstance(end, ResponseEnded) and end.failure is not None
        assert end.reason == "failed" and end.failure.code == "engine_unavailable"
        for generation in range(2, 1000):
            here.answer_with(TextPiece("Here again."), END)
            here.ask(generation)
            outputs = await here.rest()
            end = outputs[-1]
            assert isinstance(end, ResponseEnded)
            if end.reason == "completed":
                break
            await anyio.sleep(0.05)
        assert said(outputs) == "Here again."
        assert supervisors[0].restarts == 1


async def test_of_two_voices_the_one_that_lives_takes_the_next_turn_at_once() -> None:
    async with placed(2) as (here, supervisors):
        await until(lambda: all(one.state == "ready" for one in supervisors))
        here.answer_with(TextPiece("Hello there. "), anyio.Event(), END)
        here.ask(1)
        await here.first(SpeechGenerated)
        await until(lambda: any(one.sessions for one in supervisors))
        mine = next(one for one in supervisors if one.sessions)
        assert mine.pid is not None
        os.kill(mine.pid, signal.SIGKILL)
        end = (await here.rest())[-1]
        assert isinstance(end, ResponseEnded) and end.reason == "failed"
        here.answer_with(TextPiece("Here again."), END)
        here.ask(2)
        assert said(await here.rest()) == "Here again."


async def test_a_voice_that_does_not_answer_fails_its_request_only() -> None:
    gated = Gated()
    language = StandInLanguage()
    language.answers = [[TextPiece("Hello. "), END], [TextPiece("Hello. "), END]]
    async with open_in_process(gated.backend) as voices:
        backend = CascadeBackend(
            CascadeConfig(
                recognizer="/r",
                turn_detector="/t",
                language=LlamaStage(path="/l.gguf", family="qwen"),
                capacity=1,
                voice_workers=(str(voices.directory),),
                answer_s={TTS: 0.2},
            ),
            language=language,
            load=lambda _: Parts(StandInRecognizer(), StandInDetector(), ()),
        )
        async with open_in_process(backend) as engine:
            here = Cast(language, await engine.open("s"), engine)
            gated.synthesizer.gate.close()
            here.ask(1)
            end = (await here.rest())[-1]
            assert isinstance(end, ResponseEnded) and end.failure is not None
            assert end.failure.message == "The stage tts did not answer within 0.2 s."
            gated.synthesizer.gate.open()
            # The time to answer is short for what comes next as well.
            outputs: list[Output] = []
            generation = 1
            while said(outputs) != "Here again.":
                generation += 1
                here.answer_with(TextPiece("Here again."), END)
                here.ask(generation)
                outputs = await here.rest()
            await here.stream.aclose()
