"""The HTTP and WebSocket routes."""

import logging
import mimetypes
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

from duologue.engines.engine import EngineFull, EngineUnavailable
from duologue.realtime.http_wire import (
    LARGEST_BODY,
    HttpErrorType,
    decode_secret_request,
    encode_http_error,
    encode_models,
    encode_protocol_error,
    encode_secret,
    encode_status,
    session_defaults,
)
from duologue.realtime.server_wire import Encoder
from duologue.realtime.websocket import open_transport
from duologue.sessions.effects import ErrorReported
from duologue.sessions.errors import ProtocolError
from duologue.sessions.registry import Draining, SessionsFull, new_id
from duologue.sessions.session_config import SessionConfig
from duologue.web.auth import SUBPROTOCOL, Denial, Grant
from duologue.web.service import Service

STATIC: Final = Path(__file__).with_name("static")
REALTIME_PATHS: Final = ("/v1/realtime", "/realtime", "/openai/v1/realtime", "/openai/realtime")
DRAINING: Final = 1012
OVERLOADED: Final = 1013
FAILED: Final = 1011

logger = logging.getLogger(__name__)

# Read now, not on the loop; and what the page needs does not depend on the machine's own table.
mimetypes.init()
for _type, _ending in (("text/javascript", ".js"), ("text/css", ".css"), ("font/woff2", ".woff2")):
    mimetypes.add_type(_type, _ending)

_PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
_FAREWELL_SECONDS: Final = 5.0


def epoch() -> int:
    """Wall-clock seconds, for expiry times that clients see."""
    return int(datetime.now(UTC).timestamp())


def service_of(connection: HTTPConnection) -> Service:
    service: Service = connection.app.state.service
    return service


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


def _denied(service: Service, denial: Denial) -> Response:
    service.metrics.denied(denial.code)
    kind: HttpErrorType = (
        "authentication_error" if denial.status == 401 else "invalid_request_error"
    )
    response = _json(encode_http_error(denial.message, kind, denial.code), denial.status)
    if denial.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _admit(service: Service, headers: Headers, offered: list[str]) -> Grant | Denial:
    denial = service.gate.check_place(headers)
    return denial or service.gate.check_key(headers, offered, service.clock.now())


Handler = Callable[[Request, Service], Awaitable[Response]]


def _guarded(
    handler: Handler, *, ephemeral: bool = True
) -> Callable[[Request], Awaitable[Response]]:
    """A route for those with a key. ``ephemeral``: a client secret will do."""

    async def guarded(request: Request) -> Response:
        service = service_of(request)
        grant = _admit(service, request.headers, [])
        if isinstance(grant, Denial):
            return _denied(service, grant)
        if grant.ephemeral and not ephemeral:
            message = "A client secret can't do this: use a key."
            return _denied(service, Denial(403, "insufficient_permissions", message))
        return await handler(request, service)

    return guarded


async def refuse(request: Request, error: Exception) -> Response:
    """What no route answers, in the shape that clients of OpenAI read."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    body = encode_http_error(error.detail, "invalid_request_error", code)
    response = _json(body, error.status_code)
    response.headers.update(error.headers or {})
    return response


async def fail(request: Request, error: Exception) -> Response:
    """What we got wrong; what exactly is for the log alone."""
    return _json(encode_http_error("The server failed.", "server_error", "internal_error"), 500)


ERROR_HANDLERS: Final = {HTTPException: refuse, Exception: fail}


# -- everybody's ----------------------------------------------------------------------------


async def page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html")


async def health(request: Request) -> Response:
    """The process answers."""
    return _json(encode_status("ok", service_of(request).registry.active))


async def ready(request: Request) -> Response:
    """A new session would be taken in."""
    service = service_of(request)
    active = service.registry.active
    if service.ready:
        return _json(encode_status("ready", active))
    return _json(encode_status(service.not_ready(), active), 503)


# -- for those with a key -------------------------------------------------------------------


async def models(request: Request, service: Service) -> Response:
    try:
        spec = service.spec
    except EngineUnavailable as error:
        return _unavailable(error)
    voice = service.settings.voice or spec.default_voice
    return _json(encode_models(spec, service.kind, voice, request.app.state.started))


async def figures(request: Request, service: Service) -> Response:
    # The figures of the process come from files.
    text = await anyio.to_thread.run_sync(service.metrics.text)
    return Response(text, media_type=_PROMETHEUS)


async def client_secrets(request: Request, service: Service) -> Response:
    try:
        body = await _body(request)
        wanted = decode_secret_request(
            body, _defaults(service, "realtime"), _defaults(service, "transcription")
        )
    except EngineUnavailable as error:
        return _unavailable(error)
    except ProtocolError as error:
        return _json(encode_protocol_error(error), 413 if error.code == "event_too_large" else 400)
    value = service.gate.secrets.issue(wanted.config, wanted.seconds, service.clock.now())
    expires_at = epoch() + wanted.seconds
    return _json(encode_secret(value, new_id("sess"), expires_at, wanted.config))


async def _body(request: Request) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > LARGEST_BODY:
                message = f"The body may have at most {LARGEST_BODY} bytes."
                raise ProtocolError("event_too_large", message)
    except ClientDisconnect:
        return b""
    return bytes(body)


def _unavailable(error: EngineUnavailable) -> Response:
    message = "The model is starting or restarting."
    response = _json(encode_http_error(message, "server_error", "engine_unavailable"), 503)
    response.headers["Retry-After"] = str(max(1, round(error.retry_after)))
    return response


# -- conversations --------------------------------------------------------------------------


def _defaults(service: Service, kind: str) -> SessionConfig:
    settings = service.settings
    return session_defaults(
        kind == "transcription", service.spec, settings.instructions, settings.voice
    )


async def realtime(websocket: WebSocket) -> None:
    service = service_of(websocket)
    offered: list[str] = websocket.scope.get("subprotocols", [])
    grant = _admit(service, websocket.headers, offered)
    if isinstance(grant, Denial):
        await websocket.send_denial_response(_denied(service, grant))
        return
    await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
    try:
        await _converse(websocket, service, grant)
    except Exception:
        logger.exception("a conversation failed")
        await _close(websocket, FAILED, "the session failed")


async def _converse(websocket: WebSocket, service: Service, grant: Grant) -> None:
    try:
        config = grant.config or _defaults(service, websocket.query_params.get("intent", ""))
        conversation = await service.registry.open(config)
    except (EngineFull, EngineUnavailable, SessionsFull, Draining) as error:
        await _turn_away(websocket, service, error)
        return
    service.metrics.opened()
    encoder = Encoder(conversation.id, epoch() + round(conversation.expires_in))
    async with open_transport(websocket, encoder, config) as transport:
        await conversation.attach(transport)


async def _turn_away(
    websocket: WebSocket,
    service: Service,
    error: EngineFull | EngineUnavailable | SessionsFull | Draining,
) -> None:
    """One error event, then the close code after which clients try again."""
    code, close, retry_after = "engine_overloaded", OVERLOADED, 1.0
    match error:
        case Draining():
            code, close = "engine_unavailable", DRAINING
            message = "The server is restarting."
        case EngineUnavailable():
            code, retry_after = "engine_unavailable", error.retry_after
            message = "The model is starting or restarting."
        case EngineFull() | SessionsFull():
            retry_after = error.retry_after
            message = "All places are taken."
    service.metrics.refused(type(error).__name__)
    report = ErrorReported(ProtocolError(code, message, retry_after_ms=round(retry_after * 1000)))
    for text in Encoder("", 0).encode(report):
        await _close(websocket, close, message, text)


async def _close(websocket: WebSocket, code: int, reason: str, last: str | None = None) -> None:
    """Say a last word and close, unless the client is gone or takes too long over it."""
    try:
        with anyio.move_on_after(_FAREWELL_SECONDS):
            if last is not None:
                await websocket.send_text(last)
            await websocket.close(code, reason)
    except (WebSocketDisconnect, RuntimeError):
        return


def routes() -> list[BaseRoute]:
    return [
        Route("/", page),
        Mount("/static", StaticFiles(directory=STATIC, check_dir=False)),
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", _guarded(figures)),
        Route("/v1/models", _guarded(models)),
        Route(
            "/v1/realtime/client_secrets",
            _guarded(client_secrets, ephemeral=False),
            methods=["POST"],
        ),
        *(WebSocketRoute(path, realtime) for path in REALTIME_PATHS),
    ]
