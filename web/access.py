"""How a request is let in, and what every route answers alike."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response

from duologue.engines.engine import EngineFull, EngineUnavailable
from duologue.realtime.http_wire import (
    LARGEST_BODY,
    HttpErrorType,
    encode_http_error,
    encode_protocol_error,
    session_defaults,
)
from duologue.sessions.errors import ProtocolError
from duologue.sessions.registry import Draining, SessionsFull
from duologue.sessions.session_config import SessionConfig
from duologue.web.auth import Denial, Grant
from duologue.web.service import Service

NoPlace = EngineFull | EngineUnavailable | SessionsFull | Draining
"""Why a session may not begin."""
NO_PLACE: Final = (EngineFull, EngineUnavailable, SessionsFull, Draining)
DRAINING: Final = 1012
OVERLOADED: Final = 1013


@dataclass(frozen=True, slots=True)
class Refusal:
    """A session that may not begin, in words: an HTTP status, a close code, seconds to wait."""

    status: int
    close: int
    code: str
    message: str
    retry_after: float


def refusal(error: NoPlace) -> Refusal:
    match error:
        case Draining():
            message = "The server is restarting."
            return Refusal(503, DRAINING, "engine_unavailable", message, 1.0)
        case EngineUnavailable():
            message = "The model is starting or restarting."
            return Refusal(503, OVERLOADED, "engine_unavailable", message, error.retry_after)
        case EngineFull() | SessionsFull():
            message = "All places are taken."
            return Refusal(429, OVERLOADED, "engine_overloaded", message, error.retry_after)


def epoch() -> int:
    """Wall-clock seconds, for expiry times that clients see."""
    return int(datetime.now(UTC).timestamp())


def service_of(connection: HTTPConnection) -> Service:
    service: Service = connection.app.state.service
    return service


def json_response(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


def denied(service: Service, denial: Denial) -> Response:
    service.metrics.denied(denial.code)
    kind: HttpErrorType = (
        "authentication_error" if denial.status == 401 else "invalid_request_error"
    )
    response = json_response(encode_http_error(denial.message, kind, denial.code), denial.status)
    if denial.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def admit(service: Service, headers: Headers, offered: list[str]) -> Grant | Denial:
    denial = service.gate.check_place(headers)
    return denial or service.gate.check_key(headers, offered, service.clock.now())


Handler = Callable[[Request, Service], Awaitable[Response]]


def guarded(
    handler: Handler, *, ephemeral: bool = True
) -> Callable[[Request], Awaitable[Response]]:
    """A route for those with a key. ``ephemeral``: a client secret will do."""

    async def guarded(request: Request) -> Response:
        service = service_of(request)
        grant = admit(service, request.headers, [])
        if isinstance(grant, Denial):
            return denied(service, grant)
        if grant.ephemeral and not ephemeral:
            message = "A client secret can't do this: use a key."
            return denied(service, Denial(403, "insufficient_permissions", message))
        return await handler(request, service)

    return guarded


async def read_body(request: Request, largest: int = LARGEST_BODY) -> bytes:
    """Raises ProtocolError when it is too large."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > largest:
                message = f"The body may have at most {largest} bytes."
                raise ProtocolError("event_too_large", message)
    except ClientDisconnect:
        return b""
    return bytes(body)


def turned_away(error: NoPlace) -> Response:
    """The answer to a request for which there is no place."""
    refused = refusal(error)
    body = encode_http_error(refused.message, "server_error", refused.code)
    response = json_response(body, refused.status)
    response.headers["Retry-After"] = str(max(1, round(refused.retry_after)))
    return response


def misread(error: ProtocolError) -> Response:
    """The answer to a request that is wrong."""
    too_large = error.code == "event_too_large"
    return json_response(encode_protocol_error(error), 413 if too_large else 400)


def defaults(service: Service, kind: str) -> SessionConfig:
    """What a session starts with. Raises EngineUnavailable before the model is known."""
    settings = service.settings
    return session_defaults(
        kind == "transcription", service.spec, settings.instructions, settings.voice
    )
