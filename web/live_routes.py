"""The routes of Live: sessions over WebSockets and WebRTC, and what stands beside them.

Source: ``openai.resources.live``. What only calls over SIP can be asked is refused as it is for
Realtime's calls.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from duologue.realtime.http_wire import LARGEST_BODY, encode_http_error
from duologue.realtime.json_fields import Fields, Json, missing
from duologue.realtime.live_call import LiveCall, Past
from duologue.realtime.live_session_wire import decode_fork, decode_live_config
from duologue.realtime.live_wire import LiveDecoder, LiveEncoder
from duologue.realtime.websocket import SocketLimits, SocketLink, open_link
from duologue.sessions.errors import ProtocolError
from duologue.sessions.live_events import Command, LiveError, LiveEvent, Refused, Start
from duologue.sessions.ports import TransportClosed
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
from duologue.web.auth import SUBPROTOCOL, Denial, Grant
from duologue.web.call_routes import no_port
from duologue.web.service import Service

LIVE_PATHS: Final = ("/v1/live/sessions", "/live/sessions", "/openai/v1/live/sessions")
START_SECONDS: Final = 60.0
"""In which a client says what session it wants."""
FAILED: Final = 1011
NOT_STARTED: Final = 1008
LIMITS: Final = SocketLimits(outgoing_bytes=8 * 1024 * 1024)
Link = SocketLink[Command, LiveEvent]

logger = logging.getLogger(__name__)


# -- WebSockets -----------------------------------------------------------------------------


def _socket(
    serve: Callable[[WebSocket, Service, Grant], Awaitable[None]], *, ephemeral: bool = True
) -> Callable[[WebSocket], Awaitable[None]]:
    """A WebSocket's route for those with a key. ``ephemeral``: a client secret will do."""

    async def route(websocket: WebSocket) -> None:
        service = service_of(websocket)
        offered: list[str] = websocket.scope.get("subprotocols", [])
        grant = admit(service, websocket.headers, offered)
        if isinstance(grant, Grant) and grant.ephemeral and not ephemeral:
            message = "A client secret can't do this: use a key."
            grant = Denial(403, "insufficient_permissions", message)
        if isinstance(grant, Denial):
            await websocket.send_denial_response(denied(service, grant))
            return
        await serve(websocket, service, grant)

    return route


async def _accept(websocket: WebSocket) -> None:
    offered: list[str] = websocket.scope.get("subprotocols", [])
    await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)


async def start(websocket: WebSocket, service: Service, grant: Grant) -> None:
    """A session of its own."""
    await _accept(websocket)
    await _converse(websocket, service, LiveDecoder("socket"), None)


async def fork(websocket: WebSocket, service: Service, grant: Grant) -> None:
    """A session with the past of another."""
    past = service.live.past(websocket.path_params["session_id"])
    if past is None:
        await websocket.send_denial_response(_no_session())
        return
    await _accept(websocket)
    await _converse(websocket, service, LiveDecoder("socket", fork_of=past.config), past)


async def _converse(
    websocket: WebSocket, service: Service, decoder: LiveDecoder, past: Past | None
) -> None:
    encoder = LiveEncoder("socket", "socket")
    async with open_link(websocket, encoder, decoder, Refused, LIMITS) as link:
        try:
            await _hold(link, service, encoder, decoder, past)
        except Exception:
            logger.exception("a live session failed")
            await link.aclose(FAILED, "the session failed")


async def _hold(
    link: Link,
    service: Service,
    encoder: LiveEncoder,
    decoder: LiveDecoder,
    past: Past | None,
) -> None:
    """A session from what its client wants to its end."""
    wanted = await _wanted(link)
    if wanted is None:
        return
    try:
        call = await service.live.open(
            wanted.config,
            link,
            decoder,
            defaults(service, "realtime"),
            wanted.config.format,
            past=past,
            client_event_id=wanted.event_id,
        )
    except NO_PLACE as error:
        await _turn_away(link, service, error)
        return
    except ProtocolError as error:
        link.send(LiveError(error.answering(wanted.event_id)))
        await link.aclose(NOT_STARTED, error.message[:120])
        return
    service.metrics.opened()
    _begin(encoder, call, service)
    await service.live.hold(call)


def _begin(encoder: LiveEncoder, call: LiveCall, service: Service) -> None:
    expires_at = epoch() + round(service.live.expires_in(call))
    encoder.begin(call.id, expires_at, call.config.format)


async def _wanted(link: Link) -> Start | None:
    """The session that a client starts; ``None`` when it does not."""
    try:
        with anyio.fail_after(START_SECONDS):
            while True:
                command = await link.receive()
                if isinstance(command, Start):
                    return command
                if isinstance(command, Refused):
                    link.send(LiveError(command.error))
    except TransportClosed:
        return None
    except TimeoutError:
        await link.aclose(NOT_STARTED, "no session was started")
        return None


async def _turn_away(link: Link, service: Service, error: NoPlace) -> None:
    """One error event, then the close code after which clients try again."""
    refused = refusal(error)
    service.metrics.refused(type(error).__name__)
    retry_after_ms = round(refused.retry_after * 1000)
    told = ProtocolError(refused.code, refused.message, retry_after_ms=retry_after_ms)
    link.send(LiveError(told))
    await link.aclose(refused.close, refused.message)


async def attach(websocket: WebSocket, service: Service, grant: Grant) -> None:
    """A sideband: it sees all of a session and may command it.

    The session's end is always told before the closing handshake, so ``graceful_close`` changes
    nothing.
    """
    call = service.live.find(websocket.path_params["session_id"])
    if call is None:
        await websocket.send_denial_response(_no_session())
        return
    await _accept(websocket)
    encoder = LiveEncoder("sideband", call.medium)
    decoder = LiveDecoder("sideband", lead=call.decoder)
    _begin(encoder, call, service)
    async with open_link(websocket, encoder, decoder, Refused, LIMITS) as link:
        await call.room.observe(link)
        if call.room.session.closed is not None:
            # Its room says the last word, and closes it.
            await call.over.wait()


# -- HTTP -----------------------------------------------------------------------------------


async def create(request: Request, service: Service) -> Response:
    """A session over WebRTC."""
    return await _answer(request, service, None)


async def fork_call(request: Request, service: Service) -> Response:
    """A session over WebRTC with the past of another."""
    past = service.live.past(request.path_params["session_id"])
    return _no_session() if past is None else await _answer(request, service, past)


async def _answer(request: Request, service: Service, past: Past | None) -> Response:
    try:
        body = _object(await read_body(request, LARGEST_BODY))
        body.only("session", "transport")
        sdp = _offered(body)
        if past is None:
            config = decode_live_config(body.required_object("session"), "media")
        else:
            config = decode_fork(body.object("session"), past.config, "media")
        base = defaults(service, "realtime")
        call, answer = await service.live.accept(sdp, config, base, epoch(), past)
    except ProtocolError as error:
        return misread(error)
    except NO_PLACE as error:
        service.metrics.refused(type(error).__name__)
        return turned_away(error)
    except OSError as error:
        return no_port(service, error)
    service.metrics.opened()
    return _answered(call, answer, 201)


async def renew(request: Request, service: Service) -> Response:
    """Answer a later offer of a session over WebRTC: an ICE restart."""
    call = service.live.find(request.path_params["session_id"])
    if call is None:
        return _no_session()
    try:
        body = _object(await read_body(request, LARGEST_BODY))
        body.only("transport")
        return _answered(call, await service.live.renew(call, _offered(body)), 200)
    except ProtocolError as error:
        return misread(error)
    except OSError as error:
        return no_port(service, error)


def _offered(body: Fields) -> str:
    transport = body.required_object("transport")
    transport.only("type", "sdp")
    if transport.choice("type", ("webrtc",)) is None:
        raise missing(transport.at("type"))
    return transport.required_string("sdp")


def _answered(call: LiveCall, sdp: str, status: int) -> Response:
    told = {"session": {"id": call.id}, "transport": {"type": "webrtc", "sdp": sdp}}
    return json_response(msgspec.json.encode(told), status)


def _object(body: bytes) -> Fields:
    try:
        message: Json = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ProtocolError("invalid_json", "The body is not JSON.") from None
    return Fields(message)


async def content(request: Request, service: Service) -> Response:
    """What a stored session sounded like: the user on the left, what they heard on the right."""
    session_id = request.path_params["session_id"]
    if not service.live.records:
        message = "This server keeps no recordings: its operator has to ask for them."
        body = encode_http_error(message, "invalid_request_error", "recording_disabled")
        return json_response(body, 404)
    recording = service.live.recording(session_id)
    if recording is None:
        return _no_session("There is no recording of such a session; was it stored?")
    size, pieces = recording.wav()

    async def taken() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    headers = {"Content-Length": str(size)}
    return StreamingResponse(taken(), media_type="audio/wav", headers=headers)


async def hang_up(request: Request, service: Service) -> Response:
    """End the session; the answer comes when it has ended."""
    call = service.live.find(request.path_params["session_id"])
    if call is None:
        return _no_session()
    await service.live.hang_up(call)
    return Response(status_code=200)


async def not_sip(request: Request, service: Service) -> Response:
    """What only calls that come in over SIP can be asked."""
    if service.live.find(request.path_params["session_id"]) is None:
        return _no_session()
    message = "The session did not come in over SIP: it began when it was asked for."
    body = encode_http_error(message, "invalid_request_error", "call_not_sip")
    return json_response(body, 409)


def _no_session(message: str = "There is no such session.") -> Response:
    body = encode_http_error(message, "invalid_request_error", "session_not_found")
    return json_response(body, 404)


def live_routes(path: str) -> list[BaseRoute]:
    """The routes of Live sessions under a path."""
    one = f"{path}/{{session_id}}"
    trusted = {"ephemeral": False}
    return [
        WebSocketRoute(path, _socket(start)),
        Route(path, guarded(create), methods=["POST"]),
        Route(one, guarded(renew), methods=["POST"]),
        WebSocketRoute(f"{one}/attach", _socket(attach, **trusted)),
        WebSocketRoute(f"{one}/fork", _socket(fork, **trusted)),
        Route(f"{one}/fork", guarded(fork_call, **trusted), methods=["POST"]),
        Route(f"{one}/content", guarded(content, **trusted)),
        Route(f"{one}/hangup", guarded(hang_up, **trusted), methods=["POST"]),
        *(
            Route(f"{one}/{verb}", guarded(not_sip, **trusted), methods=["POST"])
            for verb in ("accept", "reject", "refer")
        ),
    ]
