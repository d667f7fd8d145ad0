import numpy as np
import pytest
from sanotts.frontend import PhonemeTable

from duologue.models.pronunciation import phonemes, piper_ids

TABLE = PhonemeTable(
    "en-us", {"_": 0, "^": 1, "$": 2, " ": 3, "h": 4, "ə": 5, "l": 6, "ˈ": 7, "o": 8, "ʊ": 9}
)


def test_words_have_phonemes() -> None:
    assert phonemes("Hello there.") == "həlˈO ðˈɛɹ."


def test_words_of_no_lexicon_have_phonemes() -> None:
    assert len(phonemes("Zorblaxian")) > 5


@pytest.mark.parametrize("text", ["", "  ", "😀"])
def test_what_cannot_be_said_has_none(text: str) -> None:
    assert phonemes(text).strip() == ""
    assert piper_ids(text, TABLE).size == 0


def test_pipers_phonemes_are_framed_and_padded() -> None:
    ids = piper_ids("hello", TABLE)
    assert ids.dtype == np.int64
    assert (ids[0], ids[-1]) == (1, 2)
    assert {4, 5, 6, 7} <= set(ids.tolist())
