"""What a client sees: pictures in the time of their sound."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from aiortc.rtp import (
    RTCP_PSFB_APP,
    RTCP_PSFB_FIR,
    RTCP_PSFB_PLI,
    RTCP_RTPFB_NACK,
    RtcpByePacket,
    RtcpPsfbPacket,
    RtcpReceiverInfo,
    RtcpRrPacket,
    RtcpRtpfbPacket,
    RtcpSdesPacket,
    RtcpSrPacket,
    pack_remb_fci,
)

from duologue.codecs.frame_assembly import FrameAssembly
from duologue.codecs.media import MediaValueError
from duologue.codecs.video_decoder import VideoDecoder
from duologue.codecs.video_pattern import pattern, read_pattern
from duologue.codecs.video_payload import PIECES
from duologue.realtime.pacer import Pacer
from duologue.realtime.sdp_offer import OfferedCodec
from duologue.realtime.sdp_video import VideoChoice
from duologue.realtime.video_sender import (
    LEAST_BIT_RATE,
    MOST_WAITING,
    Picture,
    ScreenSettings,
    VideoSender,
)
from duologue.sessions.clock import ManualClock
from tests.patience import PATIENCE_S
from tests.realtime.media_wire import SendingWire

pytestmark = pytest.mark.anyio

SSRC = 7
SIZE = (160, 128)
CODECS = {
    name: VideoChoice(0, OfferedCodec(96, name, 90_000, 1), None, True, False, "v", 4)
    for name in ("VP8", "H264")
}


class Line:
    def __init__(self, name: str, settings: ScreenSettings | None) -> None:
        self.name = name
        self.clock = ManualClock(50.0)
        self.pacer = Pacer(self.clock)
        self.wire = SendingWire()
        self.sender = VideoSender(
            self.wire,  # type: ignore[arg-type]
            CODECS[name],
            self.pacer,
            ssrc=SSRC,
            cname="us",
            threads=anyio.CapacityLimiter(1),
            settings=settings,
            clock=self.clock,
        )
        self.sender.start()
        self.played = 0.0

    def show(self, number: int, due_ms: float | None, size: tuple[int, int] = SIZE) -> None:
        self.sender.show(Picture(*size, pattern(number, *size)), due_ms)

    async def tick(self, count: int = 1, *, sound: bool = False) -> None:
        """So many periods; with sound, each has 20 ms of it."""
        for _ in range(count):
            self.clock.advance(0.02)
            self.pacer.advance(self.clock.now())
            if sound:
                self.played += 20
                self.sender.heard(self.played)
            encoded = self.sender.stats.pictures
            pending = self.sender._due is not None and not self.sender._packets
            await anyio.lowlevel.checkpoint()
            while pending and self.sender.stats.pictures == encoded:
                await anyio.lowlevel.checkpoint()

    def seen(self) -> list[tuple[int, int]]:
        """Timestamp and number of each picture, decoded as a client would."""
        assembly, decoder = FrameAssembly(PIECES[self.name]), VideoDecoder(self.name)
        found = []
        for packet in self.wire.packets:
            for coded in assembly.push(
                packet.sequence, packet.timestamp, packet.marker, packet.payload, 0.0
            ):
                frame = decoder.decode([coded], lambda: False)
                assert frame is not None
                found.append((coded.timestamp, read_pattern(frame.to_ndarray(format="gray8"))))
        return found

    @property
    def numbers(self) -> list[int]:
        return [number for _, number in self.seen()]

    @property
    def keys(self) -> int:
        read = PIECES[self.name]
        return sum(read(packet.payload).key for packet in self.wire.packets)


def busy(number: int) -> Picture:
    """A picture that takes many packets: its lower half is noise."""
    width, height = 640, 480
    pixels = bytearray(pattern(number, width, height))
    half = width * height // 2
    pixels[half : 2 * half] = np.random.default_rng(number).bytes(half)
    return Picture(width, height, bytes(pixels))


@asynccontextmanager
async def showing(name: str = "VP8", settings: ScreenSettings | None = None) -> AsyncIterator[Line]:
    line = Line(name, settings)
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.sender.run)
            yield line
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("name", ["VP8", "H264"])
async def test_pictures_come_with_their_sound_and_say_when_that_is(name: str) -> None:
    async with showing(name) as line:
        for number in range(5):
            line.show(number, number * 100.0)
        await line.tick(3)
        assert line.wire.packets == []
        await line.tick(40, sound=True)
        times, numbers = zip(*line.seen(), strict=True)
        assert numbers == (0, 1, 2, 3, 4)
        assert [time - times[0] for time in times] == [n * 9000 for n in range(5)]


async def test_where_the_sound_pauses_the_pictures_do() -> None:
    async with showing() as line:
        for number in range(4):
            line.show(number, number * 100.0)
        await line.tick(8, sound=True)
        await line.tick(50)
        assert line.numbers == [0, 1]
        await line.tick(20, sound=True)
        times, numbers = zip(*line.seen(), strict=True)
        assert numbers == (0, 1, 2, 3)
        assert times[2] - times[1] == 9000 + 50 * 1800


async def test_one_clock_tells_of_sound_and_pictures() -> None:
    """The report's time and timestamp, and a picture's timestamp, give the time of its sound."""
    async with showing() as line:
        line.show(1, 400.0)
        await line.tick(60, sound=True)
        began = line.pacer.period - 60 + 1
        ((timestamp, _),) = line.seen()
        report = next(r for r in line.wire.reports if isinstance(r, RtcpSrPacket))
        description = next(r for r in line.wire.reports if isinstance(r, RtcpSdesPacket))
        assert report.ssrc == SSRC
        assert dict(description.chunks[0].items)[1] == b"us"
        base = line.sender._offset
        assert (timestamp - base) & 0xFFFFFFFF == began * 1800 + 400 * 90
        assert ((report.sender_info.rtp_timestamp - base) & 0xFFFFFFFF) % 1800 == 0


async def test_a_picture_of_no_sound_is_shown_at_once() -> None:
    async with showing() as line:
        line.show(9, None)
        await line.tick(3)
        assert line.numbers == [9]


async def test_of_pictures_that_are_late_the_newest_wins() -> None:
    async with showing() as line:
        line.played = 1000
        line.sender.heard(1000)
        for number in range(20):
            line.show(number, number * 10.0)
        await line.tick(10, sound=True)
        assert line.numbers == [19]
        assert line.sender.stats.dropped == 19


async def test_a_slow_network_costs_pictures_and_not_time() -> None:
    slow = ScreenSettings(first_bit_rate=LEAST_BIT_RATE)
    async with showing(settings=slow) as line:
        for number in range(30):
            line.sender.show(busy(number), number * 20.0)
        await line.tick(300, sound=True)
        stats = line.sender.stats
        assert stats.pictures < 25
        assert stats.dropped > 0
        assert line.numbers[-1] == 29


async def test_the_packets_of_a_picture_are_spread() -> None:
    slow = ScreenSettings(first_bit_rate=LEAST_BIT_RATE)
    async with showing(settings=slow) as line:
        line.sender.show(busy(3), None)
        most = 0
        for _ in range(30):
            before = len(line.wire.packets)
            await line.tick()
            most = max(most, len(line.wire.packets) - before)
        assert len(line.wire.packets) > 6
        assert most <= 3


async def test_pictures_that_wait_are_bounded_and_the_oldest_go() -> None:
    async with showing() as line:
        for number in range(MOST_WAITING + 50):
            line.show(number, 1000.0 + number * 20, (32, 32))
        assert line.sender.stats.waiting == MOST_WAITING
        assert line.sender.stats.dropped == 50


async def test_pictures_out_of_order_are_dropped() -> None:
    async with showing() as line:
        line.show(1, 100.0)
        line.show(0, 50.0)
        await line.tick(20, sound=True)
        assert line.numbers == [1]


async def test_an_interruption_takes_away_what_waits() -> None:
    async with showing() as line:
        for number in range(5):
            line.show(number, number * 100.0)
        await line.tick(8, sound=True)
        line.sender.flush()
        await line.tick(40, sound=True)
        assert line.numbers == [0, 1]
        assert line.sender.stats.waiting == 0


@pytest.mark.parametrize("fmt", [RTCP_PSFB_PLI, RTCP_PSFB_FIR])
async def test_a_key_picture_is_given_even_while_nothing_moves(fmt: int) -> None:
    async with showing() as line:
        line.show(5, None)
        await line.tick(20)
        assert line.keys == 1
        for _ in range(5):
            line.sender.reported(RtcpPsfbPacket(fmt, 1, SSRC))
        await line.tick(2)
        while line.sender.stats.pictures < 2:
            await anyio.lowlevel.checkpoint()
        await line.tick(3)
        assert line.keys == 2
        assert line.numbers == [5, 5]
        assert line.sender.stats.keys == 1


async def test_a_key_picture_is_asked_for_before_there_is_any() -> None:
    async with showing() as line:
        line.sender.reported(RtcpPsfbPacket(RTCP_PSFB_PLI, 1, SSRC))
        await line.tick(5)
        assert line.wire.packets == []
        line.show(5, None)
        await line.tick(5)
        assert line.numbers == [5]


async def test_lost_packets_are_sent_again_but_not_at_will() -> None:
    async with showing() as line:
        line.show(5, None)
        await line.tick(5)
        sent = list(line.wire.packets)
        lost = [sent[0].sequence, 12_345]
        for _ in range(3):
            line.sender.reported(RtcpRtpfbPacket(RTCP_RTPFB_NACK, 1, SSRC, lost))
        assert line.wire.packets == [*sent, sent[0]]
        await line.tick(3)
        line.sender.reported(RtcpRtpfbPacket(RTCP_RTPFB_NACK, 1, SSRC, lost))
        assert line.wire.packets[-1] == sent[0]
        assert line.sender.stats.resent == 2


def bounded(rate: int, *sources: int) -> RtcpPsfbPacket:
    return RtcpPsfbPacket(RTCP_PSFB_APP, 1, 0, pack_remb_fci(rate, list(sources)))


def loss(of_256: int, ssrc: int = SSRC) -> RtcpRrPacket:
    info = RtcpReceiverInfo(ssrc, of_256, 0, 0, 0, 0, 0)
    return RtcpRrPacket(1, [info])


async def test_the_bit_rate_follows_what_the_client_says() -> None:
    async with showing(settings=ScreenSettings(600_000, 1_000_000)) as line:

        def rate_after(*reports: RtcpPsfbPacket | RtcpRrPacket) -> int:
            for report in reports:
                line.sender.reported(report)
            return line.sender.stats.bit_rate

        assert rate_after(loss(0)) > 600_000
        assert rate_after(*[loss(0)] * 20) == 1_000_000
        assert rate_after(loss(100)) == 800_000
        assert rate_after(loss(100, ssrc=99), loss(15)) == 800_000
        assert rate_after(bounded(300_000, SSRC)) == pytest.approx(300_000, rel=1e-3)
        assert rate_after(*[loss(0)] * 20) == pytest.approx(300_000, rel=1e-3)
        assert rate_after(bounded(50_000, 99)) == pytest.approx(300_000, rel=1e-3)
        assert rate_after(bounded(1, SSRC)) == LEAST_BIT_RATE
        assert rate_after(RtcpPsfbPacket(RTCP_PSFB_APP, 1, 0, b"JUNK")) == LEAST_BIT_RATE


async def test_nothing_leaves_before_there_is_a_way() -> None:
    async with showing() as line:
        line.wire.ready = False
        line.show(5, None)
        await line.tick(5)
        assert line.wire.packets == []
        line.wire.ready = True
        await line.tick(5)
        assert line.numbers == [5]


async def test_the_end_is_said() -> None:
    async with showing() as line:
        line.sender.stop()
        line.sender.stop()
        assert [type(report) for report in line.wire.reports].count(RtcpByePacket) == 1
        assert len(line.pacer) == 0


@pytest.mark.parametrize(
    ("width", "height", "size"),
    [(3, 2, 9), (0, 2, 0), (2, 2, 5), (2, 2, 7), (4096, 4096, 4096 * 4096 * 3 // 2)],
)
def test_what_is_no_picture_is_refused(width: int, height: int, size: int) -> None:
    with pytest.raises(MediaValueError):
        Picture(width, height, bytes(size))
