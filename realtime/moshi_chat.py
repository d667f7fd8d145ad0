"""A conversation with a frame-locked model, in the words of Moshi's own clients."""

import itertools
import math
import secrets
from collections.abc import Callable
from typing import Final

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect

from duologue.codecs.media import MalformedDataError
from duologue.engines.duplex import (
    DuplexFailed,
    DuplexSpec,
    DuplexStream,
    FrameHeard,
    FrameSpoken,
    ParkDuplex,
    ResetDuplex,
)
from duologue.engines.engine import EngineLost
from duologue.realtime.moshi_wire import (
    CONTROL,
    HANDSHAKE,
    MOST_AHEAD,
    Lead,
    MoshiReader,
    MoshiWriter,
)
from duologue.realtime.websocket import EventBucket
from duologue.sessions.clock import MonotonicClock

INVALID: Final = 1007
SLOW: Final = 1008
HASTY: Final = 1008
LOST: Final = 1011
STALL_SECONDS: Final = 10.0
"""A client that takes nothing for this long is cut off."""
MESSAGES: Final = (500.0, 1000.0)
"""Messages of a client that are read: sustained a second, and at once. Others wait unread."""
CONTROLS: Final = (5.0, 20.0)
"""As ``MESSAGES``, of those that pause or restart the model."""


class _TooFarAhead(Exception):
    """More sound came than anybody can have said by now."""


class MoshiChat:
    """One client, its socket accepted, and its session, begun. Neither is closed here."""

    def __init__(
        self,
        websocket: WebSocket,
        stream: DuplexStream,
        spec: DuplexSpec,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._websocket = websocket
        self._stream = stream
        self._now = now or MonotonicClock().now
        self._frame_seconds = spec.frame_samples / spec.sample_rate
        self._lead = Lead(self._now())
        self._messages = EventBucket(*MESSAGES, self._now())
        self._controls = EventBucket(*CONTROLS, self._now())
        self._reader = MoshiReader(spec)
        self._writer = MoshiWriter(spec, secrets.randbits(32))
        self._sequences = itertools.count()
        self._sends_since = math.inf
        self._farewell = (1000, "")

    async def talk(self) -> tuple[int, str]:
        """Until either side is gone: the close code and its reason."""
        await self._websocket.send_bytes(HANDSHAKE)
        async with anyio.create_task_group() as group:
            group.start_soon(self._listen, group.cancel_scope)
            group.start_soon(self._speak, group.cancel_scope)
            group.start_soon(self._watch, group.cancel_scope)
        return self._farewell

    async def _listen(self, scope: anyio.CancelScope) -> None:
        try:
            while True:
                message = await self._websocket.receive()
                if message["type"] == "websocket.disconnect":
                    break
                data = message.get("bytes") or b""
                await self._hold_back(data)
                self._hear(data)
        except MalformedDataError as error:
            self._farewell = (INVALID, str(error))
        except _TooFarAhead:
            self._farewell = (HASTY, f"sound more than {MOST_AHEAD:g} s ahead of real time")
        except EngineLost:
            self._farewell = (LOST, "the model was lost")
        except WebSocketDisconnect:
            pass
        scope.cancel()

    async def _hold_back(self, message: bytes) -> None:
        """Read a client that sends too often as fast as it may send."""
        wait, _ = self._messages.take(self._now())
        if message[:1] == bytes([CONTROL]):
            wait = max(wait, self._controls.take(self._now())[0])
        if wait > 0:
            await anyio.sleep(wait)

    def _hear(self, message: bytes) -> None:
        for part in self._reader.feed(message):
            match part:
                case "pause":
                    self._stream.send(ParkDuplex(session=""))
                case "restart":
                    self._stream.send(ResetDuplex(session=""))
                case bytes():
                    if self._lead.add(self._frame_seconds, self._now()) > MOST_AHEAD:
                        raise _TooFarAhead
                    frame = FrameHeard(session="", sequence=next(self._sequences), pcm=part)
                    self._stream.send(frame)

    async def _speak(self, scope: anyio.CancelScope) -> None:
        try:
            while True:
                match await self._stream.receive():
                    case FrameSpoken() as spoken:
                        await self._send(self._writer.sound(spoken.pcm))
                        if spoken.text:
                            await self._send(self._writer.text(spoken.text))
                    case DuplexFailed(code="engine_error", message=message):
                        self._farewell = (LOST, message)
                        break
                    case _:
                        continue
        except EngineLost:
            self._farewell = (LOST, "the model was lost")
        except (WebSocketDisconnect, RuntimeError, OSError):
            pass
        scope.cancel()

    async def _send(self, message: bytes) -> None:
        self._sends_since = self._now()
        await self._websocket.send_bytes(message)
        self._sends_since = math.inf

    async def _watch(self, scope: anyio.CancelScope) -> None:
        """Cut off who takes nothing. A time-out for each message would take longer than to send."""
        while self._now() - self._sends_since < STALL_SECONDS:
            with anyio.move_on_after(STALL_SECONDS / 10):
                await anyio.sleep_forever()
        self._farewell = (SLOW, "too slow to read")
        scope.cancel()
