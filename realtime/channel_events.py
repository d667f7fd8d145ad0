"""Events over a call's data channel, both ways, within bounds.

Out: they wait for the channel to open, the oldest dropped first; a caller that does not take them
is cut off. In: they wait for the session; what a caller sends beyond a bound, or too fast, is
refused with an error that it is told once.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

import anyio

from duologue.realtime.read_ahead import Heard, ReadAhead
from duologue.realtime.rtc_peer import PeerFailed, RtcPeer
from duologue.realtime.sdp_answer import LARGEST_MESSAGE
from duologue.realtime.websocket import EventBucket, too_fast
from duologue.sessions.errors import ProtocolError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RtcLimits:
    """Bytes, events and events a second."""

    waiting_bytes: int = 1024 * 1024
    """Events that wait for the data channel to open; then the oldest are dropped."""
    outgoing_bytes: int = 8 * 1024 * 1024
    """Given to an open data channel and not taken; a caller behind by more is cut off."""
    incoming_events: int = 256
    """Events ahead of the session; a caller's next is refused, an observer's waits."""
    incoming_bytes: int = 4 * 1024 * 1024
    """As ``incoming_events``, for audio sent as events."""
    rate: float = 1_000.0
    """Sustained events a second of the caller; what is faster is refused."""
    burst: float = 2_000.0
    """Events at once."""
    run: int = 8
    """Events given to the session before everybody else gets a turn."""


class ChannelEvents(Generic[Heard]):
    """``ahead`` is what the session takes, and says when it is over.

    ``decode`` may raise ProtocolError; ``refused`` makes of one what the session takes instead.
    """

    def __init__(
        self,
        limits: RtcLimits,
        decode: Callable[[str], Heard],
        refused: Callable[[ProtocolError], Heard],
    ) -> None:
        self.ahead: ReadAhead[Heard] = ReadAhead(
            limits.incoming_events, limits.incoming_bytes, limits.run
        )
        self.peer: RtcPeer | None = None
        self._limits = limits
        self._decode = decode
        self._refused = refused
        self._bucket = EventBucket(limits.rate, limits.burst, anyio.current_time())
        self._overrun = False
        self._waiting: deque[str] = deque()
        self._waiting_bytes = 0

    async def connect(self, peer: RtcPeer) -> bool:
        """Whether the connection came about; if it did not, `ahead` is closed."""
        self.peer = peer
        if not peer.has_channel:
            self._waiting.clear()
        try:
            await peer.connect()
        except PeerFailed as error:
            logger.info("a call did not come about: %s", error)
            self.ahead.close(clean=False)
            return False
        return True

    # -- out --------------------------------------------------------------------------------

    @property
    def has_channel(self) -> bool:
        """Whether there is anything that events could go to, be it later."""
        return self.peer is None or self.peer.has_channel

    def fits(self, text: str) -> bool:
        """Whether an event is small enough for the data channel."""
        most = LARGEST_MESSAGE
        if self.peer is not None and self.peer.largest_message:
            most = min(most, self.peer.largest_message)
        return len(text) * 4 <= most or len(text.encode()) <= most

    def say(self, text: str) -> None:
        """Send an event that fits, now or once the channel is open. Without one it is dropped."""
        if not self.has_channel:
            return
        if self.peer is not None and self.peer.open:
            self.peer.say(text)
            if self.peer.waiting_bytes > self._limits.outgoing_bytes:
                logger.info("a caller does not take its events: the call is ended")
                self.ahead.close(clean=False)
            return
        self._waiting.append(text)
        self._waiting_bytes += len(text)
        while self._waiting_bytes > self._limits.waiting_bytes:
            self._waiting_bytes -= len(self._waiting.popleft())

    def opened(self) -> None:
        """The channel is open: what waits is sent."""
        waiting, self._waiting = self._waiting, deque()
        self._waiting_bytes = 0
        for text in waiting:
            self.say(text)

    # -- in ---------------------------------------------------------------------------------

    def take(self, message: str | bytes) -> None:
        """A message of the caller."""
        wait, tell = self._bucket.take(anyio.current_time())
        if wait > 0:
            if tell:
                self.ahead.put(self._refused(too_fast(wait)))
        elif not self.ahead.has_room:
            if not self._overrun:
                self._overrun = True
                full = "Events come faster than they can be worked off; some were dropped."
                self.ahead.put(self._refused(ProtocolError("rate_limit_exceeded", full)))
        else:
            self._overrun = False
            self.ahead.put(self._read(message))

    def _read(self, message: str | bytes) -> Heard:
        if isinstance(message, bytes):
            text = "Events are sent as text messages."
            return self._refused(ProtocolError("invalid_event", text))
        if len(message) > LARGEST_MESSAGE:
            most = f"A message may have at most {LARGEST_MESSAGE} bytes."
            return self._refused(ProtocolError("event_too_large", most))
        try:
            return self._decode(message)
        except ProtocolError as error:
            return self._refused(error)


def too_large() -> ProtocolError:
    """What a caller is told in place of an event that does not fit."""
    message = "An event was too large for the data channel; a sideband can receive it."
    return ProtocolError("event_too_large", message)
