"""G.711 against the Recommendation's own tables, in forms the module does not use."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from duologue.codecs import g711
from duologue.codecs.media import MediaValueError

ALL_CODES = bytes(range(256))
ALL_SAMPLES = np.arange(-32768, 32768).astype(np.int16)

# Tables 1a and 2a: the last decision value of each segment.
ALAW_SEGMENTS = [64, 128, 256, 512, 1024, 2048, 4096]
MULAW_SEGMENTS = [31, 95, 223, 479, 991, 2015, 4063, 8159]

# Tables 1a and 2a: some decoder output values, by the number of the interval (from 1).
ALAW_OUTPUTS = {1: 1, 17: 33, 33: 66, 49: 132, 65: 264, 81: 528, 97: 1056, 113: 2112, 128: 4032}
MULAW_OUTPUTS = {1: 0, 2: 2, 17: 33, 33: 99, 49: 231, 65: 495, 81: 1023, 97: 2079, 113: 4191}


def mulaw_by_bits(sample: int) -> int:
    """The segment is the highest bit of the biased magnitude, the interval the four below it."""
    sign, magnitude = (0x80, sample) if sample >= 0 else (0, ~sample)
    biased = min((magnitude >> 2) + 33, 0x1FFF)
    segment = biased.bit_length() - 6
    return sign | (0x7F ^ (segment << 4 | (biased >> (segment + 1)) & 0xF))


def alaw_by_bits(sample: int) -> int:
    sign, magnitude = (0x80, sample) if sample >= 0 else (0, ~sample)
    magnitude >>= 4
    segment = max(magnitude.bit_length() - 4, 0)
    interval = magnitude >> max(segment - 1, 0) & 0xF
    return (sign | segment << 4 | interval) ^ 0x55


def mulaw_value(code: int) -> int:
    code ^= 0xFF
    magnitude = ((2 * (code & 0xF) + 33) << (code >> 4 & 7)) - 33
    return 4 * (-magnitude if code & 0x80 else magnitude)


def alaw_value(code: int) -> int:
    code ^= 0x55
    segment, interval = code >> 4 & 7, 2 * (code & 0xF) + 1
    magnitude = interval if segment == 0 else (interval + 32) << (segment - 1)
    return 8 * (magnitude if code & 0x80 else -magnitude)


@pytest.mark.parametrize(
    "encode, formula", [(g711.encode_mulaw, mulaw_by_bits), (g711.encode_alaw, alaw_by_bits)]
)
def test_every_sample_has_the_code_that_the_bit_formula_gives(
    encode: Callable[[Any], bytes], formula: Callable[[int], int]
) -> None:
    assert encode(ALL_SAMPLES) == bytes(formula(sample) for sample in ALL_SAMPLES.tolist())


@pytest.mark.parametrize(
    "decode, formula", [(g711.decode_mulaw, mulaw_value), (g711.decode_alaw, alaw_value)]
)
def test_every_code_has_the_value_that_the_formula_gives(
    decode: Callable[[bytes], Any], formula: Callable[[int], int]
) -> None:
    samples = decode(ALL_CODES)
    assert samples.dtype == np.int16
    assert samples.tolist() == [formula(code) for code in range(256)]


def test_the_outputs_are_those_printed_in_the_recommendation() -> None:
    mulaw = sorted({abs(value) // 4 for value in g711.decode_mulaw(ALL_CODES).tolist()})
    alaw = sorted({abs(value) // 8 for value in g711.decode_alaw(ALL_CODES).tolist()})
    assert {number: mulaw[number - 1] for number in MULAW_OUTPUTS} == MULAW_OUTPUTS
    assert {number: alaw[number - 1] for number in ALAW_OUTPUTS} == ALAW_OUTPUTS
    assert mulaw[-1] == 8031


def test_segments_end_where_the_recommendation_says() -> None:
    for encode, ends, scale in (
        (g711.encode_mulaw, MULAW_SEGMENTS[:-1], 4),
        (g711.encode_alaw, ALAW_SEGMENTS[:-1], 8),
    ):
        for end in ends:
            below, above = encode(np.array([end * scale - 1, end * scale], np.int16))
            assert below != above
            assert encode(np.array([end * scale - 2], np.int16))[0] == below


@pytest.mark.parametrize(
    "encode, code, sample",
    [
        (g711.encode_mulaw, 0xFF, 0),
        (g711.encode_mulaw, 0x80, 32767),
        (g711.encode_mulaw, 0x00, -32768),
        (g711.encode_mulaw, 0x7F, -1),
        (g711.encode_alaw, 0xD5, 0),
        (g711.encode_alaw, 0xAA, 32767),
        (g711.encode_alaw, 0x2A, -32768),
        (g711.encode_alaw, 0x55, -1),
    ],
)
def test_the_ends_and_the_middle_have_their_known_codes(
    encode: Callable[[Any], bytes], code: int, sample: int
) -> None:
    assert encode(np.array([sample], np.int16)) == bytes([code])


def test_every_alaw_code_survives() -> None:
    assert g711.encode_alaw(g711.decode_alaw(ALL_CODES)) == ALL_CODES


def test_every_mulaw_code_but_negative_zero_survives() -> None:
    again = g711.encode_mulaw(g711.decode_mulaw(ALL_CODES))
    assert again == ALL_CODES.replace(b"\x7f", b"\xff")


@pytest.mark.parametrize(
    "encode, decode, coarsest",
    [
        (g711.encode_mulaw, g711.decode_mulaw, 644),
        (g711.encode_alaw, g711.decode_alaw, 512),
    ],
)
def test_a_louder_sample_never_decodes_quieter(
    encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], coarsest: int
) -> None:
    decoded = decode(encode(ALL_SAMPLES)).astype(np.int32)
    assert np.all(np.diff(decoded) >= 0)
    error = np.abs(decoded - ALL_SAMPLES)
    assert error.max() <= coarsest
    # Half of the widest interval that a sample of this size can be in.
    assert np.all(error <= np.abs(ALL_SAMPLES.astype(np.int32)) / 16 + 8)


@pytest.mark.parametrize(
    "decode, silence",
    [(g711.decode_mulaw, g711.MULAW_SILENCE), (g711.decode_alaw, g711.ALAW_SILENCE)],
)
def test_silence_is_the_positive_code_nearest_to_zero(
    decode: Callable[[bytes], Any], silence: int
) -> None:
    assert decode(bytes([silence]))[0] == min(v for v in decode(ALL_CODES).tolist() if v >= 0)


@pytest.mark.parametrize("encode", [g711.encode_mulaw, g711.encode_alaw])
@pytest.mark.parametrize("dtype", [np.float32, np.uint16, np.int32])
def test_only_int16_is_encoded(encode: Callable[[Any], bytes], dtype: Any) -> None:
    with pytest.raises(MediaValueError, match="int16"):
        encode(np.zeros(3, dtype))


@given(st.binary(max_size=300))
def test_any_bytes_decode_and_any_kind_of_bytes(data: bytes) -> None:
    for decode in (g711.decode_mulaw, g711.decode_alaw):
        samples = decode(data)
        assert len(samples) == len(data)
        assert np.array_equal(decode(bytearray(data)), samples)
        assert np.array_equal(decode(memoryview(data)), samples)


def test_samples_need_not_lie_one_after_the_other() -> None:
    assert g711.encode_alaw(ALL_SAMPLES[::-7]) == g711.encode_alaw(ALL_SAMPLES[::-7].copy())
    assert g711.encode_mulaw(ALL_SAMPLES[::2]) == g711.encode_mulaw(ALL_SAMPLES)[::2]
