"""Words as they are heard: what the assistant says, and where on the timeline the user spoke.

A transcript follows the sound, so that nothing is written of what an interruption cut off. Clauses
are known whole, and as soon as the next one begins also how long they are; until then their words
are spread over the time that letters usually take.
"""

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from duologue.sessions.playback import MS_PER_LETTER

LEAST_MS: Final = 160
"""Between two pieces of a transcript: OpenAI's come every 200 ms."""
GAP_MS: Final = 100
"""Input that comes later than this after what was before it leaves a gap on the timeline."""
_WORD: Final = re.compile(r"\s*\S+")


@dataclass(slots=True)
class _Clause:
    """Words that begin at ``start`` ms of their item; ``end`` is known later."""

    text: str
    start: float
    end: float | None = None
    given: int = 0


@dataclass(slots=True)
class _Item:
    clauses: deque[_Clause] = field(default_factory=deque)
    sent: float = 0.0
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Fragment:
    text: str
    start_ms: int
    end_ms: int


class SpokenWords:
    """The assistant's words, given out as their sound leaves. Positions are ms of an item."""

    def __init__(self) -> None:
        self._items: dict[str, _Item] = {}
        self._text = ""
        self._since = 0
        self._last = -LEAST_MS

    def say(self, item_id: str, text: str, start: float) -> None:
        """A clause of an item begins at ``start`` of it."""
        item = self._items.setdefault(item_id, _Item())
        if item.clauses:
            item.clauses[-1].end = start
        item.clauses.append(_Clause(text, start))

    def sent(self, item_id: str, length: float) -> None:
        """More of its sound is on the way."""
        self._items.setdefault(item_id, _Item()).sent += length

    def finish(self, item_id: str) -> None:
        """No more of its sound comes."""
        item = self._items.get(item_id)
        if item is not None:
            item.whole = True
            if item.clauses:
                item.clauses[-1].end = max(item.sent, item.clauses[-1].start)

    def forget(self) -> None:
        """What was not heard yet never will be."""
        self._items.clear()
        self._text = ""

    def advance(self, item_id: str, played: float, start_ms: int, end_ms: int) -> Fragment | None:
        """An item was played up to ``played`` by a frame from ``start_ms`` to ``end_ms``."""
        item = self._items.get(item_id)
        if item is None:
            return None
        complete = False
        while item.clauses and played > item.clauses[0].start:
            clause = item.clauses[0]
            over = clause.end is not None and played >= clause.end - 1
            words = clause.text[clause.given :] if over else _heard(clause, item, played)
            if words and not self._text:
                self._since = max(start_ms if self._last < start_ms - LEAST_MS else self._last, 0)
            self._text += words
            clause.given += len(words)
            if not over:
                break
            complete = True
            item.clauses.popleft()
        if item.whole and not item.clauses:
            self._items.pop(item_id, None)
        if not self._text or not (complete or end_ms - self._last >= LEAST_MS):
            return None
        fragment = Fragment(self._text, min(self._since, end_ms), end_ms)
        self._text, self._last = "", end_ms
        return fragment


def _heard(clause: _Clause, item: _Item, played: float) -> str:
    """The next words of a clause that have been heard in full, about."""
    end = clause.end
    if end is None:
        end = max(item.sent, clause.start + len(clause.text) * MS_PER_LETTER)
    letters = (played - clause.start) / max(end - clause.start, 1.0) * len(clause.text)
    reach = clause.given
    for word in _WORD.finditer(clause.text, clause.given):
        if word.end() > letters:
            break
        reach = word.end()
    return clause.text[clause.given : reach]


class HeardTimeline:
    """Where on the session's timeline the input's positions lie, both in ms.

    Input that is sent without pauses lies without gaps, however it arrives; after a pause it lies
    where it came.
    """

    def __init__(self) -> None:
        self._segments: deque[tuple[float, float]] = deque([(0.0, 0.0)], maxlen=64)
        self._end = 0.0

    def hear(self, length: float, now_ms: float) -> None:
        """So much more input has come."""
        position, place = self._segments[-1]
        begins = now_ms - length
        if begins > place + (self._end - position) + GAP_MS:
            self._segments.append((self._end, begins))
        self._end += length

    def place(self, position: float) -> int:
        """The timeline's moment at a position of the input."""
        found = self._segments[0]
        for segment in self._segments:
            if segment[0] <= position:
                found = segment
        return max(0, round(found[1] + position - found[0]))


class WrittenWords:
    """The user's words as they are written: what has been given out can't be taken back.

    Moments are ms of the timeline. A fragment's text begins with a space, but for the first.
    """

    def __init__(self) -> None:
        self._written: dict[str, str] = {}
        self._spoke = False
        self._until = 0

    def begin(self, utterance: str, at: int) -> None:
        """The user begins to speak."""
        self._written[utterance] = ""
        self._until = max(self._until, at)

    def add(self, utterance: str, delta: str, now_ms: int) -> Fragment | None:
        """More of it is known."""
        if not delta.strip():
            return None
        if not self._written.get(utterance):
            delta = f" {delta.lstrip()}" if self._spoke else delta.lstrip()
        self._spoke = True
        self._written[utterance] = self._written.get(utterance, "") + delta
        start, self._until = min(self._until, now_ms), now_ms
        return Fragment(delta, start, now_ms)

    def finish(self, utterance: str, whole: str, now_ms: int) -> Fragment | None:
        """All of it is known."""
        written, whole = self._written.get(utterance, "").strip(), whole.strip()
        rest = self.add(utterance, whole[_shared(written, whole) :], now_ms)
        self.forget(utterance)
        return rest

    def forget(self, utterance: str) -> None:
        """Nothing more of it will be known."""
        self._written.pop(utterance, None)


def _shared(written: str, whole: str) -> int:
    """How much of the whole is written already: up to where they part, in whole words."""
    if whole.startswith(written):
        return len(written)
    same = 0
    while same < min(len(written), len(whole)) and written[same] == whole[same]:
        same += 1
    if len(written) >= len(whole):
        return len(whole)
    gap = whole.find(" ", max(same, len(written)))
    return len(whole) if gap < 0 else gap
