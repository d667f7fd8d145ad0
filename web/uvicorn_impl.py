"""uvicorn, with what it lacks for long conversations: endings that end, and fair reading.

The WebSocket protocol is uvicorn's own on ``websockets``' sans-I/O core. Added are a close that no
client can hold up (:class:`duologue.realtime.websocket.SocketControl`), frames taken from the
kernel's buffer only as fast as the application takes them, and cheap compression.
"""

import contextlib
from asyncio import Handle
from collections.abc import Iterator, Sequence
from typing import Any, Final

from uvicorn import Config, Server
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.extensions import Extension
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import OP_BINARY, OP_PONG, Frame
from websockets.server import ServerProtocol
from websockets.typing import ExtensionParameter

from duologue.realtime.websocket import CONTROL, EventBucket
from duologue.web.http_connection import HttpConnection

LARGEST_MESSAGE: Final = 24 * 1024 * 1024
"""Bytes of a message, unpacked; more closes the connection (1009)."""

PING_SECONDS: Final = 20.0
"""Between pings, and until a ping without an answer means that the client is gone."""

LINGER_SECONDS: Final = 5.0
"""How long a client may take over the closing handshake."""

MOST_FRAGMENTS: Final = 10_000
"""Frames of one message, however small; one more closes the connection (1008)."""

CONTROLS: Final = (100.0, 1000.0)
"""Pings and pongs of a client: sustained a second, and at once; more closes the connection
(1008)."""

_SLICE: Final = 16 * 1024
"""Bytes parsed before everybody else gets a turn: compressed, they can unpack to 16 MiB."""


class _TextDeflate(Extension):
    """permessage-deflate that leaves binary messages as they are, as RFC 7692, section 6, lets a
    sender do: they are compressed sound, which takes the time and gets no smaller."""

    def __init__(self, deflate: Extension) -> None:
        self._deflate = deflate
        self.name = deflate.name

    def decode(self, frame: Frame, *, max_size: int | None = None) -> Frame:
        return self._deflate.decode(frame, max_size=max_size)

    def encode(self, frame: Frame) -> Frame:
        return frame if frame.opcode is OP_BINARY else self._deflate.encode(frame)


class _TextDeflateFactory(ServerPerMessageDeflateFactory):
    def process_request_params(  # type: ignore[override]
        self, params: Sequence[ExtensionParameter], accepted_extensions: Sequence[Extension]
    ) -> tuple[list[ExtensionParameter], Extension]:
        answer, deflate = super().process_request_params(params, accepted_extensions)
        return answer, _TextDeflate(deflate)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection. Its ASGI scope offers ``fail`` under the extension ``CONTROL``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        extensions = []
        if self.config.ws_per_message_deflate:
            # Speech in base64 shrinks by a quarter at any level; level 1 costs the least.
            extensions = [
                _TextDeflateFactory(
                    server_max_window_bits=12,
                    client_max_window_bits=12,
                    compress_settings={"level": 1, "memLevel": 5},
                )
            ]
        self.conn = ServerProtocol(
            extensions=extensions, max_size=self.config.ws_max_size, logger=self.conn.logger
        )
        self._unread = bytearray()
        self._feeding = False
        self._next_feed: Handle | None = None
        self._fragments = 0
        self._controls = EventBucket(*CONTROLS, self.loop.time())

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[CONTROL] = self

    # -- reading ----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._unread += data
        self._feed()

    def _feed(self) -> None:
        """Parse a slice, and more in turns to come, until the application has something to take."""
        if self._feeding or not self._may_feed:
            return
        self._feeding = True
        try:
            piece = bytes(self._unread[:_SLICE])
            del self._unread[:_SLICE]
            super().data_received(piece)
        finally:
            self._feeding = False
        if self._next_feed is None:
            self._next_feed = self.loop.call_soon(self._feed_on)
        self._balance()

    def _feed_on(self) -> None:
        self._next_feed = None
        self._feed()

    @property
    def _may_feed(self) -> bool:
        waits = self.close_sent or self.queue.empty()
        return waits and bool(self._unread) and not self.disconnected

    def _balance(self) -> None:
        """Let the kernel give us more only when all that it gave has been taken."""
        if self.disconnected or self.transport.is_closing():
            return
        full = bool(self._unread) or not (self.close_sent or self.queue.empty())
        if full and not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()
        elif not full and self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    async def receive(self) -> Any:
        if self.queue.empty():
            self._feed()
        message = await self.queue.get()
        self._balance()
        return message

    # -- what costs the client next to nothing ------------------------------------------------

    def handle_text(self, event: Frame) -> None:
        self._fragments = 0
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        self._fragments = 0
        super().handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        self._fragments += 1
        if self._fragments < MOST_FRAGMENTS:
            super().handle_cont(event)
        elif not self.close_sent:
            self.frames.clear()
            self.fail(1008, "too many fragments")

    def handle_ping(self) -> None:
        if self.close_sent or not self.writable.is_set():
            # RFC 6455, section 5.5.3: not every ping has to be answered.
            self.conn.writes = [data for data in self.conn.data_to_send() if not _is_pong(data)]
        else:
            super().handle_ping()
        self._count_control()

    def handle_pong(self, event: Frame) -> None:
        super().handle_pong(event)
        self._count_control()

    def _count_control(self) -> None:
        if not self.close_sent and self._controls.take(self.loop.time())[0] > 0:
            self.fail(1008, "too many pings or pongs")

    # -- ending -----------------------------------------------------------------------------

    def fail(self, code: int, reason: str) -> None:
        """Send a close frame past all that waits, and drop the connection soon after."""
        if self.disconnected or self.transport.is_closing():
            return
        self.stop_keepalive()
        if not self.close_sent:
            with contextlib.suppress(InvalidState):
                self.conn.send_close(code, reason)
                self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self._abort_later()
        self._balance()

    def _abort_later(self) -> None:
        if self.close_timer is not None:
            self.close_timer.cancel()
        self.close_timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def keepalive_timeout(self) -> None:
        """No answer to a ping: the client is gone, and nothing that waits will reach it."""
        self.pong_timer = None
        if self.close_sent or self.transport.is_closing():
            return
        if self.read_paused:
            # The answer may lie unread behind what the session has not taken yet.
            self.schedule_ping()
            return
        self.fail(1011, "no answer to a ping")
        self.transport.abort()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.close" and self.close_timer is not None:
            self._abort_later()


class PatientServer(Server):
    """uvicorn's server without its signal handlers: who owns it decides when it stops."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def server_config(
    app: Any, *, certificate: tuple[str, str] | None = None, path: str | None = None
) -> Config:
    """The configuration of a server for `app`; `certificate`: files of the chain and the key;
    `path`: of the Unix socket to listen at, for a server that is given none."""
    chain, key = certificate or (None, None)
    return Config(
        app,
        uds=path,
        http=HttpConnection,
        ws=WebSocketProtocol,
        ws_max_size=LARGEST_MESSAGE,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PING_SECONDS,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=5,
        ssl_certfile=chain,
        ssl_keyfile=key,
    )


def _is_pong(frame: bytes) -> bool:
    """Of a frame as it is sent (RFC 6455, section 5.2)."""
    return bool(frame) and frame[0] & 0x0F == OP_PONG
