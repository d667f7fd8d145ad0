"""uvicorn with real sockets: what no client may do to us, and what each may expect."""

import base64
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import OP_BINARY, OP_TEXT, Frame

from duologue.realtime.websocket import CONTROL
from duologue.web import uvicorn_impl
from duologue.web.uvicorn_impl import (
    PatientServer,
    WebSocketProtocol,
    _TextDeflate,
    server_config,
)
from tests.patience import PATIENCE_S
from tests.uvicorn_start import start_serving

pytestmark = pytest.mark.anyio

Handler = Callable[[WebSocket], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler, **changes: Any) -> AsyncIterator[int]:
    """A server whose every WebSocket is given to `handler`; yields its port."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        websocket = WebSocket(scope, receive, send)
        await websocket.accept()
        await handler(websocket)

    config = server_config(app, certificate=None)
    for name, value in changes.items():
        setattr(config, name, value)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = PatientServer(config)
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                await start_serving(tasks, server, [listener])
                try:
                    yield listener.getsockname()[1]
                finally:
                    server.should_exit = True


def client(port: int, **options: Any) -> Any:
    defaults = {"proxy": None, "compression": None, "ping_interval": None, "close_timeout": 1}
    return connect(f"ws://127.0.0.1:{port}/", **{**defaults, "max_size": None, **options})


async def echo(websocket: WebSocket) -> None:
    try:
        while True:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            await websocket.send_text(str(len(message.get("text") or message["bytes"])))
    except WebSocketDisconnect:
        return


async def close_code(connection: ClientConnection) -> int | None:
    with anyio.fail_after(PATIENCE_S), pytest.raises(ConnectionClosed):
        while True:
            await connection.recv()
    return connection.close_code


async def test_a_message_of_twenty_mebibytes_is_taken() -> None:
    async with serving(echo) as port, client(port) as connection:
        await connection.send("x" * (20 * 1024 * 1024))
        assert await connection.recv() == str(20 * 1024 * 1024)


async def test_a_message_that_is_too_large_closes_with_1009() -> None:
    async with serving(echo, ws_max_size=1000) as port, client(port) as connection:
        await connection.send("x" * 1001)
        assert await close_code(connection) == 1009


async def test_compression_is_used_when_it_is_offered() -> None:
    async with serving(echo) as port:
        async with client(port, compression="deflate") as connection:
            assert "permessage-deflate" in connection.response.headers["Sec-WebSocket-Extensions"]
            await connection.send("x" * 100_000)
            assert await connection.recv() == "100000"
        async with client(port) as connection:
            assert "Sec-WebSocket-Extensions" not in connection.response.headers


async def test_sound_is_not_compressed_again() -> None:
    deflate = _TextDeflate(PerMessageDeflate(False, False, 12, 12))
    sound, text = Frame(OP_BINARY, b"x" * 1000), Frame(OP_TEXT, b"x" * 1000)
    assert deflate.encode(sound) is sound
    packed = deflate.encode(text)
    assert packed.rsv1
    assert len(packed.data) < 100

    async def both(websocket: WebSocket) -> None:
        for _ in range(2):
            await websocket.send_bytes(b"sound" * 100)
            await websocket.send_text("text" * 100)

    async with serving(both) as port, client(port, compression="deflate") as connection:
        assert [await connection.recv() for _ in range(4)] == [b"sound" * 100, "text" * 100] * 2


async def test_what_unpacks_to_too_much_closes_with_1009() -> None:
    async with (
        serving(echo, ws_max_size=10_000) as port,
        client(port, compression="deflate") as connection,
    ):
        await connection.send("x" * 1_000_000)
        assert await close_code(connection) == 1009


async def test_many_small_messages_are_read_no_faster_than_they_are_taken() -> None:
    queued: list[int] = []
    seen: list[str] = []

    async def slow(websocket: WebSocket) -> None:
        protocol: WebSocketProtocol = websocket.scope["extensions"][CONTROL]
        while len(seen) < 5000:
            message = await websocket.receive()
            seen.append(message["text"])
            queued.append(protocol.queue.qsize())
            await anyio.lowlevel.checkpoint()
        await websocket.close()

    async with serving(slow) as port, client(port) as connection:
        for number in range(5000):
            await connection.send(str(number))
        assert await close_code(connection) == 1000
    assert seen == [str(number) for number in range(5000)]
    # One slice of the smallest frames (6 bytes of head and mask, 1 to 4 of text).
    assert max(queued) <= 16 * 1024 // 7


# -- clients that do not play by the rules --------------------------------------------------


async def handshake(port: int) -> anyio.abc.SocketStream:
    stream = await anyio.connect_tcp("127.0.0.1", port)
    key = base64.b64encode(os.urandom(16)).decode()
    await stream.send(
        f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
        f"Sec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += await stream.receive()
    assert answer.startswith(b"HTTP/1.1 101")
    return stream


def frame(opcode: int, payload: bytes) -> bytes:
    assert len(payload) < 126
    return bytes([0x80 | opcode, 0x80 | len(payload)]) + b"\0\0\0\0" + payload


async def rest(stream: anyio.abc.SocketStream) -> bytes:
    """Everything until the server drops the connection."""
    data = b""
    try:
        while True:
            data += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return data


async def test_invalid_utf8_closes_with_1007() -> None:
    async with serving(echo) as port, await handshake(port) as stream:
        await stream.send(frame(1, b"\xff\xfe"))
        data = await rest(stream)
        assert data[0] == 0x88
        assert int.from_bytes(data[2:4]) == 1007


async def test_a_client_that_sends_a_byte_at_a_time_holds_nobody_up() -> None:
    async with (
        serving(echo) as port,
        await handshake(port) as slow,
        client(port) as other,
    ):
        for byte in frame(1, b"slow"):
            await slow.send(bytes([byte]))
            await other.send("quick")
            assert await other.recv() == "5"
        assert await slow.receive() == b"\x81\x014"


async def test_a_client_that_answers_no_ping_is_dropped() -> None:
    gone = anyio.Event()

    async def wait(websocket: WebSocket) -> None:
        message = await websocket.receive()
        assert message["type"] == "websocket.disconnect"
        gone.set()

    async with serving(wait, ws_ping_interval=0.05, ws_ping_timeout=0.05) as port:
        async with await handshake(port) as stream:
            data = await rest(stream)
            await gone.wait()
        assert data[0] == 0x89


async def test_a_client_that_answers_pings_stays() -> None:
    async with (
        serving(echo, ws_ping_interval=0.02, ws_ping_timeout=60) as port,
        await handshake(port) as stream,
    ):
        for _ in range(5):
            data = await stream.receive()
            assert data[0] == 0x89
            await stream.send(frame(10, data[2:6]))


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (b"", frame(9, b"p" * 125)),
        (b"", frame(10, b"p" * 125)),
        (b"\x01\x80\0\0\0\0", b"\x00\x80\0\0\0\0"),
        (b"\x02\x81\0\0\0\0x", b"\x00\x81\0\0\0\0x"),
    ],
    ids=["pings", "pongs", "empty-fragments", "fragments-of-a-byte"],
)
async def test_a_flood_of_what_costs_nothing_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, first: bytes, again: bytes
) -> None:
    monkeypatch.setattr(uvicorn_impl, "LINGER_SECONDS", 0.1)
    async with serving(echo) as port, await handshake(port) as stream:

        async def pour() -> None:
            try:
                await stream.send(first)
                while True:
                    await stream.send(again * 500)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pour)
            data = await rest(stream)
            tasks.cancel_scope.cancel()
    # What was still under way may have taken the close frame with it.
    found = data.rfind(b"\x88")
    assert found < 0 or int.from_bytes(data[found + 2 : found + 4]) == 1008


async def test_pongs_do_not_pile_up_for_a_client_that_takes_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uvicorn_impl, "CONTROLS", (1e9, 1e9))
    waiting: list[int] = []
    done = anyio.Event()

    async def handler(websocket: WebSocket) -> None:
        protocol: WebSocketProtocol = websocket.scope["extensions"][CONTROL]
        while (await websocket.receive())["type"] == "websocket.receive":
            waiting.append(protocol.transport.get_write_buffer_size())
            if len(waiting) == 100:
                done.set()

    async with serving(handler) as port, await handshake(port) as stream:
        for _ in range(100):
            # 12.7 MB of pongs, of which the kernel takes some.
            await stream.send(frame(9, b"p" * 125) * 1000 + frame(1, b"next"))
        await done.wait()
    assert max(waiting) < 200_000


async def test_what_comes_after_the_close_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_impl, "LINGER_SECONDS", 0.3)
    kept: list[int] = []

    async def handler(websocket: WebSocket) -> None:
        control: WebSocketProtocol = websocket.scope["extensions"][CONTROL]
        control.fail(1008, "enough")
        while not control.disconnected:
            kept.append(len(control._unread))
            await anyio.lowlevel.checkpoint()

    async with serving(handler) as port, await handshake(port) as stream:
        with contextlib.suppress(anyio.BrokenResourceError):
            while True:
                await stream.send(frame(10, b"p" * 125) * 2000)
    # As much as is read at a time.
    assert max(kept) <= 512 * 1024


async def test_a_long_run_of_frames_is_read_in_turns_with_others() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with serving(echo) as port, await handshake(port) as stream:
        size = 9000
        body = b"".join(b"\x00\x81\0\0\0\0x" for _ in range(size - 1)) + b"\x80\x81\0\0\0\0x"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count)
            await stream.send(b"\x01\x81\0\0\0\0x" + body)
            assert await stream.receive() == b"\x81\x04" + str(size + 1).encode()
            tasks.cancel_scope.cancel()
    assert turns >= len(body) // (16 * 1024)


FLOOD = "x" * 100_000


async def flood(websocket: WebSocket) -> None:
    """Send until the client is seen not to read, then give up on it."""
    with anyio.move_on_after(0.2):
        while True:
            await websocket.send_text(FLOOD)
    control: WebSocketProtocol = websocket.scope["extensions"][CONTROL]
    control.fail(1008, "too slow to read")


async def test_a_client_that_reads_at_last_finds_the_close_behind_what_it_missed() -> None:
    given_up = anyio.Event()

    async def handler(websocket: WebSocket) -> None:
        await flood(websocket)
        given_up.set()

    async with serving(handler) as port, client(port) as connection:
        await given_up.wait()
        assert await close_code(connection) == 1008


async def test_a_client_that_never_reads_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_impl, "LINGER_SECONDS", 0.1)
    dropped = anyio.Event()

    async def handler(websocket: WebSocket) -> None:
        control: WebSocketProtocol = websocket.scope["extensions"][CONTROL]
        await flood(websocket)
        while not control.disconnected:
            await anyio.lowlevel.checkpoint()
        dropped.set()

    async with serving(handler) as port, await handshake(port):
        await dropped.wait()


async def test_a_close_that_is_not_answered_does_not_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_impl, "LINGER_SECONDS", 0.1)

    async def handler(websocket: WebSocket) -> None:
        await websocket.receive()
        await websocket.close(1000)

    async with serving(handler) as port, await handshake(port) as stream:
        await stream.send(frame(1, b"close"))
        assert (await rest(stream))[0] == 0x88


async def test_signals_are_left_to_the_owner() -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with serving(echo):
        assert signal.getsignal(signal.SIGTERM) is before
