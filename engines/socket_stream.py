"""Stream sockets whose reads and writes can be cancelled at any moment.

anyio's own streams leave a reader registered for a moment after a cancel; data that comes in that
moment ends in an exception of the event loop.
"""

import socket
from collections.abc import Callable, Coroutine
from typing import TypeVar

import anyio
import anyio.lowlevel

BACKLOG = 64
"""Connections that wait to be accepted."""


class SocketStream:
    """A connected socket; its errors are those of :class:`anyio.abc.ByteStream`."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._closed = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """What has come. When more comes than is read, other tasks still get their turns."""
        waited = False
        while True:
            try:
                data = self._read(max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
                waited = True
            except OSError as error:
                raise self._broken() from error
            else:
                if not data:
                    raise anyio.EndOfStream
                if not waited:
                    await anyio.lowlevel.checkpoint()
                return data

    async def send(self, item: bytes | memoryview) -> None:
        """Returns at once, without a turn for other tasks, when there is room for all of it."""
        view = memoryview(item)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError as error:
                raise self._broken() from error

    async def aclose(self) -> None:
        """Whoever waits in it gets ClosedResourceError. Idempotent."""
        if not self._closed:
            self._closed = True
            anyio.notify_closing(self._socket)
            self._socket.close()

    def _read(self, max_bytes: int) -> bytes:
        return self._socket.recv(max_bytes)

    def _broken(self) -> Exception:
        return anyio.ClosedResourceError() if self._closed else anyio.BrokenResourceError()


Stream = TypeVar("Stream", bound=SocketStream)


async def serve_socket(
    listening: socket.socket,
    stream: Callable[[socket.socket], Stream],
    handle: Callable[[Stream], Coroutine[None, None, None]],
) -> None:
    """Run `handle` for each connection, until cancelled. What it raises ends the serving."""
    async with anyio.create_task_group() as group:
        while True:
            try:
                accepted, _ = listening.accept()
            except BlockingIOError:
                await anyio.wait_readable(listening)
            except ConnectionAbortedError:
                continue
            else:
                group.start_soon(handle, stream(accepted))
