"""RTP's fixed header, RTCP's reports, and who follows whom (RFC 3550).

Only what each audio packet goes through; everything rarer is parsed by aiortc.
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

from duologue.codecs.media import MalformedDataError

HEADER_BYTES = 12
MAX_DROPOUT = 3000
"""A packet at most this far ahead belongs to the stream (RFC 3550, appendix A.1)."""
MAX_MISORDER = 100
"""A packet at most this far behind is late, not the start of another numbering."""
NTP_EPOCH = 2_208_988_800
"""Seconds from 1900 to 1970."""

_HEADER = struct.Struct("!BBHLL")
_EXTENSION = struct.Struct("!HH")
_REPORT = struct.Struct("!LLLLLL")
_SENDER = struct.Struct("!BBHLLLLLL")
_RECEIVER = struct.Struct("!BBHL")


class RtpPacket(NamedTuple):
    payload_type: int
    marker: bool
    sequence: int
    timestamp: int
    ssrc: int
    payload: bytes


def parse_rtp(data: bytes) -> RtpPacket:
    """Header extensions and contributing sources are skipped. MalformedDataError."""
    if len(data) < HEADER_BYTES:
        raise MalformedDataError(f"{len(data)} bytes are no RTP packet")
    first, second, sequence, timestamp, ssrc = _HEADER.unpack_from(data)
    if first >> 6 != 2:
        raise MalformedDataError(f"RTP version {first >> 6}")
    start, end = HEADER_BYTES, len(data)
    if first & 0x3F:
        start += 4 * (first & 0x0F)
        if first & 0x10:
            if end < start + 4:
                raise MalformedDataError("an RTP header extension is cut off")
            start += 4 + 4 * _EXTENSION.unpack_from(data, start)[1]
        if first & 0x20:
            padding = data[-1]
            if padding == 0:
                raise MalformedDataError("RTP padding of no length")
            end -= padding
        if start > end:
            raise MalformedDataError("an RTP packet shorter than its header")
    return RtpPacket(second & 0x7F, second > 0x7F, sequence, timestamp, ssrc, data[start:end])


def build_rtp(packet: RtpPacket, extension: bytes = b"") -> bytes:
    """`extension` is a whole header extension with its profile, as `mid_extension` makes it."""
    header = _HEADER.pack(
        0x90 if extension else 0x80,
        packet.payload_type | (0x80 if packet.marker else 0),
        packet.sequence & 0xFFFF,
        packet.timestamp & 0xFFFFFFFF,
        packet.ssrc,
    )
    return header + extension + packet.payload


def mid_extension(identifier: int, mid: str) -> bytes:
    """The header extension that says which section of the SDP a packet belongs to (RFC 8843,
    section 15), in the one-byte form of RFC 8285. MalformedDataError where that can't hold it."""
    value = mid.encode()
    if not 1 <= identifier <= 14 or not 1 <= len(value) <= 16:
        raise MalformedDataError(f"no one-byte header extension {identifier} holds {mid!r}")
    body = bytes([identifier << 4 | len(value) - 1]) + value
    body += bytes(-len(body) % 4)
    return _EXTENSION.pack(0xBEDE, len(body) // 4) + body


class Place(NamedTuple):
    """Where a packet belongs, in numbers that don't wrap."""

    sequence: int
    timestamp: int
    restarted: bool
    """The numbering began anew: what is waited for never comes."""


@dataclass(frozen=True, slots=True)
class ReportBlock:
    """What a receiver says of one source (RFC 3550, section 6.4.1)."""

    ssrc: int
    fraction_lost: int
    """Of 256, since the last report."""
    lost: int
    highest_sequence: int
    jitter: int
    """Ticks of the media's clock."""
    last_report: int = 0
    """The middle of the last sender report's NTP time; 0 for none."""
    delay: int = 0
    """Since that report came, in 1/65536 s."""

    def pack(self) -> bytes:
        return _REPORT.pack(
            self.ssrc,
            self.fraction_lost << 24 | (max(-0x800000, min(self.lost, 0x7FFFFF)) & 0xFFFFFF),
            self.highest_sequence & 0xFFFFFFFF,
            self.jitter & 0xFFFFFFFF,
            self.last_report,
            self.delay & 0xFFFFFFFF,
        )


class Reception:
    """One source's numbering: places its packets and counts for reports (appendix A of RFC 3550).

    `now` is in seconds; it and `clock_rate` only matter to the jitter.
    """

    def __init__(self, ssrc: int, clock_rate: int) -> None:
        self.ssrc = ssrc
        self.received = 0
        self._clock_rate = clock_rate
        self._first = 0
        self._highest = -1
        self._timestamp = 0
        self._suspect: int | None = None
        self._transit: float | None = None
        self._jitter = 0.0
        self._reported = (0, 0)

    def place(self, sequence: int, timestamp: int, now: float) -> Place | None:
        """None for a packet that is far from all others, unless its successor follows it."""
        if self._highest < 0:
            return self._begin(sequence, timestamp, now, restarted=False)
        ahead = (sequence - self._highest) & 0xFFFF
        if ahead < MAX_DROPOUT:
            extended = self._highest + ahead
        elif ahead > 0x10000 - MAX_MISORDER:
            extended = self._highest + ahead - 0x10000
        elif sequence == self._suspect:
            return self._begin(sequence, timestamp, now, restarted=True)
        else:
            self._suspect = (sequence + 1) & 0xFFFF
            return None
        self._suspect = None
        self.received += 1
        offset = (timestamp - self._timestamp) & 0xFFFFFFFF
        placed = self._timestamp + (offset - 0x100000000 if offset > 0x7FFFFFFF else offset)
        self._measure(placed, now)
        if extended > self._highest:
            self._highest = extended
            self._timestamp = placed
        return Place(extended, placed, False)

    @property
    def expected(self) -> int:
        return self._highest - self._first + 1 if self._highest >= 0 else 0

    @property
    def lost(self) -> int:
        """Below 0 when duplicates outnumber losses."""
        return self.expected - self.received

    @property
    def jitter(self) -> float:
        """Seconds, as section 6.4.1 defines it."""
        return self._jitter / self._clock_rate

    def report(self, last_report: int = 0, delay: int = 0) -> ReportBlock:
        """The block for a report that is sent now; the next one's fraction counts from here."""
        expected = self.expected - self._reported[0]
        lost = expected - (self.received - self._reported[1])
        self._reported = (self.expected, self.received)
        fraction = (lost << 8) // expected if expected > 0 and lost > 0 else 0
        return ReportBlock(
            self.ssrc,
            min(fraction, 255),
            self.lost,
            max(self._highest, 0),
            int(self._jitter),
            last_report,
            delay,
        )

    def _begin(self, sequence: int, timestamp: int, now: float, restarted: bool) -> Place:
        # A cycle above zero, so that what was overtaken by the first packet has a number too.
        self._first = self._highest = sequence + 0x10000
        self._timestamp = timestamp + 0x100000000
        self._suspect = None
        self._transit = None
        self.received = 1
        self._reported = (0, 0)
        self._measure(self._timestamp, now)
        return Place(self._highest, self._timestamp, restarted)

    def _measure(self, timestamp: int, now: float) -> None:
        transit = now * self._clock_rate - timestamp
        if self._transit is not None:
            self._jitter += (abs(transit - self._transit) - self._jitter) / 16
        self._transit = transit


def ntp_time(wall: float) -> int:
    """Seconds since 1970 as 64 bits of NTP."""
    return int((wall + NTP_EPOCH) * 4294967296) & 0xFFFFFFFFFFFFFFFF


def build_sender_report(
    ssrc: int, cname: str, ntp: int, timestamp: int, packets: int, octets: int
) -> bytes:
    """A compound packet: SR and SDES (sections 6.4.1 and 6.5)."""
    report = _SENDER.pack(
        0x80,
        200,
        6,
        ssrc,
        ntp >> 32,
        ntp & 0xFFFFFFFF,
        timestamp & 0xFFFFFFFF,
        packets & 0xFFFFFFFF,
        octets & 0xFFFFFFFF,
    )
    return report + _description(ssrc, cname)


def build_receiver_report(ssrc: int, cname: str, block: ReportBlock) -> bytes:
    """A compound packet: RR and SDES (sections 6.4.2 and 6.5)."""
    return _RECEIVER.pack(0x81, 201, 7, ssrc) + block.pack() + _description(ssrc, cname)


def build_bye(ssrc: int, cname: str) -> bytes:
    """A compound packet: an empty RR, SDES and BYE (section 6.6)."""
    return (
        _RECEIVER.pack(0x80, 201, 1, ssrc)
        + _description(ssrc, cname)
        + _RECEIVER.pack(0x81, 203, 1, ssrc)
    )


def _description(ssrc: int, cname: str) -> bytes:
    name = cname.encode()[:255]
    items = bytes([1, len(name)]) + name
    items += bytes(4 - len(items) % 4)
    return _RECEIVER.pack(0x81, 202, 1 + len(items) // 4, ssrc) + items
