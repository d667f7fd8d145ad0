"""One of the sockets between a gateway and a worker: typed messages in, any messages out.

Large messages (above :attr:`LaneLimits.share_above`) don't pass through the socket: their bytes are
put into memory that both processes have mapped (:mod:`duologue.engines.shared_memory`), and a
:class:`Placed` stands in their place in the order of the lane. The first one of a lane makes the
memory; until the other side has mapped it, and whenever it is full or can't be had, they go through
the socket after all.

What is queued in one turn of the event loop leaves at its end, in one write; what finds the socket
full is written by the task that pumps.
"""

import asyncio
import logging
import os
from collections import deque
from typing import Generic, Protocol, TypeVar, cast

import anyio
import msgspec
import msgspec.structs

from duologue.engines.frames import (
    FrameReader,
    FrameWriter,
    LaneBroken,
    Placed,
    bytes_fields,
)
from duologue.engines.shared_memory import IncomingMemory, OutgoingMemory
from duologue.engines.socket_stream import SocketStream
from duologue.engines.unix_stream import UnixStream

log = logging.getLogger(__name__)

_WRITE_BYTES = 256 * 1024
_READ_BYTES = 256 * 1024


class LaneLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one lane. ``stall_s``: how long the other side may take nothing, in seconds.

    ``shared_bytes``: memory shared in each direction of it, 0 for none; only what has been used
    takes room. ``share_above``: encoded messages larger than this go there.
    """

    frame_bytes: int = 64 * 2**20
    queue_bytes: int = 32 * 2**20
    stall_s: float = 5.0
    shared_bytes: int = 16 * 2**20
    share_above: int = 16 * 2**10


class Offered(msgspec.Struct, frozen=True, tag=True):
    """With this frame comes the descriptor of ``size`` bytes of shared memory."""

    size: int


class Mapped(msgspec.Struct, frozen=True, tag=True):
    """The memory that was offered can be used."""


class Returned(msgspec.Struct, frozen=True, tag=True):
    """The oldest ``count`` messages in the shared memory have been read."""

    count: int


LaneWord = Offered | Mapped | Placed | Returned
_WORDS = frozenset({Offered, Mapped, Placed, Returned})


In = TypeVar("In", bound=msgspec.Struct)


class Wire(Protocol):
    """A stream of bytes, with the errors of anyio's."""

    async def receive(self, max_bytes: int) -> bytes: ...

    async def send(self, item: bytes | memoryview) -> None: ...

    async def aclose(self) -> None: ...


class Lane(Generic[In]):
    """One of the two sockets: typed messages in, any messages out."""

    def __init__(
        self,
        stream: Wire,
        frames: msgspec.msgpack.Decoder[list[In | LaneWord]],
        messages: msgspec.msgpack.Decoder[In],
        limits: LaneLimits,
    ) -> None:
        """Memory is shared where `stream` can pass descriptors."""
        self._stream = stream
        self._frames = frames
        self._messages = messages
        self._limits = limits
        self._reader = FrameReader(limits.frame_bytes)
        self._writer = FrameWriter(limits.frame_bytes)
        self._payloads: deque[memoryview] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False
        self._rest: bytes | bytearray | memoryview = b""
        self._pumping = False
        self._to_pump = anyio.Event()
        self._shares = isinstance(stream, UnixStream) and limits.shared_bytes > 0
        self._outgoing: OutgoingMemory | None = None
        self._incoming: IncomingMemory | None = None
        self._to_offer = False

    @property
    def queued_bytes(self) -> int:
        return self._writer.queued_bytes

    @property
    def sharing(self) -> bool:
        """Whether large messages go through shared memory now, room permitting."""
        return self._writer.memory is not None

    def send(self, message: msgspec.Struct) -> None:
        """Queue a message; never waits.

        Raises LaneBroken when too much is queued already, MessageTooLarge when no frame could
        hold the message.
        """
        if self._writer.queued_bytes > self._limits.queue_bytes:
            raise LaneBroken(f"more than {self._limits.queue_bytes} bytes are queued")
        size = self._writer.put(message)
        if size > self._limits.share_above and self._shares:
            self._offer()
        self._schedule()

    async def receive(self) -> list[In]:
        """The messages of the next frame. Raises LaneBroken."""
        try:
            while True:
                while not self._payloads:
                    data = await self._stream.receive(_READ_BYTES)
                    self._payloads.extend(self._reader.feed(data))
                if messages := self._unwrap(self._frames.decode(self._payloads.popleft())):
                    return messages
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise LaneBroken("closed by the other side") from None
        except anyio.BrokenResourceError as error:
            raise LaneBroken(f"broken: {error.__cause__ or error}") from error
        except msgspec.MsgspecError as error:
            raise LaneBroken(f"a frame that can't be decoded: {error}") from error

    def _offer(self) -> None:
        self._shares = False  # it is tried once
        try:
            self._outgoing = OutgoingMemory(self._limits.shared_bytes)
        except OSError as error:
            log.warning("large messages go through the socket: %s", error)
        else:
            self._to_offer = True

    def _unwrap(self, messages: list[In | LaneWord]) -> list[In]:
        """What is for others than the lane itself."""
        found: list[In] = []
        read = 0
        for message in messages:
            if type(message) not in _WORDS:
                found.append(cast(In, message))
            elif isinstance(message, Placed):
                found.append(self._read(message))
                read += 1
            elif isinstance(message, Offered):
                self._map(message)
            elif self._outgoing is None:
                raise LaneBroken("it speaks of memory that it was not offered")
            elif isinstance(message, Returned):
                try:
                    self._outgoing.take_back(message.count)
                except ValueError as error:
                    raise LaneBroken(str(error)) from None
            else:
                self._writer.memory = self._outgoing
                self._writer.memory_above = self._limits.share_above
        if read:
            self._writer.put(Returned(read))
            self._schedule()
        return found

    def _map(self, offered: Offered) -> None:
        """Map what was offered; when it can't be, the other side waits for its word in vain and
        sends everything through the socket."""
        stream = self._stream
        descriptor = stream.take_descriptor() if isinstance(stream, UnixStream) else None
        if descriptor is None:
            # It went through a relay, or there was no room for one more descriptor.
            log.info("large messages come through the socket: no shared memory has come")
            return
        if self._incoming is not None:
            os.close(descriptor)
            log.warning("memory was offered twice; the first is used")
            return
        try:
            self._incoming = IncomingMemory(descriptor, offered.size)
        except OSError as error:
            log.warning("large messages come through the socket: %s", error)
            return
        self._writer.put(Mapped())
        self._schedule()

    def _read(self, placed: Placed) -> In:
        if self._incoming is None:
            raise LaneBroken("a message in memory that is not shared")
        try:
            with self._incoming.view(placed.offset, placed.size) as view:
                if not placed.field:
                    return self._messages.decode(view)
                message = self._messages.decode(placed.message)
                if placed.field not in bytes_fields(type(message)):
                    raise ValueError(f"a {type(message).__name__} has no bytes {placed.field!r}")
                return msgspec.structs.replace(message, **{placed.field: bytes(view)})
        except ValueError as error:
            raise LaneBroken(f"a message that can't be decoded: {error}") from error

    async def pump(self) -> None:
        """Write what is queued, for ever. Raises LaneBroken."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                self._pumping = True
                await self.flush()
                self._to_pump = anyio.Event()
                self._pumping = False
                await self._to_pump.wait()
        finally:
            self._loop = None

    async def flush(self) -> None:
        """Write what is queued now. Raises LaneBroken."""
        if self._to_offer and self._outgoing is not None:
            self._to_offer = False
            await self._hand_over(self._outgoing)
        while frame := self._rest or self._writer.take():
            self._rest = b""
            await self._write(frame)

    def _schedule(self) -> None:
        """Have what is queued written at the end of this turn of the event loop."""
        if self._loop is not None and not self._scheduled and not self._pumping:
            self._scheduled = True
            self._loop.call_soon(self._write_now)

    def _write_now(self) -> None:
        """Write as much as finds room at once, and leave the rest to :meth:`pump`."""
        self._scheduled = False
        if self._loop is None or self._pumping:
            return
        stream = self._stream
        if isinstance(stream, SocketStream) and not self._to_offer:
            while frame := self._writer.take():
                try:
                    sent = stream.send_nowait(frame)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    sent = 0  # the pump finds the same
                if sent < len(frame):
                    self._rest = memoryview(frame)[sent:]
                    break
            else:
                return
        self._pumping = True
        self._to_pump.set()

    async def _hand_over(self, memory: OutgoingMemory) -> None:
        assert isinstance(self._stream, UnixStream)
        writer = FrameWriter(self._limits.frame_bytes)
        writer.put(Offered(memory.size))
        with anyio.move_on_after(self._limits.stall_s) as scope:
            try:
                await self._stream.send_descriptor(bytes(writer.take()), memory.descriptor)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                raise LaneBroken("closed by the other side") from None
        if scope.cancelled_caught:
            raise LaneBroken(f"nothing was taken for {self._limits.stall_s:g} s")

    async def _write(self, frame: bytes | bytearray | memoryview) -> None:
        view = memoryview(frame)
        for start in range(0, len(view), _WRITE_BYTES):
            with anyio.move_on_after(self._limits.stall_s) as scope:
                try:
                    await self._stream.send(view[start : start + _WRITE_BYTES])
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    raise LaneBroken("closed by the other side") from None
            if scope.cancelled_caught:
                raise LaneBroken(f"nothing was taken for {self._limits.stall_s:g} s")

    async def aclose(self) -> None:
        for memory in (self._outgoing, self._incoming):
            if memory is not None:
                memory.close()
        self._writer.memory = None
        await self._stream.aclose()
