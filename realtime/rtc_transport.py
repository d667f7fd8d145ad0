"""One session over WebRTC: events over the data channel, speech over RTP, and its observers.

A sideband is a WebSocket that shares the session of a call: it gets every event that the data
channel gets, and its events count like those of the caller. Audio deltas go to nobody: they are
played out here. The bounds of the data channel are in ``channel_events.py``.
"""

import logging
from collections.abc import Callable

import anyio

from duologue.codecs.media import MediaValueError
from duologue.realtime.channel_events import ChannelEvents, RtcLimits, too_large
from duologue.realtime.playout_map import BYTES_PER_MS, PlayoutMap
from duologue.realtime.rtc_peer import RtcPeer
from duologue.realtime.server_wire import Encoder
from duologue.realtime.video_sender import Picture
from duologue.realtime.websocket import WebSocketTransport
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
        self._hear = hear
        self._see = see
        self._map = PlayoutMap(report)
        self._speaking = ""
        self._speech_began = self._speech_ms = 0.0
        self._observers: list[WebSocketTransport] = []
        self._events: ChannelEvents[Incoming] = ChannelEvents(
            limits, lambda text: self.decoder.decode(text), Rejected
        )
        self._ahead = self._events.ahead

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
        if self._events.has_channel:
            self._say(event)

    def steer(self, effect: FlushPlayout | DuckPlayout | RestorePlayout) -> None:
        if self._events.peer is None:
            return
        match effect:
            case FlushPlayout():
                self._map.flush()
                self._events.peer.flush()
            case DuckPlayout():
                self._events.peer.duck()
            case RestorePlayout():
                self._events.peer.restore()

    def show(self, effect: ShowPicture) -> None:
        if self._events.peer is None:
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
        self._events.peer.show(picture, due)

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
                if self._events.peer is not None:
                    tasks.start_soon(self._events.peer.aclose)

    def _play(self, delta: AudioDelta) -> None:
        if self.plays_out and self._events.peer is not None:
            if delta.response_id != self._speaking:
                self._speak(delta.response_id)
            # Told anew each time: a flush has taken away what lay between.
            self._speech_began = self._map.end_ms - self._speech_ms
            self._speech_ms += len(delta.pcm) / BYTES_PER_MS
            self._map.play(delta.item_id, delta.pcm)
            self._events.peer.play(delta.pcm)

    def _say(self, event: ServerEvent) -> None:
        for text in self._encoder.encode(event):
            self._events.say(text if self._events.fits(text) else self._shortened(event))

    def _shortened(self, event: ServerEvent) -> str:
        """In place of an event that is too large for the data channel."""
        if isinstance(event, ItemRetrieved) and event.audio is not None:
            text = self._encoder.encode(ItemRetrieved(event.item))[0]
            if self._events.fits(text):
                return text
        return self._encoder.encode(ErrorReported(too_large()))[0]

    # -- the peer's side --------------------------------------------------------------------

    async def connect(self, peer: RtcPeer) -> None:
        """Connect and stay until cancelled; the session ends when this does not come about."""
        if await self._events.connect(peer):
            await peer.work()

    def peer_said(self, message: str | bytes) -> None:
        self._events.take(message)

    def peer_opened(self) -> None:
        self._events.opened()

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
