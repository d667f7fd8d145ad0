"""Pictures in words."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from duologue.codecs.picture import decode_picture
from duologue.models.face_detector import Face
from duologue.models.object_detector import Box, Thing
from duologue.models.vision import NOTHING, WEIGHTS, ReadFace, Vision, in_words

PICTURES = Path(__file__).parent.parent / "data" / "pictures"


@pytest.fixture(scope="module")
def vision() -> Vision:
    return Vision()


def picture(name: str) -> np.ndarray:
    return decode_picture((PICTURES / f"{name}.jpg").read_bytes())


def thing(label: str, left: float = 0.4, right: float = 0.6) -> Thing:
    return Thing(label, 0.9, Box(left, 0.3, right, 0.7))


def face(emotion: str) -> ReadFace:
    return ReadFace(Face(0.9, Box(0.45, 0.3, 0.55, 0.4)), emotion)


def test_the_networks_are_those_that_are_listed() -> None:
    for line in (WEIGHTS / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((WEIGHTS / name).read_bytes()).hexdigest() == digest


def test_a_smiling_person_is_told_of(vision: Vision) -> None:
    assert vision.describe(picture("astronaut")) == "a person who looks happy"


def test_a_cup_is_no_face(vision: Vision) -> None:
    words = vision.describe(picture("coffee"))
    assert "a cup" in words
    assert "person" not in words


@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 900, 3), (64, 64, 3)])
def test_nothing_is_seen_in_an_empty_picture(vision: Vision, shape: tuple[int, ...]) -> None:
    assert vision.describe(np.zeros(shape, np.uint8)) == NOTHING


@pytest.mark.parametrize(
    ("things", "faces", "words"),
    [
        ([thing("cup", 0.0, 0.2)], [], "a cup on the left"),
        ([thing("apple", 0.8, 1.0)], [], "an apple on the right"),
        ([thing("cup"), thing("cup"), thing("cup")], [], "three cups"),
        ([thing("knife"), thing("knife")], [], "two knives"),
        ([thing("bus")] * 12, [], "many buses"),
        ([thing("cup"), thing("person")], [], "a person in the middle, a cup in the middle"),
        ([], [face("sad")], "a person in the middle who looks sad"),
        ([thing("person")] * 2, [face("happy"), face("")], "two people (one looks happy)"),
        ([thing("person")] * 2, [face("")], "two people"),
    ],
)
def test_what_is_there_is_listed(things, faces, words) -> None:
    assert in_words(things, faces) == words


def test_a_list_does_not_go_on_for_ever() -> None:
    labels = ["person", *"abcdefghijk"]
    assert in_words([thing(label) for label in labels], []).count(",") == 5
