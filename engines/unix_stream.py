"""Unix stream sockets, which can pass descriptors."""

import array
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel

from duologue.engines.socket_stream import BACKLOG, SocketStream, serve_socket

DESCRIPTORS = 4
"""Descriptors that may wait to be taken; those beyond are closed."""

_ANCILLARY_BYTES = socket.CMSG_SPACE(DESCRIPTORS * array.array("i").itemsize)


class UnixStream(SocketStream):
    """A connected socket that keeps the descriptors which come over it until they are taken."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected)
        self._descriptors: deque[int] = deque()

    def _read_into(self, room: memoryview) -> int:
        count, ancillary, _, _ = self._socket.recvmsg_into(
            [room], _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
        )
        if ancillary:
            self._keep(ancillary)
        return count

    async def send_descriptor(self, item: bytes, descriptor: int) -> None:
        """Send, and with the first byte a descriptor: the other side gets one of its own."""
        passed = array.array("i", [descriptor])
        while True:
            try:
                sent = self._socket.sendmsg(
                    [item], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)]
                )
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError as error:
                raise self._broken() from error
            else:
                await self.send(memoryview(item)[sent:])
                return

    def take_descriptor(self) -> int | None:
        """The oldest descriptor that has come, the caller's from now on."""
        return self._descriptors.popleft() if self._descriptors else None

    def _keep(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                passed = array.array("i")
                passed.frombytes(data[: len(data) - len(data) % passed.itemsize])
                self._descriptors.extend(passed)
        while len(self._descriptors) > DESCRIPTORS:
            os.close(self._descriptors.pop())

    async def aclose(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popleft())
        await super().aclose()


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
    """A socket that others connect to by its path."""

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening

    async def serve(self, handle: Callable[[UnixStream], Coroutine[None, None, None]]) -> None:
        """Run `handle` for each connection, until cancelled. What it raises ends the serving."""
        await serve_socket(self._socket, UnixStream, handle)


@asynccontextmanager
async def listen_at(path: Path) -> AsyncIterator[UnixListener]:
    """Listen at a socket file, for its owner alone, that is there as long as the context is open.

    Raises OSError when the path is taken or can't be used.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.setblocking(False)
        listening.bind(str(path))
        try:
            # Before it listens, so that nobody else ever gets in.
            await anyio.Path(path).chmod(0o600)
            listening.listen(BACKLOG)
            yield UnixListener(listening)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.Path(path).unlink(missing_ok=True)
