"""What one RTP packet holds of a picture: VP8 (RFC 7741) and H.264 (RFC 6184)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from duologue.codecs.media import MalformedDataError

_START_CODE = b"\0\0\0\1"
_IDR, _PARAMETERS = 5, 7
_AGGREGATE, _FRAGMENT = 24, 28


@dataclass(frozen=True, slots=True)
class VideoPiece:
    """A packet's part of a coded picture: pieces joined in order are what a decoder takes.

    ``starts``: the picture may begin here. ``key``: it needs no picture before it; told by its
    first piece. ``disposable``: no later picture needs it.
    """

    data: bytes
    starts: bool
    key: bool
    disposable: bool


def vp8_piece(payload: bytes) -> VideoPiece:
    """The descriptor (RFC 7741, section 4.2) read off. MalformedDataError."""
    if not payload:
        raise MalformedDataError("an empty VP8 packet")
    first = payload[0]
    at = 1
    if first & 0x80:
        extensions = _byte(payload, at)
        at += 1
        if extensions & 0x80:
            at += 2 if _byte(payload, at) & 0x80 else 1
        at += bool(extensions & 0x40)
        at += bool(extensions & 0x30)
    data = payload[at:]
    if not data:
        raise MalformedDataError("a VP8 packet of nothing but a descriptor")
    starts = bool(first & 0x10) and not first & 0x07
    return VideoPiece(data, starts, starts and not data[0] & 0x01, bool(first & 0x20))


def _byte(payload: bytes, at: int) -> int:
    if at >= len(payload):
        raise MalformedDataError("a VP8 descriptor is cut off")
    return payload[at]


def h264_piece(payload: bytes) -> VideoPiece:
    """A unit, an aggregate (STAP-A) or a fragment (FU-A), as Annex B. MalformedDataError."""
    if len(payload) < 2:
        raise MalformedDataError(f"{len(payload)} bytes are no H.264 packet")
    kind = payload[0] & 0x1F
    if kind == _AGGREGATE:
        return _aggregate(payload)
    if kind == _FRAGMENT:
        return _fragment(payload)
    if not 1 <= kind <= 23:
        raise MalformedDataError(f"H.264 packets of type {kind} were not agreed on")
    return VideoPiece(
        _START_CODE + payload, True, kind in (_IDR, _PARAMETERS), _is_disposable(payload[0])
    )


def _aggregate(payload: bytes) -> VideoPiece:
    at, units = 1, []
    while at < len(payload):
        size = int.from_bytes(payload[at : at + 2], "big")
        unit = payload[at + 2 : at + 2 + size]
        if not size or len(unit) < size:
            raise MalformedDataError("an H.264 aggregate is cut off")
        units.append(unit)
        at += 2 + size
    key = any(unit[0] & 0x1F in (_IDR, _PARAMETERS) for unit in units)
    data = b"".join(_START_CODE + unit for unit in units)
    return VideoPiece(data, True, key, all(_is_disposable(unit[0]) for unit in units))


def _fragment(payload: bytes) -> VideoPiece:
    if len(payload) < 3:
        raise MalformedDataError("an H.264 fragment of nothing")
    indicator, header = payload[0], payload[1]
    disposable = _is_disposable(indicator & 0x60 | header & 0x1F)
    if not header & 0x80:
        return VideoPiece(payload[2:], False, False, disposable)
    unit = bytes([indicator & 0xE0 | header & 0x1F])
    return VideoPiece(
        _START_CODE + unit + payload[2:], True, header & 0x1F in (_IDR, _PARAMETERS), disposable
    )


def _is_disposable(header: int) -> bool:
    """A slice that is not referred to; other units without a reference change nothing either."""
    return not header & 0x60 and header & 0x1F not in (7, 8)


PIECES: Mapping[str, Callable[[bytes], VideoPiece]] = MappingProxyType(
    {"VP8": vp8_piece, "H264": h264_piece}
)
"""How a packet is read, by the codec's name in SDP."""
