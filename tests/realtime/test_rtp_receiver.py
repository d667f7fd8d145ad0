"""A client's microphone: whose packets count, and what becomes of them."""

import random

import numpy as np
import pytest
from aiortc.rtp import RtcpRrPacket, RtcpSenderInfo, RtcpSrPacket

from duologue.codecs.opus import OpusEncoder, OpusSettings
from duologue.codecs.red import Block, build_red
from duologue.codecs.rtp import RtpPacket
from duologue.realtime.pacer import Pacer
from duologue.realtime.rtc_media import AudioCodec
from duologue.realtime.rtp_receiver import BURST, AudioReceiver, PacketBudget
from duologue.sessions.clock import ManualClock
from tests.realtime.media_wire import ReceivingWire

OPUS = AudioCodec("opus", 111, 48_000, 2, red_payload_type=63)
PCMU = AudioCodec("PCMU", 0, 8000)


class Line:
    """A client that sends a tone, and the receiver that hears it."""

    def __init__(self, lockstep: bool = False, frames: int = 400) -> None:
        self.clock = ManualClock()
        self.pacer = Pacer(self.clock)
        self.wire = ReceivingWire()
        self.audio: list[tuple[float, bytes]] = []
        self.receiver = AudioReceiver(
            self.wire,  # type: ignore[arg-type]
            [OPUS, PCMU],
            lambda pcm, now: self.audio.append((now, pcm)),
            self.pacer,
            ssrc=9,
            cname="us",
            lockstep=lockstep,
            clock=self.clock,
        )
        self.receiver.start()
        self.receiver.start()
        encoder = OpusEncoder(24_000, OpusSettings(complexity=0, dtx=False))
        time = np.arange(frames * 480) / 24_000
        sound = (9000 * np.sin(2 * np.pi * 300 * time)).astype(np.int16)
        self.payloads = [encoder.encode(sound[at : at + 480]) for at in range(0, len(sound), 480)]

    def send(self, number: int, *, ssrc: int = 1, payload_type: int = 111, **changes: int) -> None:
        payload = self.payloads[number] if payload_type == 111 else b"\x55" * 160
        ticks = 960 if payload_type == 111 else 160
        timestamp = changes.get("timestamp", number * ticks)
        sequence = changes.get("sequence", number) & 0xFFFF
        self.give(RtpPacket(payload_type, False, sequence, timestamp, ssrc, payload))

    def give(self, packet: RtpPacket) -> None:
        self.wire.listeners[packet.payload_type](packet)  # type: ignore[operator]

    def wait(self, seconds: float = 0.02) -> None:
        self.pacer.advance(self.clock.advance(seconds))

    @property
    def samples(self) -> int:
        return sum(len(pcm) for _, pcm in self.audio) // 2

    @property
    def strays(self) -> int:
        return self.receiver.stats.strays


def test_packets_are_heard_when_they_arrive() -> None:
    line = Line()
    for number in range(10):
        line.send(number)
        assert line.audio[-1][0] == line.clock.now()
        assert len(line.audio[-1][1]) == 2 * 320
        line.wait()
    loudness = np.abs(np.frombuffer(line.audio[-1][1], "<i2")).max()
    assert 7000 < loudness < 11_000
    assert line.wire.sources == [1]
    assert line.receiver.stats.received == 10


def test_a_gap_is_waited_for_40_ms_at_most() -> None:
    line = Line()
    for number in range(20):
        if number != 10:
            line.send(number)
        line.wait()
    assert line.samples == 20 * 320
    gaps = np.diff([now for now, _ in line.audio])
    assert gaps.max() <= 0.06 + 1e-6
    stats = line.receiver.stats
    assert (stats.received, stats.lost) == (19, 1)
    assert stats.concealed_ms + stats.recovered_ms == 20


def test_a_gap_that_nothing_follows_is_given_up_by_the_beat() -> None:
    line = Line()
    line.send(0)
    line.wait()
    line.send(2)
    assert line.samples == 320
    line.wait()
    line.wait()
    assert line.samples == 3 * 320


def test_a_muted_client_is_not_heard_and_a_pause_comes_back_as_silence() -> None:
    line = Line()
    line.send(0)
    for _ in range(100):
        line.wait()
    assert line.samples == 320
    line.send(1, timestamp=100 * 960)
    # A second of the pause at most.
    assert line.samples == 2 * 320 + 16_000
    assert line.receiver.stats.concealed_ms == 0


def test_another_source_is_a_stray_until_the_first_is_silent() -> None:
    line = Line()
    for number in range(20):
        line.send(number)
        line.send(number, ssrc=666)
        line.wait()
    assert line.samples == 20 * 320
    assert line.strays == 20
    for _ in range(11):
        line.wait()
    line.send(0, ssrc=2)
    line.send(1, ssrc=2)
    assert line.samples == 22 * 320
    assert line.wire.sources == [1, 2]
    assert line.receiver.stats.received == 2


def test_thousands_of_sources_leave_nothing_behind() -> None:
    line = Line()
    line.send(0)
    for ssrc in range(2, 5000):
        line.send(1, ssrc=ssrc)
    assert line.wire.sources == [1]
    assert line.samples == 320


def test_a_flood_is_cut_to_what_a_microphone_sends() -> None:
    line = Line()
    for number in range(5000):
        line.send(number % 400, sequence=number, timestamp=number * 960)
    assert line.receiver.stats.received == BURST
    assert line.strays == 5000 - BURST


def test_a_budget_fills_again_with_time() -> None:
    budget = PacketBudget()
    assert sum(budget.take(0.0) for _ in range(1000)) == BURST
    assert sum(budget.take(0.1) for _ in range(1000)) == 25
    assert sum(budget.take(1e6) for _ in range(1000)) == BURST


def test_redundant_audio_fills_what_was_lost() -> None:
    line = Line()

    def red(number: int) -> RtpPacket:
        blocks = [Block(111, 0, line.payloads[number])]
        if number:
            blocks.insert(0, Block(111, 960, line.payloads[number - 1]))
        return RtpPacket(63, False, number, number * 960, 1, build_red(blocks))

    for number in range(20):
        if number % 3 != 2:
            line.give(red(number))
        line.wait()
    assert line.samples == 20 * 320 - 0
    stats = line.receiver.stats
    assert stats.concealed_ms == stats.recovered_ms == 0
    assert stats.late == 0


@pytest.mark.parametrize("lockstep", [False, True])
def test_five_percent_of_loss_is_mostly_recovered(lockstep: bool) -> None:
    line = Line(lockstep, frames=1500)
    chance = random.Random(4)
    for number in range(1500):
        if chance.random() >= 0.05:
            line.send(number)
        line.wait()
    stats = line.receiver.stats
    assert stats.lost == pytest.approx(75, abs=20)
    assert stats.concealed_ms < 0.05 * stats.decoded_ms
    assert stats.concealed_ms + stats.recovered_ms == pytest.approx(20 * stats.lost, abs=61)
    if not lockstep:
        # What comes before the last of a burst has no later packet to come out of.
        assert stats.recovered_ms > 0.8 * 20 * stats.lost


def test_a_change_of_codec_is_followed() -> None:
    line = Line()
    for number in range(5):
        line.send(number)
        line.wait()
    for number in range(5, 10):
        line.send(number, payload_type=0)
        line.wait()
    assert line.samples == pytest.approx(10 * 320, abs=60)


def test_what_is_not_audio_is_counted_and_survived() -> None:
    line = Line()
    line.send(0)
    line.give(RtpPacket(111, False, 1, 960, 1, b""))
    line.give(RtpPacket(63, False, 2, 1920, 1, b"\xff\xff"))
    line.give(RtpPacket(111, False, 3, 2880, 1, b"\x03"))
    line.send(40_000 % 400, sequence=40_000)
    assert line.receiver.stats.malformed == 3
    assert line.strays == 1
    line.wait()
    line.send(4)
    for _ in range(3):
        line.wait()
    assert line.samples == 5 * 320


def test_a_source_that_numbers_anew_is_followed() -> None:
    line = Line()
    for number in range(3):
        line.send(number)
        line.wait()
    for number in range(3, 7):
        line.send(number, sequence=40_000 + number)
        line.wait()
    assert line.samples == 6 * 320


def test_a_report_is_sent_once_a_second_with_what_was_lost_and_when_theirs_came() -> None:
    line = Line()
    for number in range(150):
        if number == 75:
            info = RtcpSenderInfo(0x1111222233334444, 0, 0, 0)
            line.receiver.reported(RtcpSrPacket(1, info))
        if number % 10 != 9:
            line.send(number)
        line.wait()
    reports = [report for report in line.wire.reports if isinstance(report, RtcpRrPacket)]
    assert len(reports) == 3
    block = reports[-1].reports[0]
    assert (reports[-1].ssrc, block.ssrc) == (9, 1)
    assert block.fraction_lost == pytest.approx(25, abs=3)
    assert block.packets_lost == pytest.approx(10, abs=1)
    assert block.lsr == 0x22223333
    assert block.dlsr == pytest.approx(0.5 * 65536, rel=0.1)
    assert line.receiver.stats.jitter_ms < 5


def test_lockstep_gives_20_ms_every_20_ms() -> None:
    line = Line(lockstep=True)
    line.wait()
    assert line.samples == 0
    for number in range(200):
        if number % 20 != 7:
            line.send(number + 0)
        line.wait()
    assert {len(pcm) for _, pcm in line.audio} == {640}
    assert len(line.audio) == 200
    stats = line.receiver.stats
    assert 0 < stats.delay_ms < 60
    assert stats.concealed_ms + stats.recovered_ms == 200
    line.receiver.stop()
    line.receiver.stop()
    line.wait(1.0)
    assert len(line.audio) == 200
    assert line.wire.listeners == {}


def test_before_the_first_packet_there_is_nothing_to_say() -> None:
    stats = Line().receiver.stats
    assert (stats.received, stats.decoded_ms, stats.delay_ms) == (0, 0, 0)
    assert Line().receiver.last_packet < 0


# -- hours of it ----------------------------------------------------------------------------

LONG_PACKET = b"\x4b\x06"
"""120 ms of nothing: six empty frames of SILK (RFC 6716, section 3.2.5)."""
LONG_SECONDS = 0.12


def long_packet(number: int, ssrc: int = 1) -> RtpPacket:
    """Both counters run over soon after the beginning."""
    sequence, timestamp = (65_000 + number) & 0xFFFF, ((1 << 32) - 9_600_000 + number * 5_760)
    return RtpPacket(111, False, sequence, timestamp & 0xFFFFFFFF, ssrc, LONG_PACKET)


@pytest.mark.parametrize("ppm", [300, -300])
def test_half_an_hour_of_a_clock_that_runs_away_is_followed(ppm: int) -> None:
    line = Line(lockstep=True, frames=1)
    packets = round(0.5 * 3600 / LONG_SECONDS)
    for number in range(packets):
        due = number * LONG_SECONDS / (1 + ppm / 1e6)
        while line.clock.now() + 0.02 <= due:
            line.wait()
        line.give(long_packet(number))
        if number % 1000 == 0:
            line.audio.clear()
    stats = line.receiver.stats
    assert (stats.received, stats.lost, stats.late, stats.strays) == (packets, 0, 0, 0)
    # By then the clocks are half a second apart.
    assert stats.drift_ppm == pytest.approx(ppm, abs=50)
    assert stats.delay_ms < 300
    assert stats.concealed_ms < 200


def test_counters_that_run_over_lose_nothing() -> None:
    line = Line(frames=1)
    for number in range(2000):
        line.give(long_packet(number))
        line.wait(LONG_SECONDS)
    assert line.samples == 2000 * 1920
    assert line.receiver.stats.lost == 0


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("hours", [1.0, 13.0, 30.0])
def test_after_hours_of_a_muted_microphone_speech_is_heard_at_once(
    lockstep: bool, hours: float
) -> None:
    line = Line(lockstep=lockstep, frames=60)
    for number in range(20):
        line.send(number)
        line.wait()
    line.clock.advance(hours * 3600)
    line.pacer.advance(line.clock.now())
    line.audio.clear()
    pause = round(hours * 3600 * 48_000)
    for number in range(20, 60):
        line.send(number, timestamp=(number * 960 + pause) & 0xFFFFFFFF)
        line.wait()
    heard = np.frombuffer(b"".join(pcm for _, pcm in line.audio), "<i2")
    loud = np.abs(heard.reshape(-1, 320).astype(int)).max(axis=1) > 5000
    # All of it, after a second of silence at most.
    assert 35 <= loud.sum() <= 42
    assert len(heard) <= (1.0 + 0.84) * 16_000
    assert line.receiver.stats.late == 0


@pytest.mark.parametrize("lockstep", [False, True])
def test_a_clock_that_jumps_costs_no_more_than_the_jump(lockstep: bool) -> None:
    # The machine was suspended; the caller was not, and its packets of meanwhile are gone.
    line = Line(lockstep=lockstep, frames=400)
    for number in range(50):
        line.send(number)
        line.wait()
    line.clock.advance(3.0)
    line.pacer.advance(line.clock.now())
    line.audio.clear()
    for number in range(200, 400):
        line.send(number)
        line.wait()
    heard = np.frombuffer(b"".join(pcm for _, pcm in line.audio), "<i2")
    loud = np.abs(heard.reshape(-1, 320).astype(int)).max(axis=1) > 5000
    assert loud.sum() >= 190
    assert loud[-150:].all()
    assert line.receiver.stats.delay_ms < 120
