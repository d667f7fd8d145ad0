"""A frame-locked model as an engine that takes turns: what it says by itself becomes answers.

The model decides when to speak. When it begins, the session is offered an answer
(:class:`duologue.engines.engine.SpeechOffered`) and asks for it; the answer ends when the model has
been silent for a while. What the user says goes to the model as it comes, whoever speaks; where
there is a recogniser beside the model, it writes down the user's utterances.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal, assert_never

import anyio
import msgspec
import numpy as np

from duologue.codecs.media import Int16Samples
from duologue.codecs.pcm import bytes_from_int16, int16_from_bytes
from duologue.codecs.resample import Resampler
from duologue.engines.duplex import (
    BeginDuplex,
    Duplex,
    DuplexBegun,
    DuplexFailed,
    DuplexOutput,
    DuplexParked,
    DuplexResumed,
    DuplexSpec,
    DuplexStream,
    ForcedKind,
    ForceText,
    FrameHeard,
    FrameSpoken,
    InterruptDuplex,
    ResetDuplex,
    TextForced,
)
from duologue.engines.engine import (
    AlignSpeech,
    CancelResponse,
    Command,
    ConfigureListening,
    DropUtterance,
    EndUtterance,
    Engine,
    EngineFailure,
    EngineSpec,
    Hear,
    JudgeTurn,
    Output,
    Respond,
    ResponseEnded,
    SpeechAligned,
    SpeechGenerated,
    SpeechOffered,
    TextGenerated,
    TextPart,
    TranscriptFailed,
    TurnJudged,
    Usage,
)
from duologue.engines.scribes import Scribes
from duologue.engines.spoken_turns import LONGEST_TICKS, SpokenTurns

PATIENCE_TICKS: Final = 50
"""For how long an answer that was asked for waits for the model to speak: 4 s."""

OFFER_AGAIN_TICKS: Final = 5

AHEAD: Final = 2
"""Frames that the model has not heard yet; the others of a client that sends faster wait here."""

WAITING: Final = 750
"""A minute of frames that may wait; then the oldest are dropped."""

BOUNDLESS: Final = 2**31
"""Tokens of a history that never has to be cut: the model's own state has heard it."""


@dataclass(frozen=True, slots=True)
class Persona:
    """Who the model is to be."""

    voice: str = ""
    instructions: str = ""


class DuplexTurnsStream:
    """See :class:`duologue.engines.engine.EngineStream`; :meth:`listen` besides."""

    def __init__(
        self,
        session: str,
        stream: DuplexStream,
        spec: DuplexSpec,
        default_voice: str,
        scribes: Scribes | None = None,
    ) -> None:
        self._session = session
        self._scribe = None if scribes is None else scribes.open(session, self._put)
        self._stream = stream
        self._spec = spec
        self._default_voice = default_voice
        self._turns = SpokenTurns()
        self._outbox: deque[Output] = deque()
        self._waiting: anyio.CancelScope | None = None
        self._held: deque[FrameSpoken] = deque(maxlen=LONGEST_TICKS)
        self._since_offer = 0
        self._answer: Respond | None = None
        self._spoken = 0
        self._patience = 0
        self._persona: Persona | None = None
        self._frames: deque[bytes] = deque(maxlen=WAITING)
        self._sent = 0
        self._heard = 0
        self._begun = True
        self._rate = self._spec.sample_rate
        self._resampler = Resampler(self._rate, self._spec.sample_rate, np.int16)
        self._pending = np.zeros(0, np.int16)

    # -- the session's side -------------------------------------------------------------------

    def listen(self, samples: Int16Samples, rate: int, persona: Persona) -> None:
        """All that the user says, without gaps, at ``rate``. Raises EngineLost.

        The model is told who it is to be when this is called first; of new instructions later on
        too, where it can be.
        """
        self._become(persona)
        if rate != self._rate:
            self._rate = rate
            self._resampler = Resampler(rate, self._spec.sample_rate, np.int16)
        sound = np.concatenate((self._pending, self._resampler.push(samples)))
        size = self._spec.frame_samples
        whole = len(sound) - len(sound) % size
        for start in range(0, whole, size):
            self._hear(sound[start : start + size])
        self._pending = sound[whole:].copy()

    def send(self, command: Command) -> None:
        """Raises EngineLost when the worker is gone."""
        match command:
            case Respond():
                self._respond(command)
            case CancelResponse(generation=generation):
                if self._answer is not None and self._answer.generation == generation:
                    self._stream.send(InterruptDuplex(session=""))
                    self._turns.stop()
                    self._held.clear()
                    self._end("cancelled")
            case JudgeTurn(utterance=utterance, at=at):
                judged = TurnJudged(utterance, at, 1.0, session=self._session)
                self._put(judged)
            case AlignSpeech(reference=reference):
                self._put(SpeechAligned(reference, (), session=self._session))
            case ConfigureListening() | Hear() | EndUtterance() | DropUtterance() if self._scribe:
                self._scribe.tell(command)
            case EndUtterance(utterance=utterance):
                reason = "this model does not write down what it hears"
                self._put(TranscriptFailed(utterance, reason, session=self._session))
            case _:
                return  # of no meaning to a model that hears everything

    async def receive(self) -> Output:
        """The next output, in order. Raises EngineLost after the last one."""
        while not self._outbox:
            output: DuplexOutput | None = None
            with anyio.CancelScope() as self._waiting:
                output = await self._stream.receive()
            self._waiting = None
            if output is not None:
                self._take(output)
        return self._outbox.popleft()

    async def aclose(self) -> None:
        if self._scribe is not None:
            self._scribe.close()
        await self._stream.aclose()

    # -- what goes to the model ---------------------------------------------------------------

    def _become(self, persona: Persona) -> None:
        before = self._persona
        if persona == before:
            return
        self._persona = persona
        if before is None:
            other = persona.voice not in ("", self._default_voice)
            if other or (persona.instructions and self._spec.instructions):
                begin = BeginDuplex(
                    session="", voice=persona.voice, instructions=persona.instructions
                )
                self._begun = False
                self._stream.send(ResetDuplex(session="", begin=begin))
        elif persona.instructions != before.instructions and self._spec.instructions:
            self._force("instructions", persona.instructions)

    def _force(self, kind: ForcedKind, text: str) -> None:
        if text.strip():
            self._stream.send(ForceText(session="", reference="", kind=kind, text=text))

    def _hear(self, samples: Int16Samples) -> None:
        self._frames.append(bytes_from_int16(samples))
        self._pump()

    def _pump(self) -> None:
        while self._frames and self._begun and self._sent - self._heard < AHEAD:
            self._sent += 1
            frame = FrameHeard(session="", sequence=self._sent, pcm=self._frames.popleft())
            self._stream.send(frame)

    def _respond(self, command: Respond) -> None:
        if self._answer is not None:
            failure = EngineFailure("engine_error", "the model gives one answer at a time")
            self._put(
                ResponseEnded(command.generation, "failed", failure=failure, session=self._session)
            )
            return
        self._answer = command
        self._spoken = 0
        self._patience = PATIENCE_TICKS
        if not self._turns.speaking:
            self._tell_news(command)
            if self._persona is None:
                # A model that hears nothing has no time to speak in.
                self._become(Persona(command.request.voice, command.request.instructions))
                self._hear(np.zeros(self._spec.frame_samples, np.int16))
        while self._held:
            self._say(self._held.popleft())

    def _tell_news(self, command: Respond) -> None:
        """What the user wrote last, which the model has not heard."""
        last = command.request.messages[-1] if command.request.messages else None
        if last is not None and last.role != "assistant":
            texts = (part.text for part in last.parts if isinstance(part, TextPart))
            self._force("thinking", " ".join(texts))

    # -- what comes from it -------------------------------------------------------------------

    def _take(self, output: DuplexOutput) -> None:
        match output:
            case FrameSpoken():
                self._take_frame(output)
            case DuplexFailed(code=code, message=message):
                self._begun = True
                if self._answer is not None:
                    self._end("failed", EngineFailure(code, message))
            case DuplexBegun():
                self._begun = True
                self._pump()
            case DuplexParked() | DuplexResumed() | TextForced():
                return
            case _:
                assert_never(output)

    def _take_frame(self, frame: FrameSpoken) -> None:
        # A frame of silence was the model's when it had no other.
        self._heard = frame.heard if frame.heard >= 0 else self._sent
        self._pump()
        verdict = self._turns.push(int16_from_bytes(frame.pcm), frame.text)
        match verdict:
            case "quiet":
                self._patience -= 1
                if self._answer is not None and self._patience <= 0:
                    self._end("completed")
            case "ends":
                self._held.clear()
                if self._answer is not None:
                    self._end("completed")
            case "begins" | "goes_on":
                if self._answer is not None:
                    self._say(frame)
                else:
                    self._offer(frame, verdict == "begins")
            case _:
                assert_never(verdict)

    def _offer(self, frame: FrameSpoken, first: bool) -> None:
        self._held.append(frame)
        self._since_offer += 1
        if first or self._since_offer >= OFFER_AGAIN_TICKS:
            self._since_offer = 0
            self._put(SpeechOffered(session=self._session))

    def _say(self, frame: FrameSpoken) -> None:
        if self._answer is None:
            return
        self._spoken += 1
        generation = self._answer.generation
        if self._answer.request.modality == "audio":
            said = SpeechGenerated(generation, frame.pcm, frame.text, session=self._session)
            self._put(said)
        elif frame.text:
            self._put(TextGenerated(generation, frame.text, session=self._session))

    def _end(
        self,
        reason: Literal["completed", "cancelled", "failed"],
        failure: EngineFailure | None = None,
    ) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        usage = Usage(output_tokens=self._spoken)
        self._put(ResponseEnded(answer.generation, reason, usage, failure, session=self._session))

    def _put(self, output: Output) -> None:
        self._outbox.append(output)
        if self._waiting is not None:
            self._waiting.cancel()


class DuplexTurns:
    """See :class:`duologue.engines.engine.Engine`."""

    def __init__(self, duplex: Duplex, engine: Engine, scribes: Scribes | None = None) -> None:
        """``engine`` is what ``duplex`` runs on: it tells its spec. ``scribes`` write down what
        users say; without them nobody does."""
        self._duplex = duplex
        self._engine = engine
        self._scribes = scribes

    @property
    def spec(self) -> EngineSpec:
        recognizer = "" if self._scribes is None else self._scribes.recognizer
        return msgspec.structs.replace(
            self._engine.spec, context_tokens=BOUNDLESS, recognizer=recognizer
        )

    @property
    def ready(self) -> bool:
        return self._duplex.ready

    async def open(self, session: str) -> DuplexTurnsStream:
        """A session that has begun. Raises EngineFull, EngineUnavailable."""
        stream = await self._duplex.open(session, BeginDuplex(session=""))
        default_voice = self._engine.spec.default_voice
        return DuplexTurnsStream(session, stream, self._duplex.spec, default_voice, self._scribes)
