"""Pictures that say which they are."""

import numpy as np
import pytest

from duologue.codecs.picture import decode_picture, encode_jpeg, frame_of, resized
from duologue.codecs.video_pattern import pattern, read_pattern


def luma(number, width=320, height=240):
    data = np.frombuffer(pattern(number, width, height), np.uint8)
    assert len(data) == width * height * 3 // 2
    return data[: width * height].reshape(height, width)


@pytest.mark.parametrize("number", [0, 1, 2, 255, 256, 43_690, 65_535])
@pytest.mark.parametrize("size", [(32, 32), (320, 240), (1280, 720)])
def test_a_picture_says_its_number(number, size):
    assert read_pattern(luma(number, *size)) == number


def test_it_does_so_after_a_codec_and_at_another_size():
    grey = np.repeat(luma(1234)[:, :, None], 3, axis=2)
    spoiled = resized(decode_picture(encode_jpeg(frame_of(grey), 160)), 200, 150)
    assert read_pattern(spoiled[:, :, 1]) == 1234
