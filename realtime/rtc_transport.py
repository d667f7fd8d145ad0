"""One session over WebRTC: events over the data channel, speech over RTP, and its observers.

A sideband is a WebSocket that shares the session of a call: it gets every event that the data
channel gets, and its events count like those of the caller. Audio deltas go to nobody: they are
played out here. Events wait for the data channel to open, within a bound, the oldest dropped first;
a caller that does not take its events is cut off. What comes in waits in a queue with a bound; what
a caller sends beyond it, or too fast, is refused with an error.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from duologue.codecs.media import MediaValueError
from duologue.realtime.playout_map import BYTES_PER_MS, PlayoutMap
from duologue.realtime.read_ahead import ReadAhead
from duologue.realtime.rtc_peer import PeerFailed, RtcPeer
from duologue.realtime.sdp_answer import LARGEST_MESSAGE
from duologue.realtime.server_wire import Encoder
from duologue.realtime.video_sender import Picture
from duologue.realtime.websocket import EventBucket, WebSocketTransport, too_fast
from duologue.realtime.wire import Decoder
from duologue.sessions.effects import (
    AudioDelta,
    DuckPlayout,
    ErrorReported,
    FlushPlayout,
    ItemRetrieved,
    RestorePlayout,
    ServerEvent,
    SessionCreated,
    SessionUpdated,
    ShowPicture,
)
from duologue.sessions.errors import ProtocolError
from duologue.sessions.events import Attached, Detached, Rejected
from duologue.sessions.ports import Incoming, TransportClosed
from duologue.sessions.session_config import SessionConfig

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


Hear = Callable[[bytes], None]
"""Mono int16 at 16 kHz, to the session at once."""
See = Callable[[bytes | None], None]
"""A picture of the camera as JPEG, or that it is off."""
Report = Callable[[str, float], None]
"""So many milliseconds of an item have been played."""


class RtcTransport:
    """``ports.Transport`` over a peer, which is given by :meth:`connect`.

    It is the peer's listener. ``hear``, ``report`` and ``see`` are the session's; they must not
    raise.
    """

    def __init__(
        self,
        encoder: Encoder,
        config: SessionConfig,
        limits: RtcLimits,
        hear: Hear,
        report: Report,
        see: See,
        *,
        plays_out: bool,
    ) -> None:
        """``plays_out``: the caller hears us; without, there is only text for it."""
        self.plays_out = plays_out
        self.decoder = Decoder(config)
        self.config = config
        self._encoder = encoder
        self._limits = limits
        self._hear = hear
        self._see = see
        self._map = PlayoutMap(report)
        self._speaking = ""
        self._speech_began = self._speech_ms = 0.0
        self._peer: RtcPeer | None = None
        self._observers: list[WebSocketTransport] = []
        self._bucket = EventBucket(limits.rate, limits.burst, anyio.current_time())
        self._waiting: deque[str] = deque()
        self._waiting_bytes = 0
        self._ahead: ReadAhead[Incoming] = ReadAhead(
            limits.incoming_events, limits.incoming_bytes, limits.run
        )
        self._overrun = False

    # -- the session's side -----------------------------------------------------------------

    async def receive(self) -> Incoming:
        return await self._ahead.receive()

    def send(self, event: ServerEvent) -> None:
        if self._ahead.closed is not None:
            return
        if isinstance(event, AudioDelta):
            self._play(event)
            return
        match event:
            case SessionCreated() | SessionUpdated():
                self.config = event.config
            case ErrorReported(ProtocolError(code="cannot_update_voice")):
                # An update that the decoder took for granted was refused as a whole.
                self.decoder.config = self.config
            case _:
                pass
        for observer in self._observers:
            observer.send(event)
        if self._peer is None or self._peer.has_channel:
            self._say(event)

    def steer(self, effect: FlushPlayout | DuckPlayout | RestorePlayout) -> None:
        if self._peer is None:
            return
        match effect:
            case FlushPlayout():
                self._map.flush()
                self._peer.flush()
            case DuckPlayout():
                self._peer.duck()
            case RestorePlayout():
                self._peer.restore()

    def show(self, effect: ShowPicture) -> None:
        if self._peer is None:
            return
        made = effect.picture
        try:
            picture = Picture(made.width, made.height, made.pixels)
        except MediaValueError as error:
            logger.warning("a picture of the model's can't be shown: %s", error)
            return
        due = None
        if effect.response_id:
            if effect.response_id != self._speaking:
                self._speak(effect.response_id)
            due = self._speech_began + made.at_ms
        self._peer.show(picture, due)

    def _speak(self, response_id: str) -> None:
        """Another response's audio comes next, after all that waits."""
        self._speaking = response_id
        self._speech_began, self._speech_ms = self._map.end_ms, 0.0

    async def aclose(self, code: int, reason: str) -> None:
        self._end(clean=True)
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for observer in self._observers:
                    tasks.start_soon(observer.aclose, code, reason)
                if self._peer is not None:
                    tasks.start_soon(self._peer.aclose)

    def _play(self, delta: AudioDelta) -> None:
        if self.plays_out and self._peer is not None:
            if delta.response_id != self._speaking:
                self._speak(delta.response_id)
            # Told anew each time: a flush has taken away what lay between.
            self._speech_began = self._map.end_ms - self._speech_ms
            self._speech_ms += len(delta.pcm) / BYTES_PER_MS
            self._map.play(delta.item_id, delta.pcm)
            self._peer.play(delta.pcm)

    def _say(self, event: ServerEvent) -> None:
        most = LARGEST_MESSAGE
        if self._peer is not None and self._peer.largest_message:
            most = min(most, self._peer.largest_message)
        for text in self._encoder.encode(event):
            if len(text) * 4 > most and len(text.encode()) > most:
                text = self._shortened(event, most)
            self._emit(text)

    def _shortened(self, event: ServerEvent, most: int) -> str:
        """In place of an event that is too large for the data channel."""
        if isinstance(event, ItemRetrieved) and event.audio is not None:
            text = self._encoder.encode(ItemRetrieved(event.item))[0]
            if len(text.encode()) <= most:
                return text
        message = "An event was too large for the data channel; a sideband can receive it."
        return self._encoder.encode(ErrorReported(ProtocolError("event_too_large", message)))[0]

    def _emit(self, text: str) -> None:
        peer = self._peer
        if peer is not None and peer.open:
            peer.say(text)
            if peer.waiting_bytes > self._limits.outgoing_bytes:
                logger.info("a caller does not take its events: the call is ended")
                self._end(clean=False)
            return
        self._waiting.append(text)
        self._waiting_bytes += len(text)
        while self._waiting_bytes > self._limits.waiting_bytes:
            self._waiting_bytes -= len(self._waiting.popleft())

    # -- the peer's side --------------------------------------------------------------------

    async def connect(self, peer: RtcPeer) -> None:
        """Connect and stay until cancelled; the session ends when this does not come about."""
        self._peer = peer
        if not peer.has_channel:
            self._waiting.clear()
        try:
            await peer.connect()
        except PeerFailed as error:
            logger.info("a call did not come about: %s", error)
            self._end(clean=False)
            return
        await peer.work()

    def peer_said(self, message: str | bytes) -> None:
        wait, tell = self._bucket.take(anyio.current_time())
        if wait > 0:
            if tell:
                self._ahead.put(Rejected(too_fast(wait)))
            return
        if not self._ahead.has_room:
            if not self._overrun:
                self._overrun = True
                full = "Events come faster than they can be worked off; some were dropped."
                self._ahead.put(Rejected(ProtocolError("rate_limit_exceeded", full)))
            return
        self._overrun = False
        self._ahead.put(self._decode(message))

    def peer_opened(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        self._waiting_bytes = 0
        for text in waiting:
            self._emit(text)

    def peer_heard(self, pcm: bytes, now: float) -> None:
        if self._ahead.closed is None:
            self._hear(pcm)

    def peer_played(self, total_ms: float, now: float) -> None:
        if self._ahead.closed is None:
            self._map.played(total_ms)

    def peer_saw(self, jpeg: bytes | None, now: float) -> None:
        if self._ahead.closed is None:
            self._see(jpeg)

    def peer_lost(self) -> None:
        self._ahead.put(Detached(resumable=True))

    def peer_back(self) -> None:
        self._ahead.put(Attached())

    def peer_gone(self) -> None:
        self._end(clean=True)

    def _decode(self, message: str | bytes) -> Incoming:
        if isinstance(message, bytes):
            return Rejected(ProtocolError("invalid_event", "Events are sent as text messages."))
        if len(message) > LARGEST_MESSAGE:
            most = f"A message may have at most {LARGEST_MESSAGE} bytes."
            return Rejected(ProtocolError("event_too_large", most))
        try:
            return self.decoder.decode(message)
        except ProtocolError as error:
            return Rejected(error)

    # -- observers --------------------------------------------------------------------------

    async def observe(self, observer: WebSocketTransport) -> None:
        """Let a sideband take part until it goes or the call ends."""
        if self._ahead.closed is not None:
            return
        observer.send(SessionCreated(self.config))
        self._observers.append(observer)
        try:
            while True:
                incoming = await observer.receive()
                await self._ahead.wait_for_room()
                self._ahead.put(incoming)
        except TransportClosed:
            return
        finally:
            self._observers.remove(observer)

    # -- both -------------------------------------------------------------------------------

    def _end(self, clean: bool) -> None:
        """The session is told at its next :meth:`receive`."""
        self._ahead.close(clean)
