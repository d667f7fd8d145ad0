"""A server within the test: real sockets and sessions, a script for an engine, no ears."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import anyio
import anyio.lowlevel
import httpx
import numpy.typing as npt
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from websockets.asyncio.client import connect

from duologue.engines.backend import Backend
from duologue.engines.in_process import open_in_process
from duologue.engines.remote import RemoteEngine
from duologue.engines.script import ScriptedOptions
from duologue.engines.scripted import ScriptedBackend
from duologue.models.silero_vad import SileroVad
from duologue.realtime.calls import Calls
from duologue.realtime.live_sessions import LiveSessions
from duologue.realtime.rtc_peer import PeerSettings
from duologue.sessions.clock import ManualClock, MonotonicClock
from duologue.sessions.registry import SessionRegistry
from duologue.web.auth import Gate
from duologue.web.metrics import Metrics
from duologue.web.routes import ERROR_HANDLERS, routes
from duologue.web.rtc_setup import peer_settings
from duologue.web.security import SecurityHeaders
from duologue.web.service import Service
from duologue.web.settings import Settings
from duologue.web.uvicorn_impl import PatientServer, server_config
from tests.patience import PATIENCE_S
from tests.uvicorn_start import start_serving


class Deaf:
    """A voice detector that never hears anybody; no file is needed for it."""

    def stream(self) -> "Deaf":
        return self

    def push(self, frame: npt.NDArray[Any]) -> float:
        return 0.0


@dataclass
class House:
    """The server and what is inside it. ``clock`` is the gate's: secrets expire by it."""

    service: Service
    engine: RemoteEngine
    clock: ManualClock
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def http(self, **headers: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, headers=headers, trust_env=False)

    def connect(self, path: str = "/v1/realtime?model=m", **options: Any) -> connect:
        defaults = {"proxy": None, "compression": None, "ping_interval": None, "close_timeout": 1}
        return connect(f"ws://127.0.0.1:{self.port}{path}", **{**defaults, **options})


OpenHouse = Callable[..., AbstractAsyncContextManager[House]]


@pytest.fixture
def open_house() -> OpenHouse:
    """``async with open_house(Settings(…), capacity=…) as house``."""
    return _open_house


@asynccontextmanager
async def _open_house(
    settings: Settings | None = None,
    *,
    ready: bool = True,
    vad: object | None = None,
    peers: PeerSettings | None = None,
    backend: Backend | None = None,
    batch_limit: int = 32,
    **options: Any,
) -> AsyncIterator[House]:
    settings = settings or Settings(engine="scripted")
    clock = ManualClock(1000.0)
    metrics = Metrics()
    gate = Gate(
        settings.api_keys,
        settings.allowed_origins,
        settings.allowed_hosts if settings.loopback else None,
    )
    backend = backend or ScriptedBackend(ScriptedOptions(**options))
    async with open_in_process(backend, batch_limit=batch_limit) as engine:
        if not ready:
            engine = RemoteEngine(engine.directory)
        registry = SessionRegistry(
            engine,
            cast(SileroVad, vad or Deaf()),
            settings.limits,
            MonotonicClock(),
            settings.max_sessions,
            metrics,
        )
        app = Starlette(
            routes=routes(),
            middleware=[Middleware(SecurityHeaders)],
            exception_handlers=ERROR_HANDLERS,
        )
        app.state.started = 1_700_000_000
        calls = Calls(registry, peers or peer_settings(settings))
        live = LiveSessions(
            registry,
            calls,
            cast(SileroVad, vad or Deaf()),
            MonotonicClock(),
            engine,
            recording_seconds=settings.live_recording,
            max_sessions=settings.max_sessions,
            max_duration=settings.limits.max_duration,
        )
        app.state.service = Service(settings, gate, registry, engine, clock, metrics, calls, live)
        server = PatientServer(server_config(app, certificate=None))
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            with anyio.fail_after(PATIENCE_S):
                async with calls, live, registry, anyio.create_task_group() as tasks:
                    await start_serving(tasks, server, [listener])
                    port: int = listener.getsockname()[1]
                    yield House(app.state.service, engine, clock, port)
                    server.should_exit = True
