"""A steady stream out of uneven packets, through hours of drifting clocks."""

import random

import numpy as np
import pytest

from duologue.codecs.audio_packet import AudioPacket
from duologue.codecs.audio_playout import AudioPlayout
from duologue.codecs.delay_target import LEAST
from duologue.codecs.media import Int16Samples
from duologue.codecs.opus import OpusEncoder, OpusSettings
from duologue.codecs.voice_decoder import VoiceDecoder

BEAT = 0.02


class Tone:
    """A decoder of packets that hold nothing, at 1 kHz a sample: a hum, guessed as silence."""

    rate = 1000
    clock_rate = 1000

    def __init__(self) -> None:
        self._made = 0
        self.silences = 0

    def perform(self, step: object) -> Int16Samples:
        packet = getattr(step, "packet", None)
        ticks: int = packet.ticks if packet is not None else step.ticks  # type: ignore[attr-defined]
        if packet is None:
            self.silences += 1
            return np.zeros(ticks, np.int16)
        time = np.arange(self._made, self._made + ticks)
        self._made += ticks
        tone: Int16Samples = (8000 * np.sin(2 * np.pi * time / 8)).astype(np.int16)
        return tone


@pytest.mark.parametrize("ppm", [100.0, -100.0])
def test_a_drifting_clock_is_followed_for_hours(ppm: float) -> None:
    decoder = Tone()
    playout = AudioPlayout(decoder)  # type: ignore[arg-type]
    packet_seconds = 0.12
    spacing = packet_seconds / (1 + ppm / 1e6)
    packets = int(2 * 3600 / packet_seconds)
    beat = 0
    worst, guessed = 0.0, 0
    for number in range(packets):
        arrival = number * spacing
        while beat * BEAT + 0.013 < arrival:
            assert len(playout.pull(beat * BEAT + 0.013)) == 20
            beat += 1
            if number > 20:
                worst = max(worst, abs(playout.delay - playout.buffer.target.seconds))
        playout.push(AudioPacket(number, number * 120, b"sound", 120), arrival)
        if number == 20:
            guessed = decoder.silences
    # 2 h at 100 ppm are 0.72 s apart, all of it taken out or put in, nothing lost or guessed.
    assert worst < 0.045
    assert decoder.silences == guessed
    assert playout.buffer.lost == playout.buffer.late == 0
    moved = playout.shortened - playout.lengthened
    assert moved / 1000 == pytest.approx(2 * 3600 * ppm / 1e6, abs=0.1)


def voice(seconds: float, rate: int) -> Int16Samples:
    time = np.arange(int(seconds * rate)) / rate
    phase = 2 * np.pi * 130 * time
    wave = sum(np.sin(k * phase) / k for k in range(1, 12))
    samples: Int16Samples = (5000 * wave).astype(np.int16)
    return samples


def opus_packets(seconds: float) -> list[AudioPacket]:
    sound = voice(seconds, 24_000)
    encoder = OpusEncoder(24_000, OpusSettings(dtx=False, loss_percent=20, complexity=1))
    return [
        AudioPacket(number, number * 960, encoder.encode(sound[at : at + 480]), 960)
        for number, at in enumerate(range(0, len(sound) - 479, 480))
    ]


def play(late: list[float], lost: set[int] = frozenset()) -> tuple[AudioPlayout, VoiceDecoder]:  # type: ignore[assignment]
    """Play a voice whose packets come late by so many seconds, or not at all."""
    decoder = VoiceDecoder("opus", 16_000)
    playout = AudioPlayout(decoder)
    packets = opus_packets(len(late) * BEAT)
    waiting = sorted(
        (packet.sequence * BEAT + late[packet.sequence], packet)
        for packet in packets
        if packet.sequence not in lost
    )
    for beat in range(len(late)):
        now = beat * BEAT + 0.009
        while waiting and waiting[0][0] <= now:
            arrival, packet = waiting.pop(0)
            playout.push(packet, arrival)
        assert len(playout.pull(now)) == 320
    return playout, decoder


def test_an_even_network_adds_the_least_delay_and_changes_nothing() -> None:
    playout, decoder = play([0.03] * 300)
    assert playout.delay < LEAST + 0.015
    assert decoder.concealed == 0
    assert playout.shortened == playout.lengthened == 0


@pytest.mark.parametrize("spread", [0.03, 0.08])
def test_jitter_is_covered_after_a_while(spread: float) -> None:
    chance = random.Random(3)
    late = [chance.uniform(0, spread) for _ in range(750)]
    playout, decoder = play(late)
    assert playout.delay == pytest.approx(spread + LEAST, abs=0.04)
    assert decoder.concealed < 0.04 * decoder.decoded


def test_the_delay_shrinks_again_when_the_network_calms_down() -> None:
    chance = random.Random(3)
    late = [chance.uniform(0, 0.12) for _ in range(300)] + [0.0] * 1000
    playout, _ = play(late)
    assert playout.delay < 0.06
    assert playout.shortened > 0


def test_losses_are_recovered_where_the_next_packet_is_there() -> None:
    chance = random.Random(5)
    late = [chance.uniform(0, 0.05) for _ in range(500)]
    lost = set(range(150, 500, 20))
    _, decoder = play(late, lost)
    assert decoder.recovered > 0.5 * len(lost) * 320
    assert decoder.concealed < 0.05 * decoder.decoded


def test_silence_comes_before_the_first_packet_and_after_a_restart() -> None:
    playout = AudioPlayout(VoiceDecoder("opus", 16_000))
    assert not playout.pull(0.0).any()
    for packet in opus_packets(0.2):
        playout.push(packet, 0.0)
    assert playout.pull(0.03).any() or playout.pull(0.05).any()
    playout.restart()
    playout.pull(0.07)
    assert not playout.pull(0.09).any()
    assert playout.late == 0


def test_packets_that_last_for_nothing_cost_bounded_work() -> None:
    playout = AudioPlayout(VoiceDecoder("PCMU", 16_000))
    for number in range(90):
        playout.push(AudioPacket(number, number, b"\xff", 1), 0.0)
    assert len(playout.pull(0.05)) == 320
