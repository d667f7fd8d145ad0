"""What the listener has heard: generated ≥ sent ≥ played, for each spoken item.

Where the server plays audio out, it reports what has left. Where the client does, what was sent is
taken to play in real time from the moment it was sent, without gaps as long as there is more.
Times are session seconds, positions milliseconds of an item's audio.
"""

from dataclasses import dataclass, field, replace

from duologue.engines.engine import WordTime

BYTES_PER_MS = 48
"""Of mono int16 audio at 24 kHz."""


@dataclass(slots=True)
class Clause:
    """A stretch of speech with its words; ``words`` are known once they have been aligned."""

    text: str
    start_ms: float
    end_ms: float
    pcm: bytes = b""
    words: tuple[WordTime, ...] | None = None


@dataclass(slots=True, eq=False)
class SpokenItem:
    """The audio of one assistant item. ``cut_ms`` is set once it is known where it was cut off."""

    item_id: str
    response_id: str
    clauses: list[Clause] = field(default_factory=list)
    generated_ms: float = 0.0
    sent_ms: float = 0.0
    cut_ms: float | None = None
    cut_by_client: bool = False
    _settled_ms: float = 0.0
    _run_start: float = 0.0
    _run_ms: float = 0.0
    _reported_ms: float | None = None

    def generate(self, text: str, pcm: bytes) -> None:
        """More speech: a new clause where there is text, else more of the last one."""
        length = len(pcm) / BYTES_PER_MS
        end = self.generated_ms + length
        if text or not self.clauses:
            self.clauses.append(Clause(text, self.generated_ms, end, pcm))
        else:
            last = self.clauses[-1]
            last.end_ms = end
            last.pcm += pcm
        self.generated_ms = end

    def send(self, start: float, length_ms: float) -> None:
        """A stretch has been sent that starts to play at ``start``."""
        if start > self._run_start + self._run_ms / 1000 + 1e-6:
            self._settled_ms += self._run_ms
            self._run_start, self._run_ms = start, 0.0
        self._run_ms += length_ms
        self.sent_ms += length_ms

    def report(self, played_ms: float) -> None:
        """The server's own playout says how much has been played."""
        self._reported_ms = max(self._reported_ms or 0.0, min(played_ms, self.sent_ms))

    def played_ms(self, now: float) -> float:
        """How much of the item has been heard by ``now``."""
        if self._reported_ms is not None:
            return self._reported_ms
        run = min(max((now - self._run_start) * 1000, 0.0), self._run_ms)
        return self._settled_ms + run

    def cut(self, at_ms: float, by_client: bool) -> bool:
        """What comes after ``at_ms`` was not heard. A client's word outweighs our estimate.

        Returns whether this changed anything.
        """
        if self.cut_by_client and not by_client:
            return False
        self.cut_ms = at_ms
        self.cut_by_client = by_client
        return True

    @property
    def transcript(self) -> str:
        return "".join(clause.text for clause in self.clauses)

    def heard(self) -> str:
        """The words that were heard in full: all of them, or those before the cut."""
        if self.cut_ms is None:
            return self.transcript
        said: list[str] = []
        for clause in self.clauses:
            if clause.end_ms <= self.cut_ms + 0.5:
                said.append(clause.text)
                continue
            if clause.start_ms < self.cut_ms:
                said.append(words_before(clause, self.cut_ms))
            break
        return "".join(said).rstrip()

    def cut_clause(self) -> Clause | None:
        """The clause that the cut falls into, when its words are not aligned yet."""
        if self.cut_ms is None:
            return None
        for clause in self.clauses:
            if clause.start_ms < self.cut_ms and clause.end_ms > self.cut_ms + 0.5:
                return clause if clause.words is None and clause.pcm else None
        return None

    def forget_audio(self, before_ms: float) -> None:
        """Let go of the audio of clauses that ended before a position: they can't be cut."""
        for clause in self.clauses:
            if clause.end_ms <= before_ms and clause.pcm:
                clause.pcm = b""


def words_before(clause: Clause, position_ms: float) -> str:
    """The words of a clause that end at or before a position, rounding down.

    Without aligned words, time is spread over the letters evenly.
    """
    offset = position_ms - clause.start_ms
    if clause.words:
        return "".join(word.text for word in clause.words if word.end_ms <= offset)
    share = offset / max(clause.end_ms - clause.start_ms, 1.0)
    letters = int(len(clause.text) * share)
    if letters >= len(clause.text):
        return clause.text
    if clause.text[letters].isspace():
        return clause.text[:letters]
    kept = clause.text[:letters]
    boundary = max((i for i, letter in enumerate(kept) if letter.isspace()), default=-1)
    return kept[: boundary + 1]


class Playback:
    """The listener's clock over all items, and where each item stands on it."""

    def __init__(self) -> None:
        self._end = 0.0
        self._items: dict[str, SpokenItem] = {}

    def item(self, item_id: str) -> SpokenItem | None:
        return self._items.get(item_id)

    def open(self, item_id: str, response_id: str) -> SpokenItem:
        item = SpokenItem(item_id, response_id)
        self._items[item_id] = item
        return item

    def forget(self, item_id: str) -> None:
        self._items.pop(item_id, None)

    def recent(self) -> list[SpokenItem]:
        """The items that were spoken last, newest last: older ones have been heard."""
        return list(self._items.values())[-4:]

    def sent(self, item: SpokenItem, length_ms: float, now: float) -> None:
        start = max(now, self._end)
        item.send(start, length_ms)
        self._end = start + length_ms / 1000
        item.forget_audio(item.played_ms(now))

    def flush(self, now: float) -> None:
        """The listener has dropped what waits to be played."""
        self._end = min(self._end, now)

    def lead(self, now: float) -> float:
        """Seconds of audio that are sent and not yet played."""
        return max(0.0, self._end - now)

    @property
    def end(self) -> float:
        """When all that was sent will have been played."""
        return self._end


def merged_words(clause: Clause, words: tuple[WordTime, ...]) -> Clause:
    """The clause with its words, or as it was where they don't join to its text."""
    if "".join(word.text for word in words) != clause.text:
        return clause
    return replace(clause, words=words)
