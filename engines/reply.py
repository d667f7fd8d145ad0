"""One answer: from its request to its one end."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, cast

import msgspec

from duologue.engines.backend import Emit
from duologue.engines.engine import (
    EngineFailure,
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
    FinishReason,
    LanguageError,
    LanguageStage,
    TextPiece,
)
from duologue.engines.pipeline.flow import Chunk, Flow
from duologue.engines.pipeline.pipeline_run import (
    HomeOutlet,
    Inbox,
    InProcess,
    PipelineRun,
    RunKey,
    StageError,
    StageFatal,
)
from duologue.engines.pipeline.stage_graph import ASR, CASCADE, LLM, TTS, Kind
from duologue.engines.recognition import RecognitionFailed
from duologue.engines.speaking import SpeechWindow, VoiceStage, length_ms, pieces
from duologue.engines.stage_messages import Clause, Spoken
from duologue.models.clauses import ClauseSplitter

MARGIN_MS = 150.0
"""A clause should be spoken so long before the one before it has been played."""

EndReason = Literal["completed", "max_output_tokens", "content_filter", "cancelled", "failed"]
Part = TextPart | ImagePart | UtterancePart

log = logging.getLogger(__name__)

Transcribe = Callable[[str, int | None, Callable[[], Rank]], Awaitable[str]]
"""An utterance's words up to a position; the rank tells how urgent they are."""

Show = Callable[[ResponseRequest], Awaitable[ResponseRequest]]
"""A request, with what is in view."""


class Reply:
    """Runs one answer. All methods are for the event loop."""

    def __init__(
        self,
        command: Respond,
        language: LanguageStage,
        voices: VoiceStage,
        transcribe: Transcribe,
        emit: Emit,
        clock: Callable[[], float],
        answer_s: Mapping[str, float] | None = None,
        show: Show | None = None,
    ) -> None:
        """`answer_s`: see :class:`duologue.engines.pipeline.flow.Flow`; `show` adds what is in
        view."""
        self._session = command.session
        self.generation = command.generation
        self._request = command.request
        self._language = language
        self._transcribe = transcribe
        self._show = show
        self._emit = emit
        self._clock = clock
        self._window = SpeechWindow(command.request.speculative)
        self._pipeline = PipelineRun(
            RunKey(command.session, command.generation),
            Flow(CASCADE, final=TTS if self._spoken else LLM, answer_s=answer_s),
            {ASR: InProcess(self._hear), LLM: InProcess(self._think), TTS: voices},
            self._deliver,
            clock,
            self._on_hand,
        )
        self._reason: FinishReason = "completed"
        self._usage = Usage()
        self._pieces = 0
        self._handed = False
        self._silent = ""
        self._begun = 0.0
        self._ms_per_letter = 0.0
        self.ended = False

    @property
    def _spoken(self) -> bool:
        return self._request.modality == "audio"

    async def run(self) -> None:
        """Answer to the end. The task's outermost line. Raises StageFatal."""
        try:
            outcome = await self._pipeline.run({"": self._request})
            if outcome.failure is not None:
                self._end("failed", outcome.failure)
            elif outcome.reason == "completed":
                self._say_silently()
                self._end(self._reason)
        except StageFatal:
            self._fail()
            raise
        except Exception:
            log.exception("session %s: answer %d failed", self._session, self.generation)
            self._fail()

    def cancel(self) -> None:
        """Stop, and say so now; what still runs ends at its next step, unheard."""
        self._end("cancelled")
        self._pipeline.cancel()

    def abandon(self) -> None:
        """Stop; nobody is there to be told."""
        self.ended = True
        self._pipeline.cancel()

    def acknowledge(self, sent_ms: int) -> None:
        """The listener has been sent so much."""
        self._window.acknowledge(sent_ms, self._clock())
        self._pipeline.hold(TTS, not self._window.open)

    # -- the stages -------------------------------------------------------------------------

    async def _hear(self, key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        """Put the request in words; nothing, where it needs no answer."""
        async for _ in inbox:
            try:
                request = await self._heard()
            except RecognitionFailed as error:
                words = f"What was said could not be recognised: {error}"
                raise StageError.of("engine_error", words) from error
            if request is not None:
                if self._show is not None:
                    request = await self._show(request)
                await outlet.put(Kind.PROMPT, request)

    async def _think(self, key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        """Ask the model, and pass its words on."""
        async for chunk in inbox:
            request = cast(ResponseRequest, chunk.items[0])
            try:
                await (self._talk if self._spoken else self._write)(request, outlet)
            except LanguageError as error:
                raise StageError(error.failure) from error

    async def _heard(self) -> ResponseRequest | None:
        """The request with words for what was said.

        ``None`` when the last thing that the user did was to make a sound without words: noise is
        not answered.
        """
        messages: list[Message] = []
        wordless = False
        for message in self._request.messages:
            in_words = await self._in_words(message)
            wordless = bool(message.parts) and not in_words.parts
            if in_words.parts or in_words.tool_calls or message.role == "tool":
                messages.append(in_words)
        if wordless:
            return None
        return msgspec.structs.replace(self._request, messages=tuple(messages))

    async def _in_words(self, message: Message) -> Message:
        parts: list[Part] = []
        for part in message.parts:
            if isinstance(part, UtterancePart):
                text = await self._transcribe(part.utterance, part.until, self._first_rank)
                if not text:
                    continue
                part = TextPart(text)
            parts.append(part)
        return msgspec.structs.replace(message, parts=tuple(parts))

    async def _write(self, request: ResponseRequest, outlet: HomeOutlet) -> None:
        """Answer in text."""
        async with self._language.answer(self._session, request, self._first_rank) as answer:
            async for piece in answer:
                match piece:
                    case Began():
                        self._begin(piece)
                    case TextPiece():
                        self._count()
                        await outlet.put(Kind.TEXT, piece.text)
                    case Finished():
                        return self._finish(piece)
                    case CallStarted() | CallDelta() | CallEnded():
                        await outlet.put(Kind.CALL, piece)

    async def _talk(self, request: ResponseRequest, outlet: HomeOutlet) -> None:
        """Answer clause by clause."""
        splitter = ClauseSplitter(self._hurried)
        async with self._language.answer(self._session, request, self._next_rank) as answer:
            async for piece in answer:
                match piece:
                    case Began():
                        self._begin(piece)
                    case TextPiece():
                        self._count()
                        for clause in splitter.push(piece.text):
                            await self._put_clause(clause, outlet)
                    case Finished():
                        for clause in splitter.flush():
                            await self._put_clause(clause, outlet)
                        return self._finish(piece)
                    case CallStarted() | CallDelta() | CallEnded():
                        for clause in splitter.flush():
                            await self._put_clause(clause, outlet)
                        if isinstance(piece, CallStarted):
                            # What was said before the call comes before it.
                            await outlet.settled()
                        await outlet.put(Kind.CALL, piece)

    async def _put_clause(self, text: str, outlet: HomeOutlet) -> None:
        self._handed = True
        request = self._request
        await outlet.put(Kind.CLAUSE, Clause(text, request.voice, request.speed))

    # -- between the stages and the client ----------------------------------------------------

    def _on_hand(self, stage: str, chunk: Chunk) -> Chunk:
        """How urgent a clause is shows when the voice gets it."""
        if chunk.kind is not Kind.CLAUSE:
            return chunk
        self._begun = self._clock()
        clause = msgspec.structs.replace(
            cast(Clause, chunk.items[0]), rank=self._window.rank(self._begun)
        )
        return Chunk(chunk.kind, (clause,))

    def _deliver(self, stage: str, kind: Kind, item: object) -> None:
        match item:
            case str():
                self._say(TextGenerated, text=item)
            case Spoken():
                self._speak(item)
            case CallStarted() | CallDelta() | CallEnded():
                self._call(item)
            case _:
                raise TypeError(f"{kind} of {stage} is nothing for a client")

    def _speak(self, spoken: Spoken) -> None:
        """Text without a sound goes along with the next clause."""
        if not spoken.pcm:
            self._silent += spoken.text
            return
        now = self._clock()
        self._ms_per_letter = (now - self._begun) * 1000 / len(spoken.text)
        clause_ms = length_ms(spoken.pcm)
        self._window.make(clause_ms, now)
        self._pipeline.hold(TTS, not self._window.open)
        text, self._silent = self._silent + spoken.text, ""
        for piece in pieces(spoken.pcm):
            self._say(SpeechGenerated, pcm=piece, text=text, clause_ms=clause_ms)
            text, clause_ms = "", 0.0

    def _say_silently(self) -> None:
        text, self._silent = self._silent, ""
        if text:
            self._say(SpeechGenerated, pcm=b"", text=text)

    def _hurried(self, letters: int) -> bool:
        """Whether speech would pause if so many letters were not spoken from now on."""
        left = self._window.left_ms(self._clock())
        return left is not None and left < letters * self._ms_per_letter + MARGIN_MS

    # -- how urgent it is; asked on other threads too -----------------------------------------

    def _first_rank(self) -> Rank:
        return Rank.DRAFT_FIRST if self._window.draft else Rank.FIRST

    def _next_rank(self) -> Rank:
        if not self._handed:
            return self._first_rank()
        rank = self._window.rank(self._clock())
        if not self._window.made_ms:
            # The first clause is with the voice.
            return Rank.DRAFT_LATER if self._window.draft else Rank.LATER
        return rank

    # -- what is said about it --------------------------------------------------------------

    def _begin(self, began: Began) -> None:
        self._usage = Usage(input_tokens=began.input_tokens, cached_tokens=began.cached_tokens)

    def _count(self) -> None:
        """A piece is about a token; the model's own count comes with its end."""
        self._pieces += 1

    def _finish(self, finished: Finished) -> None:
        self._usage = finished.usage
        self._pieces = 0
        self._reason = finished.reason

    def _call(self, piece: CallStarted | CallDelta | CallEnded) -> None:
        match piece:
            case CallStarted():
                self._say_silently()
                self._say(ToolCallStarted, call_id=piece.call_id, name=piece.name)
            case CallDelta():
                self._say(ToolCallDelta, call_id=piece.call_id, delta=piece.delta)
            case CallEnded():
                self._say(ToolCallEnded, call_id=piece.call_id, arguments=piece.arguments)

    def _fail(self) -> None:
        self._end("failed", EngineFailure("engine_error", "The engine failed on this answer."))

    def _end(self, reason: EndReason, failure: EngineFailure | None = None) -> None:
        if self.ended:
            return
        usage = self._usage
        if self._pieces:
            usage = msgspec.structs.replace(usage, output_tokens=self._pieces)
        self._say(ResponseEnded, reason=reason, usage=usage, failure=failure)
        self.ended = True

    def _say(self, kind: Callable[..., Output], **fields: object) -> None:
        if not self.ended:
            self._emit(kind(session=self._session, generation=self.generation, **fields))
