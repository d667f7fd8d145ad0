"""One stage of a pipeline as a worker's backend: the far end of a lane connector."""

import logging
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol, cast

import anyio
import anyio.abc
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream

from duologue.engines.backend import Emit, incoming
from duologue.engines.engine import (
    CancelResponse,
    CloseSession,
    Command,
    EngineFailure,
    EngineSpec,
    OpenSession,
    Output,
    ResponseEnded,
)
from duologue.engines.pipeline.flow import Chunk
from duologue.engines.pipeline.flow_shape import Node
from duologue.engines.pipeline.pipeline_run import Inbox, Outlet, RunKey, StageError, StageFatal
from duologue.engines.pipeline.stage_graph import Kind
from duologue.engines.stage_messages import (
    PAYLOADS,
    BeginStage,
    FeedStage,
    StageCommand,
    StageGave,
    StageOutput,
    StageTook,
)

log = logging.getLogger("duologue.engines.worker")

_DECODERS = {kind: msgspec.msgpack.Decoder(type) for kind, type in PAYLOADS.items()}

EndReason = Literal["completed", "cancelled", "failed"]


class HostedStage(Protocol):
    """A stage as such: see :class:`duologue.engines.pipeline.pipeline_run.Connector`."""

    async def run(self, key: RunKey, inbox: Inbox, outlet: Outlet) -> None: ...

    def forget(self, session: str) -> None:
        """The session is over."""


class _Request:
    """One request at the stage. See :class:`duologue.engines.pipeline.pipeline_run.StageHost`."""

    def __init__(self, key: RunKey, emit: Callable[[StageOutput | ResponseEnded], None]) -> None:
        self.key = key
        self.over = False
        self.scope = anyio.CancelScope()
        self._emit = emit
        self._node: Node = ("", "")
        self.inbox = Inbox(self, self._node)
        self.outlet = Outlet(self, self._node)

    def took(self, node: Node) -> None:
        self._say(StageTook(session=self.key.session, generation=self.key.generation))

    async def put(self, node: Node, kind: Kind, item: object, size: int) -> None:
        """Never waits: the pipeline gives no more chunks than it has room for."""
        data = msgspec.msgpack.encode(item)
        self._say(
            StageGave(
                session=self.key.session, generation=self.key.generation, kind=kind, item=data
            )
        )

    def end(self, reason: EndReason, failure: EngineFailure | None = None) -> None:
        """The one end; nothing is said after it."""
        self._say(
            ResponseEnded(
                session=self.key.session,
                generation=self.key.generation,
                reason=reason,
                failure=failure,
            )
        )
        self.over = True

    def _say(self, output: StageOutput | ResponseEnded) -> None:
        if not self.over:
            self._emit(output)


class StageBackend:
    """See :class:`duologue.engines.backend.Backend`."""

    def __init__(
        self,
        load: Callable[[], Awaitable[tuple[HostedStage, EngineSpec]]],
        capacity: int,
    ) -> None:
        """`load` gets the stage ready, with its first call done."""
        self._load = load
        self._capacity = capacity
        self._loaded: tuple[HostedStage, EngineSpec] | None = None
        self._sessions: dict[str, dict[int, _Request]] = {}

    @property
    def spec(self) -> EngineSpec:
        assert self._loaded is not None, "known once it has started"
        return self._loaded[1]

    @property
    def capacity(self) -> int:
        return self._capacity

    async def run(
        self,
        commands: MemoryObjectReceiveStream[Command],
        emit: Emit,
        *,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        self._loaded = await self._load()
        stage = self._loaded[0]
        async with anyio.create_task_group() as group:
            task_status.started()
            async for command in incoming(commands):
                self._take(group, stage, emit, command)
            for session in tuple(self._sessions):
                self._close(stage, session)

    def _take(
        self, group: anyio.abc.TaskGroup, stage: HostedStage, emit: Emit, command: Command
    ) -> None:
        requests = self._sessions.get(command.session)
        # The worker passes these on, as the spec names a stage.
        message = cast("Command | StageCommand", command)
        match message:
            case OpenSession(session=name):
                self._sessions.setdefault(name, {})
            case CloseSession(session=name):
                if requests is not None:
                    self._close(stage, name)
            case BeginStage(session=session, generation=generation):
                if requests is not None and generation not in requests:

                    def say(output: StageOutput | ResponseEnded) -> None:
                        emit(cast(Output, output))

                    request = _Request(RunKey(session, generation), say)
                    requests[generation] = request
                    group.start_soon(self._serve, stage, request)
            case FeedStage(generation=generation):
                if requests is not None and generation in requests:
                    self._feed(requests[generation], message)
            case CancelResponse(generation=generation):
                if requests is not None and generation in requests:
                    requests[generation].end("cancelled")
                    requests[generation].scope.cancel()
            case _:
                log.warning("session %s: a %s", message.session, type(message).__name__)

    def _feed(self, request: _Request, command: FeedStage) -> None:
        if command.last:
            request.inbox.close()
            return
        try:
            kind = Kind(command.kind)
            items = tuple(_DECODERS[kind].decode(item) for item in command.items)
        except (ValueError, KeyError, msgspec.MsgspecError) as error:
            words = f"a chunk that can't be decoded: {error}"
            request.end("failed", EngineFailure("engine_error", words))
            request.scope.cancel()
            return
        request.inbox.give(Chunk(kind, items))

    async def _serve(self, stage: HostedStage, request: _Request) -> None:
        """One request. The task's outermost line."""
        try:
            with request.scope:
                await stage.run(request.key, request.inbox, request.outlet)
                request.end("completed")
        except StageError as error:
            request.end("failed", error.failure)
        except StageFatal:
            raise
        except Exception:
            log.exception("session %s: a request failed", request.key.session)
            request.end("failed", EngineFailure("engine_error", "The stage failed."))
        finally:
            request.over = True
            self._sessions.get(request.key.session, {}).pop(request.key.generation, None)

    def _close(self, stage: HostedStage, session: str) -> None:
        for request in self._sessions.pop(session).values():
            request.over = True
            request.scope.cancel()
        stage.forget(session)
