"""A test picture that says which it is, even after a lossy codec: 16 blocks are a number's bits."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

BITS: Final = 16
_DARK, _BRIGHT = 40, 215


def pattern(number: int, width: int, height: int) -> bytes:
    """I420 planes. The upper half is two rows of eight blocks, lowest bit first; the lower half has
    a bar that wanders. Sides are even, at least 32."""
    luma = np.full((height, width), 128, np.uint8)
    block, tall = width // 8, height // 4
    for bit in range(BITS):
        x, y = bit % 8 * block, bit // 8 * tall
        luma[y : y + tall, x : x + block] = _BRIGHT if number >> bit & 1 else _DARK
    bar = number * 8 % width
    luma[height // 2 :, bar : bar + block] = 235
    chroma = np.full(width * height // 4, 128, np.uint8)
    blue = np.full(width * height // 4, 110 + number % 40, np.uint8)
    return luma.tobytes() + blue.tobytes() + chroma.tobytes()


def read_pattern(luma: NDArray[np.uint8]) -> int:
    """The number, from the brightness plane (height, width) of a decoded picture of any size."""
    height, width = luma.shape
    block, tall = width / 8, height / 4
    number = 0
    for bit in range(BITS):
        x, y = int((bit % 8 + 0.5) * block), int((bit // 8 + 0.5) * tall)
        reach = max(1, int(block / 8))
        part = luma[y - reach : y + reach, x - reach : x + reach]
        number |= int(part.mean() > 127) << bit
    return number
