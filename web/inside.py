"""What a gateway answers to the others: its figures, client secrets, and the requests that came
to them and are about its calls."""

import logging

import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from duologue.engines.engine import EngineUnavailable
from duologue.realtime.http_wire import decode_secret_request
from duologue.sessions.errors import ProtocolError
from duologue.web.access import defaults
from duologue.web.forwarding import ARRIVED
from duologue.web.peers import FIGURES, SECRETS, Peers, SharedSecret
from duologue.web.service import Service

logger = logging.getLogger(__name__)


class Inside:
    """The application at the private socket: ``app`` is the one for clients."""

    def __init__(self, app: Starlette, peers: Peers) -> None:
        self._app: ASGIApp = app
        self._state = app.state
        self._peers = peers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in (FIGURES, SECRETS):
            response = await self._answer(Request(scope, receive))
            await response(scope, receive, send)
        else:
            await self._app({**scope, ARRIVED: True}, receive, send)

    async def _answer(self, request: Request) -> Response:
        service: Service = self._state.service
        if request.url.path == FIGURES:
            return Response(await anyio.to_thread.run_sync(service.metrics.text))
        now = service.clock.now()
        if request.method != "POST":
            return Response(msgspec.msgpack.encode(self._peers.kept(now)))
        try:
            told = msgspec.msgpack.decode(await request.body(), type=list[SharedSecret])
            adopt(service, self._peers, told, now)
        except EngineUnavailable:
            # This gateway is starting, and will ask for all of them.
            return Response(status_code=503)
        return Response()


def adopt(service: Service, peers: Peers, told: list[SharedSecret], now: float) -> None:
    """Let secrets of other gateways be good here. Raises EngineUnavailable."""
    realtime, transcription = defaults(service, "realtime"), defaults(service, "transcription")
    for secret in told:
        try:
            wanted = decode_secret_request(secret.body, realtime, transcription)
        except ProtocolError as error:
            logger.warning("a client secret of another gateway means nothing here: %s", error)
            continue
        size = len(secret.body)
        service.gate.secrets.adopt(secret.digest, wanted.config, secret.expires, now, size)
        peers.keep(secret, now)
