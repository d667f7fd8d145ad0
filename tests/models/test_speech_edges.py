import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, strategies as st

from duologue.models.speech_edges import halves, trim

RATE = 24_000


def padded_tone(before: float, sound: float, after: float) -> npt.NDArray[np.float32]:
    tone = 0.5 * np.sin(np.arange(int(sound * RATE)) * 0.2)
    parts = [np.zeros(int(before * RATE)), tone, np.zeros(int(after * RATE))]
    return np.concatenate(parts).astype(np.float32)


@pytest.mark.parametrize(
    ("text", "pause"),
    [("Hello", 0.0), ("Hello,", 0.1), ("Hello.", 0.25), ('"Hello?"', 0.25), ("Hello:", 0.15)],
)
def test_the_silence_around_speech_is_known(text: str, pause: float) -> None:
    trimmed = trim(padded_tone(0.4, 1.0, 0.5), RATE, text)
    assert trimmed.size / RATE == pytest.approx(0.02 + 1.0 + 0.04 + pause, abs=0.011)
    assert np.flatnonzero(np.abs(trimmed) > 0.01)[0] / RATE <= 0.026


def test_pauses_follow_the_speed() -> None:
    slow = trim(padded_tone(0.4, 1.0, 0.5), RATE, "Hello.", speed=0.5)
    assert slow.size / RATE == pytest.approx(0.02 + 1.0 + 0.04 + 0.5, abs=0.011)


def test_speech_that_starts_and_ends_at_full_level_does_not_click() -> None:
    trimmed = trim(np.full(RATE, 0.5, np.float32), RATE, "Hello")
    assert trimmed[0] == trimmed[-1] == 0.0
    assert np.abs(np.diff(trimmed)).max() < 0.01


def test_the_speech_given_is_not_changed() -> None:
    speech = np.full(RATE, 0.5, np.float32)
    trim(speech, RATE, "Hello")
    assert (speech == 0.5).all()


@pytest.mark.parametrize("samples", [0, 1, 1000])
def test_silence_is_empty(samples: int) -> None:
    assert trim(np.zeros(samples, np.float32), RATE, "Hello.").size == 0


def test_a_text_is_halved_at_its_strongest_boundary() -> None:
    assert halves("One, two. Three, four, five.") == ("One, two.", " Three, four, five.")
    assert halves("one two, three four five") == ("one two,", " three four five")
    assert halves("one two three four") == ("one two ", "three four")
    assert halves("abcdef") == ("abc", "def")


@given(st.text(min_size=2))
def test_the_halves_are_the_text_and_neither_is_empty(text: str) -> None:
    first, second = halves(text)
    assert first + second == text
    assert first
    assert second
