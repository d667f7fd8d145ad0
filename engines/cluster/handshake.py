"""How both ends of a connection between machines prove that they know the cluster's secret.

The listener sends a nonce; the caller a nonce of its own, the lane that it wants and a proof; the
listener its proof. A proof is an HMAC-SHA256 (RFC 2104) over who proves, both nonces and the lane,
so none can be used twice or by the other side. Nothing is encrypted: the network between the
machines has to be one that nobody else listens on.
"""

import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

import anyio

from duologue.engines.cluster.tcp_stream import TcpStream
from duologue.engines.remote import LaneName

T = TypeVar("T")

SECRET_BYTES = 32
NONCE_BYTES = 32
PROOF_BYTES = 32
PATIENCE_S = 5.0
"""How long a handshake may take, in seconds."""

_LANES: dict[bytes, LaneName] = {b"c": "control", b"d": "data"}


class HandshakeFailed(OSError):
    """The other side does not know the secret, or does not speak this."""


def new_secret() -> bytes:
    """A secret for one run of a server."""
    return secrets.token_bytes(SECRET_BYTES)


def proof(secret: bytes, who: Literal["caller", "listener"], nonces: bytes, lane: bytes) -> bytes:
    """What shows that one knows the secret; `nonces` is the listener's, then the caller's."""
    return hmac.digest(secret, who.encode() + nonces + lane, "sha256")


async def greet_listener(stream: TcpStream, secret: bytes, lane: LaneName) -> None:
    """The caller's side. Raises HandshakeFailed."""
    code = lane[0].encode()
    mine = secrets.token_bytes(NONCE_BYTES)
    try:
        with anyio.fail_after(PATIENCE_S):
            nonces = await stream.receive_exactly(NONCE_BYTES) + mine
            await stream.send(mine + code + proof(secret, "caller", nonces, code))
            answer = await stream.receive_exactly(PROOF_BYTES)
    except (anyio.EndOfStream, anyio.BrokenResourceError, TimeoutError) as error:
        raise HandshakeFailed("it did not let us in") from error
    if not hmac.compare_digest(answer, proof(secret, "listener", nonces, code)):
        raise HandshakeFailed("it does not know the secret")


async def greet_caller(
    stream: TcpStream, secret: bytes, fetch: Callable[[LaneName], Awaitable[T]]
) -> T:
    """The listener's side; what `fetch` gave for the lane that is wanted. It is asked when the
    caller has proved itself, and before that is told so. Raises HandshakeFailed, and what `fetch`
    raises."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    try:
        with anyio.fail_after(PATIENCE_S):
            await stream.send(nonce)
            said = await stream.receive_exactly(NONCE_BYTES + 1 + PROOF_BYTES)
            nonces = nonce + said[:NONCE_BYTES]
            code = said[NONCE_BYTES : NONCE_BYTES + 1]
            shown = said[NONCE_BYTES + 1 :]
            known = hmac.compare_digest(shown, proof(secret, "caller", nonces, code))
            if not known or code not in _LANES:
                raise HandshakeFailed("a caller that does not know the secret")
            fetched = await fetch(_LANES[code])
            await stream.send(proof(secret, "listener", nonces, code))
    except (anyio.EndOfStream, anyio.BrokenResourceError, TimeoutError) as error:
        raise HandshakeFailed("a caller that did not finish its greeting") from error
    return fetched
