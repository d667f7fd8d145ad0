"""Words of an unfinished utterance that can be shown because they will not change.

A recogniser that hears the growing utterance again and again says something new at its end each
time. A word is stable once two decodes in a row agree on everything up to it ("local agreement":
Macháček et al., "Turning Whisper into Real-Time Transcription System", 2023). What was emitted is
never taken back.
"""

import re
from dataclasses import dataclass

_WORD = re.compile(r"\S+")
_EDGES = re.compile(r"^[^\w]+|[^\w]+$")


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of a decode: what it is compared by, and where its letters start and end."""

    key: str
    start: int
    end: int


class StableTranscript:
    """One utterance: decodes of the growing audio in, deltas out.

    Words are compared without case and punctuation and emitted as the later decode writes them.
    The punctuation behind a word comes with the next word, since the last one's is a guess while
    the utterance goes on. The deltas joined are the beginning of the last decode wherever no
    emitted word has changed; where one has, the delta goes on behind its place in the new text.
    """

    def __init__(self) -> None:
        self.emitted = ""
        """All deltas so far, joined."""
        self._keys: list[str] = []
        self._previous: list[str] = []

    def update(self, text: str) -> str:
        """The next decode; returns the words that have become stable, "" when none has."""
        words = _words(text)
        keys = [word.key for word in words]
        at = self._place(keys)
        before = self._previous[self._place(self._previous) :]
        self._previous = keys
        agreed = 0
        for new, old in zip(keys[at:], before, strict=False):
            if new != old:
                break
            agreed += 1
        if agreed == 0:
            return ""
        self._keys += keys[at : at + agreed]
        return self._emit(text, words, at, words[at + agreed - 1].end)

    def finish(self, text: str) -> str:
        """The decode of the whole utterance; returns all that is still missing from it.

        Joined, the deltas are `text` exactly, unless a word that was emitted is no longer in it:
        then the rest follows the place where that word stood, and `text` alone is right.
        """
        words = _words(text)
        return self._emit(text, words, self._place([word.key for word in words]), len(text))

    def _emit(self, text: str, words: list[_Word], at: int, end: int) -> str:
        if text[:end].startswith(self.emitted):
            delta = text[len(self.emitted) : end]
        elif at > 0:
            delta = text[words[at - 1].end : end]
        else:
            delta = (" " if self.emitted and text else "") + text[:end]
        self.emitted += delta
        return delta

    def _place(self, keys: list[str]) -> int:
        """How many of these words the emitted ones cover: the prefix nearest to them by edits."""
        emitted = self._keys
        if keys[: len(emitted)] == emitted:
            return len(emitted)
        row = list(range(len(keys) + 1))
        for count, key in enumerate(emitted, start=1):
            above, row = row, [count]
            for index, other in enumerate(keys, start=1):
                row.append(min(above[index] + 1, row[-1] + 1, above[index - 1] + (key != other)))
        return min(range(len(row)), key=lambda at: (row[at], abs(at - len(emitted))))


def _words(text: str) -> list[_Word]:
    """The words with at least a letter or digit; marks that stand alone belong to no word."""
    words: list[_Word] = []
    for match in _WORD.finditer(text):
        bare = _EDGES.sub("", match[0])
        if bare:
            start = match.start() + match[0].index(bare)
            words.append(_Word(bare.casefold(), start, start + len(bare)))
    return words
