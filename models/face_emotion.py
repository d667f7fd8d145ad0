"""What a face expresses: Oarriaga's mini-Xception (face_classification, 2017), of seven kinds."""

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from duologue.codecs.picture import resized
from duologue.models.object_detector import Box
from duologue.models.onnx_session import open_session, require_inputs

SIZE: Final = 64
INPUT: Final = "input_1:0"
OUTPUT: Final = "Identity:0"
EMOTIONS: Final = ("angry", "disgusted", "afraid", "happy", "sad", "surprised", "neutral")
MARGIN: Final = 0.1
"""Of the face's size, around the box: it was trained on faces with their chins and brows."""
_LUMA: Final = np.array([0.2989, 0.5870, 0.1140], np.float32)


class FaceEmotion:
    """For threads: a call takes less than a millisecond."""

    def __init__(self, path: Path) -> None:
        """Raises what :func:`open_session` raises, and ValueError for another graph."""
        self._session = open_session(path)
        require_inputs(self._session, [INPUT], path)

    def read(self, pixels: NDArray[np.uint8], box: Box) -> tuple[str, float]:
        """The likeliest expression of the face in the box, and its probability."""
        face = resized(cut(pixels, box), SIZE, SIZE).astype(np.float32) / 255
        image = ((face @ _LUMA - 0.5) * 2)[None, :, :, None]
        (found,) = self._session.run([OUTPUT], {INPUT: image})
        row = np.asarray(found, np.float32)[0]
        best = int(np.argmax(row))
        return EMOTIONS[best], float(row[best])


def cut(pixels: NDArray[np.uint8], box: Box) -> NDArray[np.uint8]:
    """The box with its margin out of the picture, at least a pixel."""
    height, width = pixels.shape[:2]
    x, y = (box.right - box.left) * MARGIN, (box.bottom - box.top) * MARGIN
    left, right = int(max(0, box.left - x) * width), int(min(1, box.right + x) * width)
    top, bottom = int(max(0, box.top - y) * height), int(min(1, box.bottom + y) * height)
    left, top = min(left, width - 1), min(top, height - 1)
    return pixels[top : max(bottom, top + 1), left : max(right, left + 1)]
