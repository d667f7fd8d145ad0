"""A picture in words, by three small networks that come with the package: things and faces."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from duologue.models.face_detector import Face, FaceDetector
from duologue.models.face_emotion import FaceEmotion
from duologue.models.object_detector import Box, ObjectDetector, Thing

WEIGHTS: Final = Path(__file__).parent / "vision_weights"
LEAST: Final = 0.35
"""Score from which a thing is spoken of."""
SURE: Final = 0.8
"""Score from which a face is one even where no person was found: cups have been taken for some."""
PLAIN: Final = 0.45
"""Probability from which an expression is."""
MOST_KINDS: Final = 6
NOTHING: Final = "nothing that could be recognised"
_LEFT, _RIGHT = 0.38, 0.62
"""Of the width: what is left, and what is right of the middle."""
_LARGE = 0.45
"""Of the picture's area: then where it is says nothing."""


@dataclass(frozen=True, slots=True)
class ReadFace:
    """A face and its likeliest expression, "" where none is plain."""

    face: Face
    emotion: str


class Vision:
    """Loads in a quarter of a second and 200 MB. For threads; a picture takes some 40 ms."""

    def __init__(self, weights: Path = WEIGHTS, *, threads: int = 1) -> None:
        self._things = ObjectDetector(weights / "centernet.onnx", threads=threads)
        self._faces = FaceDetector(weights / "blazeface.onnx", threads=threads)
        self._emotion = FaceEmotion(weights / "emotion.onnx")

    def describe(self, pixels: NDArray[np.uint8]) -> str:
        """What is in a picture, in words. ``pixels``: RGB of shape (height, width, 3)."""
        things = self._things.detect(pixels, LEAST)
        people = [thing.box for thing in things if thing.label == "person"]
        faces = []
        for face in self._faces.detect(pixels):
            if face.score < SURE and not any(box.holds(face.box) for box in people):
                continue
            emotion, probability = self._emotion.read(pixels, face.box)
            faces.append(ReadFace(face, emotion if probability >= PLAIN else ""))
        return in_words(things, faces)


def in_words(things: Sequence[Thing], faces: Sequence[ReadFace]) -> str:
    """A list of what is there, people and their faces first, then what is surest."""
    people = [thing for thing in things if thing.label == "person"]
    others = [thing for thing in things if thing.label != "person"]
    parts = _people(people, faces)
    kinds: dict[str, list[Thing]] = {}
    for thing in others:
        kinds.setdefault(thing.label, []).append(thing)
    for label, found in list(kinds.items())[: MOST_KINDS - len(parts)]:
        if len(found) == 1:
            parts.append(f"{_one(label)}{_place(found[0].box)}")
        else:
            parts.append(f"{_number(len(found))} {_plural(label)}")
    return ", ".join(parts) or NOTHING


def _people(people: Sequence[Thing], faces: Sequence[ReadFace]) -> list[str]:
    count = max(len(people), len(faces))
    if not count:
        return []
    moods = [read.emotion for read in faces if read.emotion]
    if count == 1:
        box = people[0].box if people else faces[0].face.box
        mood = f" who looks {moods[0]}" if moods else ""
        return [f"a person{_place(box)}{mood}"]
    looks = f" ({', '.join(f'one looks {mood}' for mood in moods)})" if moods else ""
    return [f"{_number(count)} people{looks}"]


def _place(box: Box) -> str:
    middle = (box.left + box.right) / 2
    if box.area > _LARGE:
        return ""
    if middle < _LEFT:
        return " on the left"
    return " on the right" if middle > _RIGHT else " in the middle"


def _one(label: str) -> str:
    return f"{'an' if label[0] in 'aeiou' else 'a'} {label}"


def _plural(label: str) -> str:
    irregular = {"sheep": "sheep", "knife": "knives", "skis": "skis", "scissors": "scissors"}
    if label in irregular:
        return irregular[label]
    return label + ("es" if label.endswith(("s", "ch", "sh", "x")) else "s")


def _number(count: int) -> str:
    words = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[count - 2] if 2 <= count <= 10 else "many"
