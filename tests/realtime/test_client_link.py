"""What the client makes of servers that are none, or bad ones."""

import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.abc
import pytest
from websockets.asyncio.server import ServerConnection, serve

from duologue.realtime import client, client_call, client_link
from duologue.realtime.client import (
    ConnectError,
    OtherEvent,
    ResponseDone,
    SessionCreated,
    Transport,
    connect,
)
from duologue.realtime.client_link import Disconnected, headers, one_line, read_message, refusal
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

CREATED = json.dumps({"type": "session.created", "session": {"id": "sess_1", "model": "m"}})
TRANSPORTS = pytest.mark.parametrize("transport", ["websocket", "webrtc", "auto"])


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is short of time a server may take long to be bad."""
    for module in (client, client_link, client_call):
        monkeypatch.setattr(module, "CONNECT_S", 200.0)


def http_answer(status: str, body: str, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}"
    return f"{head}\r\nConnection: close\r\n\r\n{body}".encode()


@asynccontextmanager
async def answering(answer: bytes | None) -> AsyncIterator[str]:
    """A server that answers everything with these bytes; ``None``: it takes what comes."""

    async def talk(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with suppress(anyio.EndOfStream):
                await stream.receive()
            if answer is None:
                await anyio.sleep_forever()
            await stream.send(answer or b"")
            await stream.send_eof()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, talk)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        yield f"http://127.0.0.1:{port}"
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def speaking(
    talk: Callable[[ServerConnection], Coroutine[Any, Any, None]],
) -> AsyncIterator[str]:
    async with serve(talk, "127.0.0.1", 0) as server:
        host, port = next(iter(server.sockets)).getsockname()
        yield f"http://{host}:{port}"


def sending(*texts: str, close: tuple[int, str] | None = None) -> Any:
    """A server that says this, and then closes or nothing more."""

    async def talk(socket: ServerConnection) -> None:
        for text in texts:
            await socket.send(text)
        if close is not None:
            await socket.close(*close)
        await socket.wait_closed()

    return talk


async def failure(url: str, transport: Transport) -> str:
    with pytest.raises(ConnectError) as caught, anyio.fail_after(PATIENCE_S):
        async with connect(url, transport=transport):
            pass
    return str(caught.value)


@TRANSPORTS
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            http_answer("401 Unauthorized", '{"error": {"message": "Which\\nkey?"}}'),
            "the server refused (401): Which key?",
        ),
        (http_answer("404 Not Found", "nothing here"), "the server refused (404): nothing here"),
        (http_answer("500 Oh", ""), "the server refused (500): Internal Server Error"),
        (
            http_answer("200 OK", "<!doctype html><p>Hello<p>there", "text/html"),
            "the server refused (200): OK",
        ),
    ],
)
async def test_a_server_that_refuses_is_quoted_in_a_line(
    transport: Transport, answer: bytes, told: str
) -> None:
    async with answering(answer) as url:
        assert await failure(url, transport) == told


@TRANSPORTS
@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9.6\r\n"])
async def test_what_does_not_speak_http_is_named(transport: Transport, answer: bytes) -> None:
    async with answering(answer) as url:
        told = await failure(url, transport)
        assert told.startswith("ws" if transport == "auto" else "")
        assert url.removeprefix("http") in told and "\n" not in told


@TRANSPORTS
async def test_a_server_that_does_not_answer_is_given_up(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (client_link, client_call):
        monkeypatch.setattr(module, "CONNECT_S", 0.05)
    async with answering(None) as url:
        assert (await failure(url, transport)).endswith("did not answer within 0.05 s")


@pytest.mark.parametrize("sdp", ["<p>Welcome</p>", "v=0\r\n", "", "m=audio x\r\na=b", "v=0\r\nm="])
async def test_an_answer_that_is_no_sdp_is_refused(sdp: str) -> None:
    async with answering(http_answer("201 Created", sdp, "application/sdp")) as url:
        assert await failure(url, "webrtc") == "the server's answer to the call can't be read"


async def ended(url: str) -> tuple[list[Any], str]:
    with anyio.fail_after(PATIENCE_S):
        async with connect(url, transport="websocket") as conversation:
            events = [event async for event in conversation]
            return events, conversation.ended


@pytest.mark.parametrize("garbage", ["not json", "5", "[]", "null", '"text"', "[" * 5000])
async def test_what_is_no_event_ends_the_conversation(garbage: str) -> None:
    async with speaking(sending(CREATED, garbage)) as url:
        events, why = await ended(url)
    assert [type(event) for event in events] == [SessionCreated]
    assert why == "the server sent something that is no event"


@pytest.mark.parametrize(
    "sound", [{}, {"item_id": "a", "delta": 5}, {"item_id": "a", "delta": "é"}]
)
async def test_sound_that_is_none_ends_the_conversation(sound: dict[str, Any]) -> None:
    delta = json.dumps({"type": "response.output_audio.delta", **sound})
    async with speaking(sending(CREATED, delta)) as url:
        assert (await ended(url))[1] == "the server sent sound that can't be played"


async def test_events_that_nobody_knows_are_passed_on() -> None:
    unknown = [{"type": "weather.changed", "to": "rain"}, {"type": 5}, {}, {"type": "error"}]
    texts = [json.dumps(event) for event in unknown]
    async with speaking(sending(CREATED, *texts, close=(1000, ""))) as url:
        events, why = await ended(url)
    assert [event.fields for event in events[1:]] == unknown
    assert all(isinstance(event, OtherEvent) for event in events[1:])
    assert why == "the server closed the connection (1000)"


async def test_a_server_that_closes_within_an_answer_is_told_of() -> None:
    begun = json.dumps({"type": "response.created", "response": {"id": "r"}})
    async with speaking(sending(CREATED, begun, close=(1011, "it\nfailed"))) as url:
        events, why = await ended(url)
    assert len(events) == 2 and not isinstance(events[-1], ResponseDone)
    assert why == "the server closed the connection (1011): it failed"


async def test_a_server_that_breaks_off_is_told_of() -> None:
    async def talk(socket: ServerConnection) -> None:
        await socket.send(CREATED)
        socket.transport.abort()

    async with speaking(talk) as url:
        assert (await ended(url))[1] == "the connection broke"


async def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CONNECT_S", 0.05)
    async with speaking(sending()) as url:
        assert await ended(url) == ([], "the server said nothing within 0.05 s")


@pytest.mark.parametrize("url", ["http://[::1", "host:99999", "host:port", "http://a\0b"])
@pytest.mark.parametrize("transport", ["websocket", "webrtc"])
async def test_an_address_that_can_not_be_is_refused(url: str, transport: Transport) -> None:
    assert "no address of a server" in await failure(url, transport)


@pytest.mark.parametrize("key", ["sk\n", "schlüssel"])
@pytest.mark.parametrize("transport", ["websocket", "webrtc"])
async def test_a_key_that_can_not_be_sent_is_refused(key: str, transport: Transport) -> None:
    with pytest.raises(ConnectError, match="characters"):
        async with connect("127.0.0.1:9", transport=transport, key=key):
            pass
    assert headers("sk-1") == {"Authorization": "Bearer sk-1"}


def test_what_others_wrote_fits_on_a_line() -> None:
    assert one_line("  a\x1b[31m\r\n b\t") == "a [31m b"
    assert len(one_line("x" * 10_000)) == 301
    assert refusal(599, b"\xff") == "the server refused (599): \ufffd"
    assert refusal(599, b"") == "the server refused (599)"


def test_bytes_that_are_no_text_are_no_event() -> None:
    with pytest.raises(Disconnected, match="no event"):
        read_message(b"\xff\xfe")
