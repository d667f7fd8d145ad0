"""What the driver of a session needs from its surroundings: protocols only."""

from typing import Protocol

from duologue.sessions.effects import ServerEvent
from duologue.sessions.events import ClientEvent


class Clock(Protocol):
    def now(self) -> float:
        """Session time: seconds, monotonic, of no fixed origin."""


class Transport(Protocol):
    """How one client is reached."""

    @property
    def plays_out(self) -> bool:
        """Whether the server owns playout and reports what was heard (WebRTC)."""

    async def receive(self) -> "Incoming":
        """What the client sent next. Raises :class:`TransportClosed` when it is gone."""

    def send(self, event: ServerEvent) -> None:
        """Queue an event for the client; never waits.

        A client that does not read is bounded by the transport: it ends the connection.
        """

    async def aclose(self, code: int, reason: str) -> None:
        """Send what is queued, within a bound, then close. Idempotent."""


class TransportClosed(Exception):
    """The client is gone. ``clean`` when it said so."""

    def __init__(self, clean: bool) -> None:
        super().__init__("closed" if clean else "lost")
        self.clean = clean


class AudioBytes:
    """Audio that the client sent, in the session's input format."""

    __slots__ = ("data", "event_id")

    def __init__(self, data: bytes, event_id: str | None = None) -> None:
        self.data = data
        self.event_id = event_id


Incoming = ClientEvent | AudioBytes
