"""RTCP that a receiver of video sends and a sender understands (RFC 4585, RFC 5104, REMB)."""

import struct
from collections.abc import Sequence

_COMMON = struct.Struct("!BBHLL")
_NACK = struct.Struct("!HH")
_REMB = struct.Struct("!4sBBH")
_TRANSPORT, _PAYLOAD = 205, 206


def _compound(ssrc: int, packet: bytes) -> bytes:
    """Behind an empty receiver report, which every compound begins with (RFC 3550, section 6.1)."""
    return struct.pack("!BBHL", 0x80, 201, 1, ssrc) + packet


def build_nack(ssrc: int, source: int, sequences: Sequence[int]) -> bytes:
    """Send these packets again (RFC 4585, section 6.2.1). Numbers may exceed 16 bits."""
    pairs: list[tuple[int, int]] = []
    for number in sorted(sequences):
        if pairs and 1 <= number - pairs[-1][0] <= 16:
            first, mask = pairs[-1]
            pairs[-1] = (first, mask | 1 << number - first - 1)
        else:
            pairs.append((number, 0))
    body = b"".join(_NACK.pack(first & 0xFFFF, mask) for first, mask in pairs)
    return _compound(ssrc, _COMMON.pack(0x81, _TRANSPORT, 2 + len(pairs), ssrc, source) + body)


def build_pli(ssrc: int, source: int) -> bytes:
    """A key picture, please (RFC 4585, section 6.3.1)."""
    return _compound(ssrc, _COMMON.pack(0x81, _PAYLOAD, 2, ssrc, source))


def build_remb(ssrc: int, source: int, bit_rate: int) -> bytes:
    """Send at most so many bits a second (draft-alvestrand-rmcat-remb-03, section 2.2)."""
    exponent = max(0, bit_rate.bit_length() - 18)
    mantissa = bit_rate >> exponent
    head = _REMB.pack(b"REMB", 1, exponent << 2 | mantissa >> 16, mantissa & 0xFFFF)
    packet = _COMMON.pack(0x8F, _PAYLOAD, 5, ssrc, 0) + head + struct.pack("!L", source)
    return _compound(ssrc, packet)
