"""The transport over a socket that the test holds both ends of."""

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from starlette.websockets import WebSocket

from duologue.realtime.server_wire import Encoder
from duologue.realtime.websocket import (
    CONTROL,
    EventBucket,
    SocketLimits,
    WebSocketTransport,
    open_transport,
)
from duologue.sessions import effects
from duologue.sessions.errors import ProtocolError
from duologue.sessions.events import (
    CancelResponse,
    ClearAudio,
    CommitAudio,
    CreateResponse,
    Rejected,
    UpdateSession,
)
from duologue.sessions.ports import AudioBytes, Incoming, TransportClosed
from duologue.sessions.session_config import AudioFormat, SessionConfig
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

Message = dict[str, Any]


class Socket:
    """A server's end of a WebSocket, and the client at the other one."""

    def __init__(self) -> None:
        self._give, self._take = anyio.create_memory_object_stream[Message](100_000)
        self.sent: list[Message] = []
        self.failed: list[tuple[int, str]] = []
        self.changed = anyio.Event()
        self.reading = anyio.Event()
        self.reading.set()
        self.broken = False

    def fail(self, code: int, reason: str) -> None:
        self.failed.append((code, reason))

    async def receive(self) -> Message:
        return await self._take.receive()

    async def send(self, message: Message) -> None:
        await self.reading.wait()
        if self.broken:
            raise OSError("gone")
        self.sent.append(message)
        self.changed.set()
        self.changed = anyio.Event()

    def says(self, **event: object) -> None:
        self._give.send_nowait({"type": "websocket.receive", "text": json.dumps(event)})

    def says_bytes(self, data: bytes) -> None:
        self._give.send_nowait({"type": "websocket.receive", "bytes": data})

    def leaves(self, code: int = 1000) -> None:
        self._give.send_nowait({"type": "websocket.disconnect", "code": code})

    def stops_reading(self) -> None:
        self.reading = anyio.Event()

    @property
    def unread(self) -> int:
        return self._take.statistics().current_buffer_used

    @property
    def closed(self) -> tuple[int, str] | None:
        for message in self.sent:
            if message["type"] == "websocket.close":
                return message["code"], message["reason"]
        return None

    @property
    def events(self) -> list[Message]:
        return [json.loads(m["text"]) for m in self.sent if m["type"] == "websocket.send"]

    async def got(self, count: int) -> list[Message]:
        with anyio.fail_after(PATIENCE_S):
            while len(self.events) < count:
                await self.changed.wait()
        return self.events


@asynccontextmanager
async def connected(
    limits: SocketLimits | None = None, config: SessionConfig | None = None
) -> AsyncIterator[tuple[WebSocketTransport, Socket]]:
    socket = Socket()
    scope = {"type": "websocket", "headers": [], "extensions": {CONTROL: socket}}
    socket._give.send_nowait({"type": "websocket.connect"})
    websocket = WebSocket(scope, socket.receive, socket.send)
    await websocket.accept()
    socket.sent.clear()
    with anyio.fail_after(PATIENCE_S), socket._give, socket._take:
        async with open_transport(
            websocket, Encoder("s", 1), config or SessionConfig(), limits or SocketLimits()
        ) as transport:
            yield transport, socket


def audio(size: int) -> str:
    return base64.b64encode(bytes(size)).decode()


async def received(transport: WebSocketTransport, count: int) -> list[Incoming]:
    return [await transport.receive() for _ in range(count)]


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


# -- in -------------------------------------------------------------------------------------


async def test_events_come_in_the_order_they_were_sent() -> None:
    async with connected() as (transport, socket):
        socket.says(type="input_audio_buffer.append", audio=audio(4))
        socket.says(type="input_audio_buffer.commit", event_id="a")
        socket.says(type="input_audio_buffer.clear", event_id="b")
        first, *rest = await received(transport, 3)
        assert isinstance(first, AudioBytes)
        assert rest == [CommitAudio("a"), ClearAudio("b")]


async def test_a_wrong_event_is_answered_in_its_turn() -> None:
    async with connected() as (transport, socket):
        socket.says(type="input_audio_buffer.commit")
        socket.says(type="nothing", event_id="mine")
        _, wrong = await received(transport, 2)
        assert isinstance(wrong, Rejected)
        assert (wrong.error.code, wrong.error.event_id) == ("unknown_event", "mine")


async def test_a_cancel_overtakes_audio_that_waits() -> None:
    async with connected() as (transport, socket):
        for _ in range(3):
            socket.says(type="input_audio_buffer.append", audio=audio(4))
        socket.says(type="response.cancel")
        await settle()
        first, *rest = await received(transport, 4)
        assert first == CancelResponse(None)
        assert all(isinstance(incoming, AudioBytes) for incoming in rest)


async def test_a_cancel_does_not_overtake_the_response_it_is_meant_for() -> None:
    async with connected() as (transport, socket):
        socket.says(type="response.create")
        socket.says(type="input_audio_buffer.append", audio=audio(4))
        socket.says(type="response.cancel")
        await settle()
        first, second, third = await received(transport, 3)
        assert isinstance(first, CreateResponse)
        assert isinstance(second, CancelResponse)
        assert isinstance(third, AudioBytes)


async def test_the_socket_is_not_read_while_enough_waits() -> None:
    async with connected(SocketLimits(incoming_events=4)) as (transport, socket):
        for _ in range(10):
            socket.says(type="input_audio_buffer.commit")
        await settle()
        assert socket.unread == 6
        await received(transport, 10)


async def test_the_socket_is_not_read_while_enough_audio_waits() -> None:
    async with connected(SocketLimits(incoming_bytes=1000)) as (transport, socket):
        for _ in range(3):
            socket.says(type="input_audio_buffer.append", audio=audio(2000))
        await settle()
        assert socket.unread == 2
        await received(transport, 3)


async def test_a_session_with_much_to_do_lets_others_have_their_turn() -> None:
    async with connected(SocketLimits(run=2)) as (transport, socket):
        for _ in range(6):
            socket.says(type="input_audio_buffer.commit")
        await settle()
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
            await received(transport, 6)
            assert turns >= 2
            tasks.cancel_scope.cancel()


async def test_too_many_events_are_told_once_and_all_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However long reading them takes here, the client has not been quiet.
    monkeypatch.setattr(anyio, "current_time", lambda: 0.0)
    limits = SocketLimits(rate=2000, burst=5)
    async with connected(limits) as (transport, socket):
        for _ in range(20):
            socket.says(type="input_audio_buffer.commit")
        incoming = await received(transport, 21)
        errors = [each.error for each in incoming if isinstance(each, Rejected)]
        assert [error.code for error in errors] == ["rate_limit_exceeded"]
        assert errors[0].retry_after_ms is not None
        assert incoming.count(CommitAudio(None)) == 20


def test_events_within_the_rate_never_wait() -> None:
    bucket = EventBucket(rate=10, burst=2, now=0.0)
    assert [bucket.take(0.1 * n) for n in range(100)] == [(0.0, False)] * 100


def test_events_beyond_the_burst_wait_and_are_told_once() -> None:
    bucket = EventBucket(rate=10, burst=2, now=0.0)
    assert [bucket.take(0.0) for _ in range(2)] == [(0.0, False)] * 2
    assert bucket.take(0.0) == (0.1, True)
    assert bucket.take(0.1) == (0.1, False)


def test_a_client_that_has_been_quiet_is_told_again() -> None:
    bucket = EventBucket(rate=10, burst=2, now=0.0)
    for _ in range(3):
        bucket.take(0.0)
    bucket.take(100.0)
    assert [bucket.take(100.0)[1] for _ in range(3)] == [False, True, False]


async def test_a_binary_frame_is_answered_and_the_session_goes_on() -> None:
    async with connected() as (transport, socket):
        socket.says_bytes(b"\0\1")
        socket.says(type="input_audio_buffer.commit", event_id="next")
        wrong, fine = await received(transport, 2)
        assert isinstance(wrong, Rejected)
        assert wrong.error.code == "invalid_event"
        assert fine == CommitAudio("next")


async def test_a_client_that_sends_only_binary_frames_is_closed() -> None:
    async with connected(SocketLimits(binary_frames=2)) as (transport, socket):
        for _ in range(3):
            socket.says_bytes(b"\0")
        with pytest.raises(TransportClosed):
            await received(transport, 4)
        await transport.aclose(1011, "ignored")
        assert socket.closed is not None
        assert socket.closed[0] == 1003


@pytest.mark.parametrize(("code", "clean"), [(1000, True), (1001, True), (1006, False)])
async def test_the_session_learns_how_its_client_went(code: int, clean: bool) -> None:
    async with connected() as (transport, socket):
        socket.leaves(code)
        with pytest.raises(TransportClosed) as caught:
            await transport.receive()
        assert caught.value.clean is clean


async def test_what_a_client_sent_before_it_went_is_dropped() -> None:
    async with connected() as (transport, socket):
        socket.says(type="input_audio_buffer.append", audio=audio(4))
        socket.leaves()
        await settle()
        with pytest.raises(TransportClosed):
            await transport.receive()


# -- the format of what comes in ------------------------------------------------------------

ULAW = {"type": "realtime", "audio": {"input": {"format": {"type": "audio/pcmu"}}}}


async def test_audio_behind_an_update_is_read_in_its_format() -> None:
    async with connected() as (transport, socket):
        socket.says(type="session.update", session=ULAW)
        socket.says(type="input_audio_buffer.append", audio=audio(3))
        update, sound = await received(transport, 2)
        assert isinstance(update, UpdateSession)
        assert isinstance(sound, AudioBytes)


async def test_a_refused_update_gives_the_old_format_back() -> None:
    async with connected() as (transport, socket):
        transport.send(effects.SessionCreated(SessionConfig(input_format=AudioFormat.PCM)))
        socket.says(type="session.update", session=ULAW)
        await transport.receive()
        transport.send(effects.ErrorReported(ProtocolError("cannot_update_voice", "No.")))
        socket.says(type="input_audio_buffer.append", audio=audio(3))
        assert isinstance(await transport.receive(), Rejected)


# -- out ------------------------------------------------------------------------------------


async def test_events_go_out_in_the_order_they_were_given(
    validated: Callable[[str], Message],
) -> None:
    async with connected() as (transport, socket):
        transport.send(effects.SessionCreated(SessionConfig()))
        transport.send(effects.InputCleared())
        events = await socket.got(2)
        assert [event["type"] for event in events] == [
            "session.created",
            "input_audio_buffer.cleared",
        ]
        for event in events:
            validated(json.dumps(event))


async def test_what_is_queued_is_sent_before_the_close() -> None:
    async with connected() as (transport, socket):
        for _ in range(50):
            transport.send(effects.InputCleared())
        await transport.aclose(1012, "restarting")
        assert len(socket.events) == 50
        assert socket.closed == (1012, "restarting")
        assert socket.sent[-1]["type"] == "websocket.close"


async def test_closing_again_changes_nothing() -> None:
    async with connected() as (transport, socket):
        await transport.aclose(1000, "")
        await transport.aclose(1011, "again")
        transport.send(effects.InputCleared())
        await settle()
        assert [message["type"] for message in socket.sent] == ["websocket.close"]
        assert socket.failed == []


async def test_the_end_of_the_transport_closes_the_socket() -> None:
    async with connected() as (_, socket):
        pass
    assert socket.closed == (1000, "")


async def test_sending_never_waits_for_a_client_that_does_not_read() -> None:
    async with connected(SocketLimits(farewell=0.05)) as (transport, socket):
        socket.stops_reading()
        for _ in range(1000):
            transport.send(effects.InputCleared())
        assert transport.outgoing_bytes > 50_000
        socket.reading.set()


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    async with connected(SocketLimits(stall=0.02)) as (transport, socket):
        socket.stops_reading()
        transport.send(effects.InputCleared())
        with pytest.raises(TransportClosed) as caught:
            await transport.receive()
        assert not caught.value.clean
        assert [code for code, _ in socket.failed] == [1008]
        assert transport.outgoing_bytes == 0


async def test_a_client_that_is_too_far_behind_is_cut_off() -> None:
    async with connected(SocketLimits(outgoing_bytes=1000)) as (transport, socket):
        for _ in range(50):
            transport.send(effects.InputCleared())
        with pytest.raises(TransportClosed):
            await transport.receive()
        assert [code for code, _ in socket.failed] == [1008]


async def test_closing_does_not_wait_for_ever() -> None:
    async with connected(SocketLimits(farewell=0.02)) as (transport, socket):
        socket.stops_reading()
        transport.send(effects.InputCleared())
        await transport.aclose(1012, "restarting")
        assert len(socket.failed) == 1


async def test_a_socket_that_breaks_ends_the_session() -> None:
    async with connected() as (transport, socket):
        socket.broken = True
        transport.send(effects.InputCleared())
        with pytest.raises(TransportClosed):
            await transport.receive()
        transport.send(effects.InputCleared())
        assert transport.outgoing_bytes == 0


async def test_a_cancelled_transport_leaves_no_socket_open() -> None:
    socket = None
    with anyio.CancelScope() as scope:
        async with connected(SocketLimits(farewell=0.02)) as (_, socket):
            socket.stops_reading()
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert socket is not None
    assert socket.closed or socket.failed


async def test_the_server_steers_no_playout_here() -> None:
    async with connected() as (transport, socket):
        assert not transport.plays_out
        transport.steer(effects.FlushPlayout())
        await settle()
        assert socket.sent == []
