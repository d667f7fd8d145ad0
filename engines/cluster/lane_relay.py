"""Lets gateways on other machines reach a worker's two Unix sockets, and carries their bytes."""

import logging
from pathlib import Path

import anyio

from duologue.engines.cluster.handshake import HandshakeFailed, greet_caller
from duologue.engines.cluster.tcp_stream import TcpListener, TcpStream
from duologue.engines.lane import Wire
from duologue.engines.remote import LaneName
from duologue.engines.unix_stream import UnixStream, connect
from duologue.engines.worker_directory import socket_paths

STRANGERS = 32
"""Connections that may be in their handshake at a time; more are closed at once."""

_PIECE_BYTES = 256 * 1024

log = logging.getLogger(__name__)


class LaneRelay:
    """Serves one worker. The worker's lanes must not share memory: only bytes pass."""

    def __init__(self, directory: Path, secret: bytes) -> None:
        self._paths: dict[LaneName, Path] = dict(
            zip(("control", "data"), socket_paths(directory), strict=True)
        )
        self._secret = secret
        self._strangers = 0

    async def serve(self, listener: TcpListener) -> None:
        """Let gateways in, until cancelled."""
        await listener.serve(self._attend)

    async def _reach(self, lane: LaneName) -> UnixStream:
        return await connect(self._paths[lane])

    async def _attend(self, caller: TcpStream) -> None:
        """One connection; its task's outermost line."""
        try:
            if self._strangers >= STRANGERS:
                return
            self._strangers += 1
            try:
                worker = await greet_caller(caller, self._secret, self._reach)
            finally:
                self._strangers -= 1
            try:
                await join(caller, worker)
            finally:
                with anyio.CancelScope(shield=True):
                    await worker.aclose()
        except HandshakeFailed as error:
            log.warning("a connection was closed: %s", error)
        except OSError:
            return  # there is no worker now; the gateway tries again
        finally:
            with anyio.CancelScope(shield=True):
                await caller.aclose()


async def join(one: Wire, other: Wire) -> None:
    """Carry bytes both ways until either side ends."""
    async with anyio.create_task_group() as group:

        async def carry(source: Wire, sink: Wire) -> None:
            try:
                while True:
                    await sink.send(await source.receive(_PIECE_BYTES))
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                group.cancel_scope.cancel()

        group.start_soon(carry, one, other)
        group.start_soon(carry, other, one)
