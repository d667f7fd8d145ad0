"""Boxes, and rows of a detector's output."""

import numpy as np
import pytest

from duologue.models.object_detector import LABELS, Box, ObjectDetector, things
from duologue.models.vision import WEIGHTS

CUP, DOG = LABELS.index("cup"), LABELS.index("dog")


def rows(*values):
    return np.array(values, np.float32)


def test_boxes_overlap_by_their_common_part():
    box = Box(0, 0, 0.5, 1)
    assert box.overlap(box) == pytest.approx(1)
    assert box.overlap(Box(0.25, 0, 0.75, 1)) == pytest.approx(1 / 3)
    assert box.overlap(Box(0.6, 0, 1, 1)) == 0
    assert box.holds(Box(0.2, 0.4, 0.4, 0.6)) and not box.holds(Box(0.5, 0, 0.9, 1))


def test_the_best_comes_first_and_what_is_unsure_is_left_out():
    found = things(
        rows([0, 0, 64, 64, 0.4, DOG], [128, 0, 256, 256, 0.8, CUP], [0, 0, 1, 1, 0.1, 0]), 0.3
    )
    assert [(thing.label, round(thing.score, 1)) for thing in found] == [("cup", 0.8), ("dog", 0.4)]
    assert found[0].box == Box(0.25, 0, 0.5, 0.5)


def test_one_thing_is_found_once():
    same = rows([0, 0, 256, 256, 0.8, CUP], [4, 4, 250, 250, 0.7, CUP], [4, 4, 250, 250, 0.6, DOG])
    assert [thing.label for thing in things(same, 0.3)] == ["cup", "dog"]


def test_rows_that_mean_nothing_are_left_out():
    nonsense = rows([0, 0, 9, 9, np.nan, CUP], [0, 0, 9, 9, 0.9, -1], [0, 0, 9, 9, 0.9, 80])
    assert things(nonsense, 0.3) == []


def test_another_graph_is_refused():
    with pytest.raises(ValueError, match="inputs"):
        ObjectDetector(WEIGHTS / "emotion.onnx")
