"""Who may come in: keys, ephemeral secrets, origins and host names.

A key comes as ``Authorization: Bearer …``, as ``api-key: …`` or, from browsers, as the WebSocket
subprotocol ``openai-insecure-api-key.…``. Browsers send WebSockets and simple requests across
origins without asking, so the origin is checked wherever there is one, on loopback too; and there
the host name is checked, as any name can be made to point at a loopback address.
"""

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

from duologue.sessions.session_config import SessionConfig

SUBPROTOCOL: Final = "realtime"
KEY_PROTOCOL: Final = "openai-insecure-api-key."
SECRET_PREFIX: Final = "ek_"
MOST_SECRETS: Final = 10_000
"""Secrets that are valid at once; one more pushes out the oldest."""
MOST_SECRET_BYTES: Final = 64 * 2**20
"""Of the requests that they were asked for with, together, likewise."""

_LOOPBACK_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_DEFAULT_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}


@dataclass(frozen=True, slots=True)
class Grant:
    """Come in. ``config``: what an ephemeral secret says that its sessions start with."""

    config: SessionConfig | None = None
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Denial:
    """Stay out, with an HTTP status and words that may be shown."""

    status: Literal[401, 403]
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class _Secret:
    expires: float
    config: SessionConfig
    size: int


class SecretTable:
    """Ephemeral secrets, kept as hashes so that looking one up tells nothing of the others."""

    def __init__(self, most: int = MOST_SECRETS, most_bytes: int = MOST_SECRET_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._secrets: OrderedDict[bytes, _Secret] = OrderedDict()

    def __len__(self) -> int:
        return len(self._secrets)

    def issue(self, config: SessionConfig, seconds: float, now: float, size: int = 0) -> str:
        """A new secret, good for any number of sessions that begin in the next ``seconds``.
        ``size``: bytes of the request for it."""
        value = SECRET_PREFIX + secrets.token_urlsafe(32)
        self.adopt(digest(value), config, now + seconds, now, size)
        return value

    def adopt(
        self, hashed: bytes, config: SessionConfig, expires: float, now: float, size: int = 0
    ) -> None:
        """Let a secret be good whose value, that has this :func:`digest`, was issued elsewhere."""
        self._forget_expired(now)
        self._forget(hashed)
        while self._secrets and (
            len(self._secrets) >= self._most or self._bytes + size > self._most_bytes
        ):
            self._forget(next(iter(self._secrets)))
        self._secrets[hashed] = _Secret(expires, config, size)
        self._bytes += size

    def find(self, value: str, now: float) -> SessionConfig | None:
        found = self._secrets.get(digest(value))
        return None if found is None or found.expires <= now else found.config

    def _forget_expired(self, now: float) -> None:
        expired = [key for key, secret in self._secrets.items() if secret.expires <= now]
        for key in expired:
            self._forget(key)

    def _forget(self, hashed: bytes) -> None:
        secret = self._secrets.pop(hashed, None)
        if secret is not None:
            self._bytes -= secret.size


class Gate:
    """Decides about requests. ``host_names``: ``None`` when any host name will do."""

    def __init__(
        self,
        keys: Sequence[str],
        allowed_origins: Sequence[str] = (),
        host_names: Sequence[str] | None = None,
        secret_table: SecretTable | None = None,
    ) -> None:
        self._keys = tuple(key.encode() for key in keys)
        self._any_origin = "*" in allowed_origins
        self._origins = frozenset(origin.rstrip("/").lower() for origin in allowed_origins)
        self._host_names = None
        if host_names is not None:
            from_origins = {urlsplit(origin).hostname or "" for origin in allowed_origins}
            names = {name.lower() for name in host_names}
            self._host_names = _LOOPBACK_HOSTS | names | from_origins
        self.secrets = secret_table or SecretTable()

    def check_place(self, headers: Mapping[str, str]) -> Denial | None:
        """Whether the request came under a name and from a page that it may come from."""
        host = headers.get("host", "")
        if self._host_names is not None and not self._is_ours(host):
            return Denial(
                403,
                "host_not_allowed",
                "This server does not answer to that host name. The setting allowed_hosts adds "
                "names.",
            )
        origin = headers.get("origin")
        if origin is None or self._any_origin or self._is_same(origin, host):
            return None
        if origin.lower() in self._origins:
            return None
        return Denial(
            403,
            "origin_not_allowed",
            "Pages of that origin may not connect. The setting allowed_origins adds origins.",
        )

    def check_key(
        self, headers: Mapping[str, str], subprotocols: Sequence[str], now: float
    ) -> Grant | Denial:
        """Whether the request brings a key, where one is needed."""
        key = _presented(headers, subprotocols)
        if key is not None and key.startswith(SECRET_PREFIX):
            config = self.secrets.find(key, now)
            if config is not None:
                return Grant(config, ephemeral=True)
            return Denial(401, "invalid_api_key", "The client secret is unknown or has expired.")
        if not self._keys:
            return Grant()
        if key is None:
            return Denial(
                401, "invalid_api_key", "A key is needed: send it as 'Authorization: Bearer …'."
            )
        # Every key is compared, so that the time tells nothing of which one came close.
        given = key.encode()
        matches = [hmac.compare_digest(given, known) for known in self._keys]
        return Grant() if any(matches) else Denial(401, "invalid_api_key", "The key is wrong.")

    def _is_ours(self, host: str) -> bool:
        name = _host_name(host)
        assert self._host_names is not None
        return name in self._host_names or name.endswith(".localhost")

    @staticmethod
    def _is_same(origin: str, host: str) -> bool:
        """Same host and port. A proxy may speak another scheme to us than to the browser."""
        try:
            parts = urlsplit(origin)
            port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
            ours = urlsplit(f"//{host}")
            our_port = ours.port or port if ":" not in host.rpartition("]")[2] else ours.port
        except ValueError:
            return False
        return bool(parts.hostname) and (parts.hostname, port) == (ours.hostname, our_port)


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _presented(headers: Mapping[str, str], subprotocols: Sequence[str]) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    if headers.get("api-key"):
        return headers["api-key"]
    for offered in subprotocols:
        if offered.startswith(KEY_PROTOCOL):
            return offered.removeprefix(KEY_PROTOCOL)
    return None


def digest(value: str) -> bytes:
    """By which a secret is kept."""
    return hashlib.sha256(value.encode()).digest()
