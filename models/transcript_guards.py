"""When a recogniser's text is not to be believed.

Whisper's authors drop or retry a text that compresses too well or that the model itself finds
unlikely (their paper, section 4.5). The rules on short and quiet sound are ours, from what the
tiny model says to noise.
"""

import re
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_LEAST_SECONDS = 0.1
_QUIET = 1e-3
_COMPRESSION = 2.4
_NO_SPEECH = 0.6
_UNLIKELY = -1.0
_UNLIKELY_WORD = -2.4
"""A word on its own has no context to be likely in: real ones reach -2.3, cries -2.5."""
_FEW_WORDS = 3
_WORDS_PER_SECOND = 6.0
_SPARE_WORDS = 3
_REPEATS = {1: 6, 2: 4, 3: 3, 4: 3, 5: 3, 6: 3, 7: 3, 8: 3}
"""How often in a row a run of so many words may come before it is a loop."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """One decode of one window: its text, tokens, mean token log probability (natural)."""

    text: str
    tokens: tuple[int, ...]
    average_log_probability: float
    no_speech_probability: float


def is_audible(audio: npt.NDArray[np.float32], rate: int = 16_000) -> bool:
    """False for sound under 0.1 s, or never louder than -60 dBFS over any 20 ms."""
    if audio.size < _LEAST_SECONDS * rate:
        return False
    step = rate // 50
    blocks = audio[: audio.size // step * step].reshape(-1, step)
    return bool(np.sqrt(np.square(blocks).mean(axis=1)).max() >= _QUIET)


def is_speech(decoded: Decoded) -> bool:
    """False where trying again is pointless: the model hears no words in this sound."""
    if not re.search(r"\w", decoded.text):
        return False
    unlikely = decoded.average_log_probability < _UNLIKELY
    return not (decoded.no_speech_probability > _NO_SPEECH and unlikely)


def is_believable(decoded: Decoded, seconds: float) -> bool:
    """False for a text that repeats itself, is unlikely, or has more words than fit the time."""
    words = decoded.text.split()
    least = _UNLIKELY_WORD if len(words) <= _FEW_WORDS else _UNLIKELY
    return (
        decoded.average_log_probability >= least
        and len(words) <= _WORDS_PER_SECOND * seconds + _SPARE_WORDS
        and compression_ratio(decoded.text) <= _COMPRESSION
        and not loops(words)
    )


def compression_ratio(text: str) -> float:
    """Bytes of UTF-8 over bytes after zlib; ordinary speech stays under 2."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw)) if raw else 0.0


def loops(words: list[str]) -> bool:
    """Whether a run of one to eight words comes again and again without a break."""
    plain = [re.sub(r"[^\w']", "", word).lower() for word in words]
    for length, repeats in _REPEATS.items():
        matches = 0
        for index in range(length, len(plain)):
            matches = matches + 1 if plain[index] == plain[index - length] else 0
            if matches >= length * (repeats - 1):
                return True
    return False
