"""What is measured in a browser: from the voice to the end of the answer."""

import numpy as np

from load_tests.chromium_ear import GAPS, microphone_of, stops
from load_tests.loudspeaker import RATE
from load_tests.recordings import RATE as RECORDED_RATE, Recording


def sounds(length: int, *stretches: tuple[int, int]) -> np.ndarray:  # type: ignore[type-arg]
    peaks = np.zeros(length, np.int64)
    for begin, end in stretches:
        peaks[begin:end] = 5000
    return peaks


def test_an_interruption_is_measured_to_the_last_sound_of_what_it_cut() -> None:
    said = sounds(5000, (1000, 1500), (3000, 3400))
    heard = sounds(5000, (400, 700), (720, 1181), (2000, 3160))
    assert stops(said, heard) == [180, 159]


def test_pauses_between_words_begin_nothing() -> None:
    assert stops(sounds(4000, (1000, 1200), (1400, 1900)), sounds(4000, (500, 1150))) == [149]


def test_an_answer_that_was_over_or_went_on_was_not_interrupted() -> None:
    assert stops(sounds(4000, (1000, 1200)), sounds(4000, (500, 900))) == []
    assert stops(sounds(4000, (1000, 1200)), sounds(4000, (500, 3000))) == []
    assert stops(sounds(1300, (1000, 1200)), sounds(1300, (500, 1150))) == []
    assert stops(sounds(4000), sounds(4000, (500, 3000))) == []


def test_the_microphone_says_all_from_its_first_voiced_sample() -> None:
    samples = np.zeros(RECORDED_RATE, np.int16)
    samples[6000:12_000] = 5000
    recording = Recording("one", samples, (6000, 11_999))
    said = microphone_of([recording, recording])
    [*loud] = np.flatnonzero(np.abs(said.astype(int)) > 2500) / RATE
    assert abs(loud[0] - 2.0) < 0.001
    assert abs(loud[-1] - (2.0 + 0.25 + GAPS[0] + 0.25)) < 0.001
