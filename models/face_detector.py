"""The faces in a picture: BlazeFace (Bazarevsky et al., 2019), the model for distant faces."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from duologue.codecs.picture import resized
from duologue.models.object_detector import Box
from duologue.models.onnx_session import open_session, require_inputs

SIZE: Final = 256
INPUT: Final = "input:0"
OUTPUTS: Final = ("Identity:0", "Identity_2:0", "Identity_1:0", "Identity_3:0")
"""Scores and boxes of the fine grid, then of the coarse one."""
LEAST: Final = 0.5
MOST_OVERLAP: Final = 0.1
MOST_FACES: Final = 8
_GRIDS: Final = ((16, 2), (8, 6))
"""Cells to a side, and boxes a cell."""


@dataclass(frozen=True, slots=True)
class Face:
    """``score``: 0 to 1."""

    score: float
    box: Box


class FaceDetector:
    """For threads: a call takes some 3 ms of one core."""

    def __init__(self, path: Path, *, threads: int = 1) -> None:
        """Raises what :func:`open_session` raises, and ValueError for another graph."""
        self._session = open_session(path, threads=threads)
        require_inputs(self._session, [INPUT], path)
        self._anchors = anchors()

    def detect(self, pixels: NDArray[np.uint8]) -> list[Face]:
        """Best first, at most 8. ``pixels``: (height, width, 3)."""
        height, width = pixels.shape[:2]
        side = max(height, width)
        # A square, so that faces keep their shape; what is beside the picture is black.
        square = np.zeros((side, side, 3), np.uint8)
        square[:height, :width] = pixels
        image = resized(square, SIZE, SIZE).astype(np.float32)[None] / 127.5 - 1
        fine_scores, fine, coarse_scores, coarse = self._session.run(OUTPUTS, {INPUT: image})
        logits = np.concatenate((fine_scores[0, :, 0], coarse_scores[0, :, 0]))
        boxes = np.concatenate((fine[0], coarse[0]))
        scale = (side / width, side / height)
        return faces(np.asarray(logits), np.asarray(boxes), self._anchors, scale)


def anchors() -> NDArray[np.float32]:
    """The middles of the cells in pixels, as x and y: (896, 2)."""
    found = []
    for cells, boxes in _GRIDS:
        stride = SIZE // cells
        middles = (np.arange(cells) + 0.5) * stride
        y, x = np.meshgrid(middles, middles, indexing="ij")
        found.append(np.repeat(np.stack((x.ravel(), y.ravel()), axis=1), boxes, axis=0))
    return np.concatenate(found).astype(np.float32)


def faces(
    logits: NDArray[np.float32],
    boxes: NDArray[np.float32],
    middles: NDArray[np.float32],
    scale: tuple[float, float],
) -> list[Face]:
    """``boxes``: middle (from the anchor) and size in pixels first. ``scale``: parts of the square
    to parts of the picture."""
    kept: list[Face] = []
    scores = 1 / (1 + np.exp(-np.clip(logits, -50, 50)))
    for index in np.argsort(-scores).tolist():
        if scores[index] < LEAST or len(kept) == MOST_FACES:
            break
        x, y = ((boxes[index, :2] + middles[index]) / SIZE).tolist()
        w, h = (boxes[index, 2:4] / SIZE / 2).tolist()
        edges = ((x - w) * scale[0], (y - h) * scale[1], (x + w) * scale[0], (y + h) * scale[1])
        box = Box(*(min(1.0, max(0.0, edge)) for edge in edges))
        if box.area and not any(box.overlap(other.box) > MOST_OVERLAP for other in kept):
            kept.append(Face(float(scores[index]), box))
    return kept
