"""Where a client's sound comes from and where it goes: files and the machine's own devices.

All of it is 24 kHz, mono, signed 16-bit little-endian, in pieces of 20 ms.
"""

import queue
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Protocol, Self, cast

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import numpy as np

from duologue.codecs.media import CodecError, Int16Samples
from duologue.codecs.pcm import bytes_from_int16, int16_from_bytes, to_int16
from duologue.codecs.resample import Resampler
from duologue.codecs.wav import WavEncoding, WavFormat, WavWriter, read_wav
from duologue.realtime.client_playout import RATE, TICK_BYTES, TICK_MS

QUEUED = 50
"""Pieces of a microphone that may wait: a second. What is more is dropped, and counted."""


class SoundError(Exception):
    """A file or device can't be used; the message says why."""


class Source(Protocol):
    """Gives a piece every 20 ms, at the pace of the clock, until it ends."""

    def pieces(self) -> AsyncIterator[bytes]: ...


class Sink(Protocol):
    """Takes a piece every 20 ms; never waits."""

    def write(self, pcm: bytes) -> None: ...

    def flush(self) -> None:
        """Play nothing more of what was written."""


class Nowhere:
    """A sink for who does not listen."""

    def write(self, pcm: bytes) -> None: ...

    def flush(self) -> None: ...


class FileSource:
    """Speech as if it were being said now, with silence behind it.

    ``samples``: at 24 kHz; ``patience_s``: seconds of silence that follow.
    """

    def __init__(self, samples: Int16Samples, patience_s: float = 1.0) -> None:
        self._samples = samples
        self._silent = int(patience_s * 1000 / TICK_MS)

    @classmethod
    async def open(cls, path: Path, patience_s: float = 1.0) -> Self:
        """A WAV file. Raises SoundError."""
        return cls(await anyio.to_thread.run_sync(_read, path), patience_s)

    @property
    def seconds(self) -> float:
        """Of speech."""
        return len(self._samples) / RATE

    async def pieces(self) -> AsyncIterator[bytes]:
        pcm = bytes_from_int16(self._samples)
        due = anyio.current_time()
        for start in range(0, len(pcm) + self._silent * TICK_BYTES, TICK_BYTES):
            yield pcm[start : start + TICK_BYTES].ljust(TICK_BYTES, b"\0")
            due += TICK_MS / 1000
            await anyio.sleep_until(due)


class FileSink:
    """Everything that is heard, in real time, as a WAV file. A thread writes it: disks may stall.

    A minute may wait for the disk; what is more is dropped, and counted.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.failed: OSError | None = None
        """Why nothing more is written."""
        self._waiting: queue.Queue[bytes | None] = queue.Queue(60_000 // TICK_MS)
        self._thread = threading.Thread(target=self._write, name="file sink", daemon=True)
        self._thread.start()
        self.dropped = 0

    def write(self, pcm: bytes) -> None:
        try:
            self._waiting.put_nowait(pcm)
        except queue.Full:
            self.dropped += 1

    def flush(self) -> None:
        """Nothing: what was written was heard."""

    def close(self) -> None:
        """Blocks until all is written."""
        self._waiting.put(None)
        self._thread.join()

    def _write(self) -> None:
        try:
            with (
                self._stream,
                WavWriter(self._stream, WavFormat(WavEncoding.PCM16, RATE, 1)) as writer,
            ):
                while (pcm := self._waiting.get()) is not None:
                    writer.write(int16_from_bytes(pcm))
        except OSError as error:
            self.failed = error
            while self._waiting.get() is not None:
                self.dropped += 1


@asynccontextmanager
async def file_sink(path: Path) -> AsyncIterator[FileSink]:
    """Raises SoundError."""
    try:
        stream = await anyio.to_thread.run_sync(path.open, "wb")
    except OSError as error:
        raise SoundError(f"{path}: {error.strerror}") from None
    sink = FileSink(cast(BinaryIO, stream))
    try:
        yield sink
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(sink.close)
    if sink.failed is not None:
        raise SoundError(f"{path}: {sink.failed.strerror}")


class Microphone:
    """The machine's microphone. Needs ``duologue[talk]``."""

    def __init__(self, device: str | None = None) -> None:
        """``device``: a name or part of one; ``None``: the usual one. Raises SoundError."""
        self._devices = _devices()
        self._device = device
        self.dropped = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        send, receive = anyio.create_memory_object_stream[bytes](QUEUED)
        token = anyio.lowlevel.current_token()

        def hear(data: Any, frames: int, time: Any, status: Any) -> None:
            anyio.from_thread.run_sync(self._put, send, bytes(data), token=token)

        try:
            stream = self._devices.RawInputStream(
                samplerate=RATE,
                blocksize=TICK_BYTES // 2,
                channels=1,
                dtype="int16",
                device=self._device,
                callback=hear,
            )
        except Exception as error:  # PortAudio's own, which can't be imported without it
            raise SoundError(f"the microphone can't be used: {error}") from None
        with send, receive:
            stream.start()
            try:
                async for piece in receive:
                    yield piece
            finally:
                await anyio.to_thread.run_sync(stream.abort, abandon_on_cancel=True)
                stream.close()

    def _put(self, send: Any, piece: bytes) -> None:
        try:
            send.send_nowait(piece)
        except anyio.WouldBlock:
            self.dropped += 1


class Loudspeaker:
    """The machine's loudspeaker. Needs ``duologue[talk]``."""

    def __init__(self, device: str | None = None) -> None:
        """``device``: a name or part of one; ``None``: the usual one. Raises SoundError."""
        self._waiting = bytearray()
        try:
            self._stream = _devices().RawOutputStream(
                samplerate=RATE,
                blocksize=TICK_BYTES // 2,
                channels=1,
                dtype="int16",
                device=device,
                callback=self._play,
            )
            self._stream.start()
        except SoundError:
            raise
        except Exception as error:  # as above
            raise SoundError(f"the loudspeaker can't be used: {error}") from None

    def write(self, pcm: bytes) -> None:
        # A device whose clock is slower than ours must not fall behind for ever.
        if len(self._waiting) > 10 * TICK_BYTES:
            del self._waiting[:TICK_BYTES]
        self._waiting += pcm

    def flush(self) -> None:
        self._waiting.clear()

    def close(self) -> None:
        self._stream.abort()
        self._stream.close()

    def _play(self, out: Any, frames: int, time: Any, status: Any) -> None:
        size = 2 * frames
        piece = bytes(self._waiting[:size])
        del self._waiting[:size]
        out[:] = piece.ljust(size, b"\0")


def _devices() -> ModuleType:
    try:
        import sounddevice
    except (ImportError, OSError) as error:
        raise SoundError(
            "microphone and loudspeaker need PortAudio and `pip install duologue[talk]` "
            f"({error}); files need neither"
        ) from None
    module: ModuleType = sounddevice
    return module


def _read(path: Path) -> Int16Samples:
    try:
        chunk = read_wav(path.read_bytes()).mono()
    except OSError as error:
        raise SoundError(f"{path}: {error.strerror}") from None
    except CodecError as error:
        raise SoundError(f"{path}: {error}") from None
    return _at_rate(to_int16(chunk.samples), chunk.rate)


def _at_rate(samples: Int16Samples, rate: int) -> Int16Samples:
    if rate == RATE:
        return samples
    resampler = Resampler(rate, RATE, np.int16)
    return np.concatenate([resampler.push(samples), resampler.flush()])
