"""Frames: what goes through a stream of bytes between two processes.

A frame is a length (32 bits, big-endian) and a msgpack array of tagged messages.
"""

import struct
from collections import deque

import msgspec

from duologue.engines.shared_memory import OutgoingMemory

_LENGTH = struct.Struct(">I")
_HEADER = struct.Struct(">IBI")
_ARRAY32 = 0xDD
_SEAL_BYTES = 256 * 1024


class LaneBroken(Exception):
    """The connection can't be used any more: closed, stalled, overfull, or not understood."""


class MessageTooLarge(ValueError):
    """One message alone is larger than a frame may be. Nothing was queued."""


class Placed(msgspec.Struct, frozen=True, tag=True):
    """A message whose bytes are in the shared memory."""

    offset: int
    size: int


class FrameReader:
    """Cuts a stream of bytes into the payloads of its frames."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are now complete. Raises LaneBroken for a frame over the limit."""
        buffer = self._buffer
        buffer += data
        payloads = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(buffer, start)
            if size > self._limit:
                raise LaneBroken(f"a frame of {size} bytes; the limit is {self._limit}")
            end = start + _LENGTH.size + size
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:
                payloads.append(bytes(view[start + _LENGTH.size : end]))
            start = end
        if start:
            del buffer[:start]
        return payloads


class FrameWriter:
    """Gathers messages into frames of about 256 KiB; a larger message has a frame of its own."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.memory: OutgoingMemory | None = None
        self.memory_above = limit
        self._encoder = msgspec.msgpack.Encoder()
        self._sealed: deque[bytearray] = deque()
        self._open = bytearray(_HEADER.size)
        self._count = 0
        self._sealed_bytes = 0

    @property
    def queued_bytes(self) -> int:
        return self._sealed_bytes + (len(self._open) if self._count else 0)

    def put(self, message: msgspec.Struct) -> int:
        """Add a message, and say how large it is. Raises MessageTooLarge when no frame could
        hold it."""
        before = len(self._open)
        self._encoder.encode_into(message, self._open, -1)
        size = len(self._open) - before
        if size > self._limit - _HEADER.size:
            del self._open[before:]
            raise MessageTooLarge(f"a {type(message).__name__} of {size} bytes")
        if self.memory is not None and size > self.memory_above:
            with memoryview(self._open) as view, view[before:] as encoded:
                offset = self.memory.put(encoded)
            if offset is not None:
                del self._open[before:]
                self._encoder.encode_into(Placed(offset, size), self._open, -1)
        self._count += 1
        if len(self._open) >= _SEAL_BYTES:
            self._seal()
        return size

    def take(self) -> bytes | bytearray:
        """The next frame; empty when nothing is queued."""
        if not self._sealed:
            if not self._count:
                return b""
            self._seal()
        frame = self._sealed.popleft()
        self._sealed_bytes -= len(frame)
        return frame

    def _seal(self) -> None:
        _HEADER.pack_into(self._open, 0, len(self._open) - _LENGTH.size, _ARRAY32, self._count)
        self._sealed.append(self._open)
        self._sealed_bytes += len(self._open)
        self._open = bytearray(_HEADER.size)
        self._count = 0
