"""How a gateway and a worker talk: two Unix stream sockets, *control* and *data*.

A frame is a length (32 bits, big-endian) and a msgpack array of tagged messages: everything that
was queued while the socket was busy, or in the same turn of the event loop, leaves as one frame.
The end of either stream is the death of the other side.

Order. Each lane keeps its order; the lanes overtake each other. What may overtake what:

- To the worker, the data lane has ConfigureListening, Hear, EndUtterance, DropUtterance,
  JudgeTurn, Prepare, Respond, AlignSpeech and all that frame-locked sessions send, so that nothing
  passes the audio it is about. The control lane has OpenSession, CloseSession and Acknowledge. A
  close overtakes what is queued for its session, which is then dropped. An open needs no order:
  nothing is sent on a session before the worker has admitted it.
- CancelResponse takes both lanes: on control it overtakes, on data it follows its Respond and
  can't miss it. The worker passes on the first one that finds the answer alive.
- To the gateway, the data lane has everything that belongs to an answer, so that ResponseEnded
  never passes the speech before it, and all that frame-locked sessions say. The control lane has
  the rest: transcripts, judgements and alignments keep their order among themselves and overtake
  speech.

Backpressure. What is queued for a lane is bounded in bytes. Control is never dropped and data
waits; when the other side takes nothing for :attr:`LaneLimits.stall_s`, or more than
:attr:`LaneLimits.queue_bytes` wait, the connection is lost.
"""

import os
import secrets
import stat
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar, get_args

import anyio
import msgspec

from duologue.engines.duplex import DuplexCommand, DuplexOutput
from duologue.engines.engine import (
    Acknowledge,
    CancelResponse,
    CloseSession,
    Command,
    EngineSpec,
    OpenSession,
    Output,
    ResponseEnded,
    ResponseQueued,
    SpeechGenerated,
    TextGenerated,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallStarted,
)

CONTROL_SOCKET = "control"
DATA_SOCKET = "data"

_LENGTH = struct.Struct(">I")
_HEADER = struct.Struct(">IBI")
_ARRAY32 = 0xDD
_SEAL_BYTES = 256 * 1024
_READ_BYTES = 256 * 1024


class LaneBroken(Exception):
    """The connection can't be used any more: closed, stalled, overfull, or not understood."""


class MessageTooLarge(ValueError):
    """One message alone is larger than a frame may be. Nothing was queued."""


class LaneLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one lane. ``stall_s``: how long the other side may take nothing, in seconds."""

    frame_bytes: int = 64 * 2**20
    queue_bytes: int = 32 * 2**20
    stall_s: float = 5.0


# -- what only the lanes say ----------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first message on each lane; both lanes of a gateway carry the same name."""

    gateway: str


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """Both lanes are joined. ``free`` and ``capacity`` count sessions."""

    spec: EngineSpec
    capacity: int
    free: int


class Admitted(msgspec.Struct, frozen=True, tag=True):
    """Answers OpenSession: the session has a place."""

    session: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Answers OpenSession. ``full``: all places are taken; otherwise the worker is ending."""

    session: str
    retry_after_s: float
    full: bool


class Draining(msgspec.Struct, frozen=True, tag=True):
    """The worker takes no more sessions and ends when those that it has are closed."""


ToWorker = Hello | Command | DuplexCommand
ToGateway = Welcome | Admitted | Refused | Draining | Output | DuplexOutput

_CONTROL_COMMANDS = frozenset({OpenSession, CloseSession, Acknowledge})
_DATA_OUTPUTS = frozenset(
    {
        ResponseQueued,
        TextGenerated,
        SpeechGenerated,
        ToolCallStarted,
        ToolCallDelta,
        ToolCallEnded,
        ResponseEnded,
        *get_args(DuplexOutput),
    }
)


def new_gateway_name() -> str:
    """A name that no other gateway has: 64 random bits, in hexadecimal."""
    return secrets.token_hex(8)


def socket_paths(directory: Path) -> tuple[Path, Path]:
    """Where a worker listens in its directory: the control and the data socket.

    Raises ValueError when the paths are too long for a Unix socket (107 bytes, unix(7)).
    """
    paths = directory / CONTROL_SOCKET, directory / DATA_SOCKET
    if max(len(str(path).encode()) for path in paths) > 107:
        raise ValueError(f"{directory}: too long a path for a socket")
    return paths


def private_directory(name: str) -> Path:
    """Where a worker's directory could be: a path that nothing has, short enough for sockets."""
    base = os.environ.get("TMPDIR", "/tmp")
    if len(base) > 60:
        base = "/tmp"  # a socket's path has room for 107 bytes
    return Path(base, f"duologue-{name[:16]}-{secrets.token_hex(8)}")


def make_private(directory: Path) -> None:
    """Make the directory, mode 0700, or accept one that only this user can have made.

    Raises PermissionError when somebody else has put something there.
    """
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        found = directory.lstat()
        if found.st_uid != os.getuid() or found.st_mode != stat.S_IFDIR | 0o700:
            raise PermissionError(f"{directory} is not a private directory") from None


# -- frames ---------------------------------------------------------------------------------


class FrameReader:
    """Cuts a stream of bytes into the payloads of its frames."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are now complete. Raises LaneBroken for a frame over the limit."""
        buffer = self._buffer
        buffer += data
        payloads = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(buffer, start)
            if size > self._limit:
                raise LaneBroken(f"a frame of {size} bytes; the limit is {self._limit}")
            end = start + _LENGTH.size + size
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:
                payloads.append(bytes(view[start + _LENGTH.size : end]))
            start = end
        if start:
            del buffer[:start]
        return payloads


class FrameWriter:
    """Gathers messages into frames of about 256 KiB; a larger message has a frame of its own."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._encoder = msgspec.msgpack.Encoder()
        self._sealed: deque[bytearray] = deque()
        self._open = bytearray(_HEADER.size)
        self._count = 0
        self._sealed_bytes = 0

    @property
    def queued_bytes(self) -> int:
        return self._sealed_bytes + (len(self._open) if self._count else 0)

    def put(self, message: msgspec.Struct) -> None:
        """Add a message. Raises MessageTooLarge when no frame could hold it."""
        before = len(self._open)
        self._encoder.encode_into(message, self._open, -1)
        if len(self._open) - before > self._limit - _HEADER.size:
            size = len(self._open) - before
            del self._open[before:]
            raise MessageTooLarge(f"a {type(message).__name__} of {size} bytes")
        self._count += 1
        if len(self._open) >= _SEAL_BYTES:
            self._seal()

    def take(self) -> bytes | bytearray:
        """The next frame; empty when nothing is queued."""
        if not self._sealed:
            if not self._count:
                return b""
            self._seal()
        frame = self._sealed.popleft()
        self._sealed_bytes -= len(frame)
        return frame

    def _seal(self) -> None:
        _HEADER.pack_into(self._open, 0, len(self._open) - _LENGTH.size, _ARRAY32, self._count)
        self._sealed.append(self._open)
        self._sealed_bytes += len(self._open)
        self._open = bytearray(_HEADER.size)
        self._count = 0


# -- lanes ----------------------------------------------------------------------------------

In = TypeVar("In")


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
        decoder: msgspec.msgpack.Decoder[list[In]],
        limits: LaneLimits,
    ) -> None:
        self._stream = stream
        self._decoder = decoder
        self._limits = limits
        self._reader = FrameReader(limits.frame_bytes)
        self._writer = FrameWriter(limits.frame_bytes)
        self._payloads: deque[bytes] = deque()
        self._something = anyio.Event()

    @property
    def queued_bytes(self) -> int:
        return self._writer.queued_bytes

    def send(self, message: msgspec.Struct) -> None:
        """Queue a message; never waits.

        Raises LaneBroken when too much is queued already, MessageTooLarge when no frame could
        hold the message.
        """
        if self._writer.queued_bytes > self._limits.queue_bytes:
            raise LaneBroken(f"more than {self._limits.queue_bytes} bytes are queued")
        self._writer.put(message)
        self._something.set()

    async def receive(self) -> list[In]:
        """The messages of the next frame. Raises LaneBroken."""
        try:
            while not self._payloads:
                self._payloads.extend(self._reader.feed(await self._stream.receive(_READ_BYTES)))
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise LaneBroken("closed by the other side") from None
        except anyio.BrokenResourceError as error:
            raise LaneBroken(f"broken: {error.__cause__ or error}") from error
        try:
            return self._decoder.decode(self._payloads.popleft())
        except msgspec.MsgspecError as error:
            raise LaneBroken(f"a frame that can't be decoded: {error}") from error

    async def pump(self) -> None:
        """Write what is queued, for ever. Raises LaneBroken."""
        while True:
            await self._something.wait()
            self._something = anyio.Event()
            await self.flush()

    async def flush(self) -> None:
        """Write what is queued now. Raises LaneBroken."""
        while frame := self._writer.take():
            await self._write(frame)

    async def _write(self, frame: bytes | bytearray) -> None:
        view = memoryview(frame)
        for start in range(0, len(view), _SEAL_BYTES):
            with anyio.move_on_after(self._limits.stall_s) as scope:
                try:
                    await self._stream.send(view[start : start + _SEAL_BYTES])
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    raise LaneBroken("closed by the other side") from None
            if scope.cancelled_caught:
                raise LaneBroken(f"nothing was taken for {self._limits.stall_s:g} s")

    async def aclose(self) -> None:
        await self._stream.aclose()


class Link(Generic[In]):
    """The two lanes between one gateway and one worker, alive or broken together."""

    def __init__(self, control: Lane[In], data: Lane[In]) -> None:
        self.control = control
        self.data = data
        self._scope = anyio.CancelScope()
        self._reason = ""

    def fail(self, reason: str) -> None:
        """Break the link; :meth:`run` returns soon. The first reason is kept."""
        self._reason = self._reason or reason
        self._scope.cancel()

    async def run(
        self,
        on_control: Callable[[list[In]], Awaitable[None]],
        on_data: Callable[[list[In]], Awaitable[None]],
    ) -> str:
        """Carry messages until a lane breaks; closes both and returns the reason."""
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._write, self.control)
                    group.start_soon(self._write, self.data)
                    group.start_soon(self._read, self.control, on_control)
                    group.start_soon(self._read, self.data, on_data)
        finally:
            with anyio.CancelScope(shield=True):
                await self.control.aclose()
                await self.data.aclose()
        return self._reason

    async def _write(self, lane: Lane[In]) -> None:
        try:
            await lane.pump()
        except LaneBroken as error:
            self.fail(str(error))

    async def _read(self, lane: Lane[In], handle: Callable[[list[In]], Awaitable[None]]) -> None:
        try:
            while True:
                await handle(await lane.receive())
        except LaneBroken as error:
            self.fail(str(error))


# -- both ends ------------------------------------------------------------------------------

_TO_WORKER: msgspec.msgpack.Decoder[list[ToWorker]] = msgspec.msgpack.Decoder(list[ToWorker])
_TO_GATEWAY: msgspec.msgpack.Decoder[list[ToGateway]] = msgspec.msgpack.Decoder(list[ToGateway])


def worker_lane(stream: Wire, limits: LaneLimits) -> Lane[ToWorker]:
    """The worker's end of a lane."""
    return Lane(stream, _TO_WORKER, limits)


def gateway_lane(stream: Wire, limits: LaneLimits) -> Lane[ToGateway]:
    """The gateway's end of a lane."""
    return Lane(stream, _TO_GATEWAY, limits)


def send_command(link: Link[ToGateway], command: Command | DuplexCommand) -> None:
    """Queue a command on its lane. Raises as :meth:`Lane.send` does."""
    if type(command) is CancelResponse:
        link.control.send(command)
        link.data.send(command)
    elif type(command) in _CONTROL_COMMANDS:
        link.control.send(command)
    else:
        link.data.send(command)


def send_output(link: Link[ToWorker], output: Output | DuplexOutput) -> None:
    """Queue an output on its lane. Raises as :meth:`Lane.send` does."""
    lane = link.data if type(output) in _DATA_OUTPUTS else link.control
    lane.send(output)
