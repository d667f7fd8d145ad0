"""The things in a picture: CenterNet on MobileNetV3, trained on COCO's 80 classes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from duologue.codecs.picture import resized
from duologue.models.onnx_session import open_session, require_inputs

SIZE: Final = 512
INPUT: Final = "tower_0/images:0"
OUTPUT: Final = "tower_0/detections"
MOST_OVERLAP: Final = 0.4
"""Of two boxes of one kind, as intersection over union; beyond, they are one thing."""

LABELS: Final = (
    "person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,"
    "stop sign,parking meter,bench,bird,cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,"
    "backpack,umbrella,handbag,tie,suitcase,frisbee,skis,snowboard,sports ball,kite,baseball bat,"
    "baseball glove,skateboard,surfboard,tennis racket,bottle,wine glass,cup,fork,knife,spoon,bowl,"
    "banana,apple,sandwich,orange,broccoli,carrot,hot dog,pizza,donut,cake,chair,couch,"
    "potted plant,bed,dining table,toilet,tv,laptop,mouse,remote,keyboard,cell phone,microwave,"
    "oven,toaster,sink,refrigerator,book,clock,vase,scissors,teddy bear,hair drier,toothbrush"
).split(",")


@dataclass(frozen=True, slots=True)
class Box:
    """In parts of the picture's width and height: 0 is left and top, 1 right and bottom."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def area(self) -> float:
        return max(0.0, self.right - self.left) * max(0.0, self.bottom - self.top)

    def holds(self, other: "Box") -> bool:
        """Whether the middle of the other one is in this one."""
        x, y = (other.left + other.right) / 2, (other.top + other.bottom) / 2
        return self.left <= x <= self.right and self.top <= y <= self.bottom

    def overlap(self, other: "Box") -> float:
        """Intersection over union: 0 to 1."""
        common = Box(
            max(self.left, other.left),
            max(self.top, other.top),
            min(self.right, other.right),
            min(self.bottom, other.bottom),
        ).area
        return common / (self.area + other.area - common) if common else 0.0


@dataclass(frozen=True, slots=True)
class Thing:
    """``score``: 0 to 1."""

    label: str
    score: float
    box: Box


class ObjectDetector:
    """For threads: a call takes some 30 ms of one core."""

    def __init__(self, path: Path, *, threads: int = 1) -> None:
        """Raises what :func:`open_session` raises, and ValueError for another graph."""
        self._session = open_session(path, threads=threads)
        require_inputs(self._session, [INPUT], path)

    def detect(self, pixels: NDArray[np.uint8], least: float) -> list[Thing]:
        """Things of a score of at least ``least``, best first. ``pixels``: (height, width, 3)."""
        image = resized(pixels, SIZE, SIZE).astype(np.float32)[None]
        (found,) = self._session.run([OUTPUT], {INPUT: image})
        return things(np.asarray(found, np.float32)[0], least)


def things(rows: NDArray[np.float32], least: float) -> list[Thing]:
    """Rows of left, top, right, bottom (of 512), score and class; the lesser of two boxes of one
    thing is left out."""
    kept: list[Thing] = []
    for left, top, right, bottom, score, kind in rows[np.argsort(-rows[:, 4])].tolist():
        if not score >= least or not 0 <= kind < len(LABELS):
            continue
        box = Box(*(min(1.0, max(0.0, edge / SIZE)) for edge in (left, top, right, bottom)))
        thing = Thing(LABELS[int(kind)], score, box)
        if not any(
            thing.label == other.label and box.overlap(other.box) > MOST_OVERLAP for other in kept
        ):
            kept.append(thing)
    return kept
