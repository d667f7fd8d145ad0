"""HTTP over real sockets, from clients that take their time; and the rules of that, by a clock."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from duologue.web import http_connection
from duologue.web.http_connection import (
    HEAD_SECONDS,
    LARGEST_HEAD,
    PIECE_BYTES,
    PIECE_SECONDS,
    TAKEN_BYTES,
    TAKEN_SECONDS,
    Patience,
)
from duologue.web.uvicorn_impl import PatientServer, server_config
from tests.patience import PATIENCE_S
from tests.uvicorn_start import start_serving

# -- the rules ------------------------------------------------------------------------------


def fault(patience: Patience, now: float, unsent: int = 0, **changes: bool) -> str | None:
    return patience.look(now, unsent, **{"blocked": False, "paused": False, **changes})


def test_a_connection_has_its_time_to_say_what_it_wants() -> None:
    patience = Patience(100.0)
    assert fault(patience, 100.0 + HEAD_SECONDS - 1) is None
    assert fault(patience, 100.0 + HEAD_SECONDS) == "head"


def test_a_head_that_comes_byte_by_byte_gets_no_more_time() -> None:
    patience = Patience(0.0)
    for second in range(int(HEAD_SECONDS)):
        patience.heard(1, float(second))
        assert fault(patience, float(second)) is None
    assert fault(patience, HEAD_SECONDS) == "head"


def test_a_connection_that_rests_between_requests_is_not_counted_against() -> None:
    patience = Patience(0.0)
    patience.heard(100, 1.0)
    patience.head_read(1.0)
    patience.body_read()
    assert fault(patience, 1000.0) is None
    patience.heard(1, 1000.0)
    assert fault(patience, 1000.0 + HEAD_SECONDS - 1) is None
    assert fault(patience, 1000.0 + HEAD_SECONDS) == "head"


def test_a_head_that_is_too_large_is_told() -> None:
    patience = Patience(0.0)
    patience.heard(LARGEST_HEAD, 0.0)
    assert not patience.head_too_large
    patience.heard(1, 0.0)
    assert patience.head_too_large
    patience.head_read(0.0)
    patience.heard(LARGEST_HEAD + 1, 0.0)
    assert not patience.head_too_large


def test_a_body_may_last_while_it_comes() -> None:
    patience = Patience(0.0)
    patience.head_read(0.0)
    now = 0.0
    for _ in range(100):
        patience.heard(PIECE_BYTES, now)
        now += PIECE_SECONDS - 1
        assert fault(patience, now) is None
    patience.heard(PIECE_BYTES - 1, now)
    assert fault(patience, now + PIECE_SECONDS) == "body"


def test_a_body_that_we_do_not_read_is_not_late() -> None:
    patience = Patience(0.0)
    patience.head_read(0.0)
    assert fault(patience, 10 * PIECE_SECONDS, paused=True) is None
    assert fault(patience, 11 * PIECE_SECONDS - 1) is None
    assert fault(patience, 11 * PIECE_SECONDS) == "body"


def test_an_answer_that_nobody_takes_is_given_up() -> None:
    patience = Patience(0.0)
    patience.head_read(0.0)
    patience.body_read()
    assert fault(patience, 0.0, 100_000, blocked=True) is None
    assert fault(patience, 1.0, 100_000 - TAKEN_BYTES, blocked=True) is None
    left = 100_000 - 2 * TAKEN_BYTES + 1
    assert fault(patience, TAKEN_SECONDS, left, blocked=True) is None
    assert fault(patience, 1.0 + TAKEN_SECONDS, left, blocked=True) == "answer"


def test_an_answer_that_is_taken_may_last() -> None:
    patience = Patience(0.0)
    patience.head_read(0.0)
    patience.body_read()
    unsent = 10**6
    for look in range(100):
        assert fault(patience, look * (TAKEN_SECONDS - 1), unsent, blocked=True) is None
        unsent -= TAKEN_BYTES
    assert fault(patience, 1e6, unsent) is None
    assert fault(patience, 2e6, unsent, blocked=True) is None


# -- over sockets ---------------------------------------------------------------------------


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the size of the body, or with as much as is asked for."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message["body"]), message["more_body"]
    wanted = int(scope["query_string"] or 0)
    body = b"x" * wanted if wanted else str(size).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[int, PatientServer]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = PatientServer(server_config(echo))
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                await start_serving(tasks, server, [listener])
                try:
                    yield listener.getsockname()[1], server
                finally:
                    server.should_exit = True


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_SECONDS", "PIECE_SECONDS", "TAKEN_SECONDS"):
        monkeypatch.setattr(http_connection, name, 0.1)
    monkeypatch.setattr(http_connection, "LOOK_SECONDS", 0.02)


async def rest(stream: anyio.abc.SocketStream) -> bytes:
    """Everything until the server drops the connection."""
    data = b""
    try:
        while True:
            data += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return data


@pytest.mark.anyio
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    "said",
    [b"", b"\r\n", b"GET / HTTP/1.1\r\nHost: a", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nab"],
    ids=["nothing", "a-blank-line", "half-a-head", "half-a-body"],
)
async def test_who_does_not_end_what_they_say_is_let_go(said: bytes) -> None:
    async with serving() as (port, _), await anyio.connect_tcp("127.0.0.1", port) as stream:
        if said:
            await stream.send(said)
        assert (await rest(stream)).startswith(b"HTTP/1.1 408 ")


@pytest.mark.anyio
async def test_a_head_without_an_end_is_answered_with_431() -> None:
    async with serving() as (port, _), await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
        answer = b""

        async def pour() -> None:
            try:
                while True:
                    await stream.send(b"x" * 10_000)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pour)
            answer = await rest(stream)
            tasks.cancel_scope.cancel()
    # What was still under way may have taken the answer with it.
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")


@pytest.mark.anyio
async def test_who_takes_no_answer_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "TAKEN_SECONDS", 0.1)
    monkeypatch.setattr(http_connection, "LOOK_SECONDS", 0.02)
    async with serving() as (port, server):
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(b"GET /?60000000 HTTP/1.1\r\nHost: a\r\n\r\n")
            while not server.server_state.connections:
                await anyio.lowlevel.checkpoint()
            while server.server_state.connections:
                await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
async def test_what_a_slow_client_takes_shows_before_our_own_buffer_moves() -> None:
    async with serving() as (port, server):
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(b"GET /?60000000 HTTP/1.1\r\nHost: a\r\n\r\n")
            while not server.server_state.connections:
                await anyio.lowlevel.checkpoint()
            [connection] = server.server_state.connections
            assert isinstance(connection, http_connection.HttpConnection)
            while not connection.flow.write_paused:
                await anyio.lowlevel.checkpoint()
            before = connection.unsent
            taken = 0
            while taken < 1_000_000:
                taken += len(await stream.receive(10_000))
                while connection.unsent > before - taken + 500_000:
                    await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
async def test_requests_follow_each_other_on_one_connection() -> None:
    body = b"y" * 200_000
    async with serving() as (port, _), await anyio.connect_tcp("127.0.0.1", port) as stream:
        for _ in range(3):
            head = f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
            await stream.send(head.encode() + body)
            answer = b""
            while not answer.endswith(b"0\r\n\r\n"):
                answer += await stream.receive()
            assert b"200000" in answer
