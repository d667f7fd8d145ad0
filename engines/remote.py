"""An engine that lives in a worker process, reached through the two sockets in its directory."""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal, cast

import anyio
import anyio.abc
import msgspec

from duologue.engines.duplex import DuplexCommand, DuplexOutput
from duologue.engines.engine import (
    AlignSpeech,
    CloseSession,
    Command,
    EngineFailure,
    EngineFull,
    EngineLost,
    EngineSpec,
    EngineUnavailable,
    OpenSession,
    Output,
    Prepare,
    Respond,
    ResponseEnded,
    SpeechAligned,
)
from duologue.engines.frames import LaneBroken, MessageTooLarge
from duologue.engines.lane import LaneLimits, Wire
from duologue.engines.lanes import (
    Admitted,
    Draining,
    Hello,
    Link,
    Refused,
    ToGateway,
    Welcome,
    gateway_lane,
    new_gateway_name,
    send_command,
)
from duologue.engines.stage_messages import StageCommand, StageOutput
from duologue.engines.unix_stream import connect
from duologue.engines.worker_directory import socket_paths

log = logging.getLogger(__name__)


LaneName = Literal["control", "data"]
Dial = Callable[[LaneName], Awaitable[Wire]]


class RemoteLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a gateway's side. Times in seconds.

    ``inbox``: outputs that may wait for one session's reader; one more, and that session is lost
    while the others go on. ``open_s``: how long the worker may take to admit a session.
    ``retry_s``: between attempts to reach a worker. ``retry_after_s``: what a client is told while
    there is none.
    """

    inbox: int = 4096
    open_s: float = 5.0
    hello_s: float = 5.0
    retry_s: float = 0.05
    retry_after_s: float = 2.0
    lanes: LaneLimits = LaneLimits()


class RemoteStream:
    """A session's place on the worker. See :class:`duologue.engines.engine.EngineStream`."""

    def __init__(
        self,
        session: str,
        alias: str,
        link: Link[ToGateway],
        inbox: int,
        engine: "RemoteEngine",
        batch: bool = False,
    ) -> None:
        self._session = session
        self.alias = alias
        self.batch = batch
        self._link = link
        self._engine = engine
        self._inbox: deque[Output | DuplexOutput | StageOutput] = deque()
        self._inbox_size = inbox
        self._reader: asyncio.Future[None] | None = None
        self._yielded = True
        self._lost = ""
        self._answered = anyio.Event()
        self._refusal: Refused | None = None
        self.admitted = False

    @property
    def waiting(self) -> int:
        """Outputs that wait for the reader."""
        return len(self._inbox)

    def send(self, command: Command | DuplexCommand | StageCommand) -> None:
        """Queue a command; never waits. Raises EngineLost when the worker is gone.

        A request that no frame can hold is answered here: the answer fails with
        ``context_too_long``. Raises ValueError for any other command as large as that.
        """
        if self._lost:
            raise EngineLost(self._lost)
        try:
            send_command(self._link, msgspec.structs.replace(command, session=self.alias))
        except MessageTooLarge as error:
            self._refuse(command, error)
        except LaneBroken as error:
            self._link.fail(str(error))
            raise EngineLost(str(error)) from error

    async def receive(self) -> Output:
        """The next output, in order. Raises EngineLost after the last one that came."""
        # An engine that is not frame-locked says nothing else.
        return cast(Output, await self._next())

    async def receive_duplex(self) -> DuplexOutput:
        """As :meth:`receive`, of a frame-locked engine."""
        return cast(DuplexOutput, await self._next())

    async def receive_stage(self) -> ResponseEnded | StageOutput:
        """As :meth:`receive`, of a stage of a pipeline."""
        return cast("ResponseEnded | StageOutput", await self._next())

    async def _next(self) -> Output | DuplexOutput | StageOutput:
        if self._inbox and not self._yielded:
            # A long inbox must not keep other tasks from their turns.
            await anyio.lowlevel.checkpoint()
        while not self._inbox:
            if self._lost:
                raise EngineLost(self._lost)
            await self._wait()
            self._yielded = True
        output = self._inbox.popleft()
        self._yielded = not self._inbox
        return output

    async def _wait(self) -> None:
        """Until there may be something to read. A future of the loop's: this happens for every
        frame of sound, and an event of anyio's costs several times as much."""
        if self._reader is not None:
            raise anyio.BusyResourceError("reading from")
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def open_beside(self, session: str) -> "RemoteStream":
        """Another place on the same worker. Raises EngineFull, EngineUnavailable."""
        return await self._engine.open(session)

    async def aclose(self) -> None:
        """Give the place back."""
        self.close("the stream was closed")

    def close(self, reason: str) -> None:
        """Give the place back; what is in the inbox is dropped."""
        if not self._lost:
            self.lose(reason)
            try:
                send_command(self._link, CloseSession(session=self.alias))
            except LaneBroken as error:
                self._link.fail(str(error))
        self._inbox.clear()
        self._engine.forget(self.alias)

    async def admission(self) -> Refused | None:
        """Wait for the worker's answer: ``None`` when the session is admitted."""
        await self._answered.wait()
        return self._refusal

    def answer(self, refusal: Refused | None) -> None:
        """The worker's answer to OpenSession has come."""
        self._refusal = refusal
        self.admitted = refusal is None
        self._answered.set()

    def deliver(self, output: Output | DuplexOutput | StageOutput) -> bool:
        """Put an output into the inbox; false when it is full."""
        if len(self._inbox) >= self._inbox_size:
            return False
        self._inbox.append(msgspec.structs.replace(output, session=self._session))
        self._wake()
        return True

    def lose(self, reason: str) -> None:
        """Nothing more comes. What is in the inbox can still be read."""
        self._lost = self._lost or reason
        self._wake()
        self._answered.set()

    def _refuse(
        self, command: Command | DuplexCommand | StageCommand, error: MessageTooLarge
    ) -> None:
        match command:
            case Respond(generation=generation):
                failure = EngineFailure("context_too_long", "the request is too large")
                self.deliver(
                    ResponseEnded(generation, "failed", failure=failure, session=self._session)
                )
            case AlignSpeech(reference=reference):
                self.deliver(SpeechAligned(reference, (), session=self._session))
            case Prepare():
                pass  # a hint; what it is about will be refused
            case _:
                raise error


class RemoteEngine:
    """See :class:`duologue.engines.engine.Engine`. :meth:`run` has to be running.

    It finds the worker by its directory, so it needs no word from the worker's supervisor: it
    connects, and connects again after a loss, until it is cancelled.
    """

    def __init__(
        self, directory: Path, limits: RemoteLimits | None = None, dial: Dial | None = None
    ) -> None:
        """`dial` reaches the lanes of a worker whose directory is on another machine; it raises
        OSError."""
        self.directory = directory
        self._dial = dial or _dial_directory(directory)
        self._limits = limits or RemoteLimits()
        self._numbers = itertools.count(1)
        self._streams: dict[str, RemoteStream] = {}
        self._link: Link[ToGateway] | None = None
        self._spec: EngineSpec | None = None
        self._draining = False
        self._ready = anyio.Event()
        self.capacity = 0

    @property
    def spec(self) -> EngineSpec:
        """Of the worker that was connected last. Raises EngineUnavailable before the first."""
        if self._spec is None:
            raise EngineUnavailable(self._limits.retry_after_s)
        return self._spec

    @property
    def ready(self) -> bool:
        """Whether a worker is connected that takes sessions."""
        return self._link is not None and not self._draining

    @property
    def sessions(self) -> int:
        """Conversations that are open here."""
        return sum(not stream.batch for stream in self._streams.values())

    @property
    def batch_sessions(self) -> int:
        """Streams of the batch lane that are open here, waiting or running."""
        return len(self._streams) - self.sessions

    async def wait_ready(self) -> None:
        """Return as soon as :attr:`ready` is true. Unbounded: the caller sets the deadline."""
        while not self.ready:
            await self._ready.wait()

    async def open(self, session: str) -> RemoteStream:
        """A place for the session. Raises EngineFull, EngineUnavailable."""
        return await self._open(session, batch=False)

    async def open_duplex(self, session: str) -> RemoteStream:
        """As :meth:`open`, to be read by :meth:`RemoteStream.receive_duplex`."""
        return await self._open(session, batch=False)

    async def open_batch(self, session: str) -> RemoteStream:
        """A place in the batch lane. Raises EngineFull, EngineUnavailable."""
        return await self._open(session, batch=True)

    async def _open(self, session: str, *, batch: bool) -> RemoteStream:
        link = self._link
        if link is None or self._draining:
            raise EngineUnavailable(self._limits.retry_after_s)
        # Names on the wire are never used twice: what is late for a closed session finds no one.
        alias = f"{session}/{next(self._numbers)}"
        stream = RemoteStream(session, alias, link, self._limits.inbox, self, batch)
        self._streams[alias] = stream
        refusal: Refused | None = None
        try:
            link.control.send(OpenSession(session=alias, batch=batch))
            with anyio.move_on_after(self._limits.open_s):
                refusal = await stream.admission()
        except LaneBroken as error:
            link.fail(str(error))
        except BaseException:
            # Cancelled, perhaps just as the place was given.
            stream.close("it was not wanted any more")
            raise
        if stream.admitted:
            return stream
        stream.close("it was not admitted")
        if refusal is not None and refusal.full:
            raise EngineFull(refusal.retry_after_s)
        raise EngineUnavailable(self._limits.retry_after_s)

    async def run(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Stay connected until cancelled. Started when the first worker has been reached."""
        while True:
            self._draining = False
            link, welcome = await self._connect()
            self._link, self._spec, self.capacity = link, welcome.spec, welcome.capacity
            self._ready.set()
            self._ready = anyio.Event()
            task_status.started()
            task_status = anyio.TASK_STATUS_IGNORED
            reason = "the gateway is ending"
            try:
                reason = await link.run(self._take, self._take)
                log.warning("the worker at %s is lost: %s", self.directory, reason)
            finally:
                self._link = None
                streams, self._streams = self._streams, {}
                for stream in streams.values():
                    stream.lose(reason)

    async def _connect(self) -> tuple[Link[ToGateway], Welcome]:
        """Knock until a worker answers."""
        while True:
            streams: list[Wire] = []
            try:
                streams.append(await self._dial("control"))
                streams.append(await self._dial("data"))
                with anyio.fail_after(self._limits.hello_s):
                    return await self._greet(*streams)
            except (OSError, LaneBroken) as error:
                if streams:
                    log.info("the worker at %s does not answer: %s", self.directory, error)
                await _close(streams)
            except BaseException:
                await _close(streams)
                raise
            await anyio.sleep(self._limits.retry_s)

    async def _greet(self, control: Wire, data: Wire) -> tuple[Link[ToGateway], Welcome]:
        name = new_gateway_name()
        lanes = self._limits.lanes
        link = Link(gateway_lane(control, lanes), gateway_lane(data, lanes))
        for lane in (link.control, link.data):
            lane.send(Hello(name))
            await lane.flush()
        first, *others = await link.control.receive()
        if not isinstance(first, Welcome):
            raise LaneBroken("it did not welcome this gateway")
        await self._take(others)
        return link, first

    async def _take(self, messages: list[ToGateway]) -> None:
        for message in messages:
            match message:
                case Welcome():
                    raise LaneBroken("it welcomed this gateway twice")
                case Draining():
                    self._draining = True
                case Admitted(session=session):
                    if stream := self._streams.get(session):
                        stream.answer(None)
                case Refused(session=session):
                    if stream := self._streams.get(session):
                        stream.answer(message)
                case _:
                    self._deliver(message)

    def forget(self, alias: str) -> None:
        """A stream of this engine's is closed."""
        self._streams.pop(alias, None)

    def _deliver(self, output: Output | DuplexOutput | StageOutput) -> None:
        stream = self._streams.get(output.session)
        if stream is not None and not stream.deliver(output):
            log.warning("session %s is lost: it does not read its outputs", output.session)
            stream.close("too many outputs were waiting for the session")


def _dial_directory(directory: Path) -> Dial:
    paths = dict(zip(("control", "data"), socket_paths(directory), strict=True))

    async def dial(lane: LaneName) -> Wire:
        return await connect(paths[lane])

    return dial


async def _close(streams: list[Wire]) -> None:
    with anyio.CancelScope(shield=True):
        for stream in streams:
            await stream.aclose()
