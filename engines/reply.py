"""One answer: from its request to its one end."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

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
from duologue.engines.recognition import RecognitionFailed
from duologue.engines.speaking import SpeechWindow, Voices, length_ms, pieces
from duologue.models.clauses import ClauseSplitter

MARGIN_MS = 150.0
"""A clause should be spoken so long before the one before it has been played."""

CLAUSES_AHEAD = 4
"""Clauses that may wait for the voice; beyond, the language model waits."""

EndReason = Literal["completed", "max_output_tokens", "content_filter", "cancelled", "failed"]
Part = TextPart | ImagePart | UtterancePart

log = logging.getLogger(__name__)

Transcribe = Callable[[str, int | None, Callable[[], Rank]], Awaitable[str]]
"""An utterance's words up to a position; the rank tells how urgent they are."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Stands in the line of clauses; set when all before it have been said."""

    passed: anyio.Event


class Reply:
    """Runs one answer. All methods are for the event loop."""

    def __init__(
        self,
        command: Respond,
        language: LanguageStage,
        voices: Voices,
        transcribe: Transcribe,
        emit: Emit,
        clock: Callable[[], float],
    ) -> None:
        self._session = command.session
        self.generation = command.generation
        self._request = command.request
        self._language = language
        self._voices = voices
        self._transcribe = transcribe
        self._emit = emit
        self._clock = clock
        self._window = SpeechWindow(command.request.speculative)
        self._moved = anyio.Event()
        self._scope = anyio.CancelScope()
        self._usage = Usage()
        self._handed = False
        self._ms_per_letter = 0.0
        self.ended = False

    async def run(self) -> None:
        """Answer to the end. The task's outermost line."""
        try:
            with self._scope:
                reason = await self._answer()
                self._end(reason)
        except LanguageError as error:
            self._end("failed", error.failure)
        except RecognitionFailed as error:
            words = f"What was said could not be recognised: {error}"
            self._end("failed", EngineFailure("engine_error", words))
        except Exception:
            log.exception("session %s: answer %d failed", self._session, self.generation)
            self._end("failed", EngineFailure("engine_error", "The engine failed on this answer."))

    def cancel(self) -> None:
        """Stop, and say so now; what still runs ends at its next step, unheard."""
        self._end("cancelled")
        self._scope.cancel()

    def abandon(self) -> None:
        """Stop; nobody is there to be told."""
        self.ended = True
        self._scope.cancel()

    def acknowledge(self, sent_ms: int) -> None:
        """The listener has been sent so much."""
        self._window.acknowledge(sent_ms, self._clock())
        self._moved.set()
        self._moved = anyio.Event()

    # -- the answer -------------------------------------------------------------------------

    async def _answer(self) -> FinishReason:
        request = await self._heard()
        if request is None:
            return "completed"
        if request.modality == "text":
            return await self._write(request)
        send, receive = anyio.create_memory_object_stream[str | Mark](CLAUSES_AHEAD)
        failure: LanguageError | None = None
        reason: FinishReason = "completed"
        async with anyio.create_task_group() as group:
            group.start_soon(self._speak, request, receive)
            try:
                async with send:
                    reason = await self._think(request, send)
            except LanguageError as error:
                # Raised in here it would leave as a group of exceptions.
                failure = error
                group.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return reason

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

    async def _write(self, request: ResponseRequest) -> FinishReason:
        """Answer in text."""
        async with self._language.answer(self._session, request, self._first_rank) as answer:
            async for piece in answer:
                match piece:
                    case Began():
                        self._begin(piece)
                    case TextPiece():
                        self._count()
                        self._say(TextGenerated, text=piece.text)
                    case Finished():
                        return self._finish(piece)
                    case CallStarted() | CallDelta() | CallEnded():
                        self._call(piece)
        return "completed"

    async def _think(
        self, request: ResponseRequest, send: MemoryObjectSendStream[str | Mark]
    ) -> FinishReason:
        """Pass the model's words on, clause by clause."""
        splitter = ClauseSplitter(self._hurried)
        async with self._language.answer(self._session, request, self._next_rank) as answer:
            async for piece in answer:
                match piece:
                    case Began():
                        self._begin(piece)
                    case TextPiece():
                        self._count()
                        for clause in splitter.push(piece.text):
                            await self._hand(clause, send)
                    case Finished():
                        for clause in splitter.flush():
                            await self._hand(clause, send)
                        return self._finish(piece)
                    case CallStarted() | CallDelta() | CallEnded():
                        for clause in splitter.flush():
                            await self._hand(clause, send)
                        if isinstance(piece, CallStarted):
                            # What was said before the call comes before it.
                            mark = Mark(anyio.Event())
                            await send.send(mark)
                            await mark.passed.wait()
                        self._call(piece)
        return "completed"

    async def _hand(self, clause: str, send: MemoryObjectSendStream[str | Mark]) -> None:
        self._handed = True
        await send.send(clause)

    async def _speak(
        self, request: ResponseRequest, receive: MemoryObjectReceiveStream[str | Mark]
    ) -> None:
        """Say the clauses in turn. Text without a sound goes along with the next clause."""
        voice = self._voices.catalogue.find(request.voice)
        silent = ""
        async with receive:
            async for item in receive:
                if isinstance(item, Mark):
                    silent = self._say_silently(silent)
                    item.passed.set()
                    continue
                while not self._window.open:
                    await self._moved.wait()
                begun = self._clock()
                pcm = await self._voices.say(
                    self._session,
                    self._window.rank(self._clock()),
                    item,
                    voice,
                    request.speed,
                    lambda: self.ended,
                )
                if not pcm:
                    silent += item
                    continue
                now = self._clock()
                self._ms_per_letter = (now - begun) * 1000 / len(item)
                self._window.make(length_ms(pcm), now)
                text, silent = silent + item, ""
                for piece in pieces(pcm):
                    self._say(SpeechGenerated, pcm=piece, text=text)
                    text = ""
        self._say_silently(silent)

    def _say_silently(self, text: str) -> str:
        if text:
            self._say(SpeechGenerated, pcm=b"", text=text)
        return ""

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
        tokens = self._usage.output_tokens + 1
        self._usage = msgspec.structs.replace(self._usage, output_tokens=tokens)

    def _finish(self, finished: Finished) -> FinishReason:
        self._usage = finished.usage
        return finished.reason

    def _call(self, piece: CallStarted | CallDelta | CallEnded) -> None:
        match piece:
            case CallStarted():
                self._say(ToolCallStarted, call_id=piece.call_id, name=piece.name)
            case CallDelta():
                self._say(ToolCallDelta, call_id=piece.call_id, delta=piece.delta)
            case CallEnded():
                self._say(ToolCallEnded, call_id=piece.call_id, arguments=piece.arguments)

    def _end(self, reason: EndReason, failure: EngineFailure | None = None) -> None:
        if self.ended:
            return
        self._say(ResponseEnded, reason=reason, usage=self._usage, failure=failure)
        self.ended = True

    def _say(self, kind: Callable[..., Output], **fields: object) -> None:
        if not self.ended:
            self._emit(kind(session=self._session, generation=self.generation, **fields))
