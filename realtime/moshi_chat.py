"""A conversation with a frame-locked model, in the words of Moshi's own clients."""

import itertools
import secrets
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
from duologue.realtime.moshi_wire import HANDSHAKE, MoshiReader, MoshiWriter

INVALID: Final = 1007
SLOW: Final = 1008
LOST: Final = 1011
STALL_SECONDS: Final = 10.0
"""A client that takes nothing for this long is cut off."""


class MoshiChat:
    """One client, its socket accepted, and its session, begun. Neither is closed here."""

    def __init__(self, websocket: WebSocket, stream: DuplexStream, spec: DuplexSpec) -> None:
        self._websocket = websocket
        self._stream = stream
        self._reader = MoshiReader(spec)
        self._writer = MoshiWriter(spec, secrets.randbits(32))
        self._sequences = itertools.count()
        self._farewell = (1000, "")

    async def talk(self) -> tuple[int, str]:
        """Until either side is gone: the close code and its reason."""
        await self._websocket.send_bytes(HANDSHAKE)
        async with anyio.create_task_group() as group:
            group.start_soon(self._listen, group.cancel_scope)
            group.start_soon(self._speak, group.cancel_scope)
        return self._farewell

    async def _listen(self, scope: anyio.CancelScope) -> None:
        try:
            while True:
                message = await self._websocket.receive()
                if message["type"] == "websocket.disconnect":
                    break
                self._hear(message.get("bytes") or b"")
        except MalformedDataError as error:
            self._farewell = (INVALID, str(error))
        except EngineLost:
            self._farewell = (LOST, "the model was lost")
        except WebSocketDisconnect:
            pass
        scope.cancel()

    def _hear(self, message: bytes) -> None:
        for part in self._reader.feed(message):
            match part:
                case "pause":
                    self._stream.send(ParkDuplex(session=""))
                case "restart":
                    self._stream.send(ResetDuplex(session=""))
                case bytes():
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
        except TimeoutError:
            self._farewell = (SLOW, "too slow to read")
        except (WebSocketDisconnect, RuntimeError, OSError):
            pass
        scope.cancel()

    async def _send(self, message: bytes) -> None:
        with anyio.fail_after(STALL_SECONDS):
            await self._websocket.send_bytes(message)
