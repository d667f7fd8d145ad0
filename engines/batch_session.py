"""One session of the batch lane in the cascade: answers in text, from the language model alone."""

import logging
from collections.abc import Callable
from typing import Literal

import anyio
import anyio.abc
import msgspec

from duologue.engines.backend import Emit
from duologue.engines.engine import (
    CancelResponse,
    Command,
    EngineFailure,
    Output,
    Respond,
    ResponseEnded,
    ResponseRequest,
    TextGenerated,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallStarted,
    Usage,
)
from duologue.engines.eyes import Gaze
from duologue.engines.fairness import Rank
from duologue.engines.language import (
    Began,
    CallDelta,
    CallEnded,
    CallStarted,
    Finished,
    Generated,
    LanguageError,
    LanguageStage,
    TextPiece,
)
from duologue.engines.stop_text import StopText

EndReason = Literal["completed", "max_output_tokens", "content_filter", "cancelled", "failed"]

log = logging.getLogger(__name__)


class BatchSession:
    """Lives from OpenSession to CloseSession. All methods are for the event loop."""

    def __init__(
        self, name: str, language: LanguageStage, emit: Emit, gaze: Gaze | None = None
    ) -> None:
        """`gaze` puts pictures into words, for a model that does not see."""
        self._name = name
        self._gaze = gaze
        self._language = language
        self._emit_output = emit
        self._closed = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._answers: dict[int, BatchAnswer] = {}

    async def live(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Hold the session's tasks until it is closed, then cancel them."""
        try:
            async with anyio.create_task_group() as self._tasks:
                task_status.started()
                await self._closed.wait()
                self._tasks.cancel_scope.cancel()
        finally:
            self._language.forget(self._name)

    def close(self) -> None:
        """Free everything. Nothing is emitted from now on."""
        self._closed.set()

    def take(self, command: Command) -> None:
        """Carry out a command; never waits. Those of a conversation have no meaning here."""
        assert self._tasks is not None
        match command:
            case Respond():
                answer = BatchAnswer(command, self._language, self._gaze, self._emit)
                self._answers[command.generation] = answer
                self._tasks.start_soon(self._run, answer)
            case CancelResponse():
                if command.generation in self._answers:
                    self._answers[command.generation].cancel()
            case _:
                log.warning("session %s: a %s", self._name, type(command).__name__)

    async def _run(self, answer: "BatchAnswer") -> None:
        try:
            await answer.run()
        finally:
            del self._answers[answer.generation]

    def _emit(self, output: Output) -> None:
        if not self._closed.is_set():
            self._emit_output(output)


class BatchAnswer:
    """Runs one answer to its one end."""

    def __init__(
        self, command: Respond, language: LanguageStage, gaze: Gaze | None, emit: Emit
    ) -> None:
        self._session = command.session
        self.generation = command.generation
        self._request = command.request
        self._language = language
        self._gaze = gaze
        self._emit = emit
        self._stop = StopText(command.request.stop)
        self._scope = anyio.CancelScope()
        self._usage = Usage()
        self._ended = False

    async def run(self) -> None:
        """The task's outermost line."""
        try:
            with self._scope:
                self._end(await self._answer(self._request))
        except LanguageError as error:
            self._end("failed", error.failure)
        except Exception:
            log.exception("session %s: an answer failed", self._session)
            self._end("failed", EngineFailure("engine_error", "The engine failed on this answer."))

    def cancel(self) -> None:
        """Stop, and say so now; what still runs ends at its next step, unheard."""
        self._end("cancelled")
        self._scope.cancel()

    async def _answer(self, request: ResponseRequest) -> EndReason:
        if self._gaze is not None:
            request = await self._gaze.in_words(request)
        async with self._language.answer(self._session, request, _batch_rank) as pieces:
            async for piece in pieces:
                reason = self._take(piece)
                if reason is not None:
                    return reason
        return "completed"

    def _take(self, piece: Generated) -> EndReason | None:
        """Why the answer is over, if it is."""
        match piece:
            case Began():
                self._usage = Usage(
                    input_tokens=piece.input_tokens, cached_tokens=piece.cached_tokens
                )
            case TextPiece():
                self._count()
                self._write(self._stop.push(piece.text))
                # Leaving the model here stops it.
                return "completed" if self._stop.stopped else None
            case CallStarted():
                self._write(self._stop.finish())
                self._say(ToolCallStarted, call_id=piece.call_id, name=piece.name)
            case CallDelta():
                self._count()
                self._say(ToolCallDelta, call_id=piece.call_id, delta=piece.delta)
            case CallEnded():
                self._say(ToolCallEnded, call_id=piece.call_id, arguments=piece.arguments)
            case Finished():
                self._write(self._stop.finish())
                self._usage = piece.usage
                return piece.reason
        return None

    def _count(self) -> None:
        """A piece is about a token; the model's own count comes with its end."""
        tokens = self._usage.output_tokens + 1
        self._usage = msgspec.structs.replace(self._usage, output_tokens=tokens)

    def _write(self, text: str) -> None:
        if text:
            self._say(TextGenerated, text=text)

    def _end(self, reason: EndReason, failure: EngineFailure | None = None) -> None:
        self._say(ResponseEnded, reason=reason, usage=self._usage, failure=failure)
        self._ended = True

    def _say(self, kind: Callable[..., Output], **fields: object) -> None:
        if not self._ended:
            self._emit(kind(session=self._session, generation=self.generation, **fields))


def _batch_rank() -> Rank:
    return Rank.BATCH
