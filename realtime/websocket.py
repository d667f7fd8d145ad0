"""One client over a WebSocket: its events in, ours out, and what is done about bad ones.

Text frames hold events. A binary frame is answered with an error; after several the connection is
closed. Queues are bounded: what comes in waits (the socket is not read), and a client that does
not take what goes out is cut off. Close codes are listed in ``docs/wire.md``.
"""

import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from duologue.realtime.read_ahead import Heard, ReadAhead
from duologue.realtime.server_wire import Encoder
from duologue.realtime.wire import Decoder
from duologue.sessions.clock import MonotonicClock
from duologue.sessions.effects import (
    DuckPlayout,
    ErrorReported,
    FlushPlayout,
    RestorePlayout,
    ServerEvent,
    SessionCreated,
    SessionUpdated,
    ShowPicture,
)
from duologue.sessions.errors import ProtocolError
from duologue.sessions.events import Rejected
from duologue.sessions.ports import Incoming
from duologue.sessions.session_config import SessionConfig

CONTROL: Final = "duologue.connection"
"""The ASGI extension under which a server offers :class:`SocketControl`."""

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
UNSUPPORTED_DATA: Final = 1003
POLICY_VIOLATION: Final = 1008


@dataclass(frozen=True, slots=True)
class SocketLimits:
    """Seconds, bytes and events a second."""

    stall: float = 10.0
    """A client that takes nothing of what waits for it for this long is cut off."""
    farewell: float = 5.0
    """How long closing may take: what is queued, and the close frame."""
    outgoing_bytes: int = 32 * 1024 * 1024
    """Waiting to be sent; a client behind by more is cut off."""
    incoming_bytes: int = 1024 * 1024
    """Audio read ahead of the session; then the socket is not read."""
    incoming_events: int = 64
    """Events read ahead of the session; then the socket is not read."""
    rate: float = 1_000.0
    """Sustained events a second; faster ones are told once and then read at this rate."""
    burst: float = 2_000.0
    """Events at once."""
    run: int = 8
    """Events given to the session before everybody else gets a turn."""
    binary_frames: int = 8
    """Binary frames answered with an error before the connection is closed."""


class SocketControl(Protocol):
    """What ASGI has no words for."""

    def fail(self, code: int, reason: str) -> None:
        """Send a close frame at once, and drop the connection soon whatever the client does."""


class NoControl:
    """For a server that offers no control: its own time-outs have to do."""

    def fail(self, code: int, reason: str) -> None:
        pass


_DEFAULT_LIMITS: Final = SocketLimits()
_NO_CONTROL: Final = NoControl()


class EventBucket:
    """A token bucket over events, by the time it is told."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._then = now
        self._told = False

    def take(self, now: float) -> tuple[float, bool]:
        """Seconds to wait after one more event, and whether the client is to be told.

        It is told once until it has been quiet enough for a whole burst again.
        """
        self._tokens = min(self._burst, self._tokens + (now - self._then) * self._rate) - 1
        self._then = now
        if self._tokens >= 0:
            self._told = self._told and self._tokens < self._burst - 1
            return 0.0, False
        told, self._told = self._told, True
        return -self._tokens / self._rate, not told


Told = TypeVar("Told")
Told_contra = TypeVar("Told_contra", contravariant=True)
Heard_co = TypeVar("Heard_co", covariant=True)


class EventEncoder(Protocol[Told_contra]):
    def encode(self, event: Told_contra) -> tuple[str, ...]:
        """The text frames of an event."""


class EventDecoder(Protocol[Heard_co]):
    def decode(self, text: str) -> Heard_co:
        """The event in a text frame. Raises ProtocolError."""


class SocketLink(Generic[Heard, Told]):
    """Events over an accepted WebSocket, in whatever words; made by :func:`open_link`."""

    def __init__(
        self,
        websocket: WebSocket,
        encoder: EventEncoder[Told],
        decoder: EventDecoder[Heard],
        limits: SocketLimits,
        control: SocketControl,
        refuse: Callable[[ProtocolError], Heard],
    ) -> None:
        """``refuse`` makes an event of what could not be read."""
        self._websocket = websocket
        self._encoder = encoder
        self._decoder = decoder
        self._refuse = refuse
        self._limits = limits
        self._control = control
        self._bucket = EventBucket(limits.rate, limits.burst, anyio.current_time())
        self._binaries = 0
        self._ahead: ReadAhead[Heard] = ReadAhead(
            limits.incoming_events, limits.incoming_bytes, limits.run
        )
        self._outgoing: deque[str] = deque()
        self._outgoing_bytes = 0
        self._to_write = anyio.Event()
        self._written = anyio.Event()
        self._farewell: tuple[int, str] | None = None
        self._gone = False
        self._drain = anyio.CancelScope()
        self._clock = MonotonicClock()
        self._sends_since = math.inf

    @property
    def outgoing_bytes(self) -> int:
        """How much waits to be sent."""
        return self._outgoing_bytes

    # -- the session's side -----------------------------------------------------------------

    async def receive(self) -> Heard:
        """The next event; what was sent before the client went is not given any more."""
        return await self._ahead.receive()

    def send(self, event: Told) -> None:
        if self._ahead.closed is not None or self._farewell is not None:
            return
        for text in self._encoder.encode(event):
            self._outgoing.append(text)
            self._outgoing_bytes += len(text)
        self._to_write.set()

    async def aclose(self, code: int, reason: str) -> None:
        if self._farewell is None:
            self._farewell = (code, reason)
            self._drain.deadline = anyio.current_time() + self._limits.farewell
            self._to_write.set()
        with anyio.CancelScope(shield=True):
            await self._written.wait()

    # -- the socket's side ------------------------------------------------------------------

    def _end(self, clean: bool) -> None:
        """The connection is over: the session is told at its next :meth:`receive`."""
        self._ahead.close(clean)
        self._to_write.set()

    async def read(self) -> None:
        """Read until the client is gone."""
        while self._ahead.closed is None:
            try:
                message = await self._websocket.receive()
            except (RuntimeError, OSError):
                return self._end(clean=False)
            if message["type"] == "websocket.disconnect":
                return self._end(clean=message.get("code") in (NORMAL, GOING_AWAY))
            text: str | None = message.get("text")
            wait, tell = self._bucket.take(anyio.current_time())
            if tell:
                self._ahead.put(self._refuse(too_fast(wait)))
            self._ahead.put(self._refuse_binary() if text is None else self._decode(text))
            if wait > 0:
                await anyio.sleep(wait)
            await self._ahead.wait_for_room()

    def _decode(self, text: str) -> Heard:
        try:
            return self._decoder.decode(text)
        except ProtocolError as error:
            return self._refuse(error)

    def _refuse_binary(self) -> Heard:
        self._binaries += 1
        if self._binaries > self._limits.binary_frames:
            if self._farewell is None:
                self._farewell = (UNSUPPORTED_DATA, "events are text frames")
                self._drain.deadline = anyio.current_time() + self._limits.farewell
            self._end(clean=False)
        return self._refuse(ProtocolError("invalid_event", "Events are sent as text frames."))

    async def write(self) -> None:
        """Write until the connection is over, then close it."""
        try:
            with self._drain:
                while await self._write_next():
                    pass
            if self._drain.cancelled_caught:
                self._cut_off()
            await self._say_farewell()
        finally:
            self._end(clean=False)
            state = self._websocket.application_state
            if not self._gone and state is WebSocketState.CONNECTED:
                self._control.fail(GOING_AWAY, "")
            self._written.set()

    async def _write_next(self) -> bool:
        """Send one frame when there is one. False: nothing more is to be sent."""
        if self._outgoing_bytes > self._limits.outgoing_bytes:
            return self._cut_off()
        if not self._outgoing:
            if self._ahead.closed is not None or self._farewell is not None:
                return False
            self._to_write = anyio.Event()
            await self._to_write.wait()
            return True
        text = self._outgoing.popleft()
        self._outgoing_bytes -= len(text)
        self._sends_since = self._clock.now()
        try:
            await self._websocket.send({"type": "websocket.send", "text": text})
        except (WebSocketDisconnect, RuntimeError, OSError):
            return self._lost()
        self._sends_since = math.inf
        return True

    async def watch(self) -> None:
        """Cut off who takes nothing. A time-out for each frame would take longer than to send."""
        while self._clock.now() - self._sends_since < self._limits.stall:
            with anyio.move_on_after(self._limits.stall / 10):
                await anyio.sleep_forever()
        self._drain.cancel()

    def _lost(self) -> bool:
        self._forget_outgoing()
        self._gone = True
        self._end(clean=False)
        return False

    def _cut_off(self) -> bool:
        self._forget_outgoing()
        self._control.fail(POLICY_VIOLATION, "too slow to read")
        self._gone = True
        self._end(clean=False)
        return False

    def _forget_outgoing(self) -> None:
        self._outgoing.clear()
        self._outgoing_bytes = 0

    async def _say_farewell(self) -> None:
        if self._gone or self._farewell is None:
            return
        code, reason = self._farewell
        try:
            with anyio.fail_after(self._limits.farewell):
                await self._websocket.close(code, reason)
        except (WebSocketDisconnect, RuntimeError, OSError):
            self._lost()
        except TimeoutError:
            self._cut_off()


class WebSocketTransport(SocketLink[Incoming, ServerEvent]):
    """``ports.Transport`` over an accepted WebSocket; made by :func:`open_transport`."""

    plays_out = False

    def __init__(
        self,
        websocket: WebSocket,
        encoder: Encoder,
        config: SessionConfig,
        limits: SocketLimits,
        control: SocketControl,
        decoder: Decoder | None = None,
    ) -> None:
        """``decoder``: that of a session which other clients share."""
        self._reader = decoder or Decoder(config)
        self._settled = config
        super().__init__(websocket, encoder, self._reader, limits, control, Rejected)

    def send(self, event: ServerEvent) -> None:
        match event:
            case SessionCreated() | SessionUpdated():
                self._settled = event.config
            case ErrorReported(ProtocolError(code="cannot_update_voice")):
                # An update that the decoder took for granted was refused as a whole.
                self._reader.config = self._settled
            case _:
                pass
        super().send(event)

    def steer(self, effect: FlushPlayout | DuckPlayout | RestorePlayout) -> None:
        """The client plays out: there is nothing to steer."""

    def show(self, effect: ShowPicture) -> None:
        """The protocol has no pictures for a WebSocket."""


def too_fast(wait: float) -> ProtocolError:
    """What a client is told that sends more than is read."""
    return ProtocolError(
        "rate_limit_exceeded",
        "Too many events a second; they are read more slowly now.",
        retry_after_ms=max(1, round(wait * 1000)),
    )


@asynccontextmanager
async def open_link(
    websocket: WebSocket,
    encoder: EventEncoder[Told],
    decoder: EventDecoder[Heard],
    refuse: Callable[[ProtocolError], Heard],
    limits: SocketLimits = _DEFAULT_LIMITS,
) -> AsyncIterator[SocketLink[Heard, Told]]:
    """A link over an accepted WebSocket; closed with 1000 at the end unless it was before."""
    link = SocketLink(websocket, encoder, decoder, limits, control_of(websocket), refuse)
    async with _running(link):
        yield link


@asynccontextmanager
async def open_transport(
    websocket: WebSocket,
    encoder: Encoder,
    config: SessionConfig,
    limits: SocketLimits = _DEFAULT_LIMITS,
    decoder: Decoder | None = None,
) -> AsyncIterator[WebSocketTransport]:
    """A transport over an accepted WebSocket; closed with 1000 at the end unless it was before."""
    transport = WebSocketTransport(
        websocket, encoder, config, limits, control_of(websocket), decoder
    )
    async with _running(transport):
        yield transport


def control_of(websocket: WebSocket) -> SocketControl:
    control: SocketControl = websocket.scope.get("extensions", {}).get(CONTROL, _NO_CONTROL)
    return control


@asynccontextmanager
async def _running(link: SocketLink[Heard, Told]) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.read)
        tasks.start_soon(link.write)
        tasks.start_soon(link.watch)
        try:
            yield
        finally:
            await link.aclose(NORMAL, "")
            tasks.cancel_scope.cancel()
