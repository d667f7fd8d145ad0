"""What the gateways of one server tell each other: figures and client secrets.

Each listens at a Unix socket in a directory that only this user may enter. A client secret is
told to all before it is given out, by its hash, with the request that asked for it; a gateway that
starts asks the others for theirs. One that does not answer is passed over.
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import anyio
import httpx
import msgspec

from duologue.web.auth import MOST_SECRET_BYTES, MOST_SECRETS
from duologue.web.seat import Seat

FIGURES: Final = "/inside/figures"
SECRETS: Final = "/inside/secrets"
ANSWER_SECONDS: Final = 2.0

logger = logging.getLogger(__name__)


class SharedSecret(msgspec.Struct, frozen=True):
    """``digest``: of its value. ``expires``: in seconds of CLOCK_MONOTONIC. ``body``: the request
    that asked for it."""

    digest: bytes
    expires: float
    body: bytes


def inside_client(socket: Path, seconds: float) -> httpx.AsyncClient:
    """For another gateway. Each request has a connection of its own, as the one at the other end
    may have been replaced since the last."""
    transport = httpx.AsyncHTTPTransport(
        uds=str(socket), verify=False, limits=httpx.Limits(max_keepalive_connections=0)
    )
    return httpx.AsyncClient(transport=transport, timeout=seconds, trust_env=False)


class Peers:
    """The other gateways, as one of them sees them."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self._shared: OrderedDict[bytes, SharedSecret] = OrderedDict()
        self._shared_bytes = 0

    async def figures(self) -> list[str]:
        """What the others measure, in Prometheus' text format."""
        texts = []

        async def ask(client: httpx.AsyncClient) -> None:
            texts.append((await client.get(f"http://gateway{FIGURES}")).raise_for_status().text)

        await self._each(ask)
        return texts

    async def share(self, secret: SharedSecret, now: float) -> None:
        """Let a new secret be good at all gateways."""
        self.keep(secret, now)
        content = msgspec.msgpack.encode([secret])

        async def tell(client: httpx.AsyncClient) -> None:
            response = await client.post(f"http://gateway{SECRETS}", content=content)
            response.raise_for_status()

        await self._each(tell)

    async def fetch(self) -> list[SharedSecret]:
        """The secrets that the others know."""
        found: dict[bytes, SharedSecret] = {}

        async def ask(client: httpx.AsyncClient) -> None:
            content = (await client.get(f"http://gateway{SECRETS}")).raise_for_status().content
            for secret in msgspec.msgpack.decode(content, type=list[SharedSecret]):
                found[secret.digest] = secret

        await self._each(ask)
        return list(found.values())

    def keep(self, secret: SharedSecret, now: float) -> None:
        """Remember one for gateways that start later."""
        while self._shared:
            oldest = next(iter(self._shared.values()))
            room = self._shared_bytes + len(secret.body) <= MOST_SECRET_BYTES
            if oldest.expires > now and room and len(self._shared) < MOST_SECRETS:
                break
            self._shared_bytes -= len(oldest.body)
            del self._shared[oldest.digest]
        if secret.digest not in self._shared:
            self._shared_bytes += len(secret.body)
            self._shared[secret.digest] = secret

    def kept(self, now: float) -> list[SharedSecret]:
        return [secret for secret in self._shared.values() if secret.expires > now]

    async def _each(self, ask: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
        async def ask_one(socket: Path) -> None:
            try:
                async with inside_client(socket, ANSWER_SECONDS) as client:
                    await ask(client)
            except httpx.ConnectError:
                logger.info("the gateway at %s is not there", socket.parent)
            except (httpx.HTTPError, msgspec.DecodeError) as error:
                logger.warning("the gateway at %s does not answer: %r", socket.parent, error)

        async with anyio.create_task_group() as tasks:
            for socket in self.seat.others():
                tasks.start_soon(ask_one, socket)
