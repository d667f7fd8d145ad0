"""HTTP connections that nobody can hold for ever: uvicorn's protocol, with bounds on time.

uvicorn waits as long as a client likes for the head and the body of a request, and for it to take
an answer, and reads heads of any size. Each of these connections holds a file and memory, and an
answer that is not taken may hold a place of the model. RFC 9110, section 15.5.9 (408), and
RFC 6585, section 5 (431), are the answers to those that are too slow or send too much.
"""

import asyncio
import fcntl
import socket
import sys
import termios
from contextlib import suppress
from typing import Final, Literal

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

HEAD_SECONDS: Final = 20.0
"""In which a request's head has come in, from when the connection or its first byte was there."""
LARGEST_HEAD: Final = 64 * 1024
"""Bytes of a head, roughly: what comes in one piece is read as a whole."""
PIECE_BYTES: Final = 64 * 1024
"""Of a body, that have come in each PIECE_SECONDS; the end of it may be smaller."""
PIECE_SECONDS: Final = 20.0
LARGEST_REST: Final = 64 * 1024 * 1024
"""Bytes of a body that still come after its answer, and are thrown away: a client that reads only
once it has said all is to find the answer, and may not go on for ever."""
TAKEN_BYTES: Final = 4 * 1024
"""Of an answer that waits to be sent, that have been taken in each TAKEN_SECONDS."""
TAKEN_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 5.0
"""Between two looks at a connection."""

Fault = Literal["head", "body", "answer"]


class Patience:
    """How long one connection may take. It is told what happens, and asked now and then; ``now``
    in seconds of any clock."""

    def __init__(self, now: float) -> None:
        self._awaits: Literal["head", "body"] | None = "head"
        self._since = now
        self._received = 0
        self._unsent = 0
        self._blocked_since: float | None = None

    def heard(self, size: int, now: float) -> None:
        """Bytes have come, before anything is known of them."""
        if self._awaits is None:
            self._await("head", now)
        self._received += size

    def head_read(self, now: float) -> None:
        self._await("body", now)

    def body_read(self) -> None:
        self._awaits = None

    @property
    def head_too_large(self) -> bool:
        return self._awaits == "head" and self._received > LARGEST_HEAD

    def look(self, now: float, unsent: int, *, blocked: bool, paused: bool) -> Fault | None:
        """What takes too long. ``unsent``: bytes that the client has not taken; ``blocked``: that
        they hold something up; ``paused``: that it is we who do not read."""
        if self._takes_nothing(now, unsent, blocked):
            return "answer"
        if self._awaits is None:
            return None
        if paused or (self._awaits == "body" and self._received >= PIECE_BYTES):
            self._since, self._received = now, 0
        limit = HEAD_SECONDS if self._awaits == "head" else PIECE_SECONDS
        return self._awaits if now - self._since >= limit else None

    def _await(self, what: Literal["head", "body"], now: float) -> None:
        self._awaits, self._since, self._received = what, now, 0

    def _takes_nothing(self, now: float, unsent: int, blocked: bool) -> bool:
        if not blocked or not unsent:
            self._blocked_since = None
        elif self._blocked_since is None or abs(unsent - self._unsent) >= TAKEN_BYTES:
            self._blocked_since, self._unsent = now, unsent
        return self._blocked_since is not None and now - self._blocked_since >= TAKEN_SECONDS


class HttpConnection(HttpToolsProtocol):
    """One connection, until it ends or becomes a WebSocket's."""

    _patience: Patience
    _rest: int
    _socket: socket.socket
    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._socket = transport.get_extra_info("socket")
        self._patience = Patience(self.loop.time())
        self._rest = 0
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_looking()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        self._patience.heard(len(data), self.loop.time())
        super().data_received(data)
        if self._patience.head_too_large and not self.transport.is_closing():
            self._refuse(431)
        elif self._answered_early:
            self._rest += len(data)
            if self._rest > LARGEST_REST:
                self.transport.close()

    def handle_websocket_upgrade(self) -> None:
        self._stop_looking()
        super().handle_websocket_upgrade()

    # -- what the parser tells ------------------------------------------------------------------

    def on_headers_complete(self) -> None:
        self._patience.head_read(self.loop.time())
        self._rest = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._patience.body_read()
        super().on_message_complete()

    # -- time -----------------------------------------------------------------------------------

    def _look_later(self) -> None:
        self._watch = self.loop.call_later(LOOK_SECONDS, self._look)

    def _stop_looking(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _look(self) -> None:
        closing = self.transport.is_closing()
        fault = self._patience.look(
            self.loop.time(),
            self.unsent,
            blocked=self.flow.write_paused or closing,
            paused=self.flow.read_paused or closing or self._answering,
        )
        if fault is None:
            self._look_later()
        elif fault == "answer":
            self.transport.abort()
        else:
            self._refuse(408)
            self._look_later()

    @property
    def unsent(self) -> int:
        """Bytes that the client has not taken: ours, and the kernel's, in which what a slow client
        takes shows long before ours move."""
        size: int = self.transport.get_write_buffer_size()
        with suppress(OSError):
            waiting = fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4))
            size += int.from_bytes(waiting, sys.byteorder)
        return size

    @property
    def _answering(self) -> bool:
        """Whether a whole request is being answered: what comes now is for the next."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    @property
    def _answered_early(self) -> bool:
        """Whether a request was answered before it was there."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and cycle.more_body and cycle.response_complete

    def _refuse(self, status: int) -> None:
        """Say why, unless that would be taken for another request's answer, or come after its own,
        and end the connection."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete != cycle.more_body:
            ending = b"content-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + ending)
        self.transport.close()
