"""Frames: what goes through a stream of bytes between two processes.

A frame is a length (32 bits, big-endian) and a msgpack array of tagged messages.
"""

import struct
from collections import deque
from functools import cache

import msgspec
import msgspec.structs

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
    """A message whose bytes are in the shared memory.

    ``field``: what is there is the value of this field, and ``message`` is the rest, encoded with
    nothing in it. Without a field the whole message is there, encoded.
    """

    offset: int
    size: int
    field: str = ""
    message: bytes = b""


@cache
def bytes_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields of a message that are bytes: sound, pictures."""
    return tuple(field.name for field in msgspec.structs.fields(kind) if field.type is bytes)


class FrameReader:
    """Cuts a stream of bytes into the payloads of its frames."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray) -> list[memoryview]:
        """The payloads that are now complete: without a copy where `data` holds whole frames.

        Raises LaneBroken for a frame over the limit.
        """
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._end(self._buffer, 0):
                return []
            data, self._buffer = self._buffer, bytearray()
        payloads = []
        start, size = 0, len(data)
        view = memoryview(data)
        while (end := self._end(data, start)) <= size:
            payloads.append(view[start + _LENGTH.size : end])
            start = end
        if start < size:
            self._buffer += view[start:]
        return payloads

    def _end(self, data: bytes | bytearray, start: int) -> int:
        """Where the frame ends that begins there, or its length, as far as it is known."""
        if len(data) - start < _LENGTH.size:
            return start + _LENGTH.size
        (size,) = _LENGTH.unpack_from(data, start)
        if size > self._limit:
            raise LaneBroken(f"a frame of {size} bytes; the limit is {self._limit}")
        return start + _LENGTH.size + int(size)


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
        size = self._place(message) if self.memory is not None else 0
        if not size:
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

    def _place(self, message: msgspec.Struct) -> int:
        """Put a message's large field into the memory, which spares it being encoded: copied into
        a buffer that is made for it. The message's size; 0 when it has none or there is no room."""
        for field in bytes_fields(type(message)):
            value = getattr(message, field)
            if self.memory_above < len(value) <= self._limit - _HEADER.size:
                assert self.memory is not None
                offset = self.memory.put(value)
                if offset is None:
                    return 0
                rest = self._encoder.encode(msgspec.structs.replace(message, **{field: b""}))
                placed = Placed(offset, len(value), field, rest)
                self._encoder.encode_into(placed, self._open, -1)
                return len(value) + len(rest)
        return 0

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
