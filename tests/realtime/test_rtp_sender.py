"""What a client hears: packets on the beat, and what an interruption does to the next one."""

from itertools import pairwise

import numpy as np
import pytest
from aiortc.rtp import RtcpPacket, RtcpReceiverInfo, RtcpRrPacket, RtcpSrPacket
from hypothesis import given, strategies as st

from duologue.codecs.g711 import decode_alaw, decode_mulaw
from duologue.codecs.media import RingFullError
from duologue.codecs.opus import OpusDecoder, OpusSettings
from duologue.codecs.rtp import RtpPacket
from duologue.realtime.pacer import LEAD, SLOTS, STEP, Pacer
from duologue.realtime.rtc_media import AudioCodec
from duologue.realtime.rtp_sender import FADE, FRAME, QUEUE_SECONDS, AudioSender
from duologue.realtime.slack import KEPT
from duologue.sessions.clock import ManualClock
from tests.realtime.media_wire import SendingWire

OPUS = AudioCodec("opus", 111, 48_000, 2)
PCMU = AudioCodec("PCMU", 0, 8000)
PCMA = AudioCodec("PCMA", 8, 8000)


class Line:
    """A sender on a wire, and a client that listens to it."""

    def __init__(self, codec: AudioCodec = OPUS, settings: OpusSettings | None = None) -> None:
        self.clock = ManualClock()
        self.pacer = Pacer(self.clock)
        self.pacer.advance(0.0)
        self.wire = SendingWire()
        self.told: list[float] = []
        self.sender = AudioSender(
            self.wire,  # type: ignore[arg-type]
            codec,
            self.pacer,
            ssrc=7,
            cname="us",
            on_played=lambda ms, now: self.told.append(ms),
            settings=settings,
            clock=self.clock,
        )
        self.sender.start()

    def run(self, ticks: int) -> list[RtpPacket]:
        """The packets that these ticks send."""
        before = len(self.wire.packets)
        for _ in range(ticks):
            self.clock.advance(0.02)
            self.pacer.advance(self.clock.now())
        return self.wire.packets[before:]


def tone(ms: float) -> bytes:
    time = np.arange(int(ms * 24))
    return (8000 * np.sin(2 * np.pi * 300 * time / 24_000)).astype("<i2").tobytes()


def heard(packets: list[RtpPacket]) -> np.ndarray:  # type: ignore[type-arg]
    decoder = OpusDecoder(24_000)
    return np.concatenate([decoder.decode(packet.payload) for packet in packets])


def test_a_packet_leaves_at_each_tick_and_tells_what_was_played() -> None:
    line = Line()
    line.sender.play(tone(200))
    packets = line.run(10)
    assert len(packets) == 10
    assert line.told == [20.0 * n for n in range(1, 11)]
    first = packets[0]
    assert (first.ssrc, first.payload_type) == (7, 111)
    for number, packet in enumerate(packets):
        assert packet.sequence == first.sequence + number
        assert (packet.timestamp - first.timestamp) & 0xFFFFFFFF == number * 960
        assert packet.marker == (number == 0)
    assert np.abs(heard(packets)).max() > 5000


def test_a_flush_fades_within_the_next_packet_and_nothing_comes_after() -> None:
    line = Line()
    line.sender.play(tone(1000))
    before = line.run(10)
    dropped = line.sender.flush()
    after = line.run(5)
    assert dropped == pytest.approx(1000 - 200 - 7)
    assert line.told[-1] == pytest.approx(207)
    samples = heard(before + after)
    # The codec adds 6.5 ms; the fade takes 7.
    end = 10 * FRAME + FADE + 24_000 * 65 // 10_000
    assert np.abs(samples[10 * FRAME - 240 : 10 * FRAME]).max() > 5000
    assert np.abs(samples[end + 60 :]).max() < 400
    assert np.abs(samples[11 * FRAME :]).max() < 30
    # No click: no step is larger than the tone's own and what the codec makes of it.
    steps = np.abs(np.diff(samples.astype(int)))
    assert steps[9 * FRAME :].max() < 1.5 * steps[4 * FRAME : 9 * FRAME].max()
    assert line.sender.queued_ms == 0


def test_what_is_played_after_a_flush_is_heard_behind_it() -> None:
    line = Line()
    line.sender.play(tone(500))
    line.run(5)
    line.sender.flush()
    line.sender.play(tone(100))
    line.run(10)
    assert line.told[-1] == pytest.approx(100 + 7 + 100)


def test_a_flush_of_nothing_does_nothing() -> None:
    line = Line()
    assert line.sender.flush() == 0.0
    line.sender.play(tone(100))
    assert line.sender.flush() == 100.0
    assert [len(packet.payload) for packet in line.run(3)] == [1]
    assert line.told == []


def test_ducking_holds_what_is_queued_and_restoring_goes_on_with_it() -> None:
    line = Line(settings=OpusSettings(fec=False))
    line.sender.play(tone(1000))
    before = line.run(10)
    line.sender.duck()
    line.sender.duck()
    during = line.run(10)
    assert line.told[-1] == pytest.approx(207)
    assert line.sender.queued_ms == pytest.approx(793)
    samples = heard(before + during)
    assert np.abs(samples[11 * FRAME :]).max() < 400
    line.sender.restore()
    line.sender.restore()
    after = line.run(10)
    assert line.told[-1] == pytest.approx(407)
    samples = heard(before + during + after)
    assert np.abs(samples[-2 * FRAME :]).max() > 5000


def test_a_flush_while_ducked_drops_all_that_was_held() -> None:
    line = Line()
    line.sender.play(tone(1000))
    line.run(10)
    line.sender.duck()
    assert line.sender.flush() == pytest.approx(793)
    line.run(3)
    assert line.told[-1] == pytest.approx(207)
    line.sender.play(tone(60))
    assert all(len(packet.payload) > 10 for packet in line.run(3))


def test_silence_is_a_sign_of_life_every_400_ms() -> None:
    line = Line()
    line.sender.play(tone(100))
    packets = line.run(5)
    hangover = line.run(25)
    assert len(hangover) < 25
    assert len(hangover[-1].payload) <= 2
    quiet = line.run(200)
    assert len(quiet) == 10
    assert {len(packet.payload) for packet in quiet} == {1}
    line.sender.play(tone(20))
    again = line.run(1)[0]
    assert again.marker
    assert again.sequence == packets[-1].sequence + len(hangover) + len(quiet) + 1
    assert (again.timestamp - packets[0].timestamp) & 0xFFFFFFFF == 230 * 960


def test_the_first_packet_is_silence_wherever_there_is_time_for_it() -> None:
    line = Line()
    (first,) = line.run(1)
    assert len(first.payload) == 1
    assert line.run(19) == []
    line.sender.play(tone(20))
    (speech,) = line.run(1)
    assert speech.marker
    assert (speech.timestamp - first.timestamp) & 0xFFFFFFFF == 19 * 960 + LEAD * 96


def test_what_comes_after_a_pause_leaves_soon_and_the_rest_every_20_ms() -> None:
    line = Line()
    line.run(40)
    sent = len(line.wire.packets)
    line.sender.play(tone(100))
    for step in range(1, 5 * SLOTS + 1):
        line.clock.advance(0.002)
        line.pacer.advance(line.clock.now())
        due = 0 if step < LEAD else 1 + (step - LEAD) // SLOTS
        assert len(line.wire.packets) == sent + due
    stamps = [packet.timestamp for packet in line.wire.packets[sent:]]
    assert {(later - one) & 0xFFFFFFFF for one, later in pairwise(stamps)} == {960}


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)), min_size=1, max_size=12))
def test_a_packet_lasts_for_20_ms_and_stamps_follow_the_clock(talk: list[tuple[int, int]]) -> None:
    line = Line()
    times: list[float] = []
    for said, steps in talk:
        line.sender.play(tone(said))
        for _ in range(10 * steps):
            line.clock.advance(0.002)
            line.pacer.advance(line.clock.now())
            times += [line.clock.now()] * (len(line.wire.packets) - len(times))
    stamps = [packet.timestamp for packet in line.wire.packets]
    assert all((later - one) & 0xFFFFFFFF >= 960 for one, later in pairwise(stamps))
    if times:
        ahead = [
            ((stamp - stamps[0]) & 0xFFFFFFFF) / 48_000 - (time - times[0])
            for stamp, time in zip(stamps, times, strict=True)
        ]
        assert all(-0.0001 < seconds < 0.02 for seconds in ahead)


def test_speech_just_behind_a_sign_of_life_does_not_wait_for_its_end() -> None:
    line = Line()
    (alive,) = line.run(1)
    line.sender.play(tone(20))
    for _ in range(LEAD):
        line.clock.advance(0.002)
        line.pacer.advance(line.clock.now())
    speech = line.wire.packets[-1]
    assert speech.marker
    assert (speech.timestamp - alive.timestamp) & 0xFFFFFFFF == 960


def test_speech_that_goes_on_keeps_its_beat() -> None:
    line = Line()
    line.sender.play(tone(40))
    packets = line.run(4)
    line.sender.play(tone(40))
    packets += line.run(2)
    stamps = [packet.timestamp for packet in packets]
    assert {(later - one) & 0xFFFFFFFF for one, later in pairwise(stamps)} == {960}


@pytest.mark.parametrize(("codec", "decode"), [(PCMU, decode_mulaw), (PCMA, decode_alaw)])
def test_g711_goes_out_whole_and_silent_between(codec: AudioCodec, decode: object) -> None:
    line = Line(codec)
    line.sender.play(tone(100))
    packets = line.run(20)
    assert [len(packet.payload) for packet in packets] == [160] * 20
    samples = np.concatenate([decode(packet.payload) for packet in packets])  # type: ignore[operator]
    expected = 8000 * np.sin(2 * np.pi * 300 * np.arange(800 - 100) / 8000)
    correlation = np.correlate(samples[:745].astype(float), expected)
    at = int(np.argmax(correlation))
    assert 24 <= at <= 40
    assert np.abs(samples[at : at + 700] - expected).mean() < 300
    assert np.abs(samples[960:]).max() <= 8
    assert packets[1].timestamp - packets[0].timestamp == 160


def test_nothing_is_spent_while_the_connection_is_down() -> None:
    line = Line()
    line.sender.play(tone(100))
    line.wire.ready = False
    assert line.run(10) == []
    assert line.sender.queued_ms == 100
    line.wire.ready = True
    assert len(line.run(5)) == 5
    assert line.told[-1] == 100


def test_time_that_was_skipped_has_passed_for_the_listener() -> None:
    line = Line()
    line.sender.play(tone(1000))
    before = line.run(5)[-1]
    line.clock.advance(10.0)
    after = line.run(1)
    passed = (after[-1].timestamp - before.timestamp) & 0xFFFFFFFF
    assert passed / 48_000 == pytest.approx(10.02, abs=0.021)
    assert after[0].sequence == before.sequence + 1
    assert len(after) <= 6
    assert line.told[-1] == 20.0 * (5 + len(after))


def test_a_full_queue_refuses_and_keeps_what_it_has() -> None:
    line = Line()
    for _ in range(QUEUE_SECONDS):
        line.sender.play(bytes(48_000))
    assert line.sender.room_ms == 0
    with pytest.raises(RingFullError):
        line.sender.play(tone(20))
    assert line.sender.queued_ms == QUEUE_SECONDS * 1000


def test_reports_say_what_was_sent_and_learn_what_was_heard() -> None:
    line = Line()
    line.sender.play(tone(4000))
    line.run(200)
    reports = [RtcpPacket.parse(data)[0] for data in line.wire.compounds]
    report = reports[-1]
    assert isinstance(report, RtcpSrPacket) and report.ssrc == 7
    assert report.sender_info.packet_count > 20
    middle = report.sender_info.ntp_timestamp >> 16 & 0xFFFFFFFF
    for _ in range(5):
        block = RtcpReceiverInfo(7, 51, 9, 0, 480, middle, 0)
        line.sender.reported(RtcpRrPacket(1, [block, RtcpReceiverInfo(8, 255, 9, 0, 0, 0, 0)]))
    stats = line.sender.stats
    assert stats.loss_percent == pytest.approx(20, abs=2)
    assert stats.jitter_ms == 10
    assert stats.rtt_ms is not None and 0 <= stats.rtt_ms < 4000
    assert (stats.packets, stats.played_ms, stats.queued_ms) == (200, 4000, 0)
    line.sender.play(tone(20))
    line.run(1)
    assert stats.complexity > 0


def test_stopping_says_good_bye_and_leaves_the_beat() -> None:
    line = Line()
    line.sender.play(tone(100))
    line.run(1)
    line.sender.stop()
    line.sender.stop()
    assert len(line.pacer) == 0
    assert len(RtcpPacket.parse(line.wire.compounds[-1])) == 3
    assert line.run(5) == []


def live_line() -> Line:
    """A line whose sound is made as time passes, for three seconds: 20 ms of it every 20 ms."""
    line = Line()
    line.clock.advance(0.001)
    line.sender.play(tone(20))
    for _ in range(150):
        speak(line)
    return line


def speak(line: Line) -> None:
    """Time passes, and the next 20 ms come."""
    wait(line, 0.02)
    line.sender.play(tone(20))


def wait(line: Line, seconds: float) -> None:
    for _ in range(round(seconds / 0.002)):
        line.pacer.advance(line.clock.advance(0.002))


def stamps(packets: list[RtpPacket]) -> set[int]:
    """From one packet's timestamp to the next one's."""
    return {(b.timestamp - a.timestamp) & 0xFFFFFFFF for a, b in pairwise(packets)}


def test_sound_that_is_made_as_time_passes_leaves_soon_after_it_came() -> None:
    line = live_line()
    for _ in range(50):
        speak(line)
        assert line.pacer.next_tick(line.sender) - line.clock.now() < KEPT + STEP
        assert line.sender.queued_ms == 20
    assert stamps(line.wire.packets) == {960}
    assert line.told == [20.0 * n for n in range(1, len(line.told) + 1)]


def test_what_comes_a_little_late_leaves_when_it_comes_and_nothing_is_put_in() -> None:
    line = live_line()
    wait(line, 0.01)
    before = len(line.wire.packets)
    # Its tick passes without silence.
    wait(line, 0.02)
    assert len(line.wire.packets) == before
    line.sender.play(tone(20))
    assert len(line.wire.packets) == before + 1
    wait(line, 0.01)
    for _ in range(10):
        line.sender.play(tone(20))
        wait(line, 0.02)
    assert len(line.wire.packets) == before + 11
    assert stamps(line.wire.packets) == {960}
    assert line.told == [20.0 * n for n in range(1, len(line.told) + 1)]


def test_what_was_made_as_time_passes_and_ends_is_followed_by_silence() -> None:
    line = live_line()
    line.run(1)
    assert line.run(1) == []
    packets = line.run(5)
    assert len(packets) == 5
    assert np.abs(heard(packets)[-FRAME:]).max() < 30


def test_an_interruption_of_what_is_made_as_time_passes_is_silent_at_once() -> None:
    line = live_line()
    line.sender.flush()
    packets = line.run(4)
    assert len(packets) == 4
    assert np.abs(heard(packets)[2 * FRAME :]).max() < 30
