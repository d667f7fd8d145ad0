"""The chat endpoint against a server of its own that streams, stalls, refuses and breaks off."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from duologue.engines import chat_endpoint_impl
from duologue.engines.chat_endpoint_impl import ChatEndpointLanguage, ChatEndpointStage
from duologue.engines.engine import (
    ImagePart,
    Message,
    ResponseRequest,
    TextPart,
    Tool,
    ToolInvocation,
    Usage,
)
from duologue.engines.fairness import Rank
from duologue.engines.language import (
    CallDelta,
    CallEnded,
    CallStarted,
    Finished,
    Generated,
    LanguageError,
    TextPiece,
)
from tests.patience import PATIENCE_S
from tests.uvicorn_start import start_serving

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret-0123456789"
Behaviour = Callable[[Request], Awaitable[Response]]


@dataclass
class Stub:
    """A chat server: what it was asked, and how it answers."""

    behaviour: Behaviour
    port: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    gone: anyio.Event = field(default_factory=anyio.Event)

    async def answer(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        return await self.behaviour(request)


@asynccontextmanager
async def serving(behaviour: Behaviour) -> AsyncIterator[Stub]:
    stub = Stub(behaviour)
    app = Starlette(routes=[Route("/v1/chat/completions", stub.answer, methods=["POST"])])
    config = uvicorn.Config(app, port=0, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    async with anyio.create_task_group() as group:
        with anyio.fail_after(PATIENCE_S):
            await start_serving(group, server)
        stub.port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield stub
        finally:
            server.should_exit = server.force_exit = True


@asynccontextmanager
async def endpoint(stub: Stub, **options: Any) -> AsyncIterator[ChatEndpointLanguage]:
    url = f"http://127.0.0.1:{stub.port}/v1/"
    stage = ChatEndpointStage(base_url=url, model="m", api_key=KEY, **options)
    language = ChatEndpointLanguage(stage)
    await language.load()
    try:
        yield language
    finally:
        await language.aclose()


def asked(**fields: Any) -> ResponseRequest:
    fields.setdefault("messages", (Message("user", (TextPart("hi"),)),))
    return ResponseRequest(instructions="Be kind.", **fields)


async def answer(language: ChatEndpointLanguage, request: ResponseRequest) -> list[Generated]:
    with anyio.fail_after(PATIENCE_S):
        async with language.answer("s", request, lambda: Rank.FIRST) as pieces:
            return [piece async for piece in pieces]


def event(data: Any) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def text(content: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"delta": {"content": content}, "finish_reason": finish}]})


def streams(*chunks: bytes) -> Behaviour:
    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def behave(request: Request) -> Response:
        return StreamingResponse(body(), media_type="text/event-stream")

    return behave


def refuses(status: int, body: Any) -> Behaviour:
    async def behave(request: Request) -> Response:
        if isinstance(body, str):
            return PlainTextResponse(body, status)
        return JSONResponse(body, status)

    return behave


async def failure_of(behaviour: Behaviour, **options: Any) -> LanguageError:
    async with serving(behaviour) as stub, endpoint(stub, **options) as language:
        with pytest.raises(LanguageError) as caught:
            await answer(language, asked())
    assert KEY not in caught.value.failure.message
    return caught.value


async def test_text_streams_and_ends_with_its_usage() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
    behaviour = streams(text("Hel"), text("lo"), text("", "stop"), event(usage), event(b"[DONE]"))
    async with serving(behaviour) as stub, endpoint(stub) as language:
        pieces = await answer(language, asked())
    assert pieces == [
        TextPiece("Hel"),
        TextPiece("lo"),
        Finished("completed", Usage(input_tokens=5, output_tokens=2)),
    ]


async def test_the_request_says_everything_that_was_asked() -> None:
    history = (
        Message("user", (TextPart("look"), ImagePart("https://example.org/a.png", "high"))),
        Message("assistant", (), (ToolInvocation("call_1", "look", '{"at":1}'),)),
        Message("tool", (TextPart("a cat"),), (), "call_1"),
    )
    request = asked(
        messages=history,
        tools=(Tool("look", "Looks.", '{"type":"object"}'),),
        tool_choice="function:look",
        parallel_tool_calls=False,
        max_output_tokens=50,
        temperature=0.3,
        top_p=0.9,
        seed=5,
    )
    async with (
        serving(streams(text("a", "stop"))) as stub,
        endpoint(stub, headers={"X-Tenant": "blue"}) as language,
    ):
        await answer(language, request)
    (body,), (headers,) = stub.bodies, stub.headers
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["x-tenant"] == "blue"
    assert body["model"] == "m"
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["max_tokens"] == 50
    assert body["temperature"] == 0.3
    assert (body["top_p"], body["seed"]) == (0.9, 5)
    assert body["parallel_tool_calls"] is False
    assert body["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    assert [entry["role"] for entry in body["messages"]] == ["system", "user", "assistant", "tool"]
    assert body["messages"][1]["content"][1]["image_url"]["url"] == "https://example.org/a.png"


async def test_without_tools_nothing_is_said_about_them() -> None:
    async with serving(streams(text("a", "stop"))) as stub, endpoint(stub) as language:
        await answer(language, asked(tool_choice="auto", parallel_tool_calls=False))
    assert not {"tools", "tool_choice", "parallel_tool_calls", "max_tokens"} & set(stub.bodies[0])


async def test_calls_are_streamed() -> None:
    def part(**function: str) -> bytes:
        return event({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": function}]}}]})

    behaviour = streams(
        part(name="look", arguments=""),
        part(arguments='{"a"'),
        part(arguments=":1}"),
        text("", "tool_calls"),
    )
    async with serving(behaviour) as stub, endpoint(stub) as language:
        pieces = await answer(language, asked(tools=(Tool("look"),)))
    assert [type(piece) for piece in pieces] == [
        CallStarted,
        CallDelta,
        CallDelta,
        CallEnded,
        Finished,
    ]
    assert isinstance(pieces[3], CallEnded)
    assert pieces[3].arguments == '{"a":1}'


async def test_an_answer_that_is_not_streamed_is_read_in_one_piece() -> None:
    body = {"choices": [{"message": {"content": "All of it."}, "finish_reason": "stop"}]}
    async with serving(refuses(200, body)) as stub, endpoint(stub) as language:
        pieces = await answer(language, asked())
    assert pieces[0] == TextPiece("All of it.")


async def test_leaving_early_closes_the_connection_and_the_next_answer_works() -> None:
    gone = anyio.Event()

    async def body() -> AsyncIterator[bytes]:
        try:
            yield text("one ")
            await anyio.sleep_forever()
        finally:
            gone.set()

    async def stall(request: Request) -> Response:
        return StreamingResponse(body(), media_type="text/event-stream")

    async with serving(stall) as stub, endpoint(stub) as language:
        with anyio.fail_after(PATIENCE_S):
            async with language.answer("s", asked(), lambda: Rank.FIRST) as pieces:
                async for piece in pieces:
                    assert piece == TextPiece("one ")
                    break
            await gone.wait()
        stub.behaviour = streams(text("two", "stop"))
        assert (await answer(language, asked()))[0] == TextPiece("two")


async def test_a_cancelled_reader_closes_the_connection() -> None:
    gone, read = anyio.Event(), anyio.Event()

    async def body() -> AsyncIterator[bytes]:
        try:
            yield text("one ")
            await anyio.sleep_forever()
        finally:
            gone.set()

    async def stall(request: Request) -> Response:
        return StreamingResponse(body(), media_type="text/event-stream")

    async def listen(language: ChatEndpointLanguage) -> None:
        async with language.answer("s", asked(), lambda: Rank.FIRST) as pieces:
            async for _ in pieces:
                read.set()

    async with serving(stall) as stub, endpoint(stub) as language:
        async with anyio.create_task_group() as group:
            group.start_soon(listen, language)
            with anyio.fail_after(PATIENCE_S):
                await read.wait()
            group.cancel_scope.cancel()
        with anyio.fail_after(PATIENCE_S):
            await gone.wait()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 503])
async def test_a_refusal_is_told_with_its_status_and_its_words(status: int) -> None:
    error = await failure_of(refuses(status, {"error": {"message": "no such model"}}))
    assert error.failure.code == "upstream_error"
    assert str(status) in error.failure.message
    assert "no such model" in error.failure.message


async def test_a_prompt_that_is_too_long_for_the_endpoint_is_told_as_such() -> None:
    body = {"error": {"message": "too many tokens", "code": "context_length_exceeded"}}
    assert (await failure_of(refuses(400, body))).failure.code == "context_too_long"


@pytest.mark.parametrize("body", ["<html>Bad gateway</html>", [1, 2], None, {"detail": "x"}])
async def test_a_refusal_in_any_form_is_told(body: Any) -> None:
    error = await failure_of(refuses(502, body))
    assert "502" in error.failure.message


async def test_the_key_is_never_repeated() -> None:
    body = {"error": {"message": f"Incorrect API key provided: {KEY}; tenant hush-hush."}}
    error = await failure_of(refuses(401, body), headers={"X-Tenant": "hush-hush"})
    assert "***" in error.failure.message
    assert "hush-hush" not in error.failure.message
    assert KEY not in repr(ChatEndpointStage(base_url="http://a", model="m", api_key=KEY))
    error = await failure_of(streams(event({"error": {"message": f"bad key {KEY}"}})))
    assert "***" in error.failure.message


async def test_nonsense_in_the_stream_is_the_endpoints_failure() -> None:
    error = await failure_of(streams(text("a"), b"data: {nonsense\n\n"))
    assert error.failure.code == "upstream_error"


async def test_a_stream_that_ends_too_early_is_the_endpoints_failure() -> None:
    error = await failure_of(streams(text("a")))
    assert "broke off" in error.failure.message


async def test_a_connection_that_breaks_off_is_the_endpoints_failure() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield text("a")
        raise ConnectionError("the cable was cut")

    async def cut(request: Request) -> Response:
        return StreamingResponse(body(), media_type="text/event-stream")

    error = await failure_of(cut)
    assert "broke the connection off" in error.failure.message


async def test_an_endpoint_that_never_answers_is_given_up() -> None:
    async def hang(request: Request) -> Response:
        await anyio.sleep_forever()
        raise AssertionError

    error = await failure_of(hang, first_s=0.05)
    assert "in time" in error.failure.message


async def test_an_endpoint_that_falls_silent_is_given_up() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield text("a")
        await anyio.sleep_forever()

    async def stall(request: Request) -> Response:
        return StreamingResponse(body(), media_type="text/event-stream")

    error = await failure_of(stall, gap_s=0.05)
    assert "silent" in error.failure.message


async def test_a_usage_that_never_comes_does_not_hold_up_a_complete_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat_endpoint_impl, "USAGE_SECONDS", 0.05)

    async def body() -> AsyncIterator[bytes]:
        yield text("a", "stop")
        await anyio.sleep_forever()

    async def stall(request: Request) -> Response:
        return StreamingResponse(body(), media_type="text/event-stream")

    async with serving(stall) as stub, endpoint(stub) as language:
        pieces = await answer(language, asked())
    assert isinstance(pieces[-1], Finished)


async def test_nobody_listening_is_told_after_a_second_try() -> None:
    async with serving(streams()) as stub:
        pass
    async with endpoint(stub) as language:
        with pytest.raises(LanguageError, match="can't be reached"):
            await answer(language, asked())


async def test_a_connection_closed_before_the_answer_is_tried_once_more() -> None:
    connections = 0

    async def greet(stream: anyio.abc.SocketStream) -> None:
        nonlocal connections
        connections += 1
        async with stream:
            request = b""
            while b"\r\n\r\n" not in request:
                request += await stream.receive()
            if connections == 1:
                return
            body = text("again", "stop")
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
            await stream.send(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, greet)
        stub = Stub(streams(), listener.extra(anyio.abc.SocketAttribute.local_port))
        async with endpoint(stub) as language:
            assert (await answer(language, asked()))[0] == TextPiece("again")
        group.cancel_scope.cancel()
    assert connections == 2


async def test_a_tool_with_a_wrong_schema_is_an_engine_error() -> None:
    async with serving(streams()) as stub, endpoint(stub) as language:
        with pytest.raises(LanguageError) as caught:
            await answer(language, asked(tools=(Tool("look", "", "{"),)))
    assert caught.value.failure.code == "engine_error"
    assert stub.bodies == []


async def test_an_address_that_is_none_is_told() -> None:
    language = ChatEndpointLanguage(ChatEndpointStage(base_url="nowhere", model="m"))
    await language.load()
    with pytest.raises(LanguageError, match="can't be used"):
        await answer(language, asked())
    await language.aclose()
    await language.aclose()


async def test_it_says_what_it_is() -> None:
    stage = ChatEndpointStage(base_url="http://a", model="m", sees=True, context_tokens=9)
    language = ChatEndpointLanguage(stage)
    assert (language.model, language.sees, language.context_tokens) == ("m", True, 9)
    assert language.remote
    await language.warm("s", asked())
    language.forget("s")
