"""Requests that are about a call or a Live session of another gateway go on to that one.

The owner answers as if the client had come to it: the request passes with its headers, and who may
come in is decided there.
"""

import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

import anyio
import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.typing import Subprotocol

from duologue.realtime.http_wire import encode_http_error
from duologue.realtime.websocket import control_of
from duologue.web.access import json_response
from duologue.web.peers import inside_client
from duologue.web.seat import Seat

ARRIVED: Final = "duologue.forwarded"
"""In the scope of a request that has come from another gateway: it goes no further."""
ANSWER_SECONDS: Final = 90.0
"""How long an owner may take: to hang up it waits for the end of a call."""
FAREWELL_SECONDS: Final = 5.0
INTERNAL_ERROR: Final = 1011

_OWNED: Final = re.compile(
    r"(?:/openai)?(?:/v1)?/(?:realtime/calls|live/sessions)/((?:rtc|live)_[0-9a-f]{20})(?:/[a-z]+)?"
)
_SIDEBAND: Final = re.compile(r"(?:/openai)?(?:/v1)?/realtime")
_HOP: Final = frozenset({"connection", "keep-alive", "te", "trailer", "transfer-encoding"})
_SAID_HERE: Final = _HOP | {"date"}
_HANDSHAKE: Final = ("upgrade", "host", "sec-websocket-")

logger = logging.getLogger(__name__)


class Forwarding:
    """Middleware: the outermost, so that what the owner answers passes as it is."""

    def __init__(self, app: ASGIApp, seat: Seat) -> None:
        self._app = app
        self._seat = seat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = None
        if scope["type"] in ("http", "websocket") and ARRIVED not in scope:
            found = owned_id(scope["type"], scope["path"], scope["query_string"])
        owner = None if found is None else self._seat.owner(found)
        if found is None or owner is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _forward_request(Request(scope, receive), found, owner, send)
        else:
            await _forward_socket(WebSocket(scope, receive, send), found, owner)


def owned_id(kind: str, path: str, query: bytes) -> str | None:
    """The call or the Live session that a request is about; ``None`` if it is about none."""
    match = _OWNED.fullmatch(path)
    if match is not None:
        return match[1]
    if kind == "websocket" and _SIDEBAND.fullmatch(path):
        # As Starlette reads it: of several, the last.
        return parse_qs(query.decode("latin-1")).get("call_id", [None])[-1]
    return None


def gone(found: str) -> Response:
    """The answer in place of an owner that has ended, and all that it had with it."""
    what = "session" if found.startswith("live") else "call"
    message = f"There is no such {what}: the process that had it has ended."
    body = encode_http_error(message, "invalid_request_error", f"{what}_not_found")
    return json_response(body, 404)


def _target(scope: Scope) -> str:
    query = scope["query_string"].decode("latin-1")
    return f"{scope['path']}?{query}" if query else str(scope["path"])


# -- HTTP -----------------------------------------------------------------------------------


async def _forward_request(request: Request, found: str, owner: Path, send: Send) -> None:
    headers = [(name, value) for name, value in request.headers.raw if name.decode() not in _HOP]
    has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
    started = False
    try:
        async with inside_client(owner, ANSWER_SECONDS) as client:
            forwarded = client.build_request(
                request.method,
                httpx.URL("http://gateway", raw_path=_target(request.scope).encode("latin-1")),
                headers=headers,
                content=_body(request) if has_body else None,
            )
            answer = await client.send(forwarded, stream=True)
            try:
                started = True
                await send(
                    {
                        "type": "http.response.start",
                        "status": answer.status_code,
                        "headers": [
                            (name.lower(), value)
                            for name, value in answer.headers.raw
                            if name.lower().decode() not in _SAID_HERE
                        ],
                    }
                )
                async for piece in answer.aiter_raw():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
            finally:
                with anyio.CancelScope(shield=True):
                    await answer.aclose()
    except ClientDisconnect:
        return
    except httpx.HTTPError as error:
        logger.info("the gateway at %s is gone: %r", owner.parent, error)
        if started:
            raise
        await gone(found)(request.scope, request.receive, send)


async def _body(request: Request) -> AsyncIterator[bytes]:
    async for piece in request.stream():
        yield piece


# -- WebSockets -----------------------------------------------------------------------------


async def _forward_socket(websocket: WebSocket, found: str, owner: Path) -> None:
    offered = [Subprotocol(name) for name in websocket.scope.get("subprotocols", [])]
    headers = [
        (name, value)
        for name, value in websocket.headers.items()
        if name not in _HOP and not name.startswith(_HANDSHAKE)
    ]
    host = websocket.headers.get("host", "gateway")
    try:
        async with unix_connect(
            str(owner),
            f"ws://{host}{_target(websocket.scope)}",
            additional_headers=headers,
            subprotocols=offered or None,
            user_agent_header=None,
            compression=None,
            max_size=None,
            ping_interval=None,
            close_timeout=FAREWELL_SECONDS,
        ) as inner:
            await websocket.accept(inner.subprotocol)
            await _relay(websocket, inner)
    except WebSocketDisconnect:
        return
    except InvalidStatus as refused:
        answer = refused.response
        content = json_response(bytes(answer.body or b""), answer.status_code)
        for name in ("content-type", "www-authenticate", "retry-after"):
            if name in answer.headers:
                content.headers[name] = answer.headers[name]
        await websocket.send_denial_response(content)
    except (InvalidHandshake, InvalidURI, OSError, EOFError) as error:
        logger.info("the gateway at %s is gone: %r", owner.parent, error)
        await websocket.send_denial_response(gone(found))


async def _relay(websocket: WebSocket, inner: ClientConnection) -> None:
    """Both ways, each only as fast as it is taken, until either end closes."""
    async with anyio.create_task_group() as tasks:

        async def outward() -> None:
            code, reason = INTERNAL_ERROR, "the session's process has ended"
            try:
                async for message in inner:
                    if isinstance(message, str):
                        await websocket.send_text(message)
                    else:
                        await websocket.send_bytes(message)
            except ConnectionClosed:
                pass
            except (WebSocketDisconnect, RuntimeError, OSError):
                return  # the client is gone; the other way sees it too
            if inner.close_code is not None and inner.close_code not in (1005, 1006):
                code, reason = inner.close_code, inner.close_reason or ""
            await _close(websocket, code, reason)
            tasks.cancel_scope.cancel()

        tasks.start_soon(outward)
        try:
            while True:
                message = await websocket.receive()
                if message["type"] != "websocket.receive":
                    code = message.get("code", 1005)
                    usable = code == 1000 or 3000 <= code < 5000
                    await inner.close(code if usable else 1000, message.get("reason") or "")
                    break
                text = message.get("text")
                await inner.send(message["bytes"] if text is None else text)
        except ConnectionClosed:
            return  # why is for the other way to say
        tasks.cancel_scope.cancel()


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    with anyio.move_on_after(FAREWELL_SECONDS) as scope:
        try:
            await websocket.close(code, reason)
        except (WebSocketDisconnect, RuntimeError, OSError):
            return
    if scope.cancelled_caught:
        control_of(websocket).fail(code, reason)
