"""Holding history against what was heard."""

import numpy as np
import pytest

from load_tests.history import WORD_SECONDS, loud_seconds, words_off
from load_tests.loudspeaker import RATE
from load_tests.recordings import Samples

TEXT = "I am sorry, but all lines are busy."


def tone(seconds: float, level: float = 3000.0) -> Samples:
    times = np.arange(int(seconds * RATE)) / RATE
    return (level * np.sin(2 * np.pi * 300 * times)).astype(np.int16)


def test_what_is_to_be_heard_is_counted_in_seconds() -> None:
    sound = np.concatenate([tone(0.4), tone(1.0, level=20.0), tone(0.1)])
    assert loud_seconds(sound) == pytest.approx(0.5, abs=0.021)


@pytest.mark.parametrize(
    ("recognised", "history", "off"),
    [
        ("I'm sorry but all", "I am sorry, but all", 0),
        ("I am sorry", "I am sorry, but", 1),
        ("I am sorry but all lines", "I am sorry,", -3),
        ("", "", None),
        ("", "I am sorry,", None),
    ],
)
def test_history_is_held_against_the_words_in_a_loud_sound(
    recognised: str, history: str, off: int | None
) -> None:
    assert words_off(TEXT, recognised, history, tone(1.0)) == off


def test_words_of_which_nothing_was_to_be_heard_are_too_many() -> None:
    assert words_off(TEXT, "", "I am sorry,", tone(WORD_SECONDS / 2)) == 3
