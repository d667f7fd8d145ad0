"""The edges of synthetic speech: how much silence stays around it, and no clicks where it joins.

A voice model pads what it says with up to half a second of silence on both sides. The silence in
front delays the first sound, the one behind makes pauses of chance; known ones replace both.
"""

import numpy as np
import numpy.typing as npt

LEAD_SECONDS = 0.02
"""Silence kept in front of the first sound."""

_TAIL_SECONDS = 0.04
_FADE_SECONDS = 0.005
_BLOCK_SECONDS = 0.005
_QUIET = 0.004
"""Relative to the peak, -48 dB: under the weakest consonant, over the model's own noise."""

_PAUSES = {".": 0.25, "!": 0.25, "?": 0.25, "…": 0.25, ",": 0.1, ";": 0.15, ":": 0.15, "—": 0.15}
"""Seconds of silence after the last sound, by the punctuation that ends the text."""

Samples = npt.NDArray[np.float32]


def trim(speech: Samples, rate: int, text: str, speed: float = 1.0) -> Samples:
    """Cut the silence around `speech` (float32 at `rate` Hz, said for `text`) to known amounts.

    20 ms stay in front of the first sound; behind the last one come 40 ms and then the pause that
    the text's closing punctuation asks for: 250 ms after a sentence, 100 to 150 ms after a clause,
    none within one, all divided by `speed`. Both ends fade over 5 ms. Speech that is silent
    throughout comes back empty.
    """
    block = max(1, int(rate * _BLOCK_SECONDS))
    blocks = -(-speech.size // block)
    padded = np.zeros(blocks * block, np.float32)
    padded[: speech.size] = speech
    level = np.sqrt(np.square(padded.reshape(blocks, block)).mean(axis=1))
    peak = float(np.abs(speech).max(initial=0.0))
    sounding = np.flatnonzero(level > peak * _QUIET)
    if not sounding.size:
        return np.zeros(0, np.float32)
    first = max(0, int(sounding[0]) * block - int(rate * LEAD_SECONDS))
    last = min(speech.size, (int(sounding[-1]) + 1) * block + int(rate * _TAIL_SECONDS))
    pause = _PAUSES.get(text.rstrip("\"'”’)]} \n\t")[-1:], 0.0)
    body = speech[first:last].astype(np.float32)
    fade = min(int(rate * _FADE_SECONDS), body.size // 2)
    ramp = np.linspace(0.0, 1.0, fade, dtype=np.float32)
    body[:fade] *= ramp
    body[body.size - fade :] *= ramp[::-1]
    silence = np.zeros(int(rate * pause / speed), np.float32)
    return np.concatenate([body, silence])


def halves(text: str) -> tuple[str, str]:
    """Cut a text that is too long in two, at the strongest boundary near its middle.

    A sentence's end is best, then a clause's, then a space; a text without any is cut in the
    middle. Joined, the two are the text again and neither is empty, given two characters or more.
    """
    middle = len(text) // 2
    for marks in (".!?…", ",;:—", " "):
        cuts = [
            index + 1
            for index, character in enumerate(text[:-1])
            if character in marks and (marks == " " or text[index + 1] == " ")
        ]
        near = [cut for cut in cuts if len(text) // 4 <= cut <= 3 * len(text) // 4]
        if near:
            cut = min(near, key=lambda cut: abs(cut - middle))
            return text[:cut], text[cut:]
    return text[:middle], text[middle:]
