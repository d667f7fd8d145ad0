"""What a client sees: pictures in, packets out, on the clock of the sound beside them.

Pictures wait for the moment of their speech. Of those that are due the newest is encoded, on a
thread, when the packets of the one before have left; so at most two are unsent, and a slow network
costs pictures and not time. The packets of a picture are spread over ticks of the pacer.
"""

import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Protocol, cast

import anyio
import anyio.to_thread
import av
import numpy as np
from aiortc.clock import current_ntp_time
from aiortc.codecs.h264 import H264Encoder
from aiortc.codecs.vpx import Vp8Encoder
from aiortc.rtp import (
    RTCP_PSFB_APP,
    RTCP_PSFB_FIR,
    RTCP_PSFB_PLI,
    RTCP_RTPFB_NACK,
    AnyRtcpPacket,
    RtcpPsfbPacket,
    RtcpRrPacket,
    RtcpRtpfbPacket,
    RtcpSrPacket,
    unpack_remb_fci,
)

from duologue.codecs.media import MediaValueError
from duologue.codecs.rtp import (
    RtpPacket,
    build_bye,
    build_rtp,
    build_sender_report,
    mid_extension,
)
from duologue.realtime.pacer import PERIOD, Pacer
from duologue.realtime.rtc_media import MediaTransport, ReportTarget
from duologue.realtime.sdp_video import CLOCK_RATE, VP8, VideoChoice
from duologue.sessions.clock import MonotonicClock
from duologue.sessions.ports import Clock

MOST_WAITING: Final = 300
MOST_WAITING_BYTES: Final = 24 * 1024 * 1024
"""Of pictures whose moment has not come; then the oldest are dropped."""
MOST_PIXELS: Final = 1920 * 1088
KEPT_PACKETS: Final = 512
"""That can be sent again."""
MOST_RESENT: Final = 64
"""Packets sent again at one request; beyond, the client will ask for a key picture."""
RESEND_SECONDS: Final = 0.03
KEY_SECONDS: Final = 0.3
"""Between two key pictures that were asked for."""
REPORT_SECONDS: Final = 2.0
LEAST_BIT_RATE: Final = 100_000
PACE: Final = 2.5
"""How much faster than the bit rate the packets of one picture leave."""


@dataclass(frozen=True, slots=True)
class ScreenSettings:
    """Bits a second at first, and at most."""

    first_bit_rate: int = 600_000
    most_bit_rate: int = 1_500_000


@dataclass(frozen=True, slots=True)
class Picture:
    """I420 planes of even sides; MediaValueError for anything else."""

    width: int
    height: int
    pixels: bytes

    def __post_init__(self) -> None:
        size = self.width * self.height
        if self.width < 2 or self.height < 2 or self.width % 2 or self.height % 2:
            raise MediaValueError(f"sides are even, not {self.width} x {self.height}")
        if size > MOST_PIXELS or len(self.pixels) != size * 3 // 2:
            raise MediaValueError(
                f"{len(self.pixels)} bytes are no picture of {self.width} x {self.height}"
            )


@dataclass(frozen=True, slots=True)
class ScreenStats:
    packets: int
    bytes: int
    pictures: int
    """That were encoded."""
    dropped: int
    """That gave way to newer ones."""
    keys: int
    """Key pictures that were asked for."""
    resent: int
    bit_rate: int
    waiting: int


class _Encoder(Protocol):
    target_bitrate: int

    def encode(
        self, frame: av.VideoFrame, force_keyframe: bool = False
    ) -> tuple[list[bytes], int]: ...


class VideoSender(ReportTarget):
    """One video section's outgoing stream. :meth:`run` must run while it is to show anything.

    The clock is the pacer's periods, as it is for sound: :meth:`heard` tells which sound left in
    which of them. A picture is due when the sound it belongs to leaves, and its timestamp says
    exactly when that is, so that a client can bring both together however late they come
    (RFC 3550, section 6.4.1).
    """

    def __init__(
        self,
        transport: MediaTransport,
        video: VideoChoice,
        pacer: Pacer,
        *,
        ssrc: int,
        cname: str,
        threads: anyio.CapacityLimiter,
        settings: ScreenSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``threads`` bounds all encoding of a process."""
        super().__init__(ssrc)
        self._transport = transport
        self._payload_type = video.codec.payload_type
        self._pacer = pacer
        self._cname = cname
        self._threads = threads
        self._settings = settings or ScreenSettings()
        self._clock = clock or MonotonicClock()
        self._extension = b""
        if video.mid is not None and video.mid_extension is not None:
            self._extension = mid_extension(video.mid_extension, video.mid)
        self._encoder = cast(_Encoder, Vp8Encoder() if video.name == VP8 else H264Encoder())
        self._bit_rate = self._settings.first_bit_rate
        self._allowed = self._settings.most_bit_rate
        self._waiting: deque[tuple[float, Picture]] = deque()
        self._waiting_bytes = 0
        self._due: tuple[float, Picture] | None = None
        self._last: Picture | None = None
        self._wanted = anyio.Event()
        self._key_wanted = True
        self._key_at = -KEY_SECONDS
        self._keys = 0
        self._packets: deque[bytes] = deque()
        self._sent: OrderedDict[int, tuple[bytes, float]] = OrderedDict()
        self._left = anyio.Event()
        # Below the middle, so that SRTP's roll-over counter starts without doubt (RFC 3711, 3.3.1).
        self._sequence = secrets.randbelow(0x8000)
        self._offset = secrets.randbits(32)
        self._timestamp = 0
        self._sound: tuple[float, int] | None = None
        self._started = False
        self._next_report = 0.0
        self._count = self._bytes = self._pictures = self._dropped = self._resent = 0

    def start(self) -> None:
        """Idempotent."""
        if not self._started:
            self._started = True
            self._transport.route_sender(self, self._ssrc)
            self._pacer.join(self)

    def stop(self) -> None:
        """Says good-bye, where the connection is up. Idempotent."""
        if self._started:
            self._started = False
            self._pacer.leave(self)
            self._transport.unroute_sender(self)
            self._transport.send_report(build_bye(self._ssrc, self._cname))
            self.flush()

    @property
    def stats(self) -> ScreenStats:
        return ScreenStats(
            packets=self._count,
            bytes=self._bytes,
            pictures=self._pictures,
            dropped=self._dropped,
            keys=self._keys,
            resent=self._resent,
            bit_rate=self._bit_rate,
            waiting=len(self._waiting),
        )

    # -- what is shown --------------------------------------------------------------------------

    def show(self, picture: Picture, due_ms: float | None) -> None:
        """Show it when so much of all sound has been played; None: at once.

        What was to be shown before it and was given later is out of order and dropped.
        """
        if due_ms is None:
            self._put(self._now(), picture)
            return
        if self._waiting and due_ms < self._waiting[-1][0]:
            self._dropped += 1
            return
        self._waiting.append((due_ms, picture))
        self._waiting_bytes += len(picture.pixels)
        while len(self._waiting) > MOST_WAITING or self._waiting_bytes > MOST_WAITING_BYTES:
            self._take()
            self._dropped += 1

    def flush(self) -> None:
        """Forget what waits: its sound will not be played. What is on the screen stays there."""
        self._waiting.clear()
        self._waiting_bytes = 0

    def heard(self, total_ms: float) -> None:
        """A packet of sound leaves in this period; with it, so much of all sound has left."""
        self._sound = (total_ms, self._pacer.period)

    def _now(self) -> float:
        """Seconds of the pacer's clock."""
        return self._pacer.period * PERIOD

    def _take(self) -> tuple[float, Picture]:
        due, picture = self._waiting.popleft()
        self._waiting_bytes -= len(picture.pixels)
        return due, picture

    def _put(self, when: float, picture: Picture) -> None:
        """It is time: the newest wins."""
        if self._due is not None:
            self._dropped += 1
        self._due = (when, picture)
        self._wanted.set()

    def _come_due(self) -> None:
        """The packet of sound that left last lasts for one period."""
        if self._sound is None:
            return
        total, period = self._sound
        while self._waiting and self._waiting[0][0] < total:
            due, picture = self._take()
            self._put((period + 1) * PERIOD - (total - due) / 1000, picture)

    # -- encoding -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Encode what is due, until cancelled."""
        while True:
            await self._wanted.wait()
            while self._packets:
                self._left = anyio.Event()
                await self._left.wait()
            self._wanted = anyio.Event()
            due, self._due = self._due, None
            if due is None:
                # A key picture was asked for, and nothing moves.
                if self._last is None:
                    continue
                due = (self._now(), self._last)
            when, picture = due
            key, self._key_wanted = self._key_wanted, False
            self._encoder.target_bitrate = self._bit_rate
            payloads = await anyio.to_thread.run_sync(
                self._encode, picture, key, limiter=self._threads
            )
            self._last = picture
            self._pictures += 1
            self._packetize(payloads, when)

    def _encode(self, picture: Picture, key: bool) -> list[bytes]:
        """On a thread."""
        planes = np.frombuffer(picture.pixels, np.uint8).reshape(-1, picture.width)
        frame = av.VideoFrame.from_ndarray(planes, format="yuv420p")
        frame.pts = int((time.perf_counter()) * CLOCK_RATE)
        frame.time_base = Fraction(1, CLOCK_RATE)
        return self._encoder.encode(frame, force_keyframe=key)[0]

    def _packetize(self, payloads: Sequence[bytes], when: float) -> None:
        # Two pictures of one time would be taken for one.
        self._timestamp = max(self._timestamp + CLOCK_RATE // 1000, self._ticks(when))
        for number, payload in enumerate(payloads):
            self._sequence += 1
            packet = RtpPacket(
                self._payload_type,
                number == len(payloads) - 1,
                self._sequence,
                self._timestamp,
                self._ssrc,
                payload,
            )
            data = build_rtp(packet, self._extension)
            self._packets.append(data)
            self._sent[self._sequence & 0xFFFF] = (data, self._clock.now())
            if len(self._sent) > KEPT_PACKETS:
                self._sent.popitem(last=False)

    def _ticks(self, when: float) -> int:
        return self._offset + round(when * CLOCK_RATE)

    # -- the pacer's side -----------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Let pictures come due, and packets of the one that is on its way leave."""
        if not self._transport.ready:
            return
        self._come_due()
        room = max(3000, int(self._bit_rate * PACE / 8 * PERIOD))
        while self._packets and room > 0:
            data = self._packets.popleft()
            room -= len(data)
            if self._transport.send_media(data):
                self._count += 1
                self._bytes += len(data)
        if not self._packets:
            self._left.set()
        if now >= self._next_report and self._count:
            self._report(now)

    def _report(self, now: float) -> None:
        self._next_report = now + REPORT_SECONDS * (0.5 + secrets.randbelow(1000) / 1000)
        self._transport.send_report(
            build_sender_report(
                self._ssrc,
                self._cname,
                current_ntp_time(),
                self._ticks(self._now()),
                self._count,
                self._bytes,
            )
        )

    # -- what the client says -------------------------------------------------------------------

    def reported(self, packet: AnyRtcpPacket) -> None:
        match packet:
            case RtcpPsfbPacket(fmt=fmt) if fmt in (RTCP_PSFB_PLI, RTCP_PSFB_FIR):
                self._ask_for_key()
            case RtcpPsfbPacket(fmt=fmt) if fmt == RTCP_PSFB_APP:
                self._bound(packet.fci)
            case RtcpRtpfbPacket(fmt=fmt) if fmt == RTCP_RTPFB_NACK:
                self._send_again(packet.lost[:MOST_RESENT])
            case RtcpRrPacket() | RtcpSrPacket():
                for block in packet.reports:
                    if block.ssrc == self._ssrc:
                        self._learn(block.fraction_lost)
            case _:
                pass

    def _ask_for_key(self) -> None:
        now = self._clock.now()
        if now - self._key_at >= KEY_SECONDS:
            self._key_at = now
            self._keys += 1
            self._key_wanted = True
            self._wanted.set()

    def _bound(self, fci: bytes) -> None:
        try:
            bit_rate, sources = unpack_remb_fci(fci)
        except ValueError:
            return
        if self._ssrc in sources:
            self._allowed = max(LEAST_BIT_RATE, min(bit_rate, self._settings.most_bit_rate))
            self._bit_rate = min(self._bit_rate, self._allowed)

    def _learn(self, fraction_lost: int) -> None:
        """Of 256. Above 10 % slower, below 2 % faster, as far as is allowed."""
        if fraction_lost > 26:
            self._bit_rate = max(LEAST_BIT_RATE, int(self._bit_rate * 0.8))
        elif fraction_lost < 5:
            self._bit_rate = min(self._allowed, int(self._bit_rate * 1.08))

    def _send_again(self, sequences: Sequence[int]) -> None:
        now = self._clock.now()
        for sequence in sequences:
            data, sent = self._sent.get(sequence, (b"", 0.0))
            if data and now - sent >= RESEND_SECONDS and self._transport.send_media(data):
                self._sent[sequence] = (data, now)
                self._resent += 1
