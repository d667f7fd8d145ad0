"""What the driver of a session needs from its surroundings: protocols only."""

from typing import Protocol

from duologue.sessions.effects import (
    DuckPlayout,
    Effect,
    FlushPlayout,
    RestorePlayout,
    ServerEvent,
    ShowPicture,
)
from duologue.sessions.events import Attached, ClientEvent, Detached, Event


class Clock(Protocol):
    def now(self) -> float:
        """Session time: seconds, monotonic, of no fixed origin."""


class Transport(Protocol):
    """How one client is reached."""

    @property
    def plays_out(self) -> bool:
        """Whether the server owns playout and reports what was heard (WebRTC)."""

    async def receive(self) -> "Incoming":
        """What the client sent next. Raises :class:`TransportClosed` when it is gone.

        ``Detached`` and ``Attached`` tell of a client that may come back, and did.
        """

    def send(self, event: ServerEvent) -> None:
        """Queue an event for the client; never waits.

        A client that does not read is bounded by the transport: it ends the connection.
        """

    def steer(self, effect: FlushPlayout | DuckPlayout | RestorePlayout) -> None:
        """Change what is being played out, where the server plays it out; else does nothing."""

    def show(self, effect: ShowPicture) -> None:
        """Show a picture in its time, where the server plays out; else does nothing."""

    async def aclose(self, code: int, reason: str) -> None:
        """Send what is queued, within a bound, then close. Idempotent."""


class Observer(Protocol):
    """Sees everything that happens, for figures; must be quick and must not raise."""

    def event(self, session_id: str, event: Event, now: float) -> None: ...

    def effect(self, session_id: str, effect: Effect, now: float) -> None: ...

    def trace(self, session_id: str, generation: int) -> str:
        """The traceparent that the request for this answer takes along; "" for none.

        Asked after :meth:`effect` has seen the request.
        """


class Unobserved:
    """Looks away."""

    def event(self, session_id: str, event: Event, now: float) -> None:
        return

    def effect(self, session_id: str, effect: Effect, now: float) -> None:
        return

    def trace(self, session_id: str, generation: int) -> str:
        return ""


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


Incoming = ClientEvent | AudioBytes | Attached | Detached
