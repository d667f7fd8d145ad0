"""What a face expresses."""

from pathlib import Path

import numpy as np
import pytest

from duologue.codecs.picture import decode_picture
from duologue.models.face_emotion import FaceEmotion, cut
from duologue.models.object_detector import Box
from duologue.models.vision import WEIGHTS

PICTURE = Path(__file__).parent.parent / "data" / "pictures" / "astronaut.jpg"


def test_a_smile_is_happy():
    pixels = decode_picture(PICTURE.read_bytes())
    emotion, probability = FaceEmotion(WEIGHTS / "emotion.onnx").read(
        pixels, Box(0.33, 0.14, 0.54, 0.35)
    )
    assert emotion == "happy"
    assert probability > 0.9


@pytest.mark.parametrize("box", [Box(0, 0, 1, 1), Box(1, 1, 1, 1), Box(0.5, 0.5, 0.5, 0.5)])
def test_a_cut_is_never_empty(box):
    part = cut(np.zeros((9, 9, 3), np.uint8), box)
    assert min(part.shape) >= 1
