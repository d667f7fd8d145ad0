"""The recogniser in a worker of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import numpy as np
import pytest

from duologue.codecs.pcm import bytes_from_int16
from duologue.codecs.resample import Resampler
from duologue.codecs.wav import read_wav
from duologue.engines.engine import (
    HEARD_RATE,
    AlignSpeech,
    ConfigureListening,
    EndUtterance,
    EngineFull,
    Hear,
    JudgeTurn,
    Output,
    SpeechAligned,
    TranscriptDelta,
    TranscriptFinal,
    TurnJudged,
)
from duologue.engines.in_process import open_in_process
from duologue.engines.recognition import Recognizer
from duologue.engines.recognizer_backend import RecognizerBackend, RecognizerConfig
from duologue.engines.remote import RemoteEngine, RemoteStream
from duologue.engines.stand_ins import StandInRecognizer
from duologue.models.weights import locate
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

QUESTION = Path(__file__).parent.parent / "data" / "question.wav"
LOUD = bytes_from_int16(np.tile(np.array([8000, -8000], np.int16), HEARD_RATE // 4))


@asynccontextmanager
async def listening(recognizer: Recognizer, capacity: int = 2) -> AsyncIterator[RemoteEngine]:
    config = RecognizerConfig(recognizer="/models/whisper-small", capacity=capacity)
    backend = RecognizerBackend(config, load=lambda config: recognizer)
    async with open_in_process(backend) as engine:
        yield engine


async def until_final(stream: RemoteStream) -> list[Output]:
    outputs: list[Output] = []
    with anyio.fail_after(PATIENCE_S):
        while not outputs or not isinstance(outputs[-1], TranscriptFinal):
            outputs.append(await stream.receive())
    return outputs


async def test_an_utterance_is_written() -> None:
    async with listening(StandInRecognizer()) as engine:
        stream = await engine.open("s")
        stream.send(Hear("u", 0, LOUD, session="s"))
        stream.send(EndUtterance("u", len(LOUD) // 2, session="s"))
        final = (await until_final(stream))[-1]
        assert isinstance(final, TranscriptFinal)
        assert final.text
        assert final.seconds == 0.5
        assert (engine.spec.recognizer, engine.spec.voices) == ("whisper-small", ())


async def test_words_come_while_they_are_said_where_they_are_wanted() -> None:
    async with listening(StandInRecognizer()) as engine:
        stream = await engine.open("s")
        stream.send(ConfigureListening(session="s", partials=True))
        for part in range(4):
            stream.send(Hear("u", part * len(LOUD) // 2, LOUD, session="s"))
        stream.send(EndUtterance("u", 2 * len(LOUD), session="s"))
        *more, final = await until_final(stream)
        assert isinstance(final, TranscriptFinal)
        said = "".join(one.delta for one in more if isinstance(one, TranscriptDelta))
        assert said.strip() == final.text


async def test_whoever_pauses_is_done_and_words_have_their_times() -> None:
    async with listening(StandInRecognizer()) as engine:
        stream = await engine.open("s")
        stream.send(Hear("u", 0, LOUD, session="s"))
        stream.send(JudgeTurn("u", len(LOUD) // 2, session="s"))
        stream.send(AlignSpeech("r", "one two", bytes(48_000), session="s"))
        with anyio.fail_after(PATIENCE_S):
            answers = {type(await stream.receive()) for _ in range(2)}
        assert answers == {TurnJudged, SpeechAligned}


async def test_a_session_has_its_place_until_it_is_closed() -> None:
    async with listening(StandInRecognizer(), capacity=1) as engine:
        stream = await engine.open("a")
        with pytest.raises(EngineFull):
            await engine.open("b")
        await stream.aclose()
        again = await engine.open("b")
        again.send(Hear("u", 0, LOUD, session="b"))
        again.send(EndUtterance("u", len(LOUD) // 2, session="b"))
        await until_final(again)


async def test_one_that_can_not_recognise_does_not_start() -> None:
    class Broken(StandInRecognizer):
        def transcribe(self, *arguments: object, **more: object) -> None:  # type: ignore[override]
            raise RuntimeError("no such instruction")

    with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True, match=None):
        async with listening(Broken()):
            raise AssertionError("it started")


@pytest.mark.weights
async def test_the_embedded_recogniser_writes_a_question() -> None:
    config = RecognizerConfig(recognizer=str(locate("whisper-tiny.en")))
    question = read_wav(QUESTION.read_bytes()).mono()
    resampler = Resampler(question.rate, HEARD_RATE, np.int16)
    samples = np.concatenate((resampler.push(question.samples.astype(np.int16)), resampler.flush()))
    async with open_in_process(RecognizerBackend(config)) as engine:
        stream = await engine.open("s")
        stream.send(Hear("u", 0, bytes_from_int16(samples), session="s"))
        stream.send(EndUtterance("u", len(samples), session="s"))
        final = (await until_final(stream))[-1]
        assert isinstance(final, TranscriptFinal)
        assert "?" in final.text
