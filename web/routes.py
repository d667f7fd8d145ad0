"""The HTTP and WebSocket routes."""

import logging
import mimetypes
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

from duologue.engines.engine import EngineUnavailable
from duologue.realtime.calls import Call
from duologue.realtime.http_wire import (
    decode_secret_request,
    encode_http_error,
    encode_ice_servers,
    encode_models,
    encode_secret,
    encode_status,
)
from duologue.realtime.server_wire import Encoder
from duologue.realtime.websocket import open_transport
from duologue.sessions.effects import ErrorReported
from duologue.sessions.errors import ProtocolError
from duologue.sessions.registry import new_id
from duologue.web.access import (
    NO_PLACE,
    NoPlace,
    admit,
    defaults,
    denied,
    epoch,
    guarded,
    json_response,
    misread,
    read_body,
    refusal,
    service_of,
    turned_away,
)
from duologue.web.auth import SUBPROTOCOL, Denial, Grant, digest
from duologue.web.call_routes import call_routes, no_call
from duologue.web.completions import completion_routes
from duologue.web.gathered_figures import gathered
from duologue.web.live_routes import LIVE_PATHS, live_routes
from duologue.web.moshi_routes import moshi_routes
from duologue.web.peers import SharedSecret
from duologue.web.rtc_setup import ice_servers
from duologue.web.service import Service

STATIC: Final = Path(__file__).with_name("static")
REALTIME_PATHS: Final = ("/v1/realtime", "/realtime", "/openai/v1/realtime", "/openai/realtime")
FAILED: Final = 1011

logger = logging.getLogger(__name__)

# Read now, not on the loop; and what the page needs does not depend on the machine's own table.
mimetypes.init()
for _type, _ending in (("text/javascript", ".js"), ("text/css", ".css"), ("font/woff2", ".woff2")):
    mimetypes.add_type(_type, _ending)

_PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
_FAREWELL_SECONDS: Final = 5.0


async def refuse(request: Request, error: Exception) -> Response:
    """What no route answers, in the shape that clients of OpenAI read."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    body = encode_http_error(error.detail, "invalid_request_error", code)
    response = json_response(body, error.status_code)
    response.headers.update(error.headers or {})
    return response


async def fail(request: Request, error: Exception) -> Response:
    """What we got wrong; what exactly is for the log alone."""
    return json_response(
        encode_http_error("The server failed.", "server_error", "internal_error"), 500
    )


ERROR_HANDLERS: Final = {HTTPException: refuse, Exception: fail}


# -- everybody's ----------------------------------------------------------------------------


async def page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html")


async def health(request: Request) -> Response:
    """The process answers; ``detail`` says why a new session would not be taken in."""
    service = service_of(request)
    detail = None if service.ready else service.not_ready()
    return json_response(encode_status("ok", service.active, detail))


async def ready(request: Request) -> Response:
    """A new session would be taken in."""
    service = service_of(request)
    active = service.active
    if service.ready:
        return json_response(encode_status("ready", active))
    return json_response(encode_status(service.not_ready(), active), 503)


# -- for those with a key -------------------------------------------------------------------


async def models(request: Request, service: Service) -> Response:
    try:
        spec = service.spec
    except EngineUnavailable as error:
        return turned_away(error)
    voice = service.settings.voice or spec.default_voice
    return json_response(encode_models(spec, service.kind, voice, request.app.state.started))


async def ice(request: Request, service: Service) -> Response:
    """What a page should gather its candidates with."""
    return json_response(encode_ice_servers(ice_servers(service.settings)))


async def figures(request: Request, service: Service) -> Response:
    # The figures of the process come from files.
    text = await anyio.to_thread.run_sync(service.metrics.text)
    if service.peers is not None:
        others = await service.peers.figures()
        text = await anyio.to_thread.run_sync(gathered, text.decode(), others)
    return Response(text, media_type=_PROMETHEUS)


async def client_secrets(request: Request, service: Service) -> Response:
    try:
        body = await read_body(request)
        wanted = decode_secret_request(
            body, defaults(service, "realtime"), defaults(service, "transcription")
        )
    except EngineUnavailable as error:
        return turned_away(error)
    except ProtocolError as error:
        return misread(error)
    now = service.clock.now()
    value = service.gate.secrets.issue(wanted.config, wanted.seconds, now, len(body))
    if service.peers is not None:
        await service.peers.share(SharedSecret(digest(value), now + wanted.seconds, body), now)
    expires_at = epoch() + wanted.seconds
    return json_response(encode_secret(value, new_id("sess"), expires_at, wanted.config))


# -- conversations --------------------------------------------------------------------------


async def realtime(websocket: WebSocket) -> None:
    service = service_of(websocket)
    offered: list[str] = websocket.scope.get("subprotocols", [])
    grant = admit(service, websocket.headers, offered)
    if isinstance(grant, Denial):
        await websocket.send_denial_response(denied(service, grant))
        return
    call = None
    call_id = websocket.query_params.get("call_id")
    if call_id is not None:
        call = service.calls.find(call_id)
        if call is None or grant.ephemeral:
            await websocket.send_denial_response(no_call(call is not None))
            return
    await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
    try:
        if call is not None:
            await _observe(websocket, call)
        else:
            await _converse(websocket, service, grant)
    except Exception:
        logger.exception("a conversation failed")
        await _close(websocket, FAILED, "the session failed")


async def _converse(websocket: WebSocket, service: Service, grant: Grant) -> None:
    try:
        config = grant.config or defaults(service, websocket.query_params.get("intent", ""))
        conversation = await service.registry.open(config)
    except NO_PLACE as error:
        await _turn_away(websocket, service, error)
        return
    service.metrics.opened()
    encoder = Encoder(conversation.id, epoch() + round(conversation.expires_in))
    async with open_transport(websocket, encoder, config) as transport:
        await conversation.attach(transport)


async def _observe(websocket: WebSocket, call: Call) -> None:
    """A sideband: it shares the session of a WebRTC call."""
    shared = call.transport
    conversation = call.conversation
    encoder = Encoder(conversation.id, epoch() + round(conversation.expires_in))
    async with open_transport(
        websocket, encoder, shared.config, decoder=shared.decoder
    ) as transport:
        await shared.observe(transport)


async def _turn_away(websocket: WebSocket, service: Service, error: NoPlace) -> None:
    """One error event, then the close code after which clients try again."""
    refused = refusal(error)
    service.metrics.refused(type(error).__name__)
    retry_after_ms = round(refused.retry_after * 1000)
    told = ProtocolError(refused.code, refused.message, retry_after_ms=retry_after_ms)
    for text in Encoder("", 0).encode(ErrorReported(told)):
        await _close(websocket, refused.close, refused.message, text)


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
        Route("/metrics", guarded(figures)),
        Route("/v1/models", guarded(models)),
        Route("/v1/realtime/ice_servers", guarded(ice)),
        Route(
            "/v1/realtime/client_secrets",
            guarded(client_secrets, ephemeral=False),
            methods=["POST"],
        ),
        *(route for path in REALTIME_PATHS for route in call_routes(f"{path}/calls")),
        *(route for path in LIVE_PATHS for route in live_routes(path)),
        *moshi_routes(),
        *completion_routes(),
        *(WebSocketRoute(path, realtime) for path in REALTIME_PATHS),
    ]
