"""Unix stream sockets whose reads and writes can be cancelled at any moment.

anyio's own Unix streams leave a reader registered for a moment after a cancel; data that comes in
that moment ends in an exception of the event loop.
"""

import socket
from collections.abc import Callable, Coroutine
from pathlib import Path

import anyio
import anyio.lowlevel

BACKLOG = 64


class UnixStream:
    """A connected socket; its errors are those of :class:`anyio.abc.ByteStream`."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._closed = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        while True:
            try:
                data = self._socket.recv(max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            except OSError as error:
                raise self._broken() from error
            else:
                if not data:
                    raise anyio.EndOfStream
                return data

    async def send(self, item: bytes | memoryview) -> None:
        await anyio.lowlevel.checkpoint()
        view = memoryview(item)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError as error:
                raise self._broken() from error

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            anyio.notify_closing(self._socket)
            self._socket.close()

    def _broken(self) -> Exception:
        return anyio.ClosedResourceError() if self._closed else anyio.BrokenResourceError()


async def connect(path: Path) -> UnixStream:
    """Connect to a listening socket. Raises OSError at once when nobody listens or it is full."""
    await anyio.lowlevel.checkpoint()
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        connecting.connect(str(path))
    except OSError:
        connecting.close()
        raise
    return UnixStream(connecting)


class UnixListener:
    """A socket file, for its owner alone, that is there as long as the context is open."""

    def __init__(self, path: Path) -> None:
        """Binds at once. Raises OSError when the path is taken or can't be used."""
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind(str(path))
            # Before it listens, so that nobody else ever gets in.
            path.chmod(0o600)
        except OSError:
            self._socket.close()
            raise
        self._socket.listen(BACKLOG)

    async def serve(self, handle: Callable[[UnixStream], Coroutine[None, None, None]]) -> None:
        """Run `handle` for each connection, until cancelled. What it raises ends the serving."""
        async with anyio.create_task_group() as group:
            while True:
                try:
                    accepted, _ = self._socket.accept()
                except BlockingIOError:
                    await anyio.wait_readable(self._socket)
                except ConnectionAbortedError:
                    continue
                else:
                    group.start_soon(handle, UnixStream(accepted))

    def close(self) -> None:
        """Stop listening and remove the file. Idempotent."""
        self._path.unlink(missing_ok=True)
        self._socket.close()

    def __enter__(self) -> "UnixListener":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
