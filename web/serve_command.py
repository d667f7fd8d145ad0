"""`duologue serve`: check, start, say where, and stop without cutting anyone short."""

import argparse
import contextlib
import os
import resource
import secrets
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, TextIO

import anyio
from starlette.applications import Starlette

from duologue.engines.settled_heap import settle_heap
from duologue.models.lockfile import LockError, read_lock
from duologue.models.weights import WeightsError, cache_folder, locate_or_fallback
from duologue.web import logs
from duologue.web.app import VAD, create_app
from duologue.web.certificate import lan_address, own_names, self_signed
from duologue.web.service import Service
from duologue.web.setting_flags import add_flags
from duologue.web.setting_sources import load_settings
from duologue.web.settings import Settings, SettingsError
from duologue.web.uvicorn_impl import PatientServer, server_config

KEY_PREFIX: Final = "dk_"
MOST_FILES: Final = 65_536
_POLL_SECONDS: Final = 0.02
_LANGUAGE_MODELS: Final = frozenset({"qwen2.5-coder-0.5b-instruct", "smollm2-135m-instruct"})

Say = Callable[[str], None]


class ServeError(Exception):
    """The server can't start; the message says why."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `serve` to the commands of a parser; its `run` is this module's."""
    serve = subparsers.add_parser(
        "serve",
        help="start the server",
        description="Start the server. Every setting is a flag, a variable of the environment or "
        "a key of a TOML file (its flag's name with _ for -); flags win over the environment, "
        "which wins over the file.",
        allow_abbrev=False,
    )
    add_flags(serve)
    serve.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run `duologue serve` until it is told to stop; return the exit code."""
    try:
        settings = load_settings(args, os.environ)
        logs.configure(settings.log_level, settings.log_format)
        check_models(settings)
        open_many_files()
        made_up = None
        if not settings.loopback and not settings.api_keys:
            made_up = KEY_PREFIX + secrets.token_urlsafe(24)
            settings = replace(settings, api_keys=(made_up,))
        if settings.gateways > 1:
            from duologue.web.gateways import Gateways, serve_with

            gateways = Gateways(settings, certificate_files(settings))
            anyio.run(serve_with, gateways, made_up, _say, backend_options={"use_uvloop": True})
            return 0
        server = Composed(settings, create_app(settings), certificate_files(settings))
        anyio.run(serve, server, made_up, _say, backend_options={"use_uvloop": True})
    except (SettingsError, LockError, WeightsError, ServeError) as error:
        sys.stderr.write(f"duologue serve: {error}\n")
        return 1
    return 0


def _say(text: str) -> None:
    """On standard output, for as long as somebody takes it: a server does not end with its reader,
    nor with the disk."""
    out: TextIO | None = sys.stdout
    if out is None:
        return
    try:
        out.write(text + "\n")
        out.flush()
    except OSError:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), out.fileno())


def open_many_files() -> None:
    """Let this process and its children have as many files as they may, within reason: each
    connection is one, and many systems give 1,024 unless they are asked."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def check_models(settings: Settings) -> None:
    """Raises WeightsError, with the command that mends it, unless every model needed is there."""
    lock = read_lock()
    names = lock.sets["lite" if settings.lite else "default"]
    if settings.engine == "scripted":
        names = (VAD,)
    for name in names:
        brought = settings.llm is not None or settings.chat_url is not None
        if not (brought and name in _LANGUAGE_MODELS):
            locate_or_fallback(name, cache=settings.cache, lock=lock)


def bind(settings: Settings, *, port: int | None = None) -> socket.socket:
    """The socket, bound but not yet listening: who comes too early is refused at once.

    With a ``port`` it is that one, and other sockets of this user may share it. Raises ServeError.
    """
    wanted = settings.port if port is None else port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, wanted, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ServeError(f"host {settings.host}: {error.strerror}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if port is not None:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ServeError(
            f"can't listen on {settings.host} port {wanted}: {error.strerror}"
        ) from None
    return bound


def certificate_files(settings: Settings) -> tuple[str, str] | None:
    if settings.tls_cert is not None and settings.tls_key is not None:
        for path in (settings.tls_cert, settings.tls_key):
            if not path.is_file():
                raise ServeError(f"there is no file {path}")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                settings.tls_cert, settings.tls_key
            )
        except OSError as error:
            raise ServeError(f"tls_cert and tls_key can't be used: {error.strerror}") from None
        return str(settings.tls_cert), str(settings.tls_key)
    if not settings.tls_self_signed:
        return None
    folder = (settings.cache or cache_folder()) / "tls"
    chain, key = self_signed(folder, own_names(settings.host), datetime.now(UTC))
    return str(chain), str(key)


def addresses(settings: Settings, port: int) -> list[str]:
    """Where a browser finds the page: on this machine, and from others."""
    scheme = "https" if settings.tls else "http"
    if settings.host not in ("0.0.0.0", "::", ""):
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        return [f"{scheme}://{host}:{port}"]
    outside = lan_address()
    return [f"{scheme}://{host}:{port}" for host in ("127.0.0.1", outside) if host is not None]


@dataclass(frozen=True, slots=True)
class Composed:
    """What to serve, made before the event loop runs: making it reads files."""

    settings: Settings
    app: Starlette
    certificate: tuple[str, str] | None


async def serve(composed: Composed, made_up_key: str | None, say: Say) -> None:
    """Serve until a signal says to stop. Raises ServeError."""
    settings = composed.settings
    with bind(settings) as listener:
        server = PatientServer(server_config(composed.app, certificate=composed.certificate))
        async with running(composed.app) as service, anyio.create_task_group() as tasks:
            tasks.start_soon(_stop_on_signal, service, server)
            port = listener.getsockname()[1]
            tasks.start_soon(_announce, service, settings, port, made_up_key, say)
            await server.serve(sockets=[listener])
            tasks.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def running(app: Starlette) -> AsyncIterator[Service]:
    """An application's service, from its start to its end. Raises ServeError."""
    try:
        async with app.router.lifespan_context(app):
            settle_heap()
            yield app.state.service
    except BaseExceptionGroup as group:
        raise plain(group) from None


def plain(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Our own error, which says all there is to say; a bug keeps its traceback."""
    ours = group.subgroup(ServeError)
    return group if ours is None else _first(ours)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def _announce(
    service: Service, settings: Settings, port: int, made_up_key: str | None, say: Say
) -> None:
    """Say where the server is once it can talk. Raises ServeError if the model can't start."""
    if not service.ready:
        say("Starting the model.")
    while not service.ready:
        trouble = service.trouble()
        if trouble:
            raise ServeError(f"the model did not start: {trouble}")
        await anyio.sleep(_POLL_SECONDS)
    welcome(settings, port, made_up_key, say)


def welcome(settings: Settings, port: int, made_up_key: str | None, say: Say) -> None:
    """Say where the server is."""
    for address in addresses(settings, port):
        say(f"Duologue is ready: {address}")
    if made_up_key is not None:
        say(f"Its key, until it stops: {made_up_key}")
        say("To keep one, set api_keys in duologue.toml, DUOLOGUE_API_KEYS or --api-keys.")


def stop_signals() -> list[signal.Signals]:
    """Those that end a server; that of a terminal's end, unless it was started to outlive one."""
    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    return signals


async def _stop_on_signal(service: Service, server: PatientServer) -> None:
    """The first signal lets conversations end; the second does not wait for them."""
    with anyio.open_signal_receiver(*stop_signals()) as signals:
        async with anyio.create_task_group() as tasks:
            draining = False
            async for _ in signals:
                if draining:
                    break
                draining = True
                tasks.start_soon(drain, service, server, service.settings.drain_seconds)
            tasks.cancel_scope.cancel()
    server.should_exit = True


async def drain(service: Service, server: PatientServer, seconds: float) -> None:
    """Let conversations end for a while, close the others, and stop."""
    await service.registry.drain(seconds)
    service.live.close_all()
    server.should_exit = True
