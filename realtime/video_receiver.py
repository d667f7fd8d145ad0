"""A client's camera: its packets in, now and then a picture out.

Coded pictures are kept until one is due. Then all of them are decoded in one go on a thread, since
each needs the one before, and only the last becomes a picture; a key picture lets go of what came
before it. Where decoding costs too much for that, key pictures alone are decoded, one asked for
each time. A camera that sends nothing for a while is off.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import anyio
import anyio.to_thread
from aiortc.rtp import AnyRtcpPacket, RtcpSrPacket

from duologue.codecs.frame_assembly import CodedPicture, FrameAssembly, Wanted
from duologue.codecs.media import MalformedDataError
from duologue.codecs.picture import encode_jpeg
from duologue.codecs.rtcp_feedback import build_nack, build_pli, build_remb
from duologue.codecs.rtp import Reception, RtpPacket, build_receiver_report
from duologue.codecs.video_decoder import VideoDecoder
from duologue.codecs.video_payload import PIECES
from duologue.realtime.pacer import PERIOD, Pacer
from duologue.realtime.rtc_media import MediaTarget, MediaTransport
from duologue.realtime.rtp_receiver import SWITCH_SECONDS, PacketBudget
from duologue.realtime.sdp_video import CLOCK_RATE, VideoChoice
from duologue.sessions.clock import MonotonicClock
from duologue.sessions.ports import Clock

REPORT_SECONDS: Final = 1.0
OFF_SECONDS: Final = 2.5
"""Without a whole picture for so long, the camera is off."""
PACKETS_PER_SECOND: Final = 2_500.0
BURST: Final = 2_000.0
"""A key picture of 4K at once, and some."""
MOST_KEPT: Final = 900
"""Coded pictures that wait to be decoded: 15 s of 60 a second."""
MOST_KEPT_BYTES: Final = 4 * 1024 * 1024
MOST_SHARE: Final = 0.3
"""Of one core, for decoding everything of one camera; beyond, key pictures alone are."""
MOST_OWED: Final = 0.5
"""Processor's seconds above that share which do not count yet: a decoder that begins is slow."""
LEAST_BIT_RATE: Final = 100_000
_LOSSY, _CLEAN = 26, 5
"""Of 256: loss from which the bit rate goes down (10 %), and below which it goes up (2 %)."""


@dataclass(frozen=True, slots=True)
class CameraSettings:
    """``rate``: pictures a second that are looked at, 0 for none. ``longest``: pixels of a
    picture's longer side. ``bit_rate``: bits a second that a client is let send."""

    rate: float = 1.0
    longest: int = 768
    bit_rate: int = 800_000


@dataclass(frozen=True, slots=True)
class CameraStats:
    """Since the beginning of the present source, except where it says otherwise."""

    received: int
    lost: int
    """Packets that never came, not even when asked for again; never below 0."""
    strays: int
    """Packets of other sources, or far from all others, or beyond the rate: of the whole call."""
    malformed: int
    """Packets and pictures that could not be read."""
    decoded: int
    pictures: int
    """That were handed on, of the whole call."""
    keys_asked: int
    """Key pictures asked for, of the whole call."""
    bit_rate: int
    """What the client is let send."""
    keys_only: bool


class _Source:
    """One synchronisation source, from its first packet on."""

    def __init__(self, ssrc: int, name: str) -> None:
        self.ssrc = ssrc
        self.reception = Reception(ssrc, CLOCK_RATE)
        self.assembly = FrameAssembly(PIECES[name])
        self.decoder = VideoDecoder(name)
        self.last_packet = -math.inf
        self.kept: list[CodedPicture] = []
        self.kept_bytes = 0
        self.keys_only = False
        self.malformed = 0
        self._owed = 0.0
        self._paid = -math.inf

    def costs(self, spent: float, now: float) -> None:
        """Decoding took ``spent`` processor's seconds: a bucket that leaks at the share allowed."""
        self._owed = spent + max(0.0, self._owed - MOST_SHARE * (now - self._paid))
        self._paid = now
        if self._owed > MOST_OWED:
            self.keys_only = True
            self.breaks()

    def keep(self, picture: CodedPicture) -> None:
        """Bounded: a new key picture replaces all; without one, what is too much breaks it off."""
        if picture.key:
            self.forget()
        elif self.keys_only:
            return
        if len(self.kept) >= MOST_KEPT or self.kept_bytes + len(picture.data) > MOST_KEPT_BYTES:
            self.breaks()
            return
        self.kept.append(picture)
        self.kept_bytes += len(picture.data)

    def take(self) -> list[CodedPicture]:
        kept = self.kept
        self.forget()
        return kept

    def forget(self) -> None:
        self.kept = []
        self.kept_bytes = 0

    def breaks(self) -> None:
        self.forget()
        self.assembly.breaks()


class VideoReceiver(MediaTarget):
    """The pictures of one video section, as JPEG.

    ``on_picture(jpeg, now)`` is called on the event loop, at most ``settings.rate`` times a second,
    with None when the camera goes off. :meth:`run` must run between :meth:`start` and :meth:`stop`.
    """

    def __init__(
        self,
        transport: MediaTransport,
        video: VideoChoice,
        on_picture: Callable[[bytes | None, float], None],
        pacer: Pacer,
        *,
        ssrc: int,
        cname: str,
        threads: anyio.CapacityLimiter,
        settings: CameraSettings,
        clock: Clock | None = None,
    ) -> None:
        """``ssrc`` and ``cname`` are what our reports go by; ``threads`` bounds all decoding."""
        self._transport = transport
        self._name = video.name
        self._payload_type = video.codec.payload_type
        self._retransmission = video.retransmission
        self._on_picture = on_picture
        self._pacer = pacer
        self._ssrc = ssrc
        self._cname = cname
        self._threads = threads
        self._settings = settings
        self._clock = clock or MonotonicClock()
        self._budget = PacketBudget(PACKETS_PER_SECOND, BURST)
        self._source: _Source | None = None
        self._started = False
        self._strays = 0
        self._pictures = 0
        self._keys_asked = 0
        self._on = False
        self._last_whole = -math.inf
        self._next_look = -math.inf
        self._looking = False
        self._due = anyio.Event()
        self._reported = -math.inf
        self._their_report: tuple[int, float] | None = None
        self._bit_rate = settings.bit_rate

    def start(self) -> None:
        """Idempotent."""
        if not self._started:
            self._started = True
            types = [self._payload_type]
            if self._retransmission is not None:
                types.append(self._retransmission)
            self._transport.listen(types, self._receive)
            self._pacer.join(self)

    def stop(self) -> None:
        """Idempotent; ``on_picture`` is not called any more, and a thread at work soon ends."""
        self._started = False
        self._transport.unlisten(self._receive)
        self._transport.unroute_source(self)
        self._pacer.leave(self)

    async def run(self) -> None:
        """Decode what is due, until cancelled."""
        while True:
            await self._due.wait()
            self._due = anyio.Event()
            source = self._source
            if source is not None and source.kept:
                self._looking = True
                try:
                    await self._look(source, source.take())
                finally:
                    self._looking = False

    @property
    def stats(self) -> CameraStats:
        source = self._source
        return CameraStats(
            received=source.reception.received if source else 0,
            lost=max(0, source.reception.lost) if source else 0,
            strays=self._strays,
            malformed=source.malformed + source.assembly.malformed if source else 0,
            decoded=source.decoder.decoded if source else 0,
            pictures=self._pictures,
            keys_asked=self._keys_asked,
            bit_rate=self._bit_rate,
            keys_only=source.keys_only if source else False,
        )

    # -- pictures -------------------------------------------------------------------------------

    async def _look(self, source: _Source, pictures: Sequence[CodedPicture]) -> None:
        try:
            # A caller that goes does not wait for what is left of a look; `stop` cuts that short.
            jpeg, spent = await anyio.to_thread.run_sync(
                self._develop, source, pictures, limiter=self._threads, abandon_on_cancel=True
            )
        except MalformedDataError:
            source.malformed += 1
            source.breaks()
            return
        if not source.keys_only:
            source.costs(spent, self._clock.now())
        if jpeg is not None and self._started and source is self._source:
            self._on = True
            self._pictures += 1
            self._on_picture(jpeg, self._clock.now())

    def _develop(
        self, source: _Source, pictures: Sequence[CodedPicture]
    ) -> tuple[bytes | None, float]:
        """On a thread: the last picture, and the processor's seconds that decoding took."""
        before = time.thread_time()
        frame = source.decoder.decode(pictures, lambda: not self._started)
        spent = time.thread_time() - before
        return None if frame is None else encode_jpeg(frame, self._settings.longest), spent

    # -- the pacer's side -----------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Ask for what is missing, report, and let look when it is time."""
        source = self._source
        if source is None:
            return
        pictures, wanted = source.assembly.handle_timer(now)
        self._keep(source, pictures, now)
        self._ask(source, wanted)
        if self._on and now - self._last_whole > OFF_SECONDS:
            self._on = False
            self._next_look = -math.inf
            source.breaks()
            self._on_picture(None, now)
        if now - self._reported >= REPORT_SECONDS and now - source.last_packet < OFF_SECONDS:
            self._report(source, now)
        if now >= self._next_look and not self._looking:
            if source.kept:
                # In step with the rate, but nothing is made up for.
                on_time = self._next_look > now - PERIOD
                self._next_look = (self._next_look if on_time else now) + 1 / self._settings.rate
                self._due.set()
            elif source.keys_only:
                source.assembly.breaks()

    def _keep(self, source: _Source, pictures: Sequence[CodedPicture], now: float) -> None:
        for picture in pictures:
            self._last_whole = now
            source.keep(picture)

    def _ask(self, source: _Source, wanted: Wanted) -> None:
        if wanted.packets:
            self._transport.send_report(build_nack(self._ssrc, source.ssrc, wanted.packets))
        if wanted.key:
            self._keys_asked += 1
            self._transport.send_report(build_pli(self._ssrc, source.ssrc))

    def _report(self, source: _Source, now: float) -> None:
        self._reported = now
        last, delay = 0, 0
        if self._their_report is not None:
            last, delay = self._their_report[0], int((now - self._their_report[1]) * 65536)
        block = source.reception.report(last, delay)
        self._transport.send_report(build_receiver_report(self._ssrc, self._cname, block))
        if block.fraction_lost > _LOSSY:
            self._bit_rate = max(LEAST_BIT_RATE, int(self._bit_rate * 0.8))
        elif block.fraction_lost < _CLEAN:
            self._bit_rate = min(self._settings.bit_rate, int(self._bit_rate * 1.1))
        self._transport.send_report(build_remb(self._ssrc, source.ssrc, self._bit_rate))

    # -- packets --------------------------------------------------------------------------------

    def reported(self, packet: AnyRtcpPacket) -> None:
        if isinstance(packet, RtcpSrPacket):
            middle = packet.sender_info.ntp_timestamp >> 16 & 0xFFFFFFFF
            self._their_report = (middle, self._clock.now())

    def _receive(self, packet: RtpPacket) -> None:
        now = self._clock.now()
        if not self._budget.take(now):
            self._strays += 1
            return
        if packet.payload_type == self._retransmission:
            original = self._original(packet)
            if original is None:
                return
            packet = original
        source = self._source
        if source is None or packet.ssrc != source.ssrc:
            source = self._switch(source, packet.ssrc, now)
            if source is None:
                self._strays += 1
                return
        place = source.reception.place(packet.sequence, packet.timestamp, now)
        if place is None:
            self._strays += 1
            return
        source.last_packet = now
        if place.restarted:
            source.assembly.restart()
            source.forget()
        pictures = source.assembly.push(
            place.sequence, place.timestamp, packet.marker, packet.payload, now
        )
        self._keep(source, pictures, now)

    def _original(self, packet: RtpPacket) -> RtpPacket | None:
        """What was sent again (RFC 4588, section 4); None for a probe without content."""
        if self._source is None or len(packet.payload) <= 2:
            return None
        return packet._replace(
            payload_type=self._payload_type,
            sequence=int.from_bytes(packet.payload[:2], "big"),
            ssrc=self._source.ssrc,
            payload=packet.payload[2:],
        )

    def _switch(self, source: _Source | None, ssrc: int, now: float) -> _Source | None:
        """The source that is looked at now, None for a stray's packet."""
        if source is not None and now - source.last_packet < SWITCH_SECONDS:
            return None
        self._source = _Source(ssrc, self._name)
        self._transport.route_source(self, ssrc, source.ssrc if source is not None else None)
        self._their_report = None
        return self._source
