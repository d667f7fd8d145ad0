"""Opus in Ogg, as a stream that begins at its beginning: RFC 3533 (Ogg) and RFC 7845 (Opus in it).

One logical stream, one channel. Pages that are damaged are left out, as the RFC wants it.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final

from duologue.codecs.media import MalformedDataError
from duologue.codecs.opus import packet_ticks

CAPTURE: Final = b"OggS"
LARGEST_PACKET: Final = 2**20
"""Bytes. The tags come with pictures at times; a packet of sound is never so large."""
MOST_DAMAGED: Final = 64
"""Pages of a stream. Each costs a checksum, and what is no stream may look like pages all over."""

_HEADER: Final = struct.Struct("<4sBBqIIIB")
_CONTINUED, _FIRST, _LAST = 1, 2, 4
_HEAD: Final = struct.Struct("<8sBBHIhB")
_VENDOR: Final = b"duologue"


_MIRRORED: Final = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_ONES: Final = 0xFFFFFFFF


def checksum(page: bytes) -> int:
    """Of a page whose own checksum is zeros (RFC 3533, section 6, field 7).

    It is the polynomial of zlib's CRC, which takes the bits of each byte the other way round, and
    begins and ends with ones.
    """
    remainder = zlib.crc32(page.translate(_MIRRORED), _ONES) ^ _ONES
    return int.from_bytes(remainder.to_bytes(4, "little").translate(_MIRRORED), "big")


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

        MalformedDataError for what is no Opus of one or two channels, for a packet that is too
        large, and for more than MOST_DAMAGED damaged pages.
        """
        self._buffer += data
        packets: list[bytes] = []
        for page in self._whole_pages():
            for packet in self._packets(page):
                if self._headers == 0:
                    self._read_head(packet)
                if self._headers >= 2:
                    packets.append(packet)
                self._headers = min(2, self._headers + 1)
        return packets

    def _whole_pages(self) -> Iterator[bytes]:
        """The pages that are now complete, without their checksums."""
        buffer, start = bytes(self._buffer), 0
        while (start := buffer.find(CAPTURE, start)) >= 0:
            body = start + _HEADER.size
            if len(buffer) < body:
                break
            body += buffer[body - 1]
            end = body + sum(buffer[start + _HEADER.size : body])
            if len(buffer) < end:
                break
            expected = int.from_bytes(buffer[start + 22 : start + 26], "little")
            blank = buffer[start : start + 22] + bytes(4) + buffer[start + 26 : end]
            if checksum(blank) == expected:
                yield blank
                start = end
                continue
            self.damaged += 1
            if self.damaged > MOST_DAMAGED:
                raise MalformedDataError(f"more than {MOST_DAMAGED} damaged pages")
            self._broken = True
            start += len(CAPTURE)
        if start < 0:
            start = max(0, len(buffer) - len(CAPTURE) + 1)
        del self._buffer[:start]

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
