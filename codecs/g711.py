"""G.711: mu-law and A-law, 8 bits a sample, to and from int16, by table.

Source: ITU-T Recommendation G.711 (11/1988), tables 1a/1b (A-law) and 2a/2b (mu-law): positive
magnitudes are cut at the decision values and decoded to the middle of each interval. A-law counts
13 bits and mu-law 14; both are scaled to the top of 16 bits, as in ITU-T G.191's reference
software. As there, a negative sample x is coded with the magnitude of -1 - x, which settles the
samples that lie on a decision value.

decode(encode(decode(code))) is decode(code) for all codes, and encode(decode(code)) is the code,
except mu-law's negative zero 0x7f, which decodes to 0 and so encodes as 0xff.
"""

import numpy as np
from numpy.typing import NDArray

from duologue.codecs.media import Int16Samples, MediaValueError

MULAW_SILENCE = 0xFF
ALAW_SILENCE = 0xD5

_CODES = 128  # of each sign
_MULAW_BITS = 14
_ALAW_BITS = 13


def decode_mulaw(data: bytes | bytearray | memoryview) -> Int16Samples:
    return _MULAW_DECODED[np.frombuffer(data, np.uint8)]


def encode_mulaw(samples: Int16Samples) -> bytes:
    """One byte a sample; MediaValueError unless int16."""
    return _encode(samples, _MULAW_ENCODED)


def decode_alaw(data: bytes | bytearray | memoryview) -> Int16Samples:
    return _ALAW_DECODED[np.frombuffer(data, np.uint8)]


def encode_alaw(samples: Int16Samples) -> bytes:
    """One byte a sample; MediaValueError unless int16."""
    return _encode(samples, _ALAW_ENCODED)


def _encode(samples: Int16Samples, table: NDArray[np.uint8]) -> bytes:
    if samples.dtype != np.int16:
        raise MediaValueError(f"G.711 encodes int16, not {samples.dtype}")
    return table[samples.view(np.uint16)].tobytes()


def _mulaw_decisions() -> NDArray[np.int32]:
    """Table 2a's decision values x(1) to x(129): 0, 1, 3 ... 31, 35 ... 8159."""
    steps = np.repeat(2 << np.arange(8), 16)
    steps[0] = 1  # the interval around zero reaches to both signs
    return np.concatenate(([0], np.cumsum(steps)))


def _alaw_decisions() -> NDArray[np.int32]:
    """Table 1a's decision values x(1) to x(129): 0, 2, 4 ... 64, 68 ... 4096."""
    steps = np.repeat(2 << np.array([0, 0, 1, 2, 3, 4, 5, 6]), 16)
    return np.concatenate(([0], np.cumsum(steps)))


def _tables(
    decisions: NDArray[np.int32], middles: NDArray[np.int32], inversion: int
) -> tuple[Int16Samples, NDArray[np.uint8]]:
    """What each code decodes to, and the code of each sample seen as uint16.

    A code is the sign (0x80 for positive) and the interval's number, exclusive-ored.
    """
    numbers = np.arange(_CODES)
    decoded = np.empty(2 * _CODES, np.int16)
    decoded[(numbers | 0x80) ^ inversion] = middles
    decoded[numbers ^ inversion] = -middles
    samples = np.arange(0x10000).astype(np.uint16).view(np.int16).astype(np.int32)
    magnitudes = np.where(samples < 0, -1 - samples, samples)
    intervals = np.searchsorted(decisions[1:_CODES], magnitudes, side="right")
    encoded = np.where(samples < 0, intervals, intervals | 0x80) ^ inversion
    return decoded, encoded.astype(np.uint8)


def _build_mulaw() -> tuple[Int16Samples, NDArray[np.uint8]]:
    decisions = _mulaw_decisions() << (16 - _MULAW_BITS)
    middles = (decisions[:-1] + decisions[1:]) // 2
    middles[0] = 0
    # 0x7f: all bits but the sign are inverted before transmission.
    return _tables(decisions, middles, 0x7F)


def _build_alaw() -> tuple[Int16Samples, NDArray[np.uint8]]:
    decisions = _alaw_decisions() << (16 - _ALAW_BITS)
    # 0x55: the even bits are inverted before transmission.
    return _tables(decisions, (decisions[:-1] + decisions[1:]) // 2, 0x55)


_MULAW_DECODED, _MULAW_ENCODED = _build_mulaw()
_ALAW_DECODED, _ALAW_ENCODED = _build_alaw()
