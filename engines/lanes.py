"""How a gateway and a worker talk: two Unix stream sockets, *control* and *data*.

What they say is cut into frames (:mod:`duologue.engines.frames`): everything that was queued while
the socket was busy, or in the same turn of the event loop, leaves as one. The end of either stream
is the death of the other side.

Order. Each lane keeps its order; the lanes overtake each other. What may overtake what:

- To the worker, the data lane has ConfigureListening, Hear, EndUtterance, DropUtterance,
  JudgeTurn, Prepare, Respond, AlignSpeech and all that frame-locked sessions and pipelines send, so
  that nothing passes the audio it is about. The control lane has OpenSession, CloseSession and
  Acknowledge. A close overtakes what is queued for its session, which is then dropped. An open
  needs no order: nothing is sent on a session before the worker has admitted it.
- CancelResponse takes both lanes: on control it overtakes, on data it follows its Respond and
  can't miss it. The worker passes on the first one that finds the answer alive.
- To the gateway, the data lane has everything that belongs to an answer, so that ResponseEnded
  never passes the speech before it, and all that frame-locked sessions say. The control lane has
  the rest: transcripts, judgements and alignments keep their order among themselves and overtake
  speech.

Large messages (above :attr:`LaneLimits.share_above`) don't pass through the socket: their bytes are
put into memory that both processes have mapped (:mod:`duologue.engines.shared_memory`), and a
:class:`Placed` stands in their place in the order of the lane. The first one of a lane makes the
memory; until the other side has mapped it, and whenever it is full or can't be had, they go through
the socket after all.

Backpressure. What is queued for a lane is bounded in bytes. Control is never dropped and data
waits; when the other side takes nothing for :attr:`LaneLimits.stall_s`, or more than
:attr:`LaneLimits.queue_bytes` wait, the connection is lost.
"""

import logging
import os
import secrets
import stat
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast, get_args

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
    PictureGenerated,
    ResponseEnded,
    ResponseQueued,
    SpeechGenerated,
    TextGenerated,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallStarted,
)
from duologue.engines.frames import FrameReader, FrameWriter, LaneBroken, Placed
from duologue.engines.shared_memory import IncomingMemory, OutgoingMemory
from duologue.engines.stage_messages import StageCommand, StageOutput
from duologue.engines.unix_stream import UnixStream

log = logging.getLogger(__name__)

CONTROL_SOCKET = "control"
DATA_SOCKET = "data"

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


class Offered(msgspec.Struct, frozen=True, tag=True):
    """With this frame comes the descriptor of ``size`` bytes of shared memory."""

    size: int


class Mapped(msgspec.Struct, frozen=True, tag=True):
    """The memory that was offered can be used."""


class Returned(msgspec.Struct, frozen=True, tag=True):
    """The oldest ``count`` messages in the shared memory have been read."""

    count: int


_OfLanes = Offered | Mapped | Placed | Returned
_OF_LANES = frozenset({Offered, Mapped, Placed, Returned})

ToWorker = Hello | Command | DuplexCommand | StageCommand
ToGateway = Welcome | Admitted | Refused | Draining | Output | DuplexOutput | StageOutput

_CONTROL_COMMANDS = frozenset({OpenSession, CloseSession, Acknowledge})
_DATA_OUTPUTS = frozenset(
    {
        ResponseQueued,
        TextGenerated,
        SpeechGenerated,
        PictureGenerated,
        ToolCallStarted,
        ToolCallDelta,
        ToolCallEnded,
        ResponseEnded,
        *get_args(DuplexOutput),
        *get_args(StageOutput),
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
        frames: msgspec.msgpack.Decoder[list[In | _OfLanes]],
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
        self._payloads: deque[bytes] = deque()
        self._something = anyio.Event()
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
        self._something.set()

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

    def _unwrap(self, messages: list[In | _OfLanes]) -> list[In]:
        """What is for others than the lane itself."""
        found: list[In] = []
        read = 0
        for message in messages:
            if type(message) not in _OF_LANES:
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
            self._something.set()
        return found

    def _map(self, offered: Offered) -> None:
        """Map what was offered; when it can't be, the other side waits for its word in vain and
        sends everything through the socket."""
        stream = self._stream
        descriptor = stream.take_descriptor() if isinstance(stream, UnixStream) else None
        if descriptor is None or self._incoming is not None:
            # It went through a relay, or there was no room for one more descriptor.
            log.info("large messages come through the socket: no shared memory has come")
            return
        try:
            self._incoming = IncomingMemory(descriptor, offered.size)
        except OSError as error:
            log.warning("large messages come through the socket: %s", error)
            return
        self._writer.put(Mapped())
        self._something.set()

    def _read(self, placed: Placed) -> In:
        if self._incoming is None:
            raise LaneBroken("a message in memory that is not shared")
        try:
            with self._incoming.view(placed.offset, placed.size) as view:
                return self._messages.decode(view)
        except ValueError as error:
            raise LaneBroken(f"a message that can't be decoded: {error}") from error

    async def pump(self) -> None:
        """Write what is queued, for ever. Raises LaneBroken."""
        while True:
            await self._something.wait()
            self._something = anyio.Event()
            await self.flush()

    async def flush(self) -> None:
        """Write what is queued now. Raises LaneBroken."""
        if self._to_offer and self._outgoing is not None:
            self._to_offer = False
            await self._hand_over(self._outgoing)
        while frame := self._writer.take():
            await self._write(frame)

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

    async def _write(self, frame: bytes | bytearray) -> None:
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

_WORKER_FRAMES: msgspec.msgpack.Decoder[list[ToWorker | _OfLanes]]
_WORKER_FRAMES = msgspec.msgpack.Decoder(list[ToWorker | _OfLanes])
_WORKER_MESSAGES: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_GATEWAY_FRAMES: msgspec.msgpack.Decoder[list[ToGateway | _OfLanes]]
_GATEWAY_FRAMES = msgspec.msgpack.Decoder(list[ToGateway | _OfLanes])
_GATEWAY_MESSAGES: msgspec.msgpack.Decoder[ToGateway] = msgspec.msgpack.Decoder(ToGateway)


def worker_lane(stream: Wire, limits: LaneLimits) -> Lane[ToWorker]:
    """The worker's end of a lane."""
    return Lane(stream, _WORKER_FRAMES, _WORKER_MESSAGES, limits)


def gateway_lane(stream: Wire, limits: LaneLimits) -> Lane[ToGateway]:
    """The gateway's end of a lane."""
    return Lane(stream, _GATEWAY_FRAMES, _GATEWAY_MESSAGES, limits)


def send_command(link: Link[ToGateway], command: Command | DuplexCommand | StageCommand) -> None:
    """Queue a command on its lane. Raises as :meth:`Lane.send` does."""
    if type(command) is CancelResponse:
        link.control.send(command)
        link.data.send(command)
    elif type(command) in _CONTROL_COMMANDS:
        link.control.send(command)
    else:
        link.data.send(command)


def send_output(link: Link[ToWorker], output: Output | DuplexOutput | StageOutput) -> None:
    """Queue an output on its lane. Raises as :meth:`Lane.send` does."""
    lane = link.data if type(output) in _DATA_OUTPUTS else link.control
    lane.send(output)
