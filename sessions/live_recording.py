"""A Live session as a recording: what the user said on the left, what the user heard on the right.

Int16 at 24 kHz, in memory and bounded; what is said after the bound is not kept.
"""

from collections.abc import Iterator

import numpy as np

from duologue.codecs.media import Int16Samples
from duologue.codecs.pcm import bytes_from_int16
from duologue.codecs.wav import WavEncoding, WavFormat, wav_header
from duologue.sessions.live_mixer import RATE, SAMPLES_PER_MS

BLOCK = 10 * RATE
"""Samples by which it grows."""
_FRAME_BYTES = 4
_PIECE_FRAMES = BLOCK // 10


class LiveRecording:
    """At most ``seconds`` of a session's timeline."""

    def __init__(self, seconds: float) -> None:
        self._most = int(seconds * RATE)
        self._blocks: list[Int16Samples] = []
        self._length = 0
        self._heard = 0

    @property
    def seconds(self) -> float:
        return self._length / RATE

    def heard(self, samples: Int16Samples, now_ms: int) -> None:
        """The user's sound has come: it ends now, or where what came before it ends."""
        start = max(self._heard, now_ms * SAMPLES_PER_MS - len(samples))
        self._heard = start + len(samples)
        self._write(0, start, samples)

    def said(self, samples: Int16Samples, start_ms: int) -> None:
        """A frame of output."""
        self._write(1, start_ms * SAMPLES_PER_MS, samples)

    def _write(self, channel: int, start: int, samples: Int16Samples) -> None:
        samples = samples[: max(0, self._most - start)]
        while len(samples):
            index, offset = divmod(start, BLOCK)
            while len(self._blocks) <= index:
                self._blocks.append(np.zeros((BLOCK, 2), np.int16))
            part = samples[: BLOCK - offset]
            self._blocks[index][offset : offset + len(part), channel] = part
            start += len(part)
            samples = samples[len(part) :]
            self._length = max(self._length, start)

    def wav(self) -> tuple[int, Iterator[bytes]]:
        """What there is of it by now as a WAV file: its size in bytes, and its pieces, which take
        no memory before they are asked for."""
        size = self._length * _FRAME_BYTES
        header = wav_header(WavFormat(WavEncoding.PCM16, RATE, 2), size)
        return len(header) + size, self._pieces(header, size)

    def _pieces(self, header: bytes, size: int) -> Iterator[bytes]:
        yield header
        for start in range(0, size, _PIECE_FRAMES * _FRAME_BYTES):
            index, offset = divmod(start // _FRAME_BYTES, BLOCK)
            piece = self._blocks[index][offset : offset + _PIECE_FRAMES].reshape(-1)
            yield bytes_from_int16(piece)[: size - start]
