"""A turn that nobody hears: what a cascade does before it says that it is ready."""

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
from duologue.engines.speaking import Voices
from duologue.engines.voice_trial import say_alone, try_voices

SESSION = "rehearsal"
UTTERANCE = "utterance"


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
            failure = await self._hear(session, speech)
        if failure:
            raise EngineError(f"the recogniser failed: {failure}")
        if not self._stages.language.remote:
            session.take(Respond(session=SESSION, generation=1, request=request))
            await self._answer(session)

    async def _voice(self) -> bytes:
        """All voices' first call, and what the default one said."""
        voices = self._stages.voices
        if isinstance(voices, Voices):
            return await try_voices(voices, SESSION, self._clock, self._choose_voice)
        return await say_alone(voices, SESSION, self._clock)

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
