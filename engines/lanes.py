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

Backpressure. What is queued for a lane is bounded in bytes. Control is never dropped and data
waits; when the other side takes nothing for :attr:`LaneLimits.stall_s`, or more than
:attr:`LaneLimits.queue_bytes` wait, the connection is lost.
"""

import secrets
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, get_args

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
from duologue.engines.frames import LaneBroken
from duologue.engines.lane import Lane, LaneLimits, LaneWord, Wire
from duologue.engines.stage_messages import StageCommand, StageOutput

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


# -- both lanes -----------------------------------------------------------------------------

In = TypeVar("In", bound=msgspec.Struct)


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

_WORKER_FRAMES: msgspec.msgpack.Decoder[list[ToWorker | LaneWord]]
_WORKER_FRAMES = msgspec.msgpack.Decoder(list[ToWorker | LaneWord])
_WORKER_MESSAGES: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_GATEWAY_FRAMES: msgspec.msgpack.Decoder[list[ToGateway | LaneWord]]
_GATEWAY_FRAMES = msgspec.msgpack.Decoder(list[ToGateway | LaneWord])
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
