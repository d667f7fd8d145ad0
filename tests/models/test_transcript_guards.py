import numpy as np
import pytest

from duologue.models.transcript_guards import (
    Decoded,
    compression_ratio,
    is_audible,
    is_believable,
    is_speech,
    loops,
)


def decoded(text: str, log_probability: float = -0.3, no_speech: float = 0.05) -> Decoded:
    return Decoded(text, (1, 2, 3), log_probability, no_speech)


def test_what_noise_makes_the_model_say_is_not_speech() -> None:
    assert not is_speech(decoded(" You", -2.5, no_speech=0.97))
    assert not is_speech(decoded("I'm gonna go to the right side.", -2.1, no_speech=0.91))


def test_punctuation_alone_is_not_speech() -> None:
    assert not is_speech(decoded(". . ."))
    assert not is_speech(decoded(""))


def test_a_sure_text_is_speech_even_where_speech_seems_improbable() -> None:
    assert is_speech(decoded("Thank you.", -0.2, no_speech=0.8))


def test_an_ordinary_sentence_is_believable() -> None:
    text = "Could you please tell me the way to the station?"
    assert is_believable(decoded(text), seconds=2.5)


def test_a_single_improbable_word_is_believable() -> None:
    assert is_believable(decoded("5", -2.27), seconds=0.8)
    assert not is_believable(decoded("Ah!", -2.57), seconds=16)


def test_an_improbable_sentence_is_not_believable() -> None:
    assert not is_believable(decoded("The way to go is by the sea.", -1.2), seconds=3)


def test_more_words_than_can_be_said_are_not_believable() -> None:
    text = "Thanks for watching, and I'll see you in the next video."
    assert not is_believable(decoded(text), seconds=0.4)


def test_a_text_that_compresses_too_well_is_not_believable() -> None:
    text = "press 8 to jump forwards, press 9 to jump backwards, " * 8
    assert compression_ratio(text) > 2.4
    assert not is_believable(decoded(text), seconds=60)


def test_an_empty_text_has_no_compression_ratio() -> None:
    assert compression_ratio("") == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "Location. Location, location Location. Location. Location.",
        "press 8, press 8, press 8, press 8",
        "and so I went home and so I went home and so I went home",
        "well one two three one two three one two three",
    ],
)
def test_words_that_come_again_and_again_are_a_loop(text: str) -> None:
    assert loops(text.split())


@pytest.mark.parametrize(
    "text",
    [
        "no no no no no",
        "one one one two",
        "the cat and the dog and the bird and the fish",
        "bye bye, see you, see you",
        "",
    ],
)
def test_emphasis_is_not_a_loop(text: str) -> None:
    assert not loops(text.split())


def test_sound_that_is_too_short_or_too_quiet_is_not_audible() -> None:
    tone = np.sin(np.arange(16_000) * 0.1).astype(np.float32)
    assert is_audible(tone)
    assert not is_audible(tone[:1_500])
    assert not is_audible(tone * 1e-3)
    assert not is_audible(np.zeros(0, np.float32))


def test_a_short_sound_in_a_long_silence_is_audible() -> None:
    sound = np.zeros(64_000, np.float32)
    sound[30_000:31_000] = 0.1
    assert is_audible(sound)
