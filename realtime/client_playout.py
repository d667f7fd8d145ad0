"""What a client over a WebSocket plays, and how much of each item was heard; pure.

The server sends sound ahead of time; the client plays it at its own pace, a tick of 20 ms at a
time, and knows at an interruption what to tell the server (``conversation.item.truncate``).
"""

from collections import deque

RATE = 24_000
"""Of all sound of a client, in Hz; 16-bit, mono."""

TICK_MS = 20
TICK_BYTES = RATE * TICK_MS // 1000 * 2
SILENCE = bytes(TICK_BYTES)
BYTES_A_MS = RATE // 1000 * 2


class Playout:
    """``held_s``: seconds of sound that may wait; what is more is dropped from the front, and
    counted."""

    def __init__(self, held_s: float = 120.0) -> None:
        self._pieces: deque[tuple[str, bytes]] = deque()
        self._held = 0
        self._most = int(held_s * RATE) * 2
        self._item = ""
        self._played = 0
        self._cut: deque[str] = deque(maxlen=64)
        self.dropped_bytes = 0

    @property
    def playing(self) -> bool:
        """Whether there is sound to be played."""
        return self._held > 0

    def add(self, item_id: str, pcm: bytes) -> None:
        """Sound of an item; what comes for one that was cut is left out."""
        if not pcm or item_id in self._cut:
            return
        self._pieces.append((item_id, pcm))
        self._held += len(pcm)
        while self._held > self._most and len(self._pieces) > 1:
            lost = len(self._pieces.popleft()[1])
            self._held -= lost
            self.dropped_bytes += lost

    def tick(self) -> bytes:
        """The next 20 ms, zeros where there is nothing."""
        parts = []
        missing = TICK_BYTES
        while missing and self._pieces:
            item_id, pcm = self._pieces.popleft()
            if item_id != self._item:
                self._item, self._played = item_id, 0
            part, rest = pcm[:missing], pcm[missing:]
            if rest:
                self._pieces.appendleft((item_id, rest))
            parts.append(part)
            missing -= len(part)
            self._played += len(part)
        sound = b"".join(parts)
        self._held -= len(sound)
        return sound + SILENCE[:missing]

    def flush(self) -> tuple[str, int] | None:
        """Play no more of what waits. The item that was cut short and how many ms of it were
        heard; ``None`` where nothing waited."""
        if not self._pieces:
            return None
        item_id = self._pieces[0][0]
        heard = self._played // BYTES_A_MS if item_id == self._item else 0
        self._cut.extend(dict.fromkeys(item for item, _ in self._pieces))
        self._pieces.clear()
        self._held = 0
        return item_id, heard
