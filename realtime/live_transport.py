"""A Live session over the session core: ``ports.Transport`` between a core and a room.

The core sees a client that plays out; the room sees something that speaks.
"""

import anyio

from duologue.realtime.live_room import LiveRoom
from duologue.sessions.effects import (
    DuckPlayout,
    FlushPlayout,
    RestorePlayout,
    ServerEvent,
    ShowPicture,
)
from duologue.sessions.live_cascade import CascadeVoice
from duologue.sessions.ports import Incoming, TransportClosed


class LiveTransport:
    """Attach it to the conversation while the room runs."""

    plays_out = True

    def __init__(self, room: LiveRoom, voice: CascadeVoice) -> None:
        self._room = room
        self._voice = voice
        self._stirred = anyio.Event()
        room.session.voice = voice
        room.stirred = self._stir

    def _stir(self) -> None:
        if self._voice.pending or self._room.session.closed is not None:
            self._stirred.set()

    async def receive(self) -> Incoming:
        while not self._voice.pending:
            if self._room.session.closed is not None:
                raise TransportClosed(clean=True)
            self._stirred = anyio.Event()
            await self._stirred.wait()
        return self._voice.pending.popleft()

    def send(self, event: ServerEvent) -> None:
        self._voice.told(event)
        self._room.settle()

    def steer(self, effect: FlushPlayout | DuckPlayout | RestorePlayout) -> None:
        self._voice.steer(effect)

    def show(self, effect: ShowPicture) -> None:
        """Live has no pictures."""

    async def aclose(self, code: int, reason: str) -> None:
        """The core is over; the first reason there was is the one that is told."""
        self._room.close("connection_lost" if self._voice.ended is None else "expired")
        await self._room.aclose(code, reason)
