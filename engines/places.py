"""The worker's side of its gateways: who is connected, and which sessions have a place."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal, cast

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectSendStream

from duologue.engines.batch_lane import BatchLane
from duologue.engines.duplex import DuplexCommand, DuplexOutput
from duologue.engines.engine import (
    CancelResponse,
    CloseSession,
    Command,
    EngineSpec,
    Hear,
    OpenSession,
    Output,
    Respond,
    ResponseEnded,
)
from duologue.engines.frames import LaneBroken, MessageTooLarge
from duologue.engines.lane import Lane, LaneLimits
from duologue.engines.lanes import (
    Admitted,
    Draining,
    Hello,
    Link,
    Refused,
    ToWorker,
    Welcome,
    send_output,
    worker_lane,
)
from duologue.engines.stage_messages import BeginStage, StageCommand, StageOutput
from duologue.engines.tracing import AnswerSpans
from duologue.engines.unix_stream import UnixStream, listen_at
from duologue.engines.worker_directory import socket_paths

HELLO_S = 5.0
"""How long a connection may take to say who it is and bring its other lane, in seconds."""

CLOSE_S = 5.0
"""How long a backend may take to accept that a gateway's sessions are closed, in seconds."""

log = logging.getLogger("duologue.engines.worker")


class BackendStuck(Exception):
    """The backend takes no commands: its sessions can't be freed."""


class Place:
    """A session that was admitted, the link it came by, and its answers: generation to whether
    it was cancelled. ``batch``: it is of the batch lane."""

    def __init__(self, link: Link[ToWorker], batch: bool) -> None:
        self.link = link
        self.batch = batch
        self.answers: dict[int, bool] = {}


class _Half:
    def __init__(self, role: str, lane: Lane[ToWorker]) -> None:
        self.role = role
        self.lane = lane
        self.paired = anyio.Event()


class Places:
    """Admits sessions, passes their commands to the backend and its outputs to their gateways.

    Several gateways may be connected. When the link of one breaks, its sessions are closed; the
    others' are not touched.
    """

    def __init__(
        self,
        commands: MemoryObjectSendStream[Command],
        *,
        limits: LaneLimits,
        retry_after_s: float,
        batch_limit: int = 0,
        spans: AnswerSpans | None = None,
    ) -> None:
        """`batch_limit`: sessions of the batch lane; they take no place from conversations.
        `spans` is told of the answers where they are traced."""
        self._spans = spans
        self._commands = commands
        self._limits = limits
        self._retry_after_s = retry_after_s
        self._places: dict[str, Place] = {}
        self._batch = BatchLane(batch_limit, retry_after_s, self.emit)
        self._halves: dict[str, _Half] = {}
        self._links: set[Link[ToWorker]] = set()
        self._spec = EngineSpec(model="", voices=(), default_voice="", context_tokens=0)
        self._capacity = 0
        self._draining = False
        self._changed = anyio.Event()

    @property
    def taken(self) -> int:
        """How many conversations have a place."""
        return len(self._places) - self._batch.taken

    def open(self, spec: EngineSpec, capacity: int) -> None:
        """Say what there is to be had, before the first gateway is let in."""
        self._spec = spec
        self._capacity = capacity
        self._batch.open(spec.batch)

    async def run_batch_lane(self) -> None:
        """Begin the answers of the batch lane when it is their turn; returns when the backend has
        ended."""
        try:
            await self._batch.run(self._pass)
        except anyio.BrokenResourceError:
            return

    async def drain(self) -> None:
        """Admit no more, tell the gateways, and return when the last session is closed."""
        self._draining = True
        for link in self._links:
            self._tell(link, Draining())
        while self._places:
            await self._changed.wait()

    def emit(self, output: Output | DuplexOutput | StageOutput) -> None:
        """Send an output to its session's gateway; what is for a closed session is dropped."""
        place = self._places.get(output.session)
        if place is None:
            return
        if self._spans is not None:
            self._spans.said(output)
        if type(output) is ResponseEnded:
            place.answers.pop(output.generation, None)
            if place.batch:
                self._batch.end(output.session)
        try:
            send_output(place.link, output)
        except (LaneBroken, MessageTooLarge) as error:
            place.link.fail(str(error))

    async def attend(self, role: Literal["control", "data"], stream: UnixStream) -> None:
        """Serve a connection: wait for its other lane, then for the link to break."""
        half = _Half(role, worker_lane(stream, self._limits))
        try:
            other = await self._pair(half)
            if other is not None:
                control, data = (half, other) if role == "control" else (other, half)
                await self._serve(Link(control.lane, data.lane))
        except LaneBroken as error:
            log.warning("a connection was closed: %s", error)
        except BackendStuck:
            raise
        except Exception:
            log.exception("a connection was closed")
        finally:
            if not half.paired.is_set():
                with anyio.CancelScope(shield=True):
                    await half.lane.aclose()

    async def _pair(self, half: _Half) -> _Half | None:
        """The other half for the one that comes second, ``None`` for the one that came first."""
        name = ""
        with anyio.move_on_after(HELLO_S):
            first = await half.lane.receive()
            hello = first[0] if len(first) == 1 else None
            if not isinstance(hello, Hello):
                raise LaneBroken("it did not say hello")
            name = hello.gateway
            other = self._halves.pop(name, None)
            if other is not None:
                other.paired.set()
                if other.role == half.role:
                    await other.lane.aclose()
                    raise LaneBroken(f"two {half.role} lanes of one gateway")
                return other
            self._halves[name] = half
            try:
                await half.paired.wait()
            finally:
                if self._halves.get(name) is half:
                    del self._halves[name]
        if half.paired.is_set():
            return None
        raise LaneBroken(f"no hello on both lanes within {HELLO_S:g} s")

    async def _serve(self, link: Link[ToWorker]) -> None:
        async def on_control(commands: list[ToWorker]) -> None:
            await self._take(link, commands)

        self._links.add(link)
        free = max(0, self._capacity - self.taken)
        self._tell(link, Welcome(self._spec, self._capacity, free))
        if self._draining:
            self._tell(link, Draining())
        try:
            reason = await link.run(on_control, on_control)
            log.info("a gateway has gone: %s", reason)
        finally:
            self._links.discard(link)
            await self._vacate(link)

    async def _vacate(self, link: Link[ToWorker]) -> None:
        gone = [session for session, place in self._places.items() if place.link is link]
        for session in gone:
            self._free(session)
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S) as scope:
            try:
                for session in gone:
                    await self._pass(CloseSession(session=session))
            except anyio.BrokenResourceError:
                return  # the backend has ended, and all its sessions with it
        if scope.cancelled_caught:
            raise BackendStuck(f"it took no commands for {CLOSE_S:g} s")

    async def _take(self, link: Link[ToWorker], commands: list[ToWorker]) -> None:
        for command in commands:
            if type(command) is Hear:
                # Most are of this kind.
                place = self._places.get(command.session)
                if place is not None and place.link is link:
                    await self._pass(command)
                continue
            if isinstance(command, Hello):
                raise LaneBroken("it said hello twice")
            place = self._places.get(command.session)
            if isinstance(command, OpenSession):
                await self._admit(link, command)
            elif place is None or place.link is not link:
                # Closed while this was on its way.
                continue
            elif isinstance(command, DuplexCommand):
                if self._spec.duplex is None:
                    raise LaneBroken("it takes the engine for a frame-locked one")
                # Only backends whose spec says so get these, and they take both.
                await self._pass(cast(Command, command))
            elif isinstance(command, StageCommand):
                if not self._spec.stage:
                    raise LaneBroken("it takes the engine for a stage of a pipeline")
                if isinstance(command, BeginStage):
                    place.answers[command.generation] = False
                await self._pass(cast(Command, command))
            elif isinstance(command, CancelResponse):
                if place.answers.get(command.generation) is False:
                    place.answers[command.generation] = True
                    if not self._batch.cancel(command):
                        await self._pass(command)
            elif isinstance(command, Respond):
                place.answers[command.generation] = False
                if self._spans is not None:
                    self._spans.asked(command)
                if place.batch:
                    self._batch.respond(command)
                else:
                    await self._pass(command)
            else:
                if isinstance(command, CloseSession):
                    self._free(command.session)
                await self._pass(command)

    async def _admit(self, link: Link[ToWorker], command: OpenSession) -> None:
        session, batch = command.session, command.batch
        if self._draining:
            self._tell(link, Refused(session, self._retry_after_s, full=False))
        elif batch and self._batch.full:
            self._tell(link, Refused(session, self._batch.retry_after(), full=True))
        elif not batch and self.taken >= self._capacity:
            self._tell(link, Refused(session, self._retry_after_s, full=True))
        elif session in self._places:
            raise LaneBroken(f"{session} is open already")
        else:
            self._places[session] = Place(link, batch)
            if batch:
                self._batch.admit(session)
            await self._pass(command)
            self._tell(link, Admitted(session))

    def _free(self, session: str) -> None:
        del self._places[session]
        self._batch.forget(session)
        if self._spans is not None:
            self._spans.forget(session)
        self._changed.set()
        self._changed = anyio.Event()

    async def _pass(self, command: Command) -> None:
        try:
            self._commands.send_nowait(command)
        except anyio.WouldBlock:
            await self._commands.send(command)

    def _tell(self, link: Link[ToWorker], message: Welcome | Admitted | Refused | Draining) -> None:
        try:
            link.control.send(message)
        except LaneBroken as error:
            link.fail(str(error))


@asynccontextmanager
async def listen(directory: Path, places: Places) -> AsyncIterator[None]:
    """Let gateways in through the two sockets in `directory`; leaves no file behind."""
    paths = socket_paths(directory)
    async with (
        listen_at(paths[0]) as control,
        listen_at(paths[1]) as data,
        anyio.create_task_group() as serving,
    ):
        serving.start_soon(control.serve, partial(places.attend, "control"))
        serving.start_soon(data.serve, partial(places.attend, "data"))
        serving.start_soon(places.run_batch_lane)
        yield
        serving.cancel_scope.cancel()
