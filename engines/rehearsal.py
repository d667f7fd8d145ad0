"""A turn that nobody hears: what a cascade does before it says that it is ready."""

import logging
from collections.abc import Callable

import anyio
import numpy as np
from anyio.streams.memory import MemoryObjectReceiveStream

from duologue.codecs.pcm import bytes_from_int16, int16_from_bytes
from duologue.codecs.resample import Resampler
from duologue.engines.cascade_session import CascadeSession, Stages
from duologue.engines.engine import (
    HEARD_RATE,
    SPOKEN_RATE,
    CancelResponse,
    EndUtterance,
    EngineError,
    Hear,
    JudgeTurn,
    Message,
    Output,
    Respond,
    ResponseEnded,
    ResponseRequest,
    SpeechGenerated,
    TranscriptFailed,
    TranscriptFinal,
    UtterancePart,
)
from duologue.engines.fairness import Rank
from duologue.engines.speaking import length_ms

SESSION = "rehearsal"
WORDS = "Hello, how are you?"
UTTERANCE = "utterance"
QUICK_ENOUGH = 0.5
"""Seconds that a second of speech may take to make. A voice that takes more answers late, and falls
behind what is heard of it as soon as anything else runs."""

log = logging.getLogger(__name__)


class Rehearsal:
    """Speech to words to an answer to its speech, through the same code as every turn."""

    def __init__(
        self,
        stages: Stages,
        outputs: MemoryObjectReceiveStream[Output],
        clock: Callable[[], float],
        choose_voice: bool = False,
    ) -> None:
        """`clock` gives seconds. `choose_voice`: the default becomes the first voice that is quick
        enough on this machine, the quickest where none is."""
        self._choose_voice = choose_voice
        self._stages = stages
        self._outputs = outputs
        self._clock = clock
        self._paces: dict[str, float] = {}

    async def run(self, session: CascadeSession) -> None:
        """Raises EngineError with the reason when a stage fails."""
        heard = UtterancePart(UTTERANCE)
        request = ResponseRequest(instructions="", messages=(Message("user", (heard,)),))
        opening = ResponseRequest(instructions="", messages=())
        async with anyio.create_task_group() as group:
            if not self._stages.language.remote:
                # The longest step; the voice and the recogniser have their first calls meanwhile.
                group.start_soon(self._stages.language.warm, SESSION, opening)
            speech = await self._voice()
            if self._choose_voice:
                self._stages.voices.catalogue.default = self._quick_enough()
            failure = await self._hear(session, speech)
        if failure:
            raise EngineError(f"the recogniser failed: {failure}")
        if not self._stages.language.remote:
            session.take(Respond(session=SESSION, generation=1, request=request))
            await self._answer(session)

    def _quick_enough(self) -> str:
        default = self._stages.voices.catalogue.default
        enough = [name for name, pace in self._paces.items() if pace <= QUICK_ENOUGH]
        chosen = enough[0] if enough else min(self._paces, key=self._paces.__getitem__)
        if chosen != default:
            log.warning(
                "the voice %s needs %.1f s for a second of speech here: the default is %s",
                default,
                self._paces[default],
                chosen,
            )
        return chosen

    async def _voice(self) -> bytes:
        """All models' first call, and what the default voice said."""
        catalogue = self._stages.voices.catalogue
        said: dict[int, bytes] = {}
        for name in (catalogue.default, *catalogue.names):
            voice = catalogue.find(name)
            key = id(voice.synthesizer)
            if key not in said:
                begun = self._clock()
                said[key] = await self._stages.voices.say(
                    SESSION, Rank.FIRST, WORDS, voice, 1.0, lambda: False
                )
                length = max(length_ms(said[key]), 1.0)
                self._paces[name] = (self._clock() - begun) * 1000 / length
        return next(iter(said.values()))

    async def _hear(self, session: CascadeSession, speech: bytes) -> str:
        """Wait for the words; "" when they came, else why not."""
        resampler = Resampler(SPOKEN_RATE, HEARD_RATE, np.int16)
        samples = np.concatenate((resampler.push(int16_from_bytes(speech)), resampler.flush()))
        pcm = bytes_from_int16(samples)
        session.take(Hear(session=SESSION, utterance=UTTERANCE, start=0, pcm=pcm))
        session.take(JudgeTurn(session=SESSION, utterance=UTTERANCE, at=len(samples)))
        session.take(EndUtterance(session=SESSION, utterance=UTTERANCE, end=len(samples)))
        async for output in self._outputs:
            if isinstance(output, TranscriptFailed):
                return output.message
            if isinstance(output, TranscriptFinal):
                break
        return ""

    async def _answer(self, session: CascadeSession) -> None:
        """Wait for the first speech. What the models say is not judged."""
        async for output in self._outputs:
            if isinstance(output, SpeechGenerated):
                session.take(CancelResponse(session=SESSION, generation=1))
            elif isinstance(output, ResponseEnded):
                if output.failure is not None:
                    raise EngineError(f"the answer failed: {output.failure.message}")
                return
