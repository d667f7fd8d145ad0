"""A client's camera: what becomes of its packets."""

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from fractions import Fraction

import anyio
import anyio.lowlevel
import av
import numpy as np
import pytest
from aiortc.codecs.vpx import Vp8Encoder
from aiortc.rtp import (
    RTCP_PSFB_APP,
    RTCP_PSFB_PLI,
    RTCP_RTPFB_NACK,
    RtcpRrPacket,
    RtcpSenderInfo,
    RtcpSrPacket,
    unpack_remb_fci,
)

from duologue.codecs.frame_assembly import CodedPicture
from duologue.codecs.picture import decode_picture
from duologue.codecs.rtp import RtpPacket
from duologue.codecs.video_decoder import VideoDecoder
from duologue.codecs.video_pattern import pattern, read_pattern
from duologue.realtime import video_receiver
from duologue.realtime.pacer import Pacer
from duologue.realtime.rtp_receiver import SWITCH_SECONDS
from duologue.realtime.sdp_offer import OfferedCodec
from duologue.realtime.sdp_video import VideoChoice
from duologue.realtime.video_receiver import (
    BURST,
    LEAST_BIT_RATE,
    MOST_OWED,
    MOST_SHARE,
    OFF_SECONDS,
    CameraSettings,
    VideoReceiver,
)
from duologue.sessions.clock import ManualClock
from tests.patience import PATIENCE_S
from tests.realtime.media_wire import ReceivingWire

pytestmark = pytest.mark.anyio

RATE = 20
"""Pictures a second that the camera gives."""
VP8 = VideoChoice(0, OfferedCodec(96, "VP8", 90_000, 1), 97, False, True, "v", None)


class Camera:
    """Pictures of the test pattern in packets, of one source."""

    def __init__(self, ssrc: int = 1, size: tuple[int, int] = (160, 128)) -> None:
        self.ssrc, self.size = ssrc, size
        self.encoder = Vp8Encoder()
        self.number = 0
        self.sequence = 100

    def next(self, *, key: bool = False) -> list[RtpPacket]:
        width, height = self.size
        planes = np.frombuffer(pattern(self.number, width, height), np.uint8).reshape(-1, width)
        frame = av.VideoFrame.from_ndarray(planes, format="yuv420p")
        frame.pts, frame.time_base = self.number * 90_000 // RATE, Fraction(1, 90_000)
        payloads, timestamp = self.encoder.encode(frame, force_keyframe=key)
        self.number += 1
        packets = []
        for index, payload in enumerate(payloads):
            self.sequence += 1
            last = index == len(payloads) - 1
            packets.append(RtpPacket(96, last, self.sequence, timestamp, self.ssrc, payload))
        return packets


class Line:
    def __init__(self, settings: CameraSettings) -> None:
        self.clock = ManualClock(100.0)
        self.pacer = Pacer(self.clock)
        self.wire = ReceivingWire()
        self.pictures: list[bytes | None] = []
        self.threads = anyio.CapacityLimiter(1)
        self.receiver = VideoReceiver(
            self.wire,  # type: ignore[arg-type]
            VP8,
            lambda jpeg, now: self.pictures.append(jpeg),
            self.pacer,
            ssrc=9,
            cname="us",
            threads=self.threads,
            settings=settings,
            clock=self.clock,
        )
        self.receiver.start()
        self.receiver.start()

    def give(self, *packets: RtpPacket) -> None:
        for packet in packets:
            listener = self.wire.listeners.get(packet.payload_type)
            if listener is not None:
                listener(packet)  # type: ignore[operator]

    async def wait(self, seconds: float = 1 / RATE) -> None:
        """Let time pass, and let the thread do its work."""
        end = self.clock.now() + seconds
        while self.clock.now() < end - 1e-9:
            self.pacer.advance(self.clock.advance(0.01))
            await self.quiet()

    async def quiet(self) -> None:
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        while self.receiver._looking or self.receiver._due.is_set():
            await anyio.lowlevel.checkpoint()

    async def film(self, camera: Camera, pictures: int) -> None:
        for _ in range(pictures):
            self.give(*camera.next())
            await self.wait()

    @property
    def numbers(self) -> list[int | None]:
        """What the pictures that were handed on say of themselves; None where it went off."""
        return [
            None if jpeg is None else read_pattern(decode_picture(jpeg)[:, :, 1])
            for jpeg in self.pictures
        ]

    def asked(self, fmt: int, kind: int) -> list[object]:
        return [
            report
            for report in self.wire.reports
            if getattr(report, "fmt", None) == fmt and type(report).__name__ == kind
        ]

    @property
    def keys_asked(self) -> int:
        return len(self.asked(RTCP_PSFB_PLI, "RtcpPsfbPacket"))

    @property
    def packets_asked(self) -> list[int]:
        found = self.asked(RTCP_RTPFB_NACK, "RtcpRtpfbPacket")
        return [number for report in found for number in report.lost]

    @property
    def bit_rate(self) -> int:
        report = self.asked(RTCP_PSFB_APP, "RtcpPsfbPacket")[-1]
        return unpack_remb_fci(report.fci)[0]


@asynccontextmanager
async def looking(**settings: float) -> AsyncIterator[Line]:
    line = Line(CameraSettings(**settings))
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.receiver.run)
            yield line
            line.receiver.stop()
            line.receiver.stop()
            tasks.cancel_scope.cancel()


async def test_pictures_are_looked_at_as_often_as_is_wanted() -> None:
    async with looking(rate=4) as line:
        await line.film(Camera(), 20)
        assert line.numbers == [0, 5, 10, 15]
        assert line.receiver.stats.decoded == 16
        assert line.receiver.stats.pictures == 4


async def test_the_newest_picture_is_the_one_that_is_shown() -> None:
    async with looking(rate=1) as line:
        camera = Camera()
        for _ in range(5):
            line.give(*camera.next())
        await line.wait()
        assert line.numbers == [4]


async def test_a_key_picture_saves_the_work_of_what_came_before() -> None:
    async with looking(rate=1) as line:
        camera = Camera()
        line.give(*camera.next())
        await line.wait()
        for number in range(10):
            line.give(*camera.next(key=number == 8))
        await line.wait(1.0)
        assert line.numbers == [0, 10]
        assert line.receiver.stats.decoded == 3


async def test_a_picture_is_no_larger_than_is_wanted() -> None:
    async with looking(rate=1, longest=64) as line:
        line.give(*Camera(size=(320, 160)).next())
        await line.wait()
        assert line.pictures[0] is not None
        assert decode_picture(line.pictures[0]).shape == (32, 64, 3)


async def test_a_lost_packet_is_asked_for_and_taken_in_either_form() -> None:
    for form in ("plain", "rtx"):
        async with looking(rate=20) as line:
            camera = Camera()
            await line.film(camera, 2)
            (lost, *_), late = camera.next(), camera.next()
            line.give(*late)
            await line.wait(0.04)
            assert line.packets_asked[0] == lost.sequence
            if form == "rtx":
                payload = lost.sequence.to_bytes(2, "big") + lost.payload
                lost = lost._replace(payload_type=97, ssrc=77, sequence=5, payload=payload)
            line.give(lost)
            await line.wait()
            assert line.numbers[-1] == 3
            assert line.keys_asked == 0


async def test_what_is_lost_for_good_costs_pictures_until_a_key_picture_comes() -> None:
    async with looking(rate=20) as line:
        camera = Camera()
        await line.film(camera, 2)
        camera.next()
        await line.film(camera, 12)
        assert line.numbers[-1] == 1
        assert line.keys_asked >= 1
        line.give(*camera.next(key=True))
        await line.wait()
        assert line.numbers[-1] == 15


async def test_a_camera_without_a_key_picture_is_asked_for_one() -> None:
    async with looking() as line:
        camera = Camera()
        camera.next()
        await line.film(camera, 30)
        assert line.pictures == []
        assert 2 <= line.keys_asked <= 4
        line.give(*camera.next(key=True))
        await line.wait()
        assert line.numbers == [31]


async def test_a_camera_that_sends_nothing_is_off_and_may_come_back() -> None:
    async with looking(rate=4) as line:
        camera = Camera()
        await line.film(camera, 3)
        await line.wait(OFF_SECONDS + 0.1)
        assert line.numbers == [0, 2, None]
        line.give(*camera.next(key=True))
        await line.wait()
        assert line.numbers == [0, 2, None, 3]


async def test_a_replaced_track_is_followed_once_the_first_is_silent() -> None:
    async with looking(rate=20) as line:
        first, second = Camera(1), Camera(2, (320, 240))
        await line.film(first, 2)
        line.give(*second.next())
        assert line.receiver.stats.strays > 0
        assert line.wire.sources == [1]
        await line.wait(SWITCH_SECONDS)
        line.give(*second.next(key=True))
        await line.wait()
        assert line.wire.sources == [1, 2]
        assert line.numbers == [0, 1, 1]


async def test_a_size_may_change_on_the_way() -> None:
    async with looking(rate=20) as line:
        camera = Camera()
        await line.film(camera, 2)
        camera.size = (64, 64)
        await line.film(camera, 2)
        assert line.numbers == [0, 1, 2, 3]
        assert line.pictures[-1] is not None
        assert decode_picture(line.pictures[-1]).shape == (64, 64, 3)


async def test_garbage_shows_nothing_and_costs_nothing_but_itself() -> None:
    async with looking(rate=20) as line:
        for number in range(50):
            junk = bytes([0x10, 0]) + bytes(range(number, number + 40))
            line.give(RtpPacket(96, True, number, number * 3000, 1, junk))
            line.give(RtpPacket(97, True, number, number * 3000, 3, b"\0"))
            await line.wait(0.02)
        assert line.pictures == []
        assert line.receiver.stats.malformed > 0
        camera = Camera()
        camera.sequence, camera.number = 49, 60
        line.give(*camera.next())
        await line.wait()
        assert line.numbers == [60]


async def test_a_flood_is_cut_off() -> None:
    async with looking() as line:
        for number in range(3 * int(BURST)):
            line.give(RtpPacket(96, False, number & 0xFFFF, 0, 1, b"\x00" + bytes(900)))
        stats = line.receiver.stats
        assert stats.received <= BURST
        assert stats.strays >= 2 * BURST


async def test_coded_pictures_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_receiver, "MOST_KEPT", 10)
    async with looking(rate=0.1) as line:
        camera = Camera()
        await line.film(camera, 1)
        asked = line.keys_asked
        await line.film(camera, 15)
        assert line.keys_asked > asked
        assert line.receiver._source is not None
        assert len(line.receiver._source.kept) <= 10


async def test_where_decoding_is_too_dear_key_pictures_alone_are_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(video_receiver, "MOST_OWED", 0.0)
    async with looking(rate=2) as line:
        camera = Camera()
        await line.film(camera, 20)
        assert line.receiver.stats.keys_only
        assert line.keys_asked > 0
        assert line.receiver.stats.decoded == 1
        line.give(*camera.next(key=True))
        await line.film(camera, 3)
        assert line.receiver.stats.decoded == 2
        assert line.numbers == [0, 20]


def test_one_dear_picture_is_forgiven_and_too_many_are_not() -> None:
    source = video_receiver._Source(1, "VP8")
    for second in range(100):
        source.costs(MOST_OWED, float(second * 2))
    assert not source.keys_only
    for second in range(100):
        source.costs(1.1 * MOST_SHARE, 300.0 + second)
    assert source.keys_only


async def test_the_client_is_told_what_came_and_how_much_it_may_send() -> None:
    async with looking(bit_rate=500_000) as line:
        camera = Camera()
        await line.film(camera, 2)
        assert line.bit_rate == pytest.approx(500_000, rel=1e-3)
        info = RtcpSenderInfo(5 << 16, 0, 0, 0)
        line.receiver.reported(RtcpSrPacket(1, info))
        for _ in range(3):
            for _ in range(6):
                camera.next()
            await line.film(camera, 20)
        assert LEAST_BIT_RATE <= line.bit_rate < 500_000
        reports = [report for report in line.wire.reports if isinstance(report, RtcpRrPacket)]
        blocks = [block for report in reports for block in report.reports]
        assert blocks[-1].ssrc == 1 and blocks[-1].lsr == 5
        assert blocks[-1].packets_lost > 0


async def test_after_its_end_nothing_is_looked_at() -> None:
    async with looking(rate=20) as line:
        camera = Camera()
        await line.film(camera, 1)
        line.receiver.stop()
        await line.film(camera, 3)
        assert line.numbers == [0]
        assert line.wire.sources == []


async def test_a_caller_that_goes_does_not_wait_for_the_decoder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, busy, seen = threading.Event(), threading.Event(), []

    def decode(
        decoder: VideoDecoder, pictures: list[CodedPicture], stopped: Callable[[], bool]
    ) -> None:
        began.set()
        busy.wait(PATIENCE_S)
        seen.append(stopped())

    monkeypatch.setattr(VideoDecoder, "decode", decode)
    async with looking() as line:
        line.give(*Camera().next())
        line.pacer.advance(line.clock.advance(0.02))
        while not began.is_set():
            await anyio.lowlevel.checkpoint()
    assert not seen
    busy.set()
    while not seen:
        await anyio.lowlevel.checkpoint()
    assert seen == [True]
    assert line.pictures == []
