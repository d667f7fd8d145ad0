"""A stage of a pipeline as a Ray actor; what it gets and gives goes through Ray's object store.

The pipeline may be on another machine. Messages are those of the lanes
(:mod:`duologue.engines.stage_messages`): Ray carries small ones with its calls, and puts large ones
into the object store, which moves them between machines.
"""

import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
import ray
import ray.exceptions

from duologue.engines.cluster.ray_impl import NAMESPACE, join_cluster
from duologue.engines.engine import (
    CancelResponse,
    CloseSession,
    Command,
    EngineFull,
    EngineLost,
    EngineSpec,
    EngineUnavailable,
    OpenSession,
    Output,
    ResponseEnded,
)
from duologue.engines.lifeline import WorkerConfig
from duologue.engines.pulse import Pulse, Reading
from duologue.engines.settled_heap import settle_heap
from duologue.engines.stage_messages import StageCommand, StageOutput
from duologue.engines.supervisor import Backoff, SupervisionRules

SCHEME = "ray://"
"""How addresses of stages in a cluster begin: ``ray://HOST:PORT/NAME``, of the cluster and the
actor."""

RETRY_S = 0.2
COMMANDS_QUEUED = 128
OUTPUTS_QUEUED = 4096

_Commands = Command | StageCommand
_COMMANDS: msgspec.msgpack.Decoder[_Commands] = msgspec.msgpack.Decoder(_Commands)
_OUTPUTS: msgspec.msgpack.Decoder[list[StageOutput | ResponseEnded]] = msgspec.msgpack.Decoder(
    list[StageOutput | ResponseEnded]
)

log = logging.getLogger(__name__)


class _Described(msgspec.Struct, frozen=True):
    spec: EngineSpec
    capacity: int


class _Outbox:
    """What waits for one session's reader, and commands that came before their turn."""

    def __init__(self) -> None:
        self.early: dict[int, bytes] = {}
        self.next = 0
        self.outputs: deque[Output] = deque()
        self.something = anyio.Event()
        self.closed = False

    def put(self, output: Output) -> None:
        if len(self.outputs) >= OUTPUTS_QUEUED:
            self.close()
            return
        self.outputs.append(output)
        self.something.set()

    def close(self) -> None:
        self.closed = True
        self.something.set()

    async def take(self) -> list[Output]:
        """All that there is; nothing at the end."""
        while not self.outputs and not self.closed:
            self.something = anyio.Event()
            await self.something.wait()
        taken = list(self.outputs)
        self.outputs.clear()
        return taken


class StageActor:
    """The actor: the backend that a worker would run, in the actor's own process."""

    def __init__(self, backend: str, options: bytes) -> None:
        from duologue.engines.worker import BACKENDS

        self._backend = BACKENDS[backend](options, Pulse())
        self._send, self._receive = anyio.create_memory_object_stream[Command](COMMANDS_QUEUED)
        self._started = anyio.Event()
        self._outboxes: dict[str, _Outbox] = {}

    async def run(self) -> None:
        """Load and serve, until the actor is killed."""

        def emit(output: Output) -> None:
            if output.session in self._outboxes:
                self._outboxes[output.session].put(output)

        async with self._send, self._receive, anyio.create_task_group() as group:

            async def serve(*, task_status: anyio.abc.TaskStatus[None]) -> None:
                await self._backend.run(self._receive, emit, task_status=task_status)

            await group.start(serve)
            settle_heap()
            self._started.set()

    async def describe(self) -> bytes:
        """What it is; returns when it is ready, and never if it can't be."""
        await self._started.wait()
        return msgspec.msgpack.encode(_Described(self._backend.spec, self._backend.capacity))

    async def stay(self) -> None:
        """Never returns; raises in the caller when the actor is gone."""
        await anyio.sleep_forever()

    async def open(self, session: str) -> bool:
        """A place for a session; false when there is none."""
        if len(self._outboxes) >= self._backend.capacity:
            return False
        self._outboxes[session] = _Outbox()
        await self._send.send(OpenSession(session=session))
        return True

    async def tell(self, session: str, number: int, message: bytes) -> None:
        """A command of a session that is open; the session's are numbered from 0.

        Ray promises no order to an actor whose methods are coroutines: one may overtake another.
        """
        outbox = self._outboxes.get(session)
        if outbox is None:
            return
        outbox.early[number] = message
        while outbox.next in outbox.early:
            command = _COMMANDS.decode(outbox.early.pop(outbox.next))
            outbox.next += 1
            if isinstance(command, CloseSession):
                self._outboxes.pop(session).close()
            await self._send.send(command)  # type: ignore[arg-type]

    async def outputs(self, session: str) -> AsyncIterator[bytes]:
        """What the session is told, until it is closed."""
        outbox = self._outboxes.get(session)
        while outbox is not None and (taken := await outbox.take()):
            yield msgspec.msgpack.encode(taken)


class RayStage:
    """Keeps one stage running somewhere in the cluster, under a name that pipelines find."""

    def __init__(
        self,
        config: WorkerConfig,
        rules: SupervisionRules | None = None,
        *,
        cpus: float = 1.0,
        gpus: float = 0.0,
    ) -> None:
        """`config.directory` is the stage's address; `cpus` and `gpus` are what it takes of a
        machine's."""
        self._config = config
        self._rules = rules or SupervisionRules()
        self._options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus}
        if config.environment:
            self._options["runtime_env"] = {"env_vars": dict(config.environment)}
        self.state = "waiting"
        self.restarts = 0
        self.last_fault = ""
        self.start_s = 0.0

    @property
    def name(self) -> str:
        return self._config.name

    @property
    def sessions(self) -> int:
        """Those of a stage are counted where the conversations are."""
        return 0

    @property
    def reading(self) -> Reading:
        return Reading()

    async def run(self) -> None:
        """Have the stage placed, and placed again after a loss, until cancelled."""
        backoff = Backoff(self._rules)
        while True:
            began = anyio.current_time()
            self.last_fault = await self._run_once(began)
            self.state = "waiting"
            self.restarts += 1
            wait = backoff.after(anyio.current_time() - began)
            log.warning("stage %s has ended: %s", self.name, self.last_fault)
            await anyio.sleep(wait)

    async def _run_once(self, began: float) -> str:
        """One life of the actor; why it ended."""
        self.state = "starting"
        actor = None
        try:
            actor = (
                ray.remote(StageActor)
                .options(
                    name=self._config.directory.rpartition("/")[2],
                    namespace=NAMESPACE,
                    max_restarts=0,
                    scheduling_strategy="SPREAD",
                    **self._options,
                )
                .remote(self._config.backend, self._config.options)
            )
            async with anyio.create_task_group() as group:
                group.start_soon(self._note_start, actor, began)
                ended = await _end_of(actor)
                group.cancel_scope.cancel()
            return ended
        except (ray.exceptions.RayError, ValueError) as error:
            # A name is free some time after its actor's end.
            return str(error).splitlines()[0]
        finally:
            if actor is not None:
                ray.kill(actor)

    async def _note_start(self, actor: Any, began: float) -> None:
        try:
            await actor.describe.remote()
        except ray.exceptions.RayError:
            return
        self.state = "ready"
        self.start_s = anyio.current_time() - began


async def _end_of(actor: Any) -> str:
    try:
        await actor.run.remote()
    except ray.exceptions.RayError as error:
        return str(error).splitlines()[0]
    return "it ended by itself"


class RayStageStream:
    """A session's place at the stage. As :class:`duologue.engines.remote.RemoteStream`."""

    def __init__(self, session: str, alias: str, actor: Any, forget: Callable[[str], None]) -> None:
        self._session = session
        self._alias = alias
        self._actor = actor
        self._forget = forget
        self._numbers = itertools.count()
        self._waiting: deque[StageOutput | ResponseEnded] = deque()
        self._coming = actor.outputs.options(num_returns="streaming").remote(alias)
        self._lost = ""

    def send(self, command: StageCommand | CancelResponse) -> None:
        """Queue a command; never waits. Raises EngineLost."""
        if self._lost:
            raise EngineLost(self._lost)
        self._tell(msgspec.structs.replace(command, session=self._alias))

    async def receive_stage(self) -> StageOutput | ResponseEnded:
        """The next output. Raises EngineLost when the stage is gone."""
        while not self._waiting:
            if self._lost:
                raise EngineLost(self._lost)
            try:
                data = await (await anext(self._coming))
            except StopAsyncIteration:
                self._lost = "the stage has closed the session"
            except ray.exceptions.RayError as error:
                self._lost = str(error).splitlines()[0]
            else:
                self._waiting.extend(_OUTPUTS.decode(data))
        return msgspec.structs.replace(self._waiting.popleft(), session=self._session)

    def close(self, reason: str) -> None:
        """Give the place back."""
        if not self._lost:
            self._lost = reason
            self._tell(CloseSession(session=self._alias))
        self._waiting.clear()
        self._forget(self._alias)

    def _tell(self, command: StageCommand | CancelResponse | CloseSession) -> None:
        try:
            self._actor.tell.remote(
                self._alias, next(self._numbers), msgspec.msgpack.encode(command)
            )
        except ray.exceptions.RayError as error:
            raise EngineLost(str(error).splitlines()[0]) from error


class RayStageEngine:
    """Reaches a stage by its actor's name, again after a loss. :meth:`run` has to be running."""

    def __init__(self, address: str) -> None:
        """`address` as of :data:`SCHEME`."""
        self._cluster, _, self._name = address.removeprefix(SCHEME).partition("/")
        self._actor: Any = None
        self._described: _Described | None = None
        self._ready = anyio.Event()
        self._numbers = 0
        self._streams: set[str] = set()

    @property
    def spec(self) -> EngineSpec:
        """Of the actor that was reached last. Raises EngineUnavailable before the first."""
        if self._described is None:
            raise EngineUnavailable(2.0)
        return self._described.spec

    @property
    def ready(self) -> bool:
        return self._actor is not None

    @property
    def capacity(self) -> int:
        return self._described.capacity if self._described is not None else 0

    @property
    def sessions(self) -> int:
        return len(self._streams)

    @property
    def batch_sessions(self) -> int:
        return 0

    async def wait_ready(self) -> None:
        """Return as soon as :attr:`ready` is true."""
        while not self.ready:
            await self._ready.wait()

    async def open(self, session: str) -> RayStageStream:
        """A place for the session. Raises EngineFull, EngineUnavailable."""
        actor = self._actor
        if actor is None:
            raise EngineUnavailable(2.0)
        self._numbers += 1
        # Never used twice, by any process.
        alias = f"{ray.get_runtime_context().get_worker_id()}/{self._numbers}/{session}"
        try:
            if not await actor.open.remote(alias):
                raise EngineFull(2.0)
        except ray.exceptions.RayError as error:
            raise EngineUnavailable(2.0) from error
        self._streams.add(alias)
        return RayStageStream(session, alias, actor, self._streams.discard)

    async def open_batch(self, session: str) -> RayStageStream:
        """A stage has no batch lane. Raises EngineUnavailable."""
        raise EngineUnavailable(2.0)

    async def run(self) -> None:
        """Stay in touch with the actor, until cancelled."""
        await anyio.to_thread.run_sync(join_cluster, self._cluster)
        while True:
            try:
                actor = await anyio.to_thread.run_sync(
                    lambda: ray.get_actor(self._name, namespace=NAMESPACE)
                )
                described = await actor.describe.remote()
                self._described = msgspec.msgpack.decode(described, type=_Described)
                self._actor = actor
                self._ready.set()
                self._ready = anyio.Event()
                await actor.stay.remote()
            except (ValueError, ray.exceptions.RayError) as error:
                log.debug("stage %s: %s", self._name, error)
            self._actor = None
            self._streams.clear()
            await anyio.sleep(RETRY_S)
