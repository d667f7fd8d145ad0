"""RIFF WAVE files.

Sources: Multimedia Programming Interface and Data Specifications 1.0 (IBM and Microsoft, 1991),
chapters 2 and 3; Microsoft's WAVEFORMATEXTENSIBLE. Read and written are PCM of 8, 16, 24 and 32
bits, float32, A-law and mu-law, with one format chunk or the extensible one; float64 is read too.

Files lie, and those of a live writer were never finished, so sizes are believed only as far as
there are bytes. Given back with what is there: a data chunk longer than the file or cut within a
frame (`truncated`), a data chunk of unknown length (0xffffffff, or 0 where the RIFF size is unknown
too), any RIFF size, a missing pad byte at the end, any chunk of a kind not needed, in any order.
MalformedDataError: no RIFF and WAVE at the start, no format chunk or none before the data, no
data chunk, a format that is short, unknown or contradicts itself.
"""

import enum
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Self, cast

import numpy as np
from numpy.typing import NDArray

from duologue.codecs.g711 import decode_alaw, decode_mulaw, encode_alaw, encode_mulaw
from duologue.codecs.media import (
    AudioChunk,
    Float32Samples,
    Int16Samples,
    MalformedDataError,
    MediaTime,
    MediaValueError,
    Samples,
)
from duologue.codecs.pcm import bytes_from_int16, int16_from_bytes, to_float, to_int16

UNKNOWN_SIZE = 0xFFFFFFFF
MAX_CHANNELS = 64
MAX_DATA_BYTES = 0xFFFFFFFF - 128
"""A RIFF size counts the header too, in 32 bits, and all bits set means unknown."""

_EXTENSIBLE = 0xFFFE
_EXTENSIBLE_BYTES = 40
_GUID_TAIL = bytes.fromhex("000000001000800000aa00389b71")
_RIFF_SIZE_AT = 4


class WavEncoding(enum.Enum):
    """(format tag, bits a sample)"""

    PCM8 = (1, 8)
    PCM16 = (1, 16)
    PCM24 = (1, 24)
    PCM32 = (1, 32)
    FLOAT32 = (3, 32)
    FLOAT64 = (3, 64)
    ALAW = (6, 8)
    MULAW = (7, 8)

    @property
    def sample_bytes(self) -> int:
        return self.value[1] // 8


@dataclass(frozen=True, slots=True)
class WavFormat:
    """Of a file: `rate` frames a second, each of `channels` samples."""

    encoding: WavEncoding
    rate: int
    channels: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.channels <= MAX_CHANNELS:
            raise MediaValueError(f"a file has 1 to {MAX_CHANNELS} channels, not {self.channels}")
        if not 1 <= self.rate <= 0xFFFFFFFF // self.frame_bytes:
            raise MediaValueError(f"a file cannot have the rate {self.rate}")

    @property
    def frame_bytes(self) -> int:
        return self.encoding.sample_bytes * self.channels


@dataclass(frozen=True, slots=True, eq=False)
class WavAudio:
    """What a file holds: `samples` of shape (frames, channels).

    int16 for 8 and 16 bits and for G.711 (exact); float32 for PCM of 24 (exact) and 32 bits
    (rounded, so up to 1) and for the float encodings (as stored). `truncated`: the file ends before
    the length it states, or within a frame.
    """

    samples: Samples
    format: WavFormat
    truncated: bool

    def mono(self) -> AudioChunk:
        """From position 0; several channels are averaged, int16 rounding half to even."""
        start = MediaTime(0, self.format.rate)
        if self.format.channels == 1:
            return AudioChunk(self.samples[:, 0], self.format.rate, start)
        mean = self.samples.mean(axis=1, dtype=np.float64)
        if self.samples.dtype == np.int16:
            mean = np.rint(mean)
        return AudioChunk(mean.astype(self.samples.dtype), self.format.rate, start)


def read_wav(data: bytes) -> WavAudio:
    """The sound of a whole file in memory. What is refused, the module says."""
    if len(data) < 12 or data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise MalformedDataError("not a RIFF WAVE file")
    (riff_size,) = struct.unpack_from("<I", data, _RIFF_SIZE_AT)
    layout: WavFormat | None = None
    at = 12
    while at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        at += 8
        if name == b"fmt ":
            layout = _parse_format(data[at : at + size])
        elif name == b"data":
            if layout is None:
                raise MalformedDataError("the data come before their format")
            if size == 0 and riff_size in (0, UNKNOWN_SIZE):
                size = UNKNOWN_SIZE
            return _parse_data(memoryview(data)[at : at + size], size, layout)
        at += size + size % 2
    raise MalformedDataError("no format chunk" if layout is None else "no data chunk")


def write_wav(chunk: AudioChunk, encoding: WavEncoding = WavEncoding.PCM16) -> bytes:
    """A whole mono file. MediaValueError for FLOAT64 or more than 4 GiB."""
    layout = WavFormat(encoding, chunk.rate)
    _check_writable(layout)
    data = _ENCODERS[encoding](chunk.samples)
    header = wav_header(layout, len(data))
    return header + data + bytes(len(data) % 2)


def wav_header(layout: WavFormat, data_bytes: int | None, *, extensible: bool = False) -> bytes:
    """All that comes before the samples; `data_bytes` None where their length is not known yet.

    MediaValueError for FLOAT64, a part of a frame, or more than MAX_DATA_BYTES.
    """
    _check_writable(layout)
    if data_bytes is not None and not 0 <= data_bytes <= MAX_DATA_BYTES:
        raise MediaValueError(f"a file cannot hold {data_bytes} bytes of sound")
    if data_bytes is not None and data_bytes % layout.frame_bytes:
        raise MediaValueError(f"{data_bytes} bytes are not whole frames")
    chunks = _format_chunk(layout, extensible)
    if layout.encoding.value[0] != 1:
        frames = UNKNOWN_SIZE if data_bytes is None else data_bytes // layout.frame_bytes
        chunks += struct.pack("<4sII", b"fact", 4, frames)
    riff_size = data_size = UNKNOWN_SIZE
    if data_bytes is not None:
        data_size = data_bytes
        riff_size = 4 + len(chunks) + 8 + data_bytes + data_bytes % 2
    return b"".join(
        (
            struct.pack("<4sI4s", b"RIFF", riff_size, b"WAVE"),
            chunks,
            struct.pack("<4sI", b"data", data_size),
        )
    )


class WavWriter:
    """Writes a file as the sound comes; usable in a `with` statement.

    The header says that the length is unknown until `close`, which corrects it where the stream
    can seek. The stream stays open.
    """

    def __init__(self, stream: BinaryIO, layout: WavFormat, *, extensible: bool = False) -> None:
        self._stream = stream
        self._layout = layout
        self._extensible = extensible
        self._written = 0
        self._closed = False
        self._origin = stream.tell() if stream.seekable() else None
        stream.write(wav_header(layout, None, extensible=extensible))

    @property
    def frames(self) -> int:
        """Written so far."""
        return self._written // self._layout.frame_bytes

    def write(self, samples: Samples) -> None:
        """Shape (n,) for one channel or (n, channels). MediaValueError for another shape, beyond
        MAX_DATA_BYTES, and after `close`."""
        channels = 1 if samples.ndim == 1 else samples.shape[-1]
        if samples.ndim not in (1, 2) or channels != self._layout.channels:
            raise MediaValueError(f"{samples.shape} in a file of {self._layout.channels} channels")
        if self._closed:
            raise MediaValueError("the file is closed")
        data = _ENCODERS[self._layout.encoding](samples.reshape(-1))
        if self._written + len(data) > MAX_DATA_BYTES:
            raise MediaValueError("the file is full")
        self._stream.write(data)
        self._written += len(data)

    def close(self) -> None:
        """Pad the data and, where the stream can seek, state their length. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._stream.write(bytes(self._written % 2))
        if self._origin is not None:
            end = self._stream.tell()
            self._stream.seek(self._origin)
            self._stream.write(wav_header(self._layout, self._written, extensible=self._extensible))
            self._stream.seek(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _parse_format(chunk: bytes) -> WavFormat:
    if len(chunk) < 16:
        raise MalformedDataError(f"a format chunk of {len(chunk)} bytes")
    tag, channels, rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == _EXTENSIBLE:
        if len(chunk) < _EXTENSIBLE_BYTES:
            raise MalformedDataError(f"an extensible format chunk of {len(chunk)} bytes")
        (tag,) = struct.unpack_from("<H", chunk, 24)
        if chunk[26:40] != _GUID_TAIL:
            raise MalformedDataError("a format known by no number")
    try:
        layout = WavFormat(WavEncoding((tag, bits)), rate, channels)
    except ValueError as error:
        raise MalformedDataError(
            f"format {tag} of {bits} bits, {channels} channels and {rate} Hz"
        ) from error
    if frame_bytes != layout.frame_bytes:
        raise MalformedDataError(f"frames of {frame_bytes} bytes, not {layout.frame_bytes}")
    return layout


def _parse_data(data: memoryview, size: int, layout: WavFormat) -> WavAudio:
    frames = len(data) // layout.frame_bytes
    whole = frames * layout.frame_bytes
    truncated = whole != len(data) if size == UNKNOWN_SIZE else whole != size
    samples = _DECODERS[layout.encoding](data[:whole])
    return WavAudio(samples.reshape(frames, layout.channels), layout, truncated)


def _check_writable(layout: WavFormat) -> None:
    if layout.encoding not in _ENCODERS:
        raise MediaValueError(f"{layout.encoding.name} is read only")


def _format_chunk(layout: WavFormat, extensible: bool) -> bytes:
    tag, bits = layout.encoding.value
    fields = struct.pack(
        "<HIIHH",
        layout.channels,
        layout.rate,
        layout.rate * layout.frame_bytes,
        layout.frame_bytes,
        bits,
    )
    if extensible:
        # 22 more bytes: valid bits, no speaker positions, the format as a GUID.
        more = struct.pack("<HHIH", 22, bits, 0, tag) + _GUID_TAIL
        tag = _EXTENSIBLE
    else:
        more = b"" if tag == 1 else struct.pack("<H", 0)
    body = struct.pack("<H", tag) + fields + more
    return struct.pack("<4sI", b"fmt ", len(body)) + body


def _float_from_int32(words: NDArray[np.int32]) -> Float32Samples:
    return (words * 2.0**-31).astype(np.float32)


def _int_from_float(samples: Samples, bits: int) -> NDArray[np.int32]:
    scale = 2.0 ** (bits - 1)
    values = np.rint(np.nan_to_num(to_float(samples).astype(np.float64) * scale))
    return np.clip(values, -scale, scale - 1).astype("<i4")


def _decode_pcm8(data: memoryview) -> Int16Samples:
    centred = np.frombuffer(data, np.uint8).astype(np.int16) - np.int16(128)
    return cast(Int16Samples, centred << 8)


def _decode_pcm16(data: memoryview) -> Int16Samples:
    return int16_from_bytes(data).copy()


def _decode_pcm24(data: memoryview) -> Float32Samples:
    words = np.zeros((len(data) // 3, 4), np.uint8)
    words[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
    return _float_from_int32(words.reshape(-1).view("<i4"))


def _decode_pcm32(data: memoryview) -> Float32Samples:
    return _float_from_int32(np.frombuffer(data, "<i4"))


def _decode_float32(data: memoryview) -> Float32Samples:
    return np.frombuffer(data, "<f4").astype(np.float32)


def _decode_float64(data: memoryview) -> Float32Samples:
    # Beyond float32's range becomes infinite, which later conversions saturate.
    with np.errstate(over="ignore"):
        return np.frombuffer(data, "<f8").astype(np.float32)


def _encode_pcm8(samples: Samples) -> bytes:
    # To the nearest of 256 levels, half to even, the topmost saturating.
    levels: NDArray[np.float64] = np.rint(to_int16(samples) / 256) + 128
    return np.clip(levels, 0, 255).astype(np.uint8).tobytes()


def _encode_pcm24(samples: Samples) -> bytes:
    words = np.frombuffer(_int_from_float(samples, 24).tobytes(), np.uint8).reshape(-1, 4)
    return words[:, :3].tobytes()


_DECODERS: dict[WavEncoding, Callable[[memoryview], Samples]] = {
    WavEncoding.PCM8: _decode_pcm8,
    WavEncoding.PCM16: _decode_pcm16,
    WavEncoding.PCM24: _decode_pcm24,
    WavEncoding.PCM32: _decode_pcm32,
    WavEncoding.FLOAT32: _decode_float32,
    WavEncoding.FLOAT64: _decode_float64,
    WavEncoding.ALAW: decode_alaw,
    WavEncoding.MULAW: decode_mulaw,
}

_ENCODERS: dict[WavEncoding, Callable[[Samples], bytes]] = {
    WavEncoding.PCM8: _encode_pcm8,
    WavEncoding.PCM16: lambda samples: bytes_from_int16(to_int16(samples)),
    WavEncoding.PCM24: _encode_pcm24,
    WavEncoding.PCM32: lambda samples: _int_from_float(samples, 32).tobytes(),
    WavEncoding.FLOAT32: lambda samples: to_float(samples).astype("<f4").tobytes(),
    WavEncoding.ALAW: lambda samples: encode_alaw(to_int16(samples)),
    WavEncoding.MULAW: lambda samples: encode_mulaw(to_int16(samples)),
}
"""Of all encodings that are written."""
