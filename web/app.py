"""The application: the one place where concrete classes meet."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Final

import anyio
import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from duologue.engines.duplex_stream import RemoteDuplex
from duologue.engines.duplex_turns import DuplexTurns
from duologue.engines.lifeline import WorkerConfig
from duologue.engines.placement import PlacedEngine
from duologue.engines.remote import RemoteEngine
from duologue.engines.scribes import Scribes
from duologue.engines.script import ScriptedOptions
from duologue.engines.tracing import create_tracer
from duologue.models.silero_vad import SileroVad
from duologue.models.weights import locate
from duologue.realtime.calls import Calls
from duologue.realtime.live_sessions import LiveSessions
from duologue.sessions.clock import MonotonicClock, wall_clock
from duologue.sessions.registry import SessionRegistry, new_id
from duologue.sessions.turn_traces import TurnTraces
from duologue.web.access import epoch
from duologue.web.auth import Gate
from duologue.web.cascade_setup import cascade_config
from duologue.web.crew import Crew, hire
from duologue.web.deployment_setup import deployment_plan
from duologue.web.duplex_setup import duplex_script, frame_locked, moshi_options
from duologue.web.forwarding import Forwarding
from duologue.web.metrics import Metrics
from duologue.web.peers import Peers
from duologue.web.routes import ERROR_HANDLERS, routes
from duologue.web.rtc_setup import peer_settings
from duologue.web.seat import Seat, share_of
from duologue.web.security import SecurityHeaders
from duologue.web.service import Service
from duologue.web.settings import Settings, SettingsError

VAD: Final = "silero-vad"
VAD_FILE: Final = "silero_vad_v6.onnx"


def staff(settings: Settings) -> Callable[[], Crew]:
    """The workers that the settings ask for, and those that keep them running.

    Blocks for a moment. Raises SettingsError.
    """
    return hire(settings, deployment_plan(settings), worker_config(settings))


def _told(seat: Seat) -> Crew:
    workers, scribes = (
        [RemoteEngine(one) for one in some] for some in (seat.workers, seat.scribes)
    )
    return Crew(list(seat.told.values()), workers, scribes)


def create_app(settings: Settings, seat: Seat | None = None) -> Starlette:
    """The server's application; its lifespan runs the worker and holds the sessions.

    With a ``seat`` it is one gateway's of several, and its parent runs the workers.

    Raises SettingsError, and WeightsError when the voice detector is not there.
    """
    if not settings.loopback and not settings.api_keys:
        raise SettingsError(f"api_keys: a key is needed to listen on {settings.host}")
    vad = SileroVad(locate(VAD, cache=settings.cache) / VAD_FILE)
    hired = staff(settings) if seat is None else lambda: _told(seat)
    peers = peer_settings(settings if seat is None else share_of(settings, seat.number))
    name = new_id if seat is None else seat.new_id

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        workers = hired()
        engine = PlacedEngine(workers.remotes)
        clock = MonotonicClock()
        metrics = Metrics()
        tracer = create_tracer(os.environ, {"duologue.worker": seat.name if seat else "gateway"})
        observer = TurnTraces(metrics, tracer, wall_clock(clock.now())) if tracer else metrics
        scribes = Scribes(PlacedEngine(workers.scribes)) if workers.scribes else None
        # Realtime's sessions take turns, whatever the model does.
        turns = (
            DuplexTurns(RemoteDuplex(engine), engine, scribes) if frame_locked(settings) else engine
        )
        registry = SessionRegistry(
            turns,
            vad,
            settings.limits,
            clock,
            settings.max_sessions,
            observer,
            None if seat is None else seat.headcount,
        )
        metrics.watch("duologue_sessions", "Sessions that hold a place.", lambda: registry.active)
        metrics.watch("duologue_ready", "Whether the engine is ready.", lambda: engine.ready)
        metrics.watch(
            "duologue_places",
            "Conversations that the workers which are ready hold.",
            lambda: engine.capacity,
        )
        metrics.watch_workers(workers.keepers)
        if seat is not None:
            metrics.watch("duologue_gateways", "Gateways that answer.", lambda: 1)
            metrics.watch(
                "duologue_gateway_restarts",
                "How often gateways had to be started again.",
                lambda: seat.gateway_restarts,
            )
        metrics.watch(
            "duologue_batch_requests",
            "Requests in the batch lane, waiting or running.",
            lambda: engine.batch_sessions,
        )
        gate = Gate(
            settings.api_keys,
            settings.allowed_origins,
            settings.allowed_hosts if settings.loopback else None,
        )
        async with anyio.create_task_group() as tasks:
            for keeper in workers.keepers:
                tasks.start_soon(keeper.run)
            for remote in (*workers.remotes, *workers.scribes):
                tasks.start_soon(remote.run)
            async with (
                scribes or nullcontext(),
                Calls(registry, peers, name=name) as calls,
                LiveSessions(
                    registry,
                    calls,
                    vad,
                    clock,
                    engine,
                    recording_seconds=settings.live_recording,
                    max_sessions=settings.max_sessions,
                    max_duration=settings.limits.max_duration,
                    scribes=scribes,
                    name=name,
                ) as live,
                registry,
            ):
                metrics.watch("duologue_calls", "WebRTC calls that are on.", lambda: calls.active)
                metrics.watch("duologue_live", "Live sessions that are on.", lambda: live.active)
                metrics.watch_reception(calls.reception)
                app.state.started = epoch()
                app.state.service = Service(
                    settings,
                    gate,
                    registry,
                    engine,
                    clock,
                    metrics,
                    calls,
                    live,
                    lambda: next((one.last_fault for one in workers.keepers if one.last_fault), ""),
                    None if seat is None else Peers(seat),
                )
                yield
            tasks.cancel_scope.cancel()
        if tracer is not None:
            await anyio.to_thread.run_sync(tracer.close)

    middleware = [Middleware(SecurityHeaders)]
    if seat is not None:
        # The outermost: what another gateway answers has all that it needs.
        middleware.insert(0, Middleware(Forwarding, seat=seat))
    if settings.allowed_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.allowed_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["Location"],
                max_age=3600,
            )
        )
    return Starlette(
        routes=routes(),
        middleware=middleware,
        exception_handlers=ERROR_HANDLERS,
        lifespan=lifespan,
    )


def worker_config(settings: Settings) -> WorkerConfig:
    """What the worker is told: its backend, and that backend's own options."""
    options: msgspec.Struct
    match settings.engine:
        case "scripted":
            options = scripted_options(settings)
        case "scripted-duplex":
            options = duplex_script(settings)
        case "moshi":
            options = moshi_options(settings)
        case "default":
            options = cascade_config(settings)
    return WorkerConfig(
        name=settings.engine,
        backend="cascade" if settings.engine == "default" else settings.engine,
        directory="",
        options=msgspec.msgpack.encode(options),
        log_level=settings.log_level,
        log_format=settings.log_format,
        batch_limit=settings.batch_limit,
    )


def scripted_options(settings: Settings) -> ScriptedOptions:
    """The script, from its file if one is named. Raises SettingsError."""
    options = ScriptedOptions()
    if settings.script is not None:
        try:
            options = msgspec.json.decode(settings.script.read_bytes(), type=ScriptedOptions)
        except OSError as error:
            raise SettingsError(f"script: {settings.script}: {error.strerror}") from None
        except msgspec.DecodeError as error:
            raise SettingsError(f"script: {settings.script}: {error}") from None
    if settings.slots is not None:
        options = msgspec.structs.replace(options, capacity=settings.slots)
    return options
