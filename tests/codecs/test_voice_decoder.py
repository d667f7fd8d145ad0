"""Steps to samples, with nothing missing."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from duologue.codecs.audio_packet import AudioPacket, Conceal, Play, Quiet, Recover, Step
from duologue.codecs.g711 import encode_alaw, encode_mulaw
from duologue.codecs.media import Int16Samples, MalformedDataError, MediaValueError
from duologue.codecs.opus import OpusEncoder, OpusSettings
from duologue.codecs.voice_decoder import VoiceDecoder

RATE = 16_000


def tone(seconds: float, rate: int) -> Int16Samples:
    time = np.arange(int(seconds * rate)) / rate
    wave = sum(np.sin(2 * np.pi * 150 * k * time) / k for k in range(1, 10))
    samples: Int16Samples = (8000 * wave).astype(np.int16)
    return samples


def opus_packets(frames: int) -> list[AudioPacket]:
    sound = tone(frames / 50, 24_000)
    encoder = OpusEncoder(24_000, OpusSettings(loss_percent=20, bit_rate=32_000))
    return [
        AudioPacket(n, n * 960, encoder.encode(sound[n * 480 : n * 480 + 480]), 960)
        for n in range(frames)
    ]


def g711_packets(frames: int, law: str) -> list[AudioPacket]:
    sound = tone(frames / 50, 8000)
    encode = encode_mulaw if law == "PCMU" else encode_alaw
    return [
        AudioPacket(n, n * 160, encode(sound[n * 160 : n * 160 + 160]), 160) for n in range(frames)
    ]


@pytest.mark.parametrize("codec", ["opus", "PCMU", "PCMA"])
@pytest.mark.parametrize("rate", [16_000, 24_000])
def test_a_loss_leaves_the_length_and_the_tone(codec: str, rate: int) -> None:
    decoder = VoiceDecoder(codec, rate)
    packets = opus_packets(40) if codec == "opus" else g711_packets(40, codec)
    pieces = []
    for number, packet in enumerate(packets):
        steps: list[Step] = [Play(packet)]
        if number == 20:
            steps = [Conceal(packet.ticks)]
        elif number == 30:
            steps = [Recover(packets[31], packet.ticks)]
        pieces += [decoder.perform(step) for step in steps]
    samples = np.concatenate(pieces)
    assert len(samples) == pytest.approx(40 * rate // 50, abs=rate // 200)
    windows = samples[rate // 10 : rate * 7 // 10].reshape(-1, rate // 100)
    assert np.abs(windows).max(axis=1).min() > 3000
    assert decoder.decoded == len(samples)
    guessed = decoder.concealed + decoder.recovered
    assert guessed == pytest.approx(2 * rate // 50, abs=2)


def test_a_guess_fades_to_silence_and_a_packet_ends_it() -> None:
    decoder = VoiceDecoder("opus", RATE)
    packets = opus_packets(30)
    for packet in packets[:20]:
        decoder.perform(Play(packet))
    guesses = [decoder.perform(Conceal(960)) for _ in range(8)]
    loudness = [int(np.abs(guess).max()) for guess in guesses]
    assert loudness[0] > 3000
    assert loudness[5] < loudness[2]
    assert loudness[6:] == [0, 0]
    decoder.perform(Play(packets[20]))
    assert np.abs(decoder.perform(Conceal(960))).max() > 1000


def test_a_pause_is_silence() -> None:
    decoder = VoiceDecoder("opus", RATE)
    assert decoder.perform(Quiet(48_000)).tolist() == [0] * RATE
    assert (decoder.concealed, decoder.decoded) == (0, RATE)


def test_packets_that_are_none_are_made_up_for() -> None:
    decoder = VoiceDecoder("opus", RATE)
    for packet in opus_packets(10):
        decoder.perform(Play(packet))
    bad = AudioPacket(10, 9600, b"\x03\xff\x00", 960)
    assert len(decoder.perform(Play(bad))) == 320
    assert len(decoder.perform(Recover(bad, 960))) == 320
    assert decoder.malformed >= 1


@given(st.integers(1, 10_000), st.sampled_from(["opus", "PCMU"]), st.sampled_from([8000, 24_000]))
def test_gaps_of_any_length_are_filled(ticks: int, codec: str, rate: int) -> None:
    decoder = VoiceDecoder(codec, rate)
    packet = (opus_packets(1) if codec == "opus" else g711_packets(1, codec))[0]
    decoder.perform(Play(packet))
    for step in (Conceal(ticks), Recover(packet, ticks)):
        samples = decoder.perform(step)
        assert len(samples) == pytest.approx(ticks * rate / decoder.clock_rate, abs=rate // 1000)


def test_packets_say_how_long_they_last() -> None:
    decoder = VoiceDecoder("pcma", RATE)
    assert decoder.ticks(bytes(240)) == 240
    for payload in (b"", bytes(961)):
        with pytest.raises(MalformedDataError):
            decoder.ticks(payload)
    assert VoiceDecoder("OPUS", RATE).ticks(opus_packets(1)[0].payload) == 960
    with pytest.raises(MediaValueError):
        VoiceDecoder("G729", RATE)
