"""A call over WebRTC as a Live session's link: events over the data channel, sound over RTP.

Frames of output go to the sender as they are due, silence too, so that what is heard over a call
is what is heard over a WebSocket. What a caller sends beyond a bound, or too fast, is refused.
"""

import logging
from collections import deque
from collections.abc import Callable

import anyio

from duologue.codecs.media import Int16Samples, RingFullError
from duologue.codecs.pcm import bytes_from_int16, int16_from_bytes
from duologue.realtime.live_wire import LiveDecoder, LiveEncoder
from duologue.realtime.read_ahead import ReadAhead
from duologue.realtime.rtc_peer import PeerFailed, RtcPeer
from duologue.realtime.rtc_transport import RtcLimits
from duologue.realtime.sdp_answer import LARGEST_MESSAGE
from duologue.realtime.websocket import EventBucket, too_fast
from duologue.sessions.errors import ProtocolError
from duologue.sessions.live_events import Command, LiveError, LiveEvent, OutputAudio, Refused

logger = logging.getLogger(__name__)


class LivePeer:
    """``LiveLink`` over a peer, which :meth:`connect` is given; it is the peer's listener.

    ``hear`` takes what the microphone hears, int16 at 16 kHz, ``see`` what the camera shows.
    """

    def __init__(
        self, encoder: LiveEncoder, decoder: LiveDecoder, limits: RtcLimits | None = None
    ) -> None:
        self.decoder = decoder
        self.hear: Callable[[Int16Samples], None] = lambda samples: None
        self.see: Callable[[bytes | None], None] = lambda jpeg: None
        self._encoder = encoder
        self._limits = limits or RtcLimits()
        self._peer: RtcPeer | None = None
        self._connected = False
        self._bucket = EventBucket(self._limits.rate, self._limits.burst, anyio.current_time())
        self._waiting: deque[str] = deque()
        self._waiting_bytes = 0
        self._ahead: ReadAhead[Command] = ReadAhead(
            self._limits.incoming_events, self._limits.incoming_bytes, self._limits.run
        )
        self._overrun = False

    # -- the session's side -----------------------------------------------------------------

    async def receive(self) -> Command:
        return await self._ahead.receive()

    def send(self, event: LiveEvent) -> None:
        if self._ahead.closed is not None:
            return
        if isinstance(event, OutputAudio):
            self._play(event)
            return
        for text in self._encoder.encode(event):
            self._emit(self._fitting(text))

    def _play(self, frame: OutputAudio) -> None:
        if self._peer is None or not self._connected:
            return
        try:
            self._peer.play(bytes_from_int16(frame.samples))
        except RingFullError:
            logger.warning("a call's sender does not send: a frame was dropped")

    def _fitting(self, text: str) -> str:
        """The event, or an error in place of one that is too large for the data channel."""
        most = LARGEST_MESSAGE
        if self._peer is not None and self._peer.largest_message:
            most = min(most, self._peer.largest_message)
        if len(text) * 4 <= most or len(text.encode()) <= most:
            return text
        message = "An event was too large for the data channel; a sideband can receive it."
        told = self._encoder.encode(LiveError(ProtocolError("event_too_large", message)))
        return told[0] if told else ""

    def _emit(self, text: str) -> None:
        peer = self._peer
        if not text:
            return
        if peer is not None and peer.open:
            peer.say(text)
            if peer.waiting_bytes > self._limits.outgoing_bytes:
                logger.info("a caller does not take its events: the call is ended")
                self._end(clean=False)
            return
        if peer is not None and not peer.has_channel:
            return
        self._waiting.append(text)
        self._waiting_bytes += len(text)
        while self._waiting_bytes > self._limits.waiting_bytes:
            self._waiting_bytes -= len(self._waiting.popleft())

    async def aclose(self, code: int, reason: str) -> None:
        self._end(clean=True)
        if self._peer is not None:
            await self._peer.aclose()

    # -- the peer's side --------------------------------------------------------------------

    async def connect(self, peer: RtcPeer) -> None:
        """Connect; the session ends when this does not come about."""
        self._peer = peer
        try:
            await peer.connect()
        except PeerFailed as error:
            logger.info("a call did not come about: %s", error)
            self._end(clean=False)
        else:
            self._connected = True

    def peer_said(self, message: str | bytes) -> None:
        wait, tell = self._bucket.take(anyio.current_time())
        if wait > 0:
            if tell:
                self._ahead.put(Refused(too_fast(wait)))
        elif not self._ahead.has_room:
            if not self._overrun:
                self._overrun = True
                full = "Events come faster than they can be worked off; some were dropped."
                self._ahead.put(Refused(ProtocolError("rate_limit_exceeded", full)))
        else:
            self._overrun = False
            self._ahead.put(self._decode(message))

    def _decode(self, message: str | bytes) -> Command:
        if isinstance(message, bytes):
            return Refused(ProtocolError("invalid_event", "Events are sent as text messages."))
        if len(message) > LARGEST_MESSAGE:
            most = f"A message may have at most {LARGEST_MESSAGE} bytes."
            return Refused(ProtocolError("event_too_large", most))
        try:
            return self.decoder.decode(message)
        except ProtocolError as error:
            return Refused(error)

    def peer_opened(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        self._waiting_bytes = 0
        for text in waiting:
            self._emit(text)

    def peer_heard(self, pcm: bytes, now: float) -> None:
        if self._ahead.closed is None:
            self.hear(int16_from_bytes(pcm))

    def peer_played(self, total_ms: float, now: float) -> None:
        """The mixer knows what was heard: the sender is at most a frame behind it."""

    def peer_saw(self, jpeg: bytes | None, now: float) -> None:
        if self._ahead.closed is None:
            self.see(jpeg)

    def peer_lost(self) -> None:
        self._end(clean=False)

    def peer_back(self) -> None:
        """There is no later offer for a Live session."""

    def peer_gone(self) -> None:
        self._end(clean=True)

    def _end(self, clean: bool) -> None:
        """The session is told at its next :meth:`receive`."""
        self._ahead.close(clean)
