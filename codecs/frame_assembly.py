"""Coded pictures from packets: order, what is missing, and where a stream can be taken up again.

Packets wait behind a gap until what is missing has been sent again or is given up; then the stream
is broken until the next key picture. `now` is in seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass

from duologue.codecs.media import MalformedDataError
from duologue.codecs.video_payload import VideoPiece

MOST_WAITING = 1024
"""Packets behind a gap: more than the largest key picture has."""
MOST_BYTES = 4 * 1024 * 1024
"""Of one coded picture."""
GIVE_UP = 0.4
"""Seconds that a gap is waited for: three retransmissions over a slow network."""
REORDER = 0.015
"""Seconds before a gap is a loss and not a packet that was overtaken."""
ASK_AGAIN = 0.09
MOST_ASKED = 4
"""Requests for one packet."""
MOST_MISSING = 64
"""Packets asked for at a time; a larger hole is quicker filled by a key picture."""
KEY_INTERVAL = 0.5
"""Seconds between two requests for a key picture."""


@dataclass(frozen=True, slots=True)
class CodedPicture:
    """A whole picture, coded. ``timestamp`` does not wrap."""

    data: bytes
    timestamp: int
    key: bool
    disposable: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to ask the sender for: packets by their numbers, or a key picture."""

    packets: tuple[int, ...] = ()
    key: bool = False


@dataclass(frozen=True, slots=True)
class _Waiting:
    piece: VideoPiece
    timestamp: int
    marker: bool


class FrameAssembly:
    """One source's pictures. ``read`` takes a packet's payload apart (``PIECES``)."""

    def __init__(self, read: Callable[[bytes], VideoPiece]) -> None:
        self._read = read
        self._waiting: dict[int, _Waiting] = {}
        self._next: int | None = None
        self._highest = -1
        self._parts: list[VideoPiece] = []
        self._size = 0
        self._timestamp: int | None = None
        self._ruined: int | None = None
        """The time of a picture of which no more is wanted."""
        self._gap_since: float | None = None
        self._asked: dict[int, tuple[int, float]] = {}
        self._key_asked = -1e9
        self.broken = True
        """Nothing can be shown until a key picture comes."""
        self.malformed = 0
        self.late = 0
        self.given_up = 0
        """Times that a gap was not filled."""

    def __len__(self) -> int:
        """Packets that wait."""
        return len(self._waiting)

    def push(
        self, sequence: int, timestamp: int, marker: bool, payload: bytes, now: float
    ) -> list[CodedPicture]:
        """The pictures that a packet completes; numbers do not wrap."""
        if self._next is None:
            self._next = sequence
        if sequence < self._next or sequence in self._waiting:
            self.late += 1
            return []
        try:
            piece = self._read(payload) if payload else None
        except MalformedDataError:
            self.malformed += 1
            piece = None
        # What holds nothing (padding, a probe, garbage) still has its place in the order.
        empty = VideoPiece(b"", False, False, True)
        self._waiting[sequence] = _Waiting(piece or empty, timestamp, marker)
        self._highest = max(self._highest, sequence)
        if self.broken and piece is not None and piece.key and sequence > self._next:
            # Nothing before it can be of use any more.
            self._skip_to(sequence)
        pictures = self._advance()
        self._note_gap(now)
        if len(self._waiting) > MOST_WAITING:
            self._give_up()
            pictures += self._advance()
        return pictures

    def restart(self) -> None:
        """The numbering begins anew."""
        self._waiting.clear()
        self._asked.clear()
        self._next = None
        self._highest = -1
        self._gap_since = None
        self.breaks()

    def breaks(self) -> None:
        """What was given can't be decoded: go on with the next key picture."""
        self.broken = True
        self._drop_parts()

    def handle_timer(self, now: float) -> tuple[list[CodedPicture], Wanted]:
        """To be called some 50 times a second."""
        pictures: list[CodedPicture] = []
        if self._gap_since is not None and now - self._gap_since >= GIVE_UP:
            self._give_up()
            pictures = self._advance()
            self._note_gap(now)
        return pictures, Wanted(self._missing(now), self._wants_key(now))

    # -- in order ---------------------------------------------------------------------------

    def _advance(self) -> list[CodedPicture]:
        pictures = []
        assert self._next is not None
        while (waiting := self._waiting.pop(self._next, None)) is not None:
            self._asked.pop(self._next, None)
            self._next += 1
            if self._timestamp is not None and waiting.timestamp != self._timestamp:
                # The marker is a courtesy: a new time is a new picture.
                pictures += self._finish()
            self._timestamp = waiting.timestamp
            if waiting.piece.data and waiting.timestamp != self._ruined:
                self._parts.append(waiting.piece)
                self._size += len(waiting.piece.data)
            if self._size > MOST_BYTES:
                self._ruined = waiting.timestamp
                self.breaks()
            if waiting.marker:
                pictures += self._finish()
        return pictures

    def _finish(self) -> list[CodedPicture]:
        parts, timestamp = self._parts, self._timestamp
        self._drop_parts()
        if not parts or timestamp is None or not parts[0].starts:
            return []
        key = any(part.key for part in parts)
        if self.broken and not key:
            return []
        self.broken = False
        data = b"".join(part.data for part in parts)
        disposable = all(part.disposable for part in parts)
        return [CodedPicture(data, timestamp, key, disposable)]

    def _drop_parts(self) -> None:
        self._parts = []
        self._size = 0
        self._timestamp = None

    # -- what is missing --------------------------------------------------------------------

    def _note_gap(self, now: float) -> None:
        if not self._waiting:
            self._gap_since = None
        elif self._gap_since is None:
            self._gap_since = now

    def _give_up(self) -> None:
        """Go on behind the gap: where a key picture begins, else with nothing but the hope."""
        self.given_up += 1
        self._gap_since = None
        self.breaks()
        keys = [number for number, waiting in self._waiting.items() if waiting.piece.key]
        self._skip_to(min(keys) if keys else self._highest + 1)

    def _skip_to(self, sequence: int) -> None:
        for number in [number for number in self._waiting if number < sequence]:
            del self._waiting[number]
        self._asked.clear()
        self._drop_parts()
        self._next = sequence

    def _missing(self, now: float) -> tuple[int, ...]:
        since = self._gap_since
        if since is None or self._next is None or now - since < REORDER:
            return ()
        holes = [n for n in range(self._next, self._highest) if n not in self._waiting]
        if len(holes) > MOST_MISSING:
            return ()
        due = []
        for number in holes:
            times, last = self._asked.get(number, (0, -1e9))
            if times < MOST_ASKED and now - last >= ASK_AGAIN:
                self._asked[number] = (times + 1, now)
                due.append(number)
        return tuple(due)

    def _wants_key(self, now: float) -> bool:
        if not self.broken or self._next is None or now - self._key_asked < KEY_INTERVAL:
            return False
        self._key_asked = now
        return True
