"""``/api/chat``: where Moshi's and PersonaPlex' own clients connect."""

import logging
from pathlib import PurePath
from typing import Final

import anyio
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from duologue.engines.duplex import BeginDuplex, DuplexStream
from duologue.engines.duplex_stream import DuplexRefused
from duologue.engines.engine import EngineLost
from duologue.realtime.http_wire import encode_http_error
from duologue.realtime.moshi_chat import LOST, MoshiChat
from duologue.realtime.moshi_wire import read_choice
from duologue.sessions.registry import new_id
from duologue.web.access import NO_PLACE, admit, denied, json_response, refusal, service_of
from duologue.web.auth import Denial
from duologue.web.service import Service

_FAREWELL_SECONDS: Final = 5.0

logger = logging.getLogger(__name__)


async def chat(websocket: WebSocket) -> None:
    """A conversation with a frame-locked model, in the protocol of Moshi's own clients."""
    service = service_of(websocket)
    grant = admit(service, websocket.headers, [])
    if isinstance(grant, Denial):
        await websocket.send_denial_response(denied(service, grant))
        return
    try:
        begin = _begin(websocket, service)
    except ValueError as error:
        body = encode_http_error(str(error), "invalid_request_error", "invalid_value")
        await websocket.send_denial_response(json_response(body, 400))
        return
    await websocket.accept()
    try:
        await _converse(websocket, service, begin)
    except WebSocketDisconnect:
        return
    except Exception:
        logger.exception("a conversation failed")
        await _close(websocket, LOST, "the session failed")


def _begin(websocket: WebSocket, service: Service) -> BeginDuplex:
    """What the query asks for. Raises ValueError.

    Clients name voices by their files; one that is not there is the default's.
    """
    query = websocket.query_params
    voice = PurePath(query.get("voice_prompt", "")).stem
    known = service.spec.voices if service.engine.ready else ()
    return BeginDuplex(
        session="",
        voice=voice if voice in known else "",
        instructions=query.get("text_prompt", ""),
        choice=read_choice(query),
    )


async def _converse(websocket: WebSocket, service: Service, begin: BeginDuplex) -> None:
    scope = anyio.CancelScope()
    farewell = (LOST, "the session failed")

    def end(code: int, reason: str) -> None:
        nonlocal farewell
        farewell = (code, reason)
        scope.cancel()

    try:
        with service.registry.guest(end):
            with scope:
                farewell = await _talk(websocket, service, begin)
            await _close(websocket, *farewell)
    except NO_PLACE as error:
        refused = refusal(error)
        service.metrics.refused(type(error).__name__)
        await _close(websocket, refused.close, refused.message)
    except (DuplexRefused, EngineLost) as error:
        await _close(websocket, LOST, str(error))


async def _talk(websocket: WebSocket, service: Service, begin: BeginDuplex) -> tuple[int, str]:
    """The close code and its reason."""
    stream: DuplexStream | None = None
    try:
        spec = service.duplex.spec
        stream = await service.duplex.open(new_id("chat"), begin)
        service.metrics.opened()
        return await MoshiChat(websocket, stream, spec).talk()
    finally:
        if stream is not None:
            with anyio.CancelScope(shield=True):
                await stream.aclose()


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    try:
        with anyio.move_on_after(_FAREWELL_SECONDS):
            await websocket.close(code, reason[:120])
    except (WebSocketDisconnect, RuntimeError, OSError):
        return


def moshi_routes() -> list[BaseRoute]:
    """The address that Moshi's own clients ask for."""
    return [WebSocketRoute("/api/chat", chat)]
