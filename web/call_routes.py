"""WebRTC calls over HTTP: how they are made, hung up, and what is said of those that can't be.

Source: ``openai.resources.realtime.calls``: an SDP offer as ``application/sdp``, or with a session
as ``multipart/form-data``; the answer's SDP with 201 and the call's place in ``Location``.
"""

import logging
from typing import Final

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message

from duologue.realtime.http_wire import LARGEST_BODY, decode_call_session, encode_http_error
from duologue.realtime.sdp_offer import invalid_sdp
from duologue.sessions.errors import ProtocolError
from duologue.web.access import (
    NO_PLACE,
    admit,
    defaults,
    denied,
    epoch,
    guarded,
    json_response,
    misread,
    read_body,
    service_of,
    turned_away,
)
from duologue.web.auth import Denial
from duologue.web.service import Service

CALLS_PATH: Final = "/v1/realtime/calls"
SDP_TYPE: Final = "application/sdp"
LARGEST_FORM: Final = 2 * LARGEST_BODY + 64 * 1024
"""Bytes of an offer with its session and what is between them."""

logger = logging.getLogger(__name__)


async def create(request: Request) -> Response:
    """Answer an offer."""
    service = service_of(request)
    grant = admit(service, request.headers, [])
    if isinstance(grant, Denial):
        return denied(service, grant)
    try:
        sdp, session = await _read_offer(request)
        config = grant.config or defaults(service, "realtime")
        if session is not None:
            config = decode_call_session(session, config, defaults(service, "transcription"))
        call, answer = await service.calls.accept(sdp, config, epoch())
    except ProtocolError as error:
        return misread(error)
    except NO_PLACE as error:
        service.metrics.refused(type(error).__name__)
        return turned_away(error)
    except OSError as error:
        return no_port(service, error)
    service.metrics.opened()
    response = Response(answer, 201, media_type=SDP_TYPE)
    response.headers["Location"] = f"{CALLS_PATH}/{call.id}"
    return response


async def renew(request: Request, service: Service) -> Response:
    """Answer a later offer of a call: an ICE restart."""
    call = service.calls.find(request.path_params["call_id"])
    if call is None:
        return no_call()
    try:
        sdp, _ = await _read_offer(request)
        return Response(await service.calls.renew(call, sdp), media_type=SDP_TYPE)
    except ProtocolError as error:
        return misread(error)
    except OSError as error:
        return no_port(service, error)


def no_port(service: Service, error: OSError) -> Response:
    """There is no UDP port for another call."""
    logger.warning("a call could not be answered: %s", error)
    service.metrics.refused("NoPortFree")
    message = "No UDP port is free."
    response = json_response(encode_http_error(message, "server_error", "no_port_free"), 503)
    response.headers["Retry-After"] = "5"
    return response


async def _read_offer(request: Request) -> tuple[str, str | None]:
    """The offer and the JSON of its session, if one came along. Raises ProtocolError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == SDP_TYPE:
        return _text(await read_body(request)), None
    if kind != "multipart/form-data":
        raise invalid_sdp(f"Send the offer as {SDP_TYPE}, or in a multipart/form-data.")
    try:
        bounded = _bounded(request)
        async with bounded.form(max_files=4, max_fields=4, max_part_size=LARGEST_BODY) as form:
            parts = {name: await _part(form.get(name)) for name in ("sdp", "session")}
    except HTTPException as error:
        raise ProtocolError("invalid_value", f"The form can't be read: {error.detail}") from None
    except ClientDisconnect:
        raise ProtocolError("invalid_value", "The form has no end.") from None
    sdp = parts["sdp"]
    if sdp is None:
        raise ProtocolError("missing_required_parameter", "The form has no part 'sdp'.", "sdp")
    return sdp, parts["session"]


def _bounded(request: Request) -> Request:
    """The request with an end to its body: a form's files are kept on disk as they come."""
    taken = 0

    async def receive() -> Message:
        nonlocal taken
        message = await request.receive()
        taken += len(message.get("body", b""))
        if taken > LARGEST_FORM:
            raise ProtocolError("event_too_large", f"A form may have at most {LARGEST_FORM} bytes.")
        return message

    return Request(request.scope, receive)


async def _part(value: UploadFile | str | None) -> str | None:
    """A part of a form, with a file name or without."""
    if not isinstance(value, UploadFile):
        return value
    data = await value.read(LARGEST_BODY + 1)
    if len(data) > LARGEST_BODY:
        raise ProtocolError("event_too_large", f"A part may have at most {LARGEST_BODY} bytes.")
    return _text(data)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ProtocolError("invalid_value", "The body is not UTF-8.") from None


def no_call(forbidden: bool = False) -> Response:
    """There is no such call, or it is not for the holder of a client secret."""
    if forbidden:
        message = "A client secret can't do this: use a key."
        body = encode_http_error(message, "invalid_request_error", "insufficient_permissions")
        return json_response(body, 403)
    body = encode_http_error("There is no such call.", "invalid_request_error", "call_not_found")
    return json_response(body, 404)


async def hang_up(request: Request, service: Service) -> Response:
    """End the call; the answer comes when it has ended."""
    call = service.calls.find(request.path_params["call_id"])
    if call is None:
        return no_call()
    await service.calls.hang_up(call)
    return Response(status_code=200)


async def not_sip(request: Request, service: Service) -> Response:
    """What only calls that come in over SIP can be asked."""
    if service.calls.find(request.path_params["call_id"]) is None:
        return no_call()
    message = "The call did not come in over SIP: it was accepted when its offer was answered."
    body = encode_http_error(message, "invalid_request_error", "call_not_sip")
    return json_response(body, 409)


def call_routes(path: str) -> list[BaseRoute]:
    """The routes of calls under a path."""
    hang = guarded(hang_up, ephemeral=False)
    sip = guarded(not_sip, ephemeral=False)
    return [
        Route(path, create, methods=["POST"]),
        Route(f"{path}/{{call_id}}", guarded(renew), methods=["POST"]),
        Route(f"{path}/{{call_id}}/hangup", hang, methods=["POST"]),
        *(
            Route(f"{path}/{{call_id}}/{verb}", sip, methods=["POST"])
            for verb in ("accept", "reject", "refer")
        ),
    ]
