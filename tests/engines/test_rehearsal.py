from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from duologue.engines.cascade_session import CascadeSession, Stages
from duologue.engines.engine import EngineError, OpenSession, Output, Usage
from duologue.engines.language import Finished, LanguageError, TextPiece
from duologue.engines.pulse import Pulse
from duologue.engines.recognition import Recognition
from duologue.engines.rehearsal import SESSION, Rehearsal
from duologue.engines.speaking import Voices
from duologue.engines.stand_ins import (
    StandInDetector,
    StandInLanguage,
    StandInRecognizer,
    StandInSynthesizer,
)
from duologue.engines.voice_trial import WORDS
from duologue.models.voice import VoiceCatalogue
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


class Cast:
    def __init__(self) -> None:
        self.recognizer = StandInRecognizer()
        self.detector = StandInDetector()
        self.language = StandInLanguage()
        self.language.answers = [[TextPiece("Hello there. And"), anyio.Event()]]
        self.voices = [
            StandInSynthesizer(22_050, ("plain",)),
            StandInSynthesizer(24_000, ("one", "two")),
        ]
        self.catalogue = VoiceCatalogue(self.voices, "one")
        self.times = iter([0.0] * 4)

    @asynccontextmanager
    async def on_stage(self) -> AsyncIterator[tuple[Rehearsal, CascadeSession]]:
        stages = Stages(
            Recognition(self.recognizer, self.detector, Pulse()),
            self.language,
            Voices(self.catalogue, Pulse()),
        )
        send, receive = anyio.create_memory_object_stream[Output](100)
        session = CascadeSession(
            OpenSession(session=SESSION), stages, send.send_nowait, lambda: 0.0
        )
        with send, receive:
            async with anyio.create_task_group() as group:
                await group.start(session.live)
                try:
                    yield Rehearsal(stages, receive, lambda: next(self.times), True), session
                finally:
                    session.close()

    async def rehearse(self) -> str:
        """The default voice afterwards."""
        failure: EngineError | None = None
        with anyio.fail_after(PATIENCE_S):
            async with self.on_stage() as (rehearsal, session):
                try:
                    await rehearsal.run(session)
                except EngineError as error:
                    failure = error
        if failure is not None:
            raise failure
        return self.catalogue.default


async def test_every_model_has_its_first_call() -> None:
    cast = Cast()
    await cast.rehearse()
    assert cast.voices[0].said == [WORDS]
    assert cast.voices[1].said[0] == WORDS
    assert cast.detector.heard
    assert cast.recognizer.calls
    assert len(cast.language.warmed) == 1
    assert cast.voices[1].said[-1] == "Hello there."
    assert cast.language.left == 1


async def test_a_model_elsewhere_is_not_asked() -> None:
    cast = Cast()
    cast.language.remote = True
    await cast.rehearse()
    assert cast.recognizer.calls
    assert cast.language.requests == []
    assert cast.language.warmed == []


async def test_a_recogniser_that_fails_is_told() -> None:
    cast = Cast()
    cast.recognizer.failure = RuntimeError("no weights")
    with pytest.raises(EngineError, match="no weights"):
        await cast.rehearse()


async def test_an_answer_that_fails_is_told() -> None:
    cast = Cast()
    cast.language.answers = [[LanguageError.of("engine_error", "no memory")]]
    with pytest.raises(EngineError, match="no memory"):
        await cast.rehearse()


async def test_an_answer_without_words_is_good_enough() -> None:
    cast = Cast()
    cast.language.answers = [[Finished("completed", Usage())]]
    await cast.rehearse()


@pytest.mark.parametrize(
    ("one", "plain", "chosen"),
    [(0.06, 0.01, "one"), (0.2, 0.06, "plain"), (0.2, 0.3, "one"), (0.5, 0.3, "plain")],
    ids=["quick enough", "too slow", "both too slow", "both too slow, one less so"],
)
async def test_a_voice_that_is_too_slow_here_is_not_the_default(
    one: float, plain: float, chosen: str
) -> None:
    cast = Cast()
    # The words take 140 ms to say; the default voice is tried first.
    cast.times = iter([0.0, one, 5.0, 5.0 + plain])
    assert await cast.rehearse() == chosen
