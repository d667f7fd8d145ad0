"""What a gateway process is told by its parent, and how that is written."""

from pathlib import Path
from typing import Any

import msgspec

from duologue.web.settings import Settings


class GatewayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``settings``: the server's, with any key that was made up. ``port`` is shared by all.

    ``number``: which gateway this is, of those with ``directories``. ``workers``: the directories
    of those that take sessions, ``scribes``: of the recognisers' beside them; ``names``: of all
    workers. ``board``: the descriptor of the
    memory that sessions are counted in.
    """

    settings: Settings
    port: int
    certificate: tuple[str, str] | None
    number: int
    directories: tuple[str, ...]
    workers: tuple[str, ...]
    scribes: tuple[str, ...]
    names: tuple[str, ...]
    board: int


def encode_options(options: GatewayOptions) -> bytes:
    """As msgpack; the inverse is :func:`decode_options`."""
    return msgspec.msgpack.encode(options, enc_hook=_plain)


def decode_options(data: bytes) -> GatewayOptions:
    """Raises msgspec.DecodeError."""
    return msgspec.msgpack.decode(data, type=GatewayOptions, dec_hook=_from_plain)


def _plain(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError


def _from_plain(kind: type, value: Any) -> Path:
    if issubclass(kind, Path):
        return Path(value)
    raise NotImplementedError
