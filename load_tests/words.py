"""Word errors between what was said and what was understood.

Both sides are brought to one spelling first: lower case, no punctuation, numbers as words,
contractions written out, and the few words that are spelled in two ways.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
_TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
_WHOLE_CONTRACTIONS = {"can't": "can not", "won't": "will not", "let's": "let us"}
_CONTRACTIONS = (
    ("n't", " not"),
    ("'re", " are"),
    ("'ve", " have"),
    ("'ll", " will"),
    ("'m", " am"),
    ("'d", " would"),
)
_IS_AFTER = {"that", "it", "he", "she", "what", "there", "here", "who", "where", "how"}
_SPELLINGS = {
    "ok": "okay",
    "colour": "color",
    "dialling": "dialing",
    "cancelled": "canceled",
    "centre": "center",
    "cannot": "can not",
    "touchtone": "touch tone",
    "keypad": "key pad",
    "www": "w w w",
    "pbx": "p b x",
    "ivr": "i v r",
    "voicemail": "voice mail",
    "filename": "file name",
    "telemarketers": "tele marketers",
}


def number_words(number: int) -> str:
    """An integer from 0 to 999,999 in English words; larger ones digit by digit."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens] + (f" {_ONES[ones]}" if ones else "")
    if number < 1_000:
        hundreds, rest = divmod(number, 100)
        return f"{_ONES[hundreds]} hundred" + (f" {number_words(rest)}" if rest else "")
    if number < 1_000_000:
        thousands, rest = divmod(number, 1_000)
        return f"{number_words(thousands)} thousand" + (f" {number_words(rest)}" if rest else "")
    return " ".join(_ONES[int(digit)] for digit in str(number))


def normalised(text: str) -> list[str]:
    """The words of a text in the one spelling that errors are counted in."""
    text = text.lower().replace("\u2019", "'").replace("\u2018", "'")
    text = re.sub(r"(?<=\w)\.(?=\w)", " dot ", text)
    text = re.sub(r"[#£]", " pound ", text).replace("%", " percent ").replace("&", " and ")
    words: list[str] = []
    for token in re.findall(r"[a-z']+|\d+", re.sub(r"(?<=\d),(?=\d)", "", text)):
        if token.isdigit():
            words += number_words(int(token)).split()
            continue
        words += _written_out(token.strip("'")).split()
    return [part for word in words for part in _SPELLINGS.get(word, word).split()]


def _written_out(token: str) -> str:
    if token in _WHOLE_CONTRACTIONS:
        return _WHOLE_CONTRACTIONS[token]
    for ending, words in _CONTRACTIONS:
        if token.endswith(ending):
            return token.removesuffix(ending) + words
    if token.endswith("'s"):
        stem = token.removesuffix("'s")
        return f"{stem} is" if stem in _IS_AFTER else f"{stem}s"
    return token.replace("'", "")


@dataclass(frozen=True, slots=True)
class WordErrors:
    """Substitutions, insertions and deletions together, against the words that were said."""

    errors: int
    words: int

    def __add__(self, other: "WordErrors") -> "WordErrors":
        return WordErrors(self.errors + other.errors, self.words + other.words)

    @property
    def rate(self) -> float:
        """Errors a word; above 1 when more was heard than was said."""
        return self.errors / self.words if self.words else 0.0


def word_errors(said: str, understood: str) -> WordErrors:
    """The least edits that turn the words said into those understood (Levenshtein, 1966)."""
    reference, heard = normalised(said), normalised(understood)
    return WordErrors(prefix_distances(reference, heard)[-1], len(reference))


def prefix_distances(one: Sequence[str], other: Sequence[str]) -> list[int]:
    """The least edits that turn the first words into each beginning of the others, from none of
    them to all."""
    row = list(range(len(other) + 1))
    for i, word in enumerate(one, start=1):
        above = row
        row = [i]
        for j, candidate in enumerate(other, start=1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (word != candidate)))
    return row
