"""How a client reaches a server: over a WebSocket."""

import base64
import http.client
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol
from urllib.parse import quote, urlsplit

import anyio
import anyio.abc
import msgspec
import websockets
from websockets.asyncio.client import ClientConnection, connect

from duologue.realtime.client_events import Event
from duologue.realtime.client_playout import TICK_MS, Playout
from duologue.realtime.client_sound import Sink

CONNECT_S = 10.0
"""Seconds in which a connection has to be there."""

CLOSE_S = 2.0
MOST_BYTES = 16 * 2**20
"""Of one message of the server's."""

MOST_TOLD: Final = 300
"""Characters of a server's words that are passed on."""


class ConnectError(Exception):
    """The server can't be reached, or turned the client away; the message says why."""


class Disconnected(Exception):
    """The connection is over; the message says why."""


class Link(Protocol):
    """A connected session. Sound is 24 kHz, mono, signed 16-bit little-endian.

    ``transport``: ``websocket`` or ``webrtc``.
    """

    transport: str

    async def send(self, event: Event) -> None:
        """Raises Disconnected."""

    async def receive(self) -> Event:
        """The server's next event that is no sound. Raises Disconnected."""

    async def hear(self, pcm: bytes) -> None:
        """20 ms of the user's sound. Raises Disconnected."""

    async def cut(self) -> None:
        """Let what is being said go unheard, and the server know how much of it was heard."""


@asynccontextmanager
async def plain_group() -> AsyncIterator[anyio.abc.TaskGroup]:
    """A task group out of which a single exception comes as it was raised."""
    try:
        async with anyio.create_task_group() as group:
            yield group
    except BaseExceptionGroup as group_error:
        error: BaseException = group_error
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None


def address(url: str) -> str:
    """``http://host:port`` of whatever names a server: with or without a scheme or ``/v1``.

    Raises ConnectError.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        known = parts.hostname is not None and parts.port != 0 and parts.netloc.isprintable()
    except ValueError:  # an address or a port that can't be
        known = False
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme) if known else ""
    if scheme not in ("http", "https"):
        raise ConnectError(f"{url} is no address of a server")
    return f"{scheme}://{parts.netloc}"


def headers(key: str) -> dict[str, str]:
    """What shows a server the key; nothing without one. Raises ConnectError."""
    if not (key.isascii() and key.isprintable()):
        raise ConnectError("the key has characters that no key can have")
    return {"Authorization": f"Bearer {key}"} if key else {}


class SocketLink:
    """The client plays out: sound comes ahead of time and is given to the sink as it is due."""

    transport = "websocket"

    def __init__(self, socket: ClientConnection, sink: Sink) -> None:
        self._socket = socket
        self._sink = sink
        self._playout = Playout()

    async def send(self, event: Event) -> None:
        try:
            await self._socket.send(msgspec.json.encode(event).decode())
        except websockets.ConnectionClosed as error:
            raise Disconnected(_reason(error)) from None

    async def hear(self, pcm: bytes) -> None:
        audio = base64.b64encode(pcm).decode()
        await self.send({"type": "input_audio_buffer.append", "audio": audio})

    async def receive(self) -> Event:
        while True:
            try:
                event = read_message(await self._socket.recv())
            except websockets.ConnectionClosed as error:
                raise Disconnected(_reason(error)) from None
            if event.get("type") == "response.output_audio.delta":
                try:
                    self._playout.add(event["item_id"], base64.b64decode(event["delta"]))
                except (KeyError, TypeError, ValueError):
                    raise Disconnected("the server sent sound that can't be played") from None
                continue
            if event.get("type") == "input_audio_buffer.speech_started":
                await self.cut()
            return event

    async def cut(self) -> None:
        cut = self._playout.flush()
        self._sink.flush()
        if cut is None:
            return
        item_id, heard_ms = cut
        await self.send(
            {
                "type": "conversation.item.truncate",
                "item_id": item_id,
                "content_index": 0,
                "audio_end_ms": heard_ms,
            }
        )

    async def play(self) -> None:
        """Give the sink 20 ms at a time, for ever."""
        due = anyio.current_time()
        while True:
            self._sink.write(self._playout.tick())
            due += TICK_MS / 1000
            # After a stall it goes on from now: nobody hears the past at double speed.
            due = max(due, anyio.current_time() - TICK_MS / 1000)
            await anyio.sleep_until(due)


@asynccontextmanager
async def open_socket_link(
    url: str, sink: Sink, *, key: str, model: str
) -> AsyncIterator[SocketLink]:
    """Raises ConnectError."""
    base = address(url).replace("http", "ws", 1)
    query = f"?model={quote(model)}" if model else ""
    try:
        with anyio.fail_after(CONNECT_S):
            socket = await connect(
                f"{base}/v1/realtime{query}",
                additional_headers=headers(key),
                max_size=MOST_BYTES,
                open_timeout=None,
                close_timeout=CLOSE_S,
            )
    except TimeoutError:
        raise ConnectError(f"{base} did not answer within {CONNECT_S:g} s") from None
    except websockets.InvalidStatus as error:
        body = error.response.body or b""
        raise ConnectError(refusal(error.response.status_code, bytes(body))) from None
    except (OSError, ValueError, EOFError, websockets.WebSocketException) as error:
        raise ConnectError(f"{base}: {one_line(str(error)) or type(error).__name__}") from None
    async with socket, plain_group() as group:
        link = SocketLink(socket, sink)
        group.start_soon(link.play)
        yield link
        group.cancel_scope.cancel()


def read_message(text: str | bytes) -> Event:
    """A message of the server's. Raises Disconnected for what is no event."""
    try:
        return msgspec.json.decode(text, type=Event)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Disconnected("the server sent something that is no event") from None


def one_line(text: str) -> str:
    """What somebody else wrote, for a single line of a terminal."""
    told = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * MOST_TOLD])
    told = " ".join(told.split())
    return told if len(told) <= MOST_TOLD else f"{told[:MOST_TOLD]}…"


def refusal(status: int, body: bytes) -> str:
    """What a server said when it turned a client away, in a line; nothing of a page of HTML."""
    try:
        told = one_line(msgspec.json.decode(body, type=_Refusal).error.message)
    except msgspec.MsgspecError:
        told = one_line(body[: 4 * MOST_TOLD].decode("utf-8", "replace"))
    if not told or told.startswith("<"):
        told = http.client.responses.get(status, "")
    return f"the server refused ({status}): {told}".removesuffix(": ")


class _Error(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Error


def _reason(error: websockets.ConnectionClosed) -> str:
    if error.rcvd is None:
        return "the connection broke"
    why = one_line(error.rcvd.reason)
    return f"the server closed the connection ({error.rcvd.code}): {why}".removesuffix(": ")
