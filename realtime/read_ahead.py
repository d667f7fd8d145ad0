"""What a client has sent and its session has not taken yet, within bounds.

Whoever reads from the client asks for room first; what is done without it is the reader's policy.
"""

from collections import deque
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel

from duologue.sessions.events import CancelResponse, ClearOutput
from duologue.sessions.live_events import AppendAudio
from duologue.sessions.ports import AudioBytes, TransportClosed

Heard = TypeVar("Heard")


class ReadAhead(Generic[Heard]):
    """``events`` and ``audio_bytes`` are what it holds at most, as far as readers ask for room;
    ``run`` events are given in a row before everybody else gets a turn."""

    def __init__(self, events: int, audio_bytes: int, run: int) -> None:
        self._most = events
        self._most_bytes = audio_bytes
        self._run = run
        self._waiting: deque[Heard] = deque()
        self._bytes = 0
        self._given = 0
        self._arrived = anyio.Event()
        self._taken = anyio.Event()
        self.closed: TransportClosed | None = None

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < self._most and self._bytes <= self._most_bytes

    async def wait_for_room(self) -> None:
        """Until there is room, or it is closed."""
        while not self.has_room and self.closed is None:
            self._taken = anyio.Event()
            await self._taken.wait()

    def put(self, incoming: Heard) -> None:
        place = len(self._waiting)
        if isinstance(incoming, CancelResponse | ClearOutput):
            # These overtake audio that waits, but nothing that they may refer to.
            while place > 0 and isinstance(self._waiting[place - 1], AudioBytes):
                place -= 1
        elif isinstance(incoming, AudioBytes | AppendAudio):
            self._bytes += len(incoming.data)
        self._waiting.insert(place, incoming)
        self._arrived.set()
        self._arrived = anyio.Event()

    async def receive(self) -> Heard:
        """The next event. Raises TransportClosed, once that is so: what waits is not given then."""
        while True:
            if self.closed is not None:
                raise self.closed
            if self._waiting and self._given < self._run:
                break
            if self._waiting:
                await anyio.lowlevel.checkpoint()
            else:
                await self._arrived.wait()
            self._given = 0
        self._given += 1
        incoming = self._waiting.popleft()
        if isinstance(incoming, AudioBytes | AppendAudio):
            self._bytes -= len(incoming.data)
        self._taken.set()
        return incoming

    def close(self, clean: bool) -> None:
        """Whoever receives or waits for room is told. Idempotent: the first word counts."""
        if self.closed is None:
            self.closed = TransportClosed(clean)
        self._arrived.set()
        self._taken.set()
