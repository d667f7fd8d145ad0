"""A call over WebRTC as a Live session's link: events over the data channel, sound over RTP.

Frames of output go to the sender as they are due, silence too, so that what is heard over a call
is what is heard over a WebSocket. What a caller sends beyond a bound, or too fast, is refused.
"""

import logging
import math
from collections.abc import Callable
from typing import Final

import anyio

from duologue.codecs.media import Int16Samples, RingFullError
from duologue.codecs.pcm import bytes_from_int16, int16_from_bytes
from duologue.realtime.channel_events import ChannelEvents, RtcLimits, too_large
from duologue.realtime.live_wire import LiveDecoder, LiveEncoder
from duologue.realtime.rtc_peer import RtcPeer
from duologue.sessions.live_events import Command, LiveError, LiveEvent, OutputAudio, Refused

AWAY_SECONDS: Final = 30.0
"""How long a caller that is not heard of is waited for; as for Realtime's calls."""

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
        self._events: ChannelEvents[Command] = ChannelEvents(
            limits or RtcLimits(), lambda text: self.decoder.decode(text), Refused
        )
        self._connected = False
        self._away = False
        self._moved = anyio.Event()

    # -- the session's side -----------------------------------------------------------------

    async def receive(self) -> Command:
        return await self._events.ahead.receive()

    def send(self, event: LiveEvent) -> None:
        if self._events.ahead.closed is not None:
            return
        if isinstance(event, OutputAudio):
            self._play(event)
            return
        for text in self._encoder.encode(event):
            if self._events.fits(text):
                self._events.say(text)
                continue
            for told in self._encoder.encode(LiveError(too_large())):
                self._events.say(told)

    def _play(self, frame: OutputAudio) -> None:
        peer = self._events.peer
        if peer is None or not self._connected:
            return
        try:
            peer.play(bytes_from_int16(frame.samples))
        except RingFullError:
            logger.warning("a call's sender does not send: a frame was dropped")

    async def aclose(self, code: int, reason: str) -> None:
        self._end(clean=True)
        if self._events.peer is not None:
            await self._events.peer.aclose()

    # -- the peer's side --------------------------------------------------------------------

    async def connect(self, peer: RtcPeer) -> None:
        """Connect and stay until cancelled; the session ends when this does not come about."""
        self._connected = await self._events.connect(peer)
        if self._connected:
            await peer.work()

    async def watch(self, away_seconds: float = AWAY_SECONDS) -> None:
        """End the session of a caller that is lost and does not come back, until cancelled.

        The session goes on meanwhile: what is said is said to nobody, what is heard is silence.
        """
        while True:
            moved = self._moved
            with anyio.move_on_after(away_seconds if self._away else math.inf):
                await moved.wait()
                continue
            self._end(clean=False)
            return

    def peer_said(self, message: str | bytes) -> None:
        self._events.take(message)

    def peer_opened(self) -> None:
        self._events.opened()

    def peer_heard(self, pcm: bytes, now: float) -> None:
        if self._events.ahead.closed is None:
            self.hear(int16_from_bytes(pcm))

    def peer_played(self, total_ms: float, now: float) -> None:
        """The mixer knows what was heard: the sender is at most a frame behind it."""

    def peer_saw(self, jpeg: bytes | None, now: float) -> None:
        if self._events.ahead.closed is None:
            self.see(jpeg)

    def peer_lost(self) -> None:
        self._move(away=True)

    def peer_back(self) -> None:
        self._move(away=False)

    def peer_gone(self) -> None:
        self._end(clean=True)

    def _move(self, *, away: bool) -> None:
        if away != self._away:
            self._away = away
            self._moved.set()
            self._moved = anyio.Event()

    def _end(self, clean: bool) -> None:
        """The session is told at its next :meth:`receive`."""
        self._events.ahead.close(clean)
