"""Still pictures."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from duologue.codecs.media import MalformedDataError
from duologue.codecs.picture import (
    MOST_BYTES,
    decode_picture,
    encode_jpeg,
    fitted,
    frame_of,
    kind_of,
    resized,
)

JPEG = (Path(__file__).parent.parent / "data" / "pictures" / "coffee.jpg").read_bytes()


def picture(width: int = 64, height: int = 48) -> np.ndarray:
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    return np.stack((x * 255 // width, y * 255 // height, x * 0 + 90), axis=2).astype(np.uint8)


def encoded(codec: str, format: str) -> bytes:
    encoder = av.CodecContext.create(codec, "w")
    encoder.width, encoder.height, encoder.pix_fmt = 64, 48, format
    encoder.time_base = Fraction(1)
    frame = frame_of(picture()).reformat(format=format)
    return b"".join(map(bytes, [*encoder.encode(frame), *encoder.encode(None)]))


def test_a_jpeg_is_what_it_was() -> None:
    pixels = decode_picture(encode_jpeg(frame_of(picture()), 64))
    assert pixels.shape == (48, 64, 3)
    assert np.abs(pixels.astype(int) - picture()).mean() < 6


def test_a_png_is_exactly_what_it_was() -> None:
    assert np.array_equal(decode_picture(encoded("png", "rgb24")), picture())


def test_a_webp_is_read() -> None:
    if "libwebp" not in av.codecs_available:
        pytest.skip("this FFmpeg writes no WebP")
    pixels = decode_picture(encoded("libwebp", "yuv420p"))
    assert pixels.shape == (48, 64, 3)


@pytest.mark.parametrize(
    ("size", "longest", "fit"),
    [
        ((640, 480), 768, (640, 480)),
        ((3840, 2160), 768, (768, 432)),
        ((1080, 1920), 512, (288, 512)),
        ((5000, 3), 512, (512, 2)),
        ((641, 481), 768, (640, 480)),
    ],
)
def test_pictures_are_made_to_fit(size, longest, fit) -> None:
    assert fitted(*size, longest) == fit


def test_a_picture_can_be_pulled_to_any_size() -> None:
    assert resized(picture(), 17, 90).shape == (90, 17, 3)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"#EXTM3U\nfile:///etc/passwd",
        b"ffconcat version 1.0\nfile /etc/passwd",
        b"<svg/>",
        b"GIF89a",
        JPEG[:200],
        b"\x89PNG\r\n\x1a\n" + b"\0" * 40,
        b"\xff\xd8\xff" + bytes(MOST_BYTES),
    ],
)
def test_what_is_no_picture_is_malformed(data) -> None:
    with pytest.raises(MalformedDataError):
        decode_picture(data)


def test_a_picture_that_claims_to_be_huge_is_malformed() -> None:
    at = JPEG.index(b"\xff\xc0") + 5
    with pytest.raises(MalformedDataError):
        decode_picture(JPEG[:at] + b"\xff\xff\xff\xff" + JPEG[at + 4 :])


def test_the_kind_is_told_by_the_first_bytes() -> None:
    assert kind_of(JPEG) == "jpeg"
    with pytest.raises(MalformedDataError):
        kind_of(b"RIFF\0\0\0\0WAVE")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(JPEG) - 1), st.binary(min_size=1, max_size=40))
def test_damage_is_a_picture_or_malformed(at, junk) -> None:
    try:
        assert decode_picture(JPEG[:at] + junk + JPEG[at + len(junk) :]).ndim == 3
    except MalformedDataError:
        pass
