"""Engines for tests: in process, and in a worker process that can be killed."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import anyio
import msgspec
import psutil
import pytest

from duologue.engines.engine import (
    EngineLost,
    Message,
    Output,
    Respond,
    ResponseEnded,
    ResponseRequest,
    TextPart,
)
from duologue.engines.lifeline import WorkerConfig
from duologue.engines.remote import RemoteEngine, RemoteLimits, RemoteStream
from duologue.engines.script import ScriptedOptions
from duologue.engines.supervisor import SupervisionRules, Supervisor
from duologue.engines.unix_stream import UnixStream
from tests.patience import PATIENCE_S


@dataclass
class Deployment:
    """A supervised worker and the engine that reaches it."""

    supervisor: Supervisor
    engine: RemoteEngine


Deploy = Callable[..., AbstractAsyncContextManager[Deployment]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def deploy() -> Deploy:
    """Start a scripted worker; leaving the context ends it and checks that nothing is left."""

    @asynccontextmanager
    async def deploy(
        options: ScriptedOptions | None = None,
        *,
        rules: SupervisionRules | None = None,
        limits: RemoteLimits | None = None,
        heartbeat_s: float = 0.1,
    ) -> AsyncIterator[Deployment]:
        config = WorkerConfig(
            name="test",
            backend="scripted",
            directory="",
            options=msgspec.msgpack.encode(options or ScriptedOptions()),
            heartbeat_s=heartbeat_s,
            log_level="warning",
        )
        others = set(psutil.Process().children())
        supervisor = Supervisor(config, rules)
        engine = RemoteEngine(supervisor.directory, limits)
        async with anyio.create_task_group() as group:
            group.start_soon(supervisor.run)
            group.start_soon(engine.run)
            with anyio.fail_after(PATIENCE_S):
                await engine.wait_ready()
            yield Deployment(supervisor, engine)
            group.cancel_scope.cancel()
        assert set(psutil.Process().children()) <= others
        assert not supervisor.directory.exists()

    return deploy


@pytest.fixture
def ask() -> Callable[..., Respond]:
    """A request for an answer to one typed message."""

    def ask(session: str, generation: int, text: str, **fields: object) -> Respond:
        message = Message("user", (TextPart(text),))
        request = ResponseRequest(instructions="", messages=(message,))
        request = msgspec.structs.replace(request, **fields)
        return Respond(generation, request, session=session)

    return ask


@pytest.fixture
def rest_of() -> Callable[[RemoteStream], object]:
    """Read a stream up to the end of an answer."""

    async def rest_of(stream: RemoteStream) -> list[Output]:
        outputs: list[Output] = []
        with anyio.fail_after(PATIENCE_S):
            while not outputs or not isinstance(outputs[-1], ResponseEnded):
                outputs.append(await stream.receive())
        return outputs

    return rest_of


@pytest.fixture
def loss_of() -> Callable[[RemoteStream], object]:
    """Read a stream until it is lost; gives what came before."""

    async def loss_of(stream: RemoteStream) -> list[Output]:
        outputs: list[Output] = []
        with anyio.fail_after(PATIENCE_S):
            while True:
                try:
                    outputs.append(await stream.receive())
                except EngineLost:
                    return outputs

    return loss_of


@pytest.fixture
async def sockets() -> AsyncIterator[tuple[UnixStream, UnixStream]]:
    """Two ends of one Unix stream socket."""
    near, far = (UnixStream(end) for end in socket.socketpair())
    yield near, far
    await near.aclose()
    await far.aclose()
