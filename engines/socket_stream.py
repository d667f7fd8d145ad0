"""Stream sockets whose reads and writes can be cancelled at any moment.

anyio's own streams leave a reader registered for a moment after a cancel; data that comes in that
moment ends in an exception of the event loop. Its ``wait_readable`` registers the socket anew for
every wait, which costs more than the read; here it stays registered while somebody reads.
"""

import asyncio
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
        self._buffer = bytearray()
        self._emptied = False
        self._watching: asyncio.AbstractEventLoop | None = None
        self._reader: asyncio.Future[None] | None = None

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """What has come. When more comes than is read, other tasks still get their turns."""
        if len(self._buffer) < max_bytes:
            self._buffer = bytearray(max_bytes)
        if waited := self._emptied:
            await self._wait_readable()
        while True:
            try:
                with memoryview(self._buffer) as whole, whole[:max_bytes] as room:
                    count = self._read_into(room)
                    data = bytes(room[:count])
            except BlockingIOError:
                await self._wait_readable()
                waited = True
            except OSError as error:
                raise self._broken() from error
            else:
                if not data:
                    raise anyio.EndOfStream
                # What is left is noticed by waiting, too: the loop tells of it again and again.
                self._emptied = count < max_bytes
                if not waited:
                    await anyio.lowlevel.checkpoint()
                return data

    async def send(self, item: bytes | memoryview) -> None:
        """Returns at once, without a turn for other tasks, when there is room for all of it."""
        view = memoryview(item)
        while view:
            sent = self.send_nowait(view)
            if not sent:
                await anyio.wait_writable(self._socket)
            view = view[sent:]

    def send_nowait(self, item: bytes | bytearray | memoryview) -> int:
        """Send as much as there is room for: so many bytes. Errors as of :meth:`send`."""
        try:
            return self._socket.send(item)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._broken() from error

    async def aclose(self) -> None:
        """Whoever waits in it gets ClosedResourceError. Idempotent."""
        if not self._closed:
            self._closed = True
            self._stop_watching()
            if self._reader is not None and not self._reader.done():
                self._reader.set_exception(anyio.ClosedResourceError())
            anyio.notify_closing(self._socket)
            self._socket.close()

    async def _wait_readable(self) -> None:
        """Raises ClosedResourceError, BusyResourceError when somebody else waits."""
        if self._closed:
            raise anyio.ClosedResourceError
        if self._reader is not None:
            raise anyio.BusyResourceError("reading from")
        loop = asyncio.get_running_loop()
        if self._watching is None:
            loop.add_reader(self._socket.fileno(), self._on_readable)
            self._watching = loop
        self._reader = loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _on_readable(self) -> None:
        if self._reader is None:
            # Nobody wants it now; it would be told again at once.
            self._stop_watching()
        elif not self._reader.done():
            self._reader.set_result(None)

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.remove_reader(self._socket.fileno())
            self._watching = None

    def _read_into(self, room: memoryview) -> int:
        return self._socket.recv_into(room)

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
