"""Cutting a growing text into pieces to be spoken, the first one early."""

import re
from collections.abc import Callable

FIRST_WORDS = 5
"""The first clause ends after so many words, or at any punctuation before."""

LONGEST = 160
"""Characters after which a clause ends at the next space, some ten seconds of speech."""

_FIRST_WORDS_AT_MOST = 8
_HURRIED_WORDS = 3
_WORDS_TO_COMMA = 8
_WORDS_TO_STOP = 3
_LONGEST_BLOCK = 4000
_LONGEST_WORD = 4 * LONGEST

_ABBREVIATIONS = frozenset(
    "Dr Mr Mrs Ms Prof Rev Hon Gov Sen Rep Gen Col Sgt Capt Lt St Mt Ft Jr Sr Inc Ltd Co Corp "
    "Ave Blvd Rd Apt Vol Fig Dept Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mon Tue Tues "
    "Wed Thu Thurs Fri vs etc approx dept est vol pp e.g i.e eg ie cf al a.m p.m A.M P.M U.S U.K "
    "U.S.A Ph.D D.C E.g I.e".split()
)
# A clause that ends on one of these sounds broken off.
_LEANING = frozenset(
    "a an the of to in on at by for from with and or but nor so as if that which who whose is are "
    "was were be been am do does did can could will would shall should may might must have has had "
    "my your his her its our their this these those very quite not no i you he she it we they "
    "about into than then when while because".split()
)


def _never(letters: int) -> bool:
    return False


_CLOSERS = "\"'”’»)]}*_`~"
_FULL_STOPS = "。！？"
_SPACE_OR_STOP = re.compile(rf"\s|(?<=[{_FULL_STOPS}])(?=[^{_FULL_STOPS}])")


class ClauseSplitter:
    """One answer: text deltas in, clauses out. Joined, the clauses are the text to the letter.

    The first clause is short, so that speech can start; the later ones are sentences, or parts of
    one that end at a comma once they are long enough, or earlier where ``hurried`` says of so many
    letters that they must be spoken now if speech is not to pause. No cut falls inside a word, a
    number, an address or behind an abbreviation; a fenced block of code stays whole. White space
    leads the clause that follows it. A clause is at most some 160 characters, a fenced block 4000,
    a single word 640.
    """

    def __init__(self, hurried: Callable[[int], bool] = _never) -> None:
        self._hurried = hurried
        self._pending = ""
        self._looked_at = 0
        self._first = True

    def push(self, text: str) -> list[str]:
        """More of the text; returns the clauses that it completes."""
        self._pending += text
        clauses: list[str] = []
        while (cut := self._next_cut()) is not None:
            clauses.append(self._pending[:cut])
            self._pending = self._pending[cut:]
            self._looked_at = 0
            self._first = False
        return clauses

    def flush(self) -> list[str]:
        """The text is over or stops for a while; returns what is left of it, one clause or none."""
        rest, self._pending, self._looked_at = self._pending, "", 0
        self._first = self._first and not rest
        return [rest] if rest else []

    def _next_cut(self) -> int | None:
        for match in _SPACE_OR_STOP.finditer(self._pending, self._looked_at):
            at = match.start()
            if self._ends_clause(self._pending[:at], match[0]):
                return at
            self._looked_at = max(match.end(), self._looked_at)
        if len(self._pending) - self._looked_at > _LONGEST_WORD:
            return self._looked_at + _LONGEST_WORD
        return None

    def _ends_clause(self, clause: str, following: str) -> bool:
        """Whether a clause may end where `following`, a space or nothing, comes next."""
        words = clause.split()
        if not any(character.isalnum() for character in clause):
            return False
        if clause.count("```") % 2 == 1:
            return len(clause) >= _LONGEST_BLOCK
        if len(clause.strip()) >= LONGEST:
            return True
        if clause.count("[") > clause.count("]"):
            return False
        last = words[-1].rstrip(_CLOSERS)
        if following == "\n":
            return not _is_list_number(words)
        if last.endswith((".", "!", "?", "…", *_FULL_STOPS)):
            return _ends_sentence(words, last) and (self._first or len(words) >= _WORDS_TO_STOP)
        if last.endswith((",", ";", ":", "—", "–")):
            return self._first or len(words) >= _WORDS_TO_COMMA or self._hurried(len(clause))
        least = FIRST_WORDS if self._first else _HURRIED_WORDS
        if len(words) < least or not (self._first or self._hurried(len(clause))):
            return False
        return len(words) >= _FIRST_WORDS_AT_MOST or last.casefold() not in _LEANING


def _ends_sentence(words: list[str], last: str) -> bool:
    """Whether the mark behind `last` closes a sentence: no abbreviation, no list number."""
    if not last.endswith(".") or last.endswith(".."):
        return True
    word = last.rstrip(".").lstrip("([\"'“‘*_")
    initial = len(word) == 1 and word.isupper() and word != "I"
    return not (word in _ABBREVIATIONS or initial or _is_list_number(words))


def _is_list_number(words: list[str]) -> bool:
    """A clause of "1." or "2)" alone announces a list item."""
    return len(words) == 1 and re.fullmatch(r"\d{1,3}[.)]", words[0]) is not None
