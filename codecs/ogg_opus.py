"""Opus in Ogg, as a stream that begins at its beginning: RFC 3533 (Ogg) and RFC 7845 (Opus in it).

One logical stream, one channel. Pages that are damaged are left out, as the RFC wants it.
"""

import struct
from collections.abc import Iterator
from typing import Final

from duologue.codecs.media import MalformedDataError
from duologue.codecs.opus import packet_ticks

CAPTURE: Final = b"OggS"
LARGEST_PACKET: Final = 2**20
"""Bytes. The tags come with pictures at times; a packet of sound is never so large."""

_HEADER: Final = struct.Struct("<4sBBqIIIB")
_CONTINUED, _FIRST, _LAST = 1, 2, 4
_HEAD: Final = struct.Struct("<8sBBHIhB")
_POLYNOMIAL: Final = 0x04C11DB7
_VENDOR: Final = b"duologue"


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        remainder = byte << 24
        for _ in range(8):
            carry = remainder & 0x80000000
            remainder = remainder << 1 & 0xFFFFFFFF ^ (_POLYNOMIAL if carry else 0)
        table.append(remainder)
    return tuple(table)


_CRC: Final = _crc_table()


def checksum(page: bytes) -> int:
    """Of a page whose own checksum is zeros (RFC 3533, section 6, field 7)."""
    remainder = 0
    for byte in page:
        remainder = remainder << 8 & 0xFFFFFFFF ^ _CRC[remainder >> 24 ^ byte]
    return remainder


class OggOpusReader:
    """Packets of sound out of a stream of bytes that comes in any pieces.

    ``skip``: samples at 48 kHz at the beginning that are not to be heard (RFC 7845, section 4.2);
    known after the first packet.
    """

    def __init__(self) -> None:
        self.skip = 0
        self.damaged = 0
        """Pages that were left out."""
        self._buffer = bytearray()
        self._packet = bytearray()
        self._broken = True
        self._headers = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The packets that are now complete.

        MalformedDataError for what is no Opus of one or two channels, and for a packet that is
        too large.
        """
        self._buffer += data
        packets: list[bytes] = []
        while (page := self._next_page()) is not None:
            for packet in self._packets(page):
                if self._headers == 0:
                    self._read_head(packet)
                if self._headers >= 2:
                    packets.append(packet)
                self._headers = min(2, self._headers + 1)
        return packets

    def _next_page(self) -> bytes | None:
        buffer = self._buffer
        while True:
            start = buffer.find(CAPTURE)
            if start < 0:
                del buffer[: max(0, len(buffer) - len(CAPTURE) + 1)]
                return None
            del buffer[:start]
            if len(buffer) < _HEADER.size:
                return None
            segments = buffer[_HEADER.size - 1]
            body = _HEADER.size + segments
            if len(buffer) < body:
                return None
            size = body + sum(buffer[_HEADER.size : body])
            if len(buffer) < size:
                return None
            page = bytes(buffer[:size])
            expected = int.from_bytes(page[22:26], "little")
            if checksum(page[:22] + bytes(4) + page[26:]) == expected:
                del buffer[:size]
                return page
            self.damaged += 1
            self._broken = True
            del buffer[: len(CAPTURE)]

    def _packets(self, page: bytes) -> Iterator[bytes]:
        flags, segments = page[5], page[_HEADER.size - 1]
        if not flags & _CONTINUED:
            self._packet.clear()
            self._broken = False
        elif self._broken:
            self._packet.clear()
        place = _HEADER.size + segments
        for length in page[_HEADER.size : _HEADER.size + segments]:
            self._packet += page[place : place + length]
            place += length
            if len(self._packet) > LARGEST_PACKET:
                raise MalformedDataError(f"an Ogg packet of more than {LARGEST_PACKET} bytes")
            if length < 255:
                if not self._broken:
                    yield bytes(self._packet)
                self._packet.clear()
                self._broken = False

    def _read_head(self, packet: bytes) -> None:
        if len(packet) < _HEAD.size or not packet.startswith(b"OpusHead"):
            raise MalformedDataError("the Ogg stream does not begin with OpusHead")
        _, version, channels, self.skip, _, _, family = _HEAD.unpack_from(packet)
        if version & 0xF0 or family or not 1 <= channels <= 2:
            raise MalformedDataError(f"Opus of {channels} channels, version {version}")


class OggOpusWriter:
    """A stream of one channel; every packet has a page of its own, to be sent at once."""

    def __init__(self, rate: int, serial: int, skip: int = 0) -> None:
        """``rate``: of the original sound, in Hz. ``skip``: see :class:`OggOpusReader`."""
        self._serial = serial
        self._sequence = 0
        self._position = 0
        self._head = _HEAD.pack(b"OpusHead", 1, 1, skip, rate, 0, 0)

    def begin(self) -> bytes:
        """The two pages that come first."""
        vendor = len(_VENDOR).to_bytes(4, "little") + _VENDOR
        tags = b"OpusTags" + vendor + bytes(4)
        return self._page(self._head, _FIRST) + self._page(tags, 0)

    def packet(self, packet: bytes) -> bytes:
        """Its page. MalformedDataError for what is no Opus packet."""
        self._position += packet_ticks(packet)
        return self._page(packet, 0)

    def end(self) -> bytes:
        """The page after the last packet."""
        return self._page(None, _LAST)

    def _page(self, packet: bytes | None, flags: int) -> bytes:
        lacing = b"" if packet is None else bytes([255] * (len(packet) // 255))
        if packet is not None:
            lacing += bytes([len(packet) % 255])
        header = _HEADER.pack(
            CAPTURE, 0, flags, self._position, self._serial, self._sequence, 0, len(lacing)
        )
        self._sequence += 1
        page = header + lacing + (packet or b"")
        return page[:22] + checksum(page).to_bytes(4, "little") + page[26:]
