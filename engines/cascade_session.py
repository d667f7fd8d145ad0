"""One session of the cascade: its commands, its tasks, its answers."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import anyio
import anyio.abc
import msgspec

from duologue.engines.backend import Emit
from duologue.engines.engine import (
    Acknowledge,
    AlignSpeech,
    CancelResponse,
    CloseSession,
    Command,
    ConfigureListening,
    DropUtterance,
    EndUtterance,
    EngineFailure,
    Hear,
    JudgeTurn,
    Message,
    OpenSession,
    Output,
    Prepare,
    Respond,
    ResponseEnded,
    ResponseRequest,
    See,
    TextPart,
    UtterancePart,
)
from duologue.engines.eyes import Eyes, Gaze
from duologue.engines.fairness import Rank
from duologue.engines.language import LanguageStage
from duologue.engines.recognition import Ears, Recognition
from duologue.engines.reply import Part, Reply
from duologue.engines.speaking import VoiceStage

REPLIES_A_SESSION = 8
"""Answers under way in one session; one more fails at once."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stages:
    """What the sessions share."""

    recognition: Recognition
    language: LanguageStage
    voices: VoiceStage
    answer_s: Mapping[str, float] = field(default_factory=dict)
    """How long stages may be silent over a chunk, in seconds."""
    gaze: Gaze | None = None
    """None where the language model takes pictures itself, or where there are to be none."""


class CascadeSession:
    """Lives from OpenSession to CloseSession. All methods are for the event loop."""

    def __init__(
        self, opened: OpenSession, stages: Stages, emit: Emit, clock: Callable[[], float]
    ) -> None:
        self._name = opened.session
        self._opened = opened
        self._stages = stages
        self._emit_output = emit
        self._clock = clock
        self._closed = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._ears: Ears | None = None
        self._replies: dict[int, Reply] = {}
        self._eyes = Eyes(stages.gaze, clock)
        self._prepared: ResponseRequest | None = None

    async def live(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Hold the session's tasks until it is closed, then cancel them."""
        try:
            async with anyio.create_task_group() as self._tasks:
                self._ears = Ears(self._opened, self._tasks, self._emit, self._hear_words)
                task_status.started()
                await self._closed.wait()
                self._tasks.cancel_scope.cancel()
        finally:
            self._stages.language.forget(self._name)

    def close(self) -> None:
        """Free everything. Nothing is emitted from now on."""
        self._closed.set()
        for reply in self._replies.values():
            reply.abandon()
        if self._ears is not None:
            self._stages.recognition.forget(self._ears)
        self._stages.voices.forget(self._name)

    def take(self, command: Command) -> None:
        """Carry out a command; never waits."""
        assert self._ears is not None
        recognition = self._stages.recognition
        match command:
            case Hear():
                recognition.hear(self._ears, command)
            case ConfigureListening():
                recognition.configure(self._ears, command)
            case EndUtterance():
                recognition.end(self._ears, command)
            case DropUtterance():
                recognition.drop(self._ears, command)
            case JudgeTurn():
                recognition.judge(self._ears, command)
            case AlignSpeech():
                recognition.align(self._ears, command)
            case See():
                assert self._tasks is not None
                self._eyes.see(command, self._tasks)
            case Prepare():
                self._prepare(command.request)
            case Respond():
                self._respond(command)
            case CancelResponse():
                if command.generation in self._replies:
                    self._replies[command.generation].cancel()
            case Acknowledge():
                if command.generation in self._replies:
                    self._replies[command.generation].acknowledge(command.sent_ms)
            case OpenSession() | CloseSession():
                pass

    def _emit(self, output: Output) -> None:
        if not self._closed.is_set():
            self._emit_output(output)

    # -- answers ----------------------------------------------------------------------------

    def _respond(self, command: Respond) -> None:
        if len(self._replies) >= REPLIES_A_SESSION:
            failure = EngineFailure("engine_overloaded", "Too many answers are under way.")
            self._emit(
                ResponseEnded(
                    session=self._name,
                    generation=command.generation,
                    reason="failed",
                    failure=failure,
                )
            )
            return
        reply = Reply(
            command,
            self._stages.language,
            self._stages.voices,
            self._transcribe,
            self._emit,
            self._clock,
            self._stages.answer_s,
            self._eyes.shown,
        )
        self._replies[command.generation] = reply
        assert self._tasks is not None
        self._tasks.start_soon(self._run, reply)

    async def _run(self, reply: Reply) -> None:
        try:
            await reply.run()
        finally:
            del self._replies[reply.generation]

    async def _transcribe(self, name: str, until: int | None, rank: Callable[[], Rank]) -> str:
        assert self._ears is not None
        return await self._stages.recognition.transcript(self._ears, name, until, rank)

    # -- warming ----------------------------------------------------------------------------

    def _prepare(self, request: ResponseRequest) -> None:
        self._prepared = request
        assert self._tasks is not None
        self._tasks.start_soon(self._warm, self._known(request))

    def _hear_words(self, utterance: str) -> None:
        """More words of an open utterance are certain: the prompt goes on with them."""
        request = self._prepared
        if request is not None and any(
            isinstance(part, UtterancePart) and part.utterance == utterance
            for message in request.messages
            for part in message.parts
        ):
            self._prepare(request)

    async def _warm(self, request: ResponseRequest) -> None:
        try:
            await self._stages.language.warm(self._name, request)
        except Exception:
            log.exception("session %s: a prompt was not warmed", self._name)

    def _known(self, request: ResponseRequest) -> ResponseRequest:
        """The request as far as its words are known: up to an utterance of which none are."""
        assert self._ears is not None
        request = self._eyes.known(request)
        messages: list[Message] = []
        for message in request.messages:
            parts: list[Part] = []
            for part in message.parts:
                if isinstance(part, UtterancePart):
                    words = self._stages.recognition.words_so_far(self._ears, part.utterance)
                    if not words:
                        return msgspec.structs.replace(request, messages=tuple(messages))
                    part = TextPart(words)
                parts.append(part)
            messages.append(msgspec.structs.replace(message, parts=tuple(parts)))
        return msgspec.structs.replace(request, messages=tuple(messages))
