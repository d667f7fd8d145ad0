"""A stage in worker processes of its own, reached over their lanes."""

import logging
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, cast

import anyio
import anyio.abc
import msgspec

from duologue.engines.engine import (
    CancelResponse,
    EngineFailure,
    EngineFull,
    EngineLost,
    EngineUnavailable,
    ResponseEnded,
)
from duologue.engines.pipeline.pipeline_run import HomeOutlet, Inbox, RunKey, StageError
from duologue.engines.pipeline.stage_graph import Kind
from duologue.engines.placement import PlacedEngine, Replica
from duologue.engines.remote import RemoteEngine
from duologue.engines.stage_messages import (
    PAYLOADS,
    BeginStage,
    FeedStage,
    StageCommand,
    StageGave,
    StageOutput,
    StageTook,
)

ENDED_KEPT = 8
"""Requests of a session that are remembered after their end, to tell what comes late."""

OUTPUTS_WAITING = 1024
"""Outputs of one request that may wait; one more, and it fails."""

log = logging.getLogger(__name__)

_DECODERS = {kind: msgspec.msgpack.Decoder(type) for kind, type in PAYLOADS.items()}


class StageStream(Protocol):
    """A session's place at a stage, as of :class:`duologue.engines.remote.RemoteStream`."""

    def send(self, command: StageCommand | CancelResponse) -> None: ...

    async def receive_stage(self) -> StageOutput | ResponseEnded: ...

    def close(self, reason: str) -> None: ...


class _Call:
    """A request at the stage."""

    def __init__(self, line: "_Line", generation: int, outlet: HomeOutlet) -> None:
        self.line = line
        self.generation = generation
        self.outlet = outlet
        self.ended: ResponseEnded | None = None
        self._outputs: deque[StageOutput | ResponseEnded] = deque()
        self._something = anyio.Event()
        self._lost = ""

    def give(self, output: StageOutput | ResponseEnded) -> None:
        if len(self._outputs) >= OUTPUTS_WAITING:
            self.lose("too much of its output was waiting")
            return
        self._outputs.append(output)
        self._something.set()

    def lose(self, reason: str) -> None:
        self._lost = self._lost or reason
        self._something.set()

    async def next(self) -> StageOutput | ResponseEnded:
        """Raises EngineLost after what came before."""
        while not self._outputs:
            if self._lost:
                raise EngineLost(self._lost)
            self._something = anyio.Event()
            await self._something.wait()
        return self._outputs.popleft()


class _Line:
    """A session's place on one of the workers."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.opening = anyio.Lock()
        self.stream: StageStream | None = None
        self.closed = False
        self.calls: dict[int, _Call] = {}
        self.over: OrderedDict[int, _Call] = OrderedDict()

    def end(self, call: _Call) -> None:
        """The request is done with; what is still done for it is stopped."""
        self.calls.pop(call.generation, None)
        if call.ended is not None:
            self.over[call.generation] = call
            while len(self.over) > ENDED_KEPT:
                self.over.popitem(last=False)
        elif self.stream is not None:
            try:
                self.stream.send(CancelResponse(session=self.session, generation=call.generation))
            except EngineLost:
                return  # and so is what was done for it


class LaneConnector:
    """See :class:`duologue.engines.pipeline.pipeline_run.Connector`. :meth:`serve` has to be
    running, and what connects to the workers.

    A session stays with the worker that its first request went to. When that is lost, requests
    under way fail with ``engine_unavailable``, and the next one goes to a worker that is ready.
    """

    def __init__(self, engine: PlacedEngine, stage: str) -> None:
        """`engine` is made of such that open a :class:`StageStream`."""
        self._engine = engine
        self._stage = stage
        self._lines: dict[str, _Line] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self.late = 0
        """Outputs that came after their request's end and were dropped."""

    @property
    def names(self) -> tuple[str, ...]:
        """The voices there, if it is a voice. Raises EngineUnavailable before the first worker."""
        return self._engine.spec.voices

    @property
    def default(self) -> str:
        """The voice that is used where none is named. Raises EngineUnavailable."""
        return self._engine.spec.default_voice

    async def wait_ready(self) -> None:
        """Return as soon as a worker is ready. Unbounded: the caller sets the deadline."""
        await self._engine.wait_ready()

    async def serve(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Read what the workers say, until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            task_status.started()
            await anyio.sleep_forever()

    async def run(self, key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        """Carry a request there and back. Raises StageError."""
        line = await self._line(key.session)
        call = _Call(line, key.generation, outlet)
        line.calls[key.generation] = call
        failure: EngineFailure | None = None
        try:
            self._send(call, BeginStage(session=key.session, generation=key.generation))
            async with anyio.create_task_group() as group:
                group.start_soon(self._feed, call, inbox)
                failure = await self._collect(call, inbox)
                group.cancel_scope.cancel()
        finally:
            line.end(call)
        if failure is not None:
            raise StageError(failure)

    def forget(self, session: str) -> None:
        """The session is over."""
        line = self._lines.pop(session, None)
        if line is not None:
            line.closed = True
            if line.stream is not None:
                line.stream.close("the session is over")

    # -- a session's place ------------------------------------------------------------------

    async def _line(self, session: str) -> _Line:
        line = self._lines.setdefault(session, _Line(session))
        async with line.opening:
            if line.stream is None:
                try:
                    stream = cast(StageStream, await self._engine.open(session))
                except EngineFull:
                    words = f"No place is free at the stage {self._stage}."
                    raise StageError.of("engine_overloaded", words) from None
                except EngineUnavailable:
                    words = f"The stage {self._stage} is not ready."
                    raise StageError.of("engine_unavailable", words) from None
                if line.closed:
                    stream.close("the session is over")
                    raise StageError.of("engine_unavailable", "The session is over.")
                line.stream = stream
                assert self._tasks is not None
                self._tasks.start_soon(self._read, line, stream)
        return line

    async def _read(self, line: _Line, stream: StageStream) -> None:
        """Sort a session's outputs by their requests."""
        try:
            while True:
                output = await stream.receive_stage()
                call = line.calls.get(output.generation)
                if call is not None and call.ended is None:
                    if isinstance(output, ResponseEnded):
                        call.ended = output
                    call.give(output)
                elif isinstance(output, StageGave):
                    self._drop(output, call or line.over.get(output.generation))
        except EngineLost as error:
            if self._lines.get(line.session) is line:
                del self._lines[line.session]
            for call in line.calls.values():
                call.lose(str(error))

    def _drop(self, output: StageGave, call: _Call | None) -> None:
        """What is late for a request that was cancelled is as it should be."""
        if call is not None:
            self.late += 1
            call.outlet.put_late(Kind(output.kind), None)

    # -- a request --------------------------------------------------------------------------

    def _send(self, call: _Call, command: BeginStage | FeedStage) -> None:
        assert call.line.stream is not None
        try:
            call.line.stream.send(command)
        except EngineLost as error:
            call.lose(str(error))

    async def _feed(self, call: _Call, inbox: Inbox) -> None:
        session, generation = call.line.session, call.generation
        while (chunk := await inbox.receive()) is not None:
            items = tuple(msgspec.msgpack.encode(item) for item in chunk.items)
            self._send(
                call,
                FeedStage(session=session, generation=generation, kind=chunk.kind, items=items),
            )
        self._send(call, FeedStage(session=session, generation=generation, last=True))

    async def _collect(self, call: _Call, inbox: Inbox) -> EngineFailure | None:
        """Put what comes back, to the end; why it failed, if it did."""
        while True:
            try:
                output = await call.next()
            except EngineLost as error:
                log.warning("session %s: stage %s: %s", call.line.session, self._stage, error)
                words = f"The stage {self._stage} was lost in the middle of the answer."
                return EngineFailure("engine_unavailable", words)
            match output:
                case StageGave(kind=name, item=data):
                    kind = Kind(name)
                    await call.outlet.put(kind, _DECODERS[kind].decode(data))
                case StageTook():
                    inbox.took()
                case ResponseEnded():
                    return output.failure


@asynccontextmanager
async def reached(addresses: Sequence[str], stage: str) -> AsyncIterator[LaneConnector | None]:
    """A connector to the stage at these addresses: directories of workers, or what
    :mod:`duologue.engines.cluster.ray_stage_impl` has for them. ``None`` where there are none."""
    if not addresses:
        yield None
        return
    doors = [_door(address) for address in addresses]
    connector = LaneConnector(PlacedEngine(cast("list[Replica]", doors)), stage)
    async with anyio.create_task_group() as group:
        for door in doors:
            group.start_soon(door.run)
        await group.start(connector.serve)
        yield connector
        group.cancel_scope.cancel()


class _Door(Protocol):
    async def run(self) -> None: ...


def _door(address: str) -> _Door:
    if "://" not in address:
        return RemoteEngine(Path(address))
    from duologue.engines.cluster.ray_stage_impl import RayStageEngine

    return RayStageEngine(address)
