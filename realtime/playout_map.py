"""Which item is heard: the one stream that leaves a loudspeaker, told apart into items again.

The sender counts milliseconds since it was made; the session counts those of each item.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

BYTES_PER_MS: Final = 48
"""Of mono int16 audio at 24 kHz."""


@dataclass(slots=True)
class _Stretch:
    """Audio of one item that waits. ``left_ms`` of it, up to ``end_ms`` of the item."""

    item_id: str
    end_ms: float
    left_ms: float


class PlayoutMap:
    """``report(item_id, ms)`` is called as an item is played."""

    def __init__(self, report: Callable[[str, float], None]) -> None:
        self._report = report
        self._waiting: deque[_Stretch] = deque()
        self._item_id = ""
        self._item_ms = 0.0
        self._total_ms = 0.0

    def play(self, item_id: str, pcm: bytes) -> None:
        """Speech of an item was given to the sender."""
        if item_id != self._item_id:
            self._item_id, self._item_ms = item_id, 0.0
        length_ms = len(pcm) / BYTES_PER_MS
        self._item_ms += length_ms
        self._waiting.append(_Stretch(item_id, self._item_ms, length_ms))

    @property
    def end_ms(self) -> float:
        """Of everything: where what is given next will begin."""
        return self._total_ms + sum(stretch.left_ms for stretch in self._waiting)

    def flush(self) -> None:
        """The sender has dropped what waits."""
        self._waiting.clear()

    def played(self, total_ms: float) -> None:
        """The sender has sent so much of everything."""
        passed, self._total_ms = total_ms - self._total_ms, total_ms
        while passed > 0 and self._waiting:
            stretch = self._waiting[0]
            part = min(passed, stretch.left_ms)
            passed -= part
            stretch.left_ms -= part
            if stretch.left_ms <= 0:
                self._waiting.popleft()
            if passed <= 0 or not self._waiting or self._waiting[0].item_id != stretch.item_id:
                self._report(stretch.item_id, stretch.end_ms - stretch.left_ms)
