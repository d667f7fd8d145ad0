"""A worker reached over TCP: who gets in, what passes, what is noticed."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import pytest

from duologue.engines.cluster.handshake import (
    HandshakeFailed,
    greet_caller,
    greet_listener,
    new_secret,
    proof,
)
from duologue.engines.cluster.lane_relay import LaneRelay
from duologue.engines.cluster.tcp_stream import TcpStream, connect_tcp, listen_tcp
from duologue.engines.engine import (
    EngineLost,
    Message,
    Respond,
    ResponseEnded,
    ResponseRequest,
    TextPart,
)
from duologue.engines.in_process import open_in_process
from duologue.engines.lane import Wire
from duologue.engines.pulse import Pulse
from duologue.engines.remote import LaneName, RemoteEngine, RemoteLimits, RemoteStream
from duologue.engines.script import ScriptedOptions
from duologue.engines.scripted import ScriptedBackend
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

SECRET = new_secret()


@dataclass
class Relayed:
    engine: RemoteEngine
    port: int
    lines: list[TcpStream]


@asynccontextmanager
async def relayed(secret: bytes = SECRET) -> AsyncIterator[Relayed]:
    """A scripted engine in this process, whose sockets are reached through a relay."""
    async with (
        open_in_process(ScriptedBackend(ScriptedOptions(), Pulse())) as local,
        listen_tcp("127.0.0.1") as listener,
        anyio.create_task_group() as group,
    ):
        group.start_soon(LaneRelay(local.directory, SECRET).serve, listener)
        lines: list[TcpStream] = []

        async def dial(lane: LaneName) -> Wire:
            stream = await connect_tcp("127.0.0.1", listener.port, 5.0)
            lines.append(stream)
            try:
                await greet_listener(stream, secret, lane)
            except BaseException:
                await stream.aclose()
                raise
            return stream

        engine = RemoteEngine(local.directory, RemoteLimits(retry_s=0.01), dial)
        group.start_soon(engine.run)
        yield Relayed(engine, listener.port, lines)
        group.cancel_scope.cancel()


async def answer(stream: RemoteStream) -> str:
    message = Message("user", (TextPart("long"),))
    request = ResponseRequest(instructions="", messages=(message,), modality="text")
    stream.send(Respond(1, request, session="s"))
    with anyio.fail_after(PATIENCE_S):
        while not isinstance(output := await stream.receive(), ResponseEnded):
            pass
    return output.reason


async def test_a_session_works_through_the_relay() -> None:
    async with relayed() as here:
        with anyio.fail_after(PATIENCE_S):
            await here.engine.wait_ready()
        stream = await here.engine.open("s")
        assert await answer(stream) == "completed"
        await stream.aclose()


async def test_without_the_secret_nobody_gets_in() -> None:
    async with relayed(new_secret()) as here:
        with anyio.move_on_after(0.3):
            await here.engine.wait_ready()
        assert not here.engine.ready
        assert here.lines


async def test_a_connection_that_breaks_loses_its_sessions_and_is_made_again() -> None:
    async with relayed() as here:
        with anyio.fail_after(PATIENCE_S):
            await here.engine.wait_ready()
            stream = await here.engine.open("s")
            await here.lines[-1].aclose()
            with pytest.raises(EngineLost):
                await stream.receive()
            await here.engine.wait_ready()
            again = await here.engine.open("s")
        assert await answer(again) == "completed"


Greeting = Callable[[TcpStream], Awaitable[None]]


async def greeted(caller: Greeting) -> Exception | LaneName | None:
    """What the listener's side came to."""
    found: list[Exception | LaneName] = []

    async def fetch(lane: LaneName) -> LaneName:
        return lane

    async def attend(stream: TcpStream) -> None:
        try:
            found.append(await greet_caller(stream, SECRET, fetch))
        except HandshakeFailed as error:
            found.append(error)
        finally:
            await stream.aclose()
            group.cancel_scope.cancel()

    with anyio.fail_after(PATIENCE_S):
        async with listen_tcp("127.0.0.1") as listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, attend)
            stream = await connect_tcp("127.0.0.1", listener.port, 5.0)
            try:
                await caller(stream)
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await stream.aclose()
    return found[0] if found else None


async def test_both_sides_prove_themselves() -> None:
    async def call(stream: TcpStream) -> None:
        await greet_listener(stream, SECRET, "data")

    assert await greeted(call) == "data"


async def test_a_proof_can_not_be_used_again() -> None:
    nonces = b"n" * 64

    async def replay(stream: TcpStream) -> None:
        await stream.receive_exactly(32)
        await stream.send(nonces[32:] + b"c" + proof(SECRET, "caller", nonces, b"c"))

    assert isinstance(await greeted(replay), HandshakeFailed)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"x" * 65])
async def test_a_stranger_is_closed_on(said: bytes) -> None:
    async def shout(stream: TcpStream) -> None:
        await stream.send(said)
        await stream.aclose()

    assert isinstance(await greeted(shout), HandshakeFailed)


async def test_a_caller_does_not_believe_a_listener_without_the_secret() -> None:
    async def impostor(stream: TcpStream) -> None:
        await stream.send(b"n" * 32)
        await stream.receive_exactly(65)
        await stream.send(b"p" * 32)
        await stream.aclose()

    with anyio.fail_after(PATIENCE_S):
        async with listen_tcp("127.0.0.1") as listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, impostor)
            stream = await connect_tcp("127.0.0.1", listener.port, 5.0)
            failed = False
            try:
                await greet_listener(stream, SECRET, "control")
            except HandshakeFailed:
                failed = True
            await stream.aclose()
            group.cancel_scope.cancel()
    assert failed


async def test_where_nobody_listens_an_error_is_raised_at_once() -> None:
    async with listen_tcp("127.0.0.1") as listener:
        port = listener.port
    with pytest.raises(OSError, match="can't connect|refused"):
        await connect_tcp("127.0.0.1", port, 5.0)
