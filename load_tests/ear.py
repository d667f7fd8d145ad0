"""What a listener hears: the playout of a client, on the client's own clock.

The model is the one that clients over WebSocket use: audio is played from the moment its first
piece arrives, at the rate at which it was recorded, and is thrown away when the user interrupts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Piece:
    """Audio of one item that was heard from ``start`` (seconds) on."""

    item_id: str
    start: float
    pcm: bytes


@dataclass(slots=True)
class Ear:
    """Plays 16-bit mono audio as it arrives and notes where it had to wait for more.

    ``keep``: remember the audio itself, for a recording of the conversation.
    """

    rate: int = 24_000
    keep: bool = False
    gaps: list[float] = field(default_factory=list)
    """Seconds of silence within an item, each where the next piece came too late."""
    pieces: list[Piece] = field(default_factory=list)
    _playing_until: float = -1.0
    _item: str = ""
    _item_complete: bool = True
    _heard_before: dict[str, float] = field(default_factory=dict)

    def receive(self, item_id: str, pcm: bytes, now: float) -> None:
        """A piece of an item's audio has arrived."""
        duration = len(pcm) / 2 / self.rate
        if now > self._playing_until:
            if item_id == self._item and not self._item_complete:
                self.gaps.append(now - self._playing_until)
            start = now
        else:
            start = self._playing_until
        if item_id != self._item:
            self._item, self._item_complete = item_id, False
        self._heard_before[item_id] = self._heard_before.get(item_id, 0.0) + duration
        self._playing_until = start + duration
        if self.keep:
            self.pieces.append(Piece(item_id, start, pcm))

    def complete(self, item_id: str) -> None:
        """No more audio comes for the item: silence after it is not a gap."""
        if item_id == self._item:
            self._item_complete = True

    def audible(self, now: float) -> bool:
        """Whether something is being played at this moment."""
        return now < self._playing_until

    @property
    def quiet_at(self) -> float:
        """When everything that has arrived will have been played."""
        return self._playing_until

    def heard_ms(self, item_id: str, now: float) -> int:
        """How much of an item's audio has been heard, in whole milliseconds."""
        received = self._heard_before.get(item_id, 0.0)
        waiting = max(0.0, self._playing_until - now) if item_id == self._item else 0.0
        return int(1000 * max(0.0, received - waiting) + 1e-6)

    def flush(self, now: float) -> tuple[str, int] | None:
        """Throw away what has not been heard, as on an interruption.

        Returns the item that was cut and how much of it was heard (ms), or ``None`` when nothing
        was being played.
        """
        if not self.audible(now):
            self._item_complete = True
            return None
        heard = self.heard_ms(self._item, now)
        self._heard_before[self._item] = heard / 1000
        self._playing_until = now
        self._item_complete = True
        self.pieces = list(self._cut(now))
        return self._item, heard

    def _cut(self, now: float) -> Iterator[Piece]:
        for piece in self.pieces:
            keep = max(0, int((now - piece.start) * self.rate)) * 2
            if keep >= len(piece.pcm):
                yield piece
            elif keep:
                yield Piece(piece.item_id, piece.start, piece.pcm[:keep])
