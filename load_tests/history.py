"""Whether history has the words of an interrupted answer that were heard, and no others.

What the loudspeaker gave of the answer is recognised with the embedded recogniser and aligned with
the words of the whole answer; where it ends among them is where history should end.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from duologue.codecs.resample import Resampler
from duologue.models.whisper import Whisper
from duologue.web.cascade_setup import cascade_config
from duologue.web.settings import Settings
from load_tests.loudspeaker import RATE
from load_tests.recordings import Samples
from load_tests.words import normalised, prefix_distances

HEARD_RATE = 16_000
LOUD = 200.0
"""Root mean square of int16 samples, from which something is to be heard."""
WORD_SECONDS = 0.2
_STRETCH = RATE // 50


def embedded_recognizer() -> Whisper:
    """The recogniser of the default engine, whose files must be there."""
    return Whisper(Path(cascade_config(Settings()).recognizer))


def words_off(text: str, recognised: str, history: str, sound: Samples) -> int | None:
    """Words that history has too many (positive) or too few; None where the recogniser could make
    nothing of a sound that was loud enough for a word.

    It may err in any word: the beginning of the whole answer's ``text`` that is most like what was
    recognised is what was heard.
    """
    if not normalised(recognised) and loud_seconds(sound) >= WORD_SECONDS:
        return None
    distances = prefix_distances(normalised(recognised), normalised(text))
    heard = max(range(len(distances)), key=lambda words: (-distances[words], words))
    return len(normalised(history)) - heard


def loud_seconds(sound: Samples) -> float:
    """How much of it is to be heard, in stretches of 20 ms."""
    whole = sound[: len(sound) // _STRETCH * _STRETCH].astype(np.float64).reshape(-1, _STRETCH)
    return float((np.sqrt(np.square(whole).mean(axis=1)) > LOUD).sum() * _STRETCH / RATE)


def recognise(sounds: Sequence[Samples], recognizer: Whisper) -> list[str]:
    """The words of each, at the loudspeaker's rate."""
    found: list[str] = []
    for sound in sounds:
        resampler = Resampler(RATE, HEARD_RATE, np.float32)
        samples = np.concatenate((resampler.push(sound), resampler.flush()))
        found.append(recognizer.transcribe(samples).text)
    return found
