"""A WebSocket that costs its client little: binary messages alone, made ready beforehand.

A client library takes several times as long for a message as a server may; with many sessions on
one core it would be what is measured.
"""

import base64
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import anyio
import anyio.abc

_BINARY, _CLOSE, _PING, _PONG = 0x82, 0x88, 0x89, 0x8A
_MASK: Final = bytes(4)
"""As good as any other to a server, and what is masked with zeros stays as it is."""


class SocketClosed(Exception):
    """There is no connection, or none any more."""


def frame_of(message: bytes, kind: int = _BINARY) -> bytes:
    """A client's frame (RFC 6455, section 5.2)."""
    size = len(message)
    if size < 126:
        head = bytes((kind, 0x80 | size))
    elif size < 2**16:
        head = struct.pack(">BBH", kind, 0x80 | 126, size)
    else:
        head = struct.pack(">BBQ", kind, 0x80 | 127, size)
    return head + _MASK + message


class FrameBuffer:
    """What a server sent, cut into its frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The frames that are now complete: first byte and content."""
        self._data += data
        frames = []
        while (end := self._end()) is not None:
            start, stop = end
            frames.append((self._data[0], bytes(self._data[start:stop])))
            del self._data[:stop]
        return frames

    def _end(self) -> tuple[int, int] | None:
        """Where the content of the first frame starts and ends, if all of it is there."""
        data = self._data
        if len(data) < 2:
            return None
        start, size = 2, data[1]
        if size >= 126:
            start = 4 if size == 126 else 10
            if len(data) < start:
                return None
            size = int.from_bytes(data[2:start], "big")
        return (start, start + size) if len(data) >= start + size else None


class BinarySocket:
    """A connected one; made by :func:`open_binary`."""

    def __init__(self, stream: anyio.abc.ByteStream, rest: bytes) -> None:
        self._stream = stream
        self._buffer = FrameBuffer()
        self._first = self._buffer.feed(rest)
        self._closed = ""

    async def send(self, frame: bytes) -> None:
        """Send what :func:`frame_of` made. Raises SocketClosed."""
        try:
            await self._stream.send(frame)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise SocketClosed("the connection broke") from None

    async def receive(self) -> list[bytes]:
        """The messages that have come, at least one. Raises SocketClosed."""
        while True:
            if self._closed:
                raise SocketClosed(self._closed)
            frames, self._first = self._first, []
            messages = []
            for kind, content in frames or self._buffer.feed(await self._read()):
                if kind == _BINARY:
                    messages.append(content)
                elif kind == _PING:
                    await self.send(frame_of(content, _PONG))
                elif kind == _CLOSE:
                    code = int.from_bytes(content[:2], "big")
                    self._closed = f"closed with {code} {content[2:].decode()}"
            if messages:
                return messages

    async def _read(self) -> bytes:
        try:
            return await self._stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise SocketClosed("the connection broke") from None


@asynccontextmanager
async def open_binary(url: str, key: str = "") -> AsyncIterator[BinarySocket]:
    """Connect to ``url`` (``http://host:port/path``). Raises SocketClosed when it is refused."""
    address = urlsplit(url)
    lines = [
        f"GET {address.path} HTTP/1.1",
        f"Host: {address.netloc}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
        "Sec-WebSocket-Version: 13",
        *([f"Authorization: Bearer {key}"] if key else []),
    ]
    try:
        stream = await anyio.connect_tcp(address.hostname or "", address.port or 80)
    except OSError as error:
        raise SocketClosed(f"can't connect: {error}") from None
    async with stream:
        await stream.send(("\r\n".join(lines) + "\r\n\r\n").encode())
        head = b""
        while b"\r\n\r\n" not in head:
            try:
                head += await stream.receive()
            except anyio.EndOfStream:
                raise SocketClosed("no answer") from None
        head, rest = head.split(b"\r\n\r\n", 1)
        status = head.split(b"\r\n", 1)[0].decode()
        if " 101 " not in status:
            raise SocketClosed(status)
        socket = BinarySocket(stream, rest)
        yield socket
        with anyio.move_on_after(1, shield=True):
            try:
                await socket.send(frame_of(struct.pack(">H", 1000), _CLOSE))
                while True:
                    await socket.receive()
            except SocketClosed:
                pass
