"""``POST /v1/chat/completions``: an answer of the batch lane, whole or as it comes."""

from typing import Final, Literal, Protocol

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from duologue.engines.engine import (
    EngineFailure,
    EngineFull,
    EngineLost,
    EngineStream,
    EngineUnavailable,
    Output,
    Respond,
    ResponseEnded,
    ResponseQueued,
    TextGenerated,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallStarted,
    ToolInvocation,
)
from duologue.realtime.chat_refusal import ChatRefusal, refusal_of
from duologue.realtime.chat_wire import LARGEST_REQUEST, ChatRequest, decode_chat_request
from duologue.realtime.completion_wire import Chunks, Naming, comment, encode_completion, event
from duologue.sessions.effects import ToEngine
from duologue.sessions.errors import ProtocolError
from duologue.sessions.registry import new_id
from duologue.sessions.turn_times import TurnWatch
from duologue.web.access import epoch, guarded, read_body
from duologue.web.service import Service

ALIVE_SECONDS: Final = 10.0
"""A stream that has nothing to say for so long says a comment: proxies close silent ones."""

_GENERATION: Final = 1
_RESTART_SECONDS: Final = 5.0

Outcome = Literal["completed", "cancelled", "failed", "refused"]


async def chat_completions(request: Request, service: Service) -> Response:
    try:
        body: bytes | ProtocolError = await read_body(request, LARGEST_REQUEST)
    except ProtocolError as error:
        body = error
    return Completion(service, body, epoch())


def completion_routes() -> list[BaseRoute]:
    """The routes of the batch lane."""
    handler = guarded(chat_completions, ephemeral=False)
    return [Route("/v1/chat/completions", handler, methods=["POST"])]


class Completion(Response):
    """The response to one request, an ASGI application. Its place in the batch lane is given back
    when the answer has ended, and at once when the client goes away."""

    def __init__(self, service: Service, body: bytes | ProtocolError, created: int) -> None:
        """`body` is the request's, or why it could not be read; `created` is wall-clock time."""
        super().__init__()
        self._service = service
        self._body = body
        self._created = created

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outcome: Outcome = "cancelled"

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                outcome = await self._respond(send)
                tasks.cancel_scope.cancel()
        finally:
            self._service.metrics.completed(outcome)

    async def _respond(self, send: Send) -> Outcome:
        try:
            chat = self._decode()
            stream = await self._open()
        except ChatRefusal as refusal:
            await _refuse(send, refusal)
            return "refused"
        naming = Naming(new_id("chatcmpl"), self._service.spec.model, self._created)
        teller: Teller = _Streamed(send, naming, chat) if chat.stream else _Whole(send, naming)
        try:
            await _relay(stream, chat, teller, _Times(self._service))
            return "completed"
        except ChatRefusal as refusal:
            await teller.fail(refusal)
            return "failed"
        finally:
            with anyio.CancelScope(shield=True):
                await stream.aclose()

    def _decode(self) -> ChatRequest:
        if isinstance(self._body, ProtocolError):
            raise ChatRefusal.of(self._body)
        if self._service.registry.draining:
            raise _unavailable("The server is restarting.", _RESTART_SECONDS)
        try:
            return decode_chat_request(self._body, self._service.spec)
        except ProtocolError as error:
            raise ChatRefusal.of(error) from None
        except EngineUnavailable as error:
            raise _unavailable("The model is starting or restarting.", error.retry_after) from None

    async def _open(self) -> EngineStream:
        try:
            return await self._service.engine.open_batch(new_id("batch"))
        except EngineFull as error:
            message = "As many requests wait as may; try again later."
            raise ChatRefusal(
                429, "rate_limit_error", "engine_overloaded", message, None, error.retry_after
            ) from None
        except EngineUnavailable as error:
            raise _unavailable("The model is starting or restarting.", error.retry_after) from None


def _unavailable(message: str, retry_after: float) -> ChatRefusal:
    return ChatRefusal(503, "server_error", "engine_unavailable", message, None, retry_after)


class _Times:
    """When what of one answer came, for the figures."""

    def __init__(self, service: Service) -> None:
        self._metrics = service.metrics
        self._clock = service.clock
        self._watch = TurnWatch()
        self._asked = 0.0

    def ask(self, command: Respond) -> None:
        self._asked = self._clock.now()
        self._watch.effect(ToEngine(command), self._asked)

    def hear(self, output: Output) -> None:
        now = self._clock.now()
        if isinstance(output, ResponseQueued):
            if output.position == 0:
                self._metrics.queued(now - self._asked)
        elif answer := self._watch.event(output, now):
            self._metrics.answered(answer)


async def _relay(stream: EngineStream, chat: ChatRequest, teller: "Teller", times: _Times) -> None:
    """Ask, and pass on what comes, to the end. Raises ChatRefusal for an answer that fails."""
    try:
        command = Respond(_GENERATION, chat.request, session="")
        times.ask(command)
        stream.send(command)
        while True:
            with anyio.move_on_after(ALIVE_SECONDS) as silence:
                output = await stream.receive()
            if silence.cancelled_caught:
                await teller.wait()
                continue
            times.hear(output)
            if not isinstance(output, ResponseEnded):
                await teller.tell(output)
            elif output.reason == "failed":
                raise refusal_of(output.failure)
            elif output.reason == "cancelled":
                # Nobody here asked for that.
                raise refusal_of(EngineFailure("engine_error", "The engine gave this answer up."))
            else:
                await teller.end(output)
                return
    except EngineLost:
        raise _unavailable("The model was lost; it restarts.", _RESTART_SECONDS) from None


class Teller(Protocol):
    """How an answer is told to the client."""

    async def tell(self, output: Output) -> None: ...

    async def wait(self) -> None:
        """Nothing has come for a while."""

    async def end(self, ended: ResponseEnded) -> None: ...

    async def fail(self, refusal: ChatRefusal) -> None: ...


class _Whole:
    """All at once."""

    def __init__(self, send: Send, naming: Naming) -> None:
        self._send = send
        self._naming = naming
        self._position = 0
        self._text: list[str] = []
        self._names: dict[str, str] = {}
        self._calls: list[ToolInvocation] = []

    async def tell(self, output: Output) -> None:
        match output:
            case ResponseQueued():
                self._position = max(self._position, output.position)
            case TextGenerated():
                self._text.append(output.text)
            case ToolCallStarted():
                self._names[output.call_id] = output.name
            case ToolCallEnded():
                name = self._names[output.call_id]
                self._calls.append(ToolInvocation(output.call_id, name, output.arguments))
            case _:
                pass

    async def wait(self) -> None:
        """The status line comes with the answer, so nothing can be said before."""

    async def end(self, ended: ResponseEnded) -> None:
        body = encode_completion(self._naming, "".join(self._text), self._calls, ended)
        await _start(self._send, 200, b"application/json", _queued(self._position))
        await self._send({"type": "http.response.body", "body": body})

    async def fail(self, refusal: ChatRefusal) -> None:
        await _refuse(self._send, refusal)


class _Streamed:
    """As it comes, in server-sent events. The status is 200 from the first piece on, or from when
    the answer has to wait; what goes wrong later is told in an event."""

    def __init__(self, send: Send, naming: Naming, chat: ChatRequest) -> None:
        self._send = send
        self._chunks = Chunks(naming, chat.include_usage)
        self._started = False
        self._spoke = False

    async def tell(self, output: Output) -> None:
        match output:
            case ResponseQueued(position=0):
                pass
            case ResponseQueued():
                await self._open(output.position)
                await self._write(comment(f"waiting, position {output.position}"))
            case TextGenerated():
                await self._say(self._chunks.text(output.text))
            case ToolCallStarted():
                await self._say(self._chunks.call_started(output.call_id, output.name))
            case ToolCallDelta():
                await self._say(self._chunks.call_delta(output.call_id, output.delta))
            case _:
                pass

    async def wait(self) -> None:
        await self._open(0)
        await self._write(comment("still at it"))

    async def end(self, ended: ResponseEnded) -> None:
        await self._say(self._chunks.last(ended))
        await self._send({"type": "http.response.body", "body": b""})

    async def fail(self, refusal: ChatRefusal) -> None:
        if not self._started:
            await _refuse(self._send, refusal)
            return
        await self._write(event(refusal.encode()))
        await self._send({"type": "http.response.body", "body": b""})

    async def _say(self, events: bytes) -> None:
        await self._open(0)
        if not self._spoke:
            self._spoke = True
            events = self._chunks.first() + events
        await self._write(events)

    async def _open(self, position: int) -> None:
        if not self._started:
            self._started = True
            headers = [*_queued(position), (b"cache-control", b"no-cache")]
            await _start(self._send, 200, b"text/event-stream; charset=utf-8", headers)

    async def _write(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})


Headers = list[tuple[bytes, bytes]]


def _queued(position: int) -> Headers:
    """How many answers were to go first when the request came, and itself."""
    return [(b"x-queue-position", str(position).encode())] if position else []


async def _start(send: Send, status: int, media_type: bytes, headers: Headers) -> None:
    headers = [(b"content-type", media_type), *headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _refuse(send: Send, refusal: ChatRefusal) -> None:
    headers: Headers = []
    if refusal.retry_after is not None:
        headers.append((b"retry-after", str(max(1, round(refusal.retry_after))).encode()))
    await _start(send, refusal.status, b"application/json", headers)
    await send({"type": "http.response.body", "body": refusal.encode()})
