"""Media over a real connection in one process: ICE, DTLS and SRTP on the loopback interface."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import numpy as np
import pytest
from aiortc import RTCCertificate, RTCIceGatherer, RTCIceTransport
from aiortc.rtcrtpreceiver import RTCRtpReceiver
from aiortc.rtp import RTCP_PSFB_FIR, RTCP_PSFB_PLI, RtcpPsfbPacket

from duologue.codecs.rtp import RtpPacket, build_rtp
from duologue.realtime.pacer import Pacer
from duologue.realtime.rtc_media import AudioCodec, MediaTransport, _Router
from duologue.realtime.rtp_receiver import AudioReceiver
from duologue.realtime.rtp_sender import AudioSender
from duologue.sessions.clock import MonotonicClock
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

OPUS = AudioCodec("opus", 111, 48_000, 2, {"useinbandfec": "1"})


def test_what_a_client_likes_is_read_from_its_parameters() -> None:
    assert OPUS.fec and not OPUS.dtx
    assert AudioCodec("opus", 1, 48_000, 2, {"usedtx": "1"}).dtx


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "aioice.ice.get_host_addresses",
        lambda use_ipv4, use_ipv6: ["127.0.0.1"] if use_ipv4 else [],
    )


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[MediaTransport, MediaTransport]]:
    sides = []
    for _ in range(2):
        gatherer = RTCIceGatherer(iceServers=[])
        await gatherer.gather()
        ice = RTCIceTransport(gatherer)
        sides.append((ice, MediaTransport(ice, [RTCCertificate.generateCertificate()])))
    (ice_a, dtls_a), (ice_b, dtls_b) = sides
    ice_a._connection.ice_controlling = True
    assert not dtls_a.ready
    assert not dtls_a.send_media(b"early") and not dtls_a.send_report(b"early")
    async with anyio.create_task_group() as tasks:
        for ice, other in ((ice_a, ice_b), (ice_b, ice_a)):
            for candidate in other.iceGatherer.getLocalCandidates():
                await ice.addRemoteCandidate(candidate)
            await ice.addRemoteCandidate(None)
            tasks.start_soon(ice.start, other.iceGatherer.getLocalParameters())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(dtls_a.start, dtls_b.getLocalParameters())
        tasks.start_soon(dtls_b.start, dtls_a.getLocalParameters())
    assert dtls_a.ready and dtls_b.ready
    try:
        yield dtls_a, dtls_b
    finally:
        for dtls, ice in ((dtls_a, ice_a), (dtls_b, ice_b)):
            await dtls.stop()
            await ice.stop()
        assert not dtls_a.send_media(b"late")


def tone(ms: int) -> bytes:
    time = np.arange(ms * 24)
    return (8000 * np.sin(2 * np.pi * 300 * time / 24_000)).astype("<i2").tobytes()


async def test_what_one_side_plays_the_other_hears() -> None:
    pacer = Pacer(MonotonicClock())
    heard: list[bytes] = []
    told: list[float] = []
    done = anyio.Event()

    def listen(pcm: bytes, now: float) -> None:
        heard.append(pcm)
        if sum(map(len, heard)) >= 2 * 16 * 300:
            done.set()

    async with connected() as (left, right), anyio.create_task_group() as tasks:
        tasks.start_soon(pacer.run)
        receiver = AudioReceiver(right, [OPUS], listen, pacer, ssrc=2, cname="right")
        receiver.start()
        sender = AudioSender(
            left,
            OPUS,
            pacer,
            ssrc=1,
            cname="left",
            on_played=lambda ms, now: told.append(ms),
            mid=(3, "audio"),
        )
        sender.start()
        sender.play(tone(300))
        with anyio.fail_after(PATIENCE_S):
            await done.wait()
            while sender.stats.rtt_ms is None:
                # Reports go their own way, through the router of both sides.
                receiver._reported = sender._next_report = 0.0
                sender.play(tone(20))
                await anyio.sleep(0.02)
        receiver.stop()
        sender.stop()
        tasks.cancel_scope.cancel()
    sound = np.frombuffer(b"".join(heard), "<i2")
    assert np.abs(sound[1600:4000]).max() > 6000
    assert told[14] == 300
    assert receiver.stats.lost == 0
    assert sender.stats.rtt_ms is not None and sender.stats.rtt_ms < 1000
    assert sender.stats.loss_percent < 5


async def test_packets_for_others_go_the_ordinary_way() -> None:
    async with connected() as (left, right):
        ours: list[RtpPacket] = []
        right.listen([111], ours.append)
        theirs = RTCRtpReceiver("audio", right)
        arrived: list[int] = []
        done = anyio.Event()

        async def handle(packet: object, arrival_time_ms: int) -> None:
            arrived.append(packet.payload_type)  # type: ignore[attr-defined]
            done.set()

        theirs._handle_rtp_packet = handle  # type: ignore[method-assign]
        right._rtp_router.register_receiver(theirs, [], [96])
        left.send_media(build_rtp(RtpPacket(111, False, 1, 0, 5, b"ours")))
        left.send_media(build_rtp(RtpPacket(96, False, 1, 0, 6, b"theirs")))
        with anyio.fail_after(PATIENCE_S):
            await done.wait()
        assert [packet.payload for packet in ours] == [b"ours"]
        assert arrived == [96]
        right.unlisten(ours.append)
        right._rtp_router.unregister_receiver(theirs)


async def test_what_was_not_encrypted_for_us_is_refused() -> None:
    async with connected() as (_, right):
        ours: list[RtpPacket] = []
        right.listen([111], ours.append)
        data = build_rtp(RtpPacket(111, False, 1, 0, 5, b"forged"))
        for forged in (data, data + bytes(40), data[:12]):
            right.transport._connection.data_received(forged, 1)
        assert ours == []
        assert right.refused == 3


async def test_a_listener_that_fails_is_not_given_more(caplog: pytest.LogCaptureFixture) -> None:
    async with connected() as (left, right):
        done = anyio.Event()

        def broken(packet: RtpPacket) -> None:
            done.set()
            raise RuntimeError("broken")

        right.listen([111], broken)
        left.send_media(build_rtp(RtpPacket(111, False, 1, 0, 5, b"")))
        with anyio.fail_after(PATIENCE_S):
            await done.wait()
        assert right._listeners == {}
        assert "an audio receiver failed" in caplog.text


def test_a_request_for_a_key_picture_finds_its_source_in_either_form() -> None:
    router = _Router()
    router.senders[7] = "sender"  # type: ignore[assignment]
    named = RtcpPsfbPacket(RTCP_PSFB_FIR, 1, 0, struct.pack("!LLLL", 9, 0, 7, 1 << 24) + b"odd")
    assert router.route_rtcp(named) == {"sender"}
    assert router.route_rtcp(RtcpPsfbPacket(RTCP_PSFB_PLI, 1, 7)) == {"sender"}
    assert router.route_rtcp(RtcpPsfbPacket(RTCP_PSFB_FIR, 1, 0, b"")) == set()
