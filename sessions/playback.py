"""What the listener has heard: generated ≥ sent ≥ played, for each spoken item.

Where the server plays audio out, it reports what has left, and an item that was reported of plays
until its last sample was. Otherwise what was sent is taken to play in real time from the moment it
was sent, without gaps as long as there is more.
Times are session seconds, positions milliseconds of an item's audio.
"""

import math
import re
from dataclasses import dataclass, field

from duologue.engines.engine import WordTime

BYTES_PER_MS = 48
"""Of mono int16 audio at 24 kHz."""
LINGER = 2.0
"""Seconds for which audio is kept once it was heard: a client may say late where it was cut."""
STALLED = 10.0
"""Seconds after which playout that reports nothing more is taken to have ended."""
MS_PER_LETTER = 65.0
"""How long a letter takes to say, where nothing was said yet to measure it by."""
LEAST_MEASURE_MS = 500.0
HEARD_SHARE = 0.3
"""Of the time given to a word, so much is enough for it to have been heard. Words are aligned a
little late; of what was cut at random, a recogniser had these words, to one more or less."""
TOLERANCE_MS = 0.1
"""Less than a sample and a half short of its end, an item is played."""
NEARLY_ALL = 0.8
"""A clause of which this share of the expected length was made is taken to be all there."""


@dataclass(slots=True)
class Clause:
    """A stretch of speech with its words; ``words`` are known once they have been aligned.

    ``whole_ms``: how long all of it will be, where the engine has said so. ``asked``: the words
    have been asked for.
    """

    text: str
    start_ms: float
    end_ms: float
    pcm: bytes = b""
    words: tuple[WordTime, ...] | None = None
    asked: bool = False
    whole_ms: float = 0.0


@dataclass(slots=True, eq=False)
class SpokenItem:
    """The audio of one assistant item. ``cut_ms`` is set once it is known where it was cut off.

    ``whole``: the engine has made all of it. ``closed``: no more comes, whole or not.
    ``by_report``: once it was reported of, it plays until its last sample was.
    """

    item_id: str
    response_id: str
    in_conversation: bool = True
    by_report: bool = False
    clauses: list[Clause] = field(default_factory=list)
    generated_ms: float = 0.0
    sent_ms: float = 0.0
    cut_ms: float | None = None
    cut_by_client: bool = False
    whole: bool = False
    closed: bool = False
    _settled_ms: float = 0.0
    _run_start: float = 0.0
    _run_ms: float = 0.0
    _reported_ms: float | None = None
    _flushed_ms: float = 0.0

    def generate(self, text: str, pcm: bytes, clause_ms: float = 0.0) -> None:
        """More speech: a new clause where there is text, else more of the last one.

        ``clause_ms``: how long a new clause will be in all, 0 where that is not known.
        """
        length = len(pcm) / BYTES_PER_MS
        end = self.generated_ms + length
        if text or not self.clauses:
            self.clauses.append(Clause(text, self.generated_ms, end, pcm, whole_ms=clause_ms))
        else:
            last = self.clauses[-1]
            last.end_ms = end
            last.pcm += pcm
        self.generated_ms = end

    def send(self, start: float, length_ms: float) -> None:
        """A stretch has been sent that starts to play at ``start``."""
        if start > self.ends_at + 1e-6:
            self._settled_ms += self._run_ms
            self._run_start, self._run_ms = start, 0.0
        self._run_ms += length_ms
        self.sent_ms += length_ms

    @property
    def begins_at(self) -> float:
        """When the stretch that was sent last begins to play."""
        return self._run_start

    @property
    def ends_at(self) -> float:
        """When all that was sent will have been played."""
        return self._run_start + self._run_ms / 1000

    def report(self, played_ms: float) -> None:
        """The server's own playout says how much has been played."""
        self._reported_ms = max(self._reported_ms or 0.0, min(played_ms, self.sent_ms))

    @property
    def unreported_ms(self) -> float:
        """Of an item that was reported of: what was sent, waits and has not been reported yet."""
        if not self.by_report or self._reported_ms is None:
            return 0.0
        left = self.sent_ms - max(self._reported_ms, self._flushed_ms)
        return left if left > TOLERANCE_MS else 0.0

    def shift(self, seconds: float) -> None:
        """What waits plays so much later than was thought."""
        self._run_start += seconds

    def plays_at(self, now: float) -> bool:
        if self.by_report and self._reported_ms is not None:
            return self.unreported_ms > 0
        return self.begins_at <= now < self.ends_at

    def flush(self, now: float) -> None:
        """The listener has dropped what waits to be played."""
        self._run_start = min(self._run_start, now)
        self._run_ms = min(self._run_ms, (now - self._run_start) * 1000)
        self._flushed_ms = self.sent_ms

    def played_ms(self, now: float) -> float:
        """How much of the item has been heard by ``now``; nothing behind a cut ever is."""
        played = self._reported_ms
        if played is None:
            run = min(max((now - self._run_start) * 1000, 0.0), self._run_ms)
            played = self._settled_ms + run
        return played if self.cut_ms is None else min(played, self.cut_ms)

    def cut(self, at_ms: float, by_client: bool) -> bool:
        """What comes after ``at_ms`` was not heard. A client's word outweighs our estimate.

        Returns whether this changed anything: a later estimate only ever cuts off more.
        """
        before = (self.cut_ms, self.cut_by_client)
        if not by_client and self.cut_ms is not None:
            at_ms = self.cut_ms if self.cut_by_client else min(at_ms, self.cut_ms)
        self.cut_ms = at_ms
        self.cut_by_client = by_client or self.cut_by_client
        return before != (self.cut_ms, self.cut_by_client)

    @property
    def transcript(self) -> str:
        return "".join(clause.text for clause in self.clauses)

    def heard(self) -> str:
        """The words that were heard in full: all of them, or those before the cut."""
        if self.cut_ms is None:
            return self.transcript
        said: list[str] = []
        if self.cut_ms > 0:
            for clause in self.clauses:
                end_ms = self._expected_end(clause)
                if end_ms > self.cut_ms + 0.5:
                    said.append(words_before(clause, self.cut_ms, end_ms))
                    break
                said.append(clause.text)
            else:
                return self.transcript
        return "".join(said).rstrip()

    def cut_clause(self) -> Clause | None:
        """The clause that the cut falls into, when its words are not aligned yet.

        A clause that was not made to its end is none: its words can't be found in its audio.
        """
        if self.cut_ms is None:
            return None
        for clause in self.clauses:
            if clause.start_ms < self.cut_ms and self._expected_end(clause) > self.cut_ms + 0.5:
                known = clause.words is not None or clause.asked or not clause.pcm
                part = self._expected_end(clause) > clause.end_ms + TOLERANCE_MS
                return None if known or part else clause
        return None

    def forget_audio(self, before_ms: float = math.inf, after_ms: float = math.inf) -> None:
        """Let go of the audio of clauses that end before one position or begin behind another."""
        for clause in self.clauses:
            if clause.end_ms <= before_ms or clause.start_ms >= after_ms:
                clause.pcm = b""

    def _expected_end(self, clause: Clause) -> float:
        """Where a clause ends, or would have ended: at the pace of those before it, if the engine
        has not said how long it is."""
        if clause is not self.clauses[-1] or self.whole:
            return clause.end_ms
        if clause.whole_ms:
            return max(clause.end_ms, clause.start_ms + clause.whole_ms)
        letters = sum(len(said.text) for said in self.clauses[:-1])
        measured = letters > 0 and clause.start_ms >= LEAST_MEASURE_MS
        pace = clause.start_ms / letters if measured else MS_PER_LETTER
        length_ms = len(clause.text) * pace
        if clause.end_ms - clause.start_ms >= NEARLY_ALL * length_ms:
            return clause.end_ms
        return clause.start_ms + length_ms


def words_before(clause: Clause, position_ms: float, end_ms: float) -> str:
    """The words of a clause of which HEARD_SHARE at least lies before a position.

    Without aligned words, the time up to ``end_ms`` is spread over the letters evenly.
    """
    offset = position_ms - clause.start_ms
    heard = 0
    if clause.words:
        begin_ms = 0.0
        for word in clause.words:
            if begin_ms + (word.end_ms - begin_ms) * HEARD_SHARE > offset:
                break
            heard += len(word.text)
            begin_ms = word.end_ms
        return clause.text[:heard]
    letters = len(clause.text) * offset / max(end_ms - clause.start_ms, 1.0)
    for match in re.finditer(r"\S+\s*", clause.text):
        if match.start() + len(match[0].rstrip()) * HEARD_SHARE > letters:
            break
        heard = match.end()
    return clause.text[:heard]


class Playback:
    """The listener's clock over all items, and where each item stands on it.

    What is said of an item stays known for as long as the item is there; its audio for a little
    longer than it plays.
    """

    def __init__(self, by_report: bool = False) -> None:
        """``by_report``: playout is the server's own."""
        self._by_report = by_report
        self._end = 0.0
        self._items: dict[str, SpokenItem] = {}
        self._fresh: list[SpokenItem] = []

    def item(self, item_id: str) -> SpokenItem | None:
        return self._items.get(item_id)

    def open(self, item_id: str, response_id: str, in_conversation: bool) -> SpokenItem:
        item = SpokenItem(item_id, response_id, in_conversation, self._by_report)
        if in_conversation:
            self._items[item_id] = item
        self._fresh.append(item)
        return item

    def forget(self, item_id: str) -> None:
        """The item was deleted; what was sent of it still plays."""
        item = self._items.pop(item_id, None)
        if item is not None:
            item.in_conversation = False

    def unheard(self, now: float) -> list[SpokenItem]:
        """The items of the conversation that have not been heard to their end, oldest first."""
        return [
            item
            for item in self._fresh
            if item.in_conversation and (item.played_ms(now) < item.generated_ms or not item.whole)
        ]

    def sent(self, item: SpokenItem, length_ms: float, now: float) -> None:
        start = max(now, self._end)
        item.send(start, length_ms)
        self._end = start + length_ms / 1000

    def report(self, item_id: str, played_ms: float, now: float) -> None:
        """The server's own playout stands here in an item; what waits plays after that."""
        for index, item in enumerate(self._fresh):
            if item.item_id == item_id:
                item.report(played_ms)
                if self._by_report:
                    late = now + item.unreported_ms / 1000 - item.ends_at
                    for waiting in self._fresh[index:]:
                        waiting.shift(late)
                    self._end += late
                return

    def flush(self, now: float) -> None:
        """The listener has dropped what waits to be played."""
        self._end = min(self._end, now)
        for item in self._fresh:
            item.flush(now)

    def tidy(self, now: float) -> None:
        """Let go of audio that was heard a while ago or will never be heard."""
        for item in self._fresh:
            item.forget_audio(before_ms=item.played_ms(now) - LINGER * 1000)
        over = [
            item
            for item in self._fresh
            if item.closed and item.ends_at + (STALLED if item.unreported_ms else LINGER) <= now
        ]
        for item in over:
            item.forget_audio()
            self._fresh.remove(item)

    def response_at(self, now: float) -> str | None:
        """The response that is being heard."""
        for item in self._fresh:
            if item.plays_at(now):
                return item.response_id
        return None

    def next_edge(self, now: float) -> float:
        """When an item begins or ends to be heard; infinite when nothing waits."""
        edges = [edge for item in self._fresh for edge in (item.begins_at, item.ends_at)]
        return min((edge for edge in edges if edge > now), default=math.inf)

    def lead(self, now: float) -> float:
        """Seconds of audio that are sent and not yet played."""
        return max(0.0, self._end - now)

    @property
    def end(self) -> float:
        """When all that was sent will have been played; infinite where reports will tell."""
        if any(item.unreported_ms for item in self._fresh):
            return math.inf
        return self._end
