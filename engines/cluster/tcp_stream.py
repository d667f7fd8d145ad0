"""TCP sockets for lanes, which notice within two seconds that a machine is gone."""

import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel

from duologue.engines.socket_stream import BACKLOG, SocketStream, serve_socket

PROBE_S = 1
"""After so long without a word the other machine is asked whether it is there (tcp(7))."""

UNANSWERED_MS = 1_500
"""What was sent is acknowledged within so long, or the connection is lost (RFC 5482)."""


class TcpStream(SocketStream):
    """A connected socket that notices when the other machine is gone."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED_MS)

    async def receive_exactly(self, count: int) -> bytes:
        """So many bytes, and none behind them. Raises EndOfStream when there are fewer."""
        data = b""
        while len(data) < count:
            data += await self.receive(count - len(data))
        return data


async def connect_tcp(host: str, port: int, patience_s: float) -> TcpStream:
    """Connect to an IP address. Raises OSError, TimeoutError among them."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    connecting = socket.socket(family, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        with anyio.fail_after(patience_s):
            try:
                connecting.connect((host, port))
            except BlockingIOError:
                await anyio.wait_writable(connecting)
            if code := connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(code, f"can't connect to {host} port {port}")
        return TcpStream(connecting)
    except BaseException:
        connecting.close()
        raise


class TcpListener:
    """A socket that other machines connect to."""

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    async def serve(self, handle: Callable[[TcpStream], Coroutine[None, None, None]]) -> None:
        """Run `handle` for each connection, until cancelled. What it raises ends the serving."""
        await serve_socket(self._socket, TcpStream, handle)


@asynccontextmanager
async def listen_tcp(host: str) -> AsyncIterator[TcpListener]:
    """Listen on a free port of one of this machine's IP addresses. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setblocking(False)
        listening.bind((host, 0))
        listening.listen(BACKLOG)
        await anyio.lowlevel.checkpoint()
        yield TcpListener(listening)
