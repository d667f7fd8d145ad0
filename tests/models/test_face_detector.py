"""Faces, and what they express."""

from pathlib import Path

import numpy as np
import pytest

from duologue.codecs.picture import decode_picture
from duologue.models.face_detector import MOST_FACES, SIZE, FaceDetector, anchors, faces
from duologue.models.vision import WEIGHTS

PICTURE = Path(__file__).parent.parent / "data" / "pictures" / "astronaut.jpg"


@pytest.fixture(scope="module")
def detector():
    return FaceDetector(WEIGHTS / "blazeface.onnx")


@pytest.mark.parametrize("beside", [0, 300])
def test_a_face_is_found_where_it_is(detector, beside):
    pixels = decode_picture(PICTURE.read_bytes())
    wide = np.pad(pixels, ((0, 0), (0, beside), (0, 0)))
    (face,) = detector.detect(wide)
    x = (face.box.left + face.box.right) / 2 * wide.shape[1]
    y = (face.box.top + face.box.bottom) / 2 * wide.shape[0]
    assert (x, y) == (pytest.approx(224, abs=25), pytest.approx(130, abs=25))


def test_boxes_stand_in_the_middles_of_cells():
    middles = anchors()
    assert middles.shape == (896, 2)
    assert middles[0].tolist() == middles[1].tolist() == [8, 8]
    assert middles[2].tolist() == [24, 8]
    assert middles[512].tolist() == [16, 16]


def grid(count, step):
    logits = np.full(count, 9.0, np.float32)
    boxes = np.zeros((count, 16), np.float32)
    boxes[:, 2:4] = 10
    middles = np.array([(20 + step * n % 200, 20 + step * n // 200 * 20) for n in range(count)])
    return logits, boxes, middles.astype(np.float32)


def test_a_face_that_is_found_twice_counts_once():
    assert len(faces(*grid(2, 1), (1, 1))) == 1


def test_there_are_only_so_many_faces():
    assert len(faces(*grid(30, 20), (1, 1))) == MOST_FACES


def test_a_box_ends_with_the_picture():
    logits, boxes, middles = grid(1, 1)
    boxes[0, 2:4] = 4 * SIZE
    (face,) = faces(logits, boxes, middles, (1, 1))
    assert (face.box.left, face.box.bottom) == (0, 1)
