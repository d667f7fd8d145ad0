"""Opus: round trips, and what is heard when packets are lost."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from duologue.codecs import opus
from duologue.codecs.media import CodecError, Int16Samples, MalformedDataError, MediaValueError
from duologue.codecs.opus import OpusDecoder, OpusEncoder, OpusMissingError, OpusSettings

RATE = 24_000
FRAME = 480


def voice(seconds: float, rate: int = RATE) -> Int16Samples:
    """A buzzing vowel whose pitch and loudness move, as speech does."""
    time = np.arange(int(seconds * rate)) / rate
    pitch = 120 + 30 * np.sin(2 * np.pi * 1.3 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    wave = sum(np.sin(k * phase) / (1 + ((k * 120 - 700) / 500) ** 2) for k in range(1, 25))
    loud = 0.6 + 0.4 * np.sin(2 * np.pi * 2.1 * time)
    samples: Int16Samples = (4000 * wave * loud).astype(np.int16)
    return samples


def packets_of(samples: Int16Samples, settings: OpusSettings) -> list[bytes]:
    encoder = OpusEncoder(RATE, settings)
    return [
        encoder.encode(samples[at : at + FRAME]) for at in range(0, len(samples) - FRAME, FRAME)
    ]


def decoded(packets: list[bytes], lost: set[int], recover: bool) -> Int16Samples:
    decoder = OpusDecoder(RATE)
    pieces = []
    for index, packet in enumerate(packets):
        if index not in lost:
            pieces.append(decoder.decode(packet))
        elif recover and index + 1 < len(packets):
            pieces.append(decoder.recover(packets[index + 1], FRAME))
        else:
            pieces.append(decoder.conceal(FRAME))
    return np.concatenate(pieces)


def snr(clean: Int16Samples, other: Int16Samples) -> float:
    """dB."""
    signal = clean.astype(np.float64)
    noise = signal - other
    return float(10 * np.log10((signal @ signal) / (noise @ noise)))


def test_speech_survives_at_a_speech_bit_rate() -> None:
    packets = packets_of(voice(2.0), OpusSettings(bit_rate=28_000, fec=False))
    bits = 8 * sum(map(len, packets)) * 50 / len(packets)
    assert 20_000 < bits < 34_000
    original, heard = voice(2.0), decoded(packets, set(), False)
    # The codec looks ahead by 6.5 ms; the best match says by how much exactly.
    best = max(
        snr(original[FRAME : FRAME * 40], heard[FRAME + delay : FRAME * 40 + delay])
        for delay in range(100, 220)
    )
    assert best > 6


@pytest.mark.parametrize("complexity", [0, 5])
@pytest.mark.parametrize("steady", [False, True])
def test_what_is_hushed_ends_within_its_packet(steady: bool, complexity: int) -> None:
    original = voice(3.0)
    if steady:
        # DTX takes a tone that never changes for noise.
        time = np.arange(3 * RATE) / RATE
        original = (8000 * np.sin(2 * np.pi * 300 * time)).astype(np.int16)
    for frames in range(40, 140, 7):
        encoder, decoder = OpusEncoder(RATE, OpusSettings(complexity=complexity)), OpusDecoder(RATE)
        for at in range(0, frames * FRAME, FRAME):
            decoder.decode(encoder.encode(original[at : at + FRAME]))
        ending = np.zeros(FRAME, np.int16)
        part = original[frames * FRAME :][:168]
        ending[:168] = part * np.linspace(1, 0, 168)
        faded = decoder.decode(encoder.hush(ending))
        after = [decoder.decode(encoder.hush(np.zeros(FRAME, np.int16))) for _ in range(5)]
        assert np.abs(faded[:240]).max() > 500
        assert np.abs(np.concatenate(after)).max() < 100


def test_after_a_hush_speech_is_coded_as_before_and_silence_goes_to_dtx() -> None:
    encoder = OpusEncoder(RATE, OpusSettings(bit_rate=28_000))
    original = voice(1.0)
    silence = np.zeros(FRAME, np.int16)
    before = [encoder.encode(part) for part in original.reshape(-1, FRAME)]
    hushed = [encoder.hush(silence) for _ in range(25)]
    assert len(hushed[-1]) <= 2
    # CELT: RFC 6716, section 3.1. The first is the transition, with both.
    assert all(packet[0] >> 3 >= 16 for packet in hushed[1:5])
    after = [encoder.encode(part) for part in original.reshape(-1, FRAME)]
    assert {packet[0] >> 3 for packet in after[5:]} == {packet[0] >> 3 for packet in before[5:]}
    with pytest.raises(MediaValueError):
        encoder.hush(np.zeros(FRAME, np.float32))  # type: ignore[arg-type]


def test_low_delay_is_celt_and_keeps_more_of_the_sound() -> None:
    settings = OpusSettings(bit_rate=48_000, complexity=0, loss_percent=0, fec=False, dtx=False)
    original = voice(2.0)
    kept = []
    for low_delay in (False, True):
        encoder, decoder = OpusEncoder(RATE, settings, low_delay=low_delay), OpusDecoder(RATE)
        packets = [encoder.encode(part) for part in original.reshape(-1, 2 * FRAME)]
        assert all((packet[0] >> 3 >= 16) == low_delay for packet in packets)  # RFC 6716, 3.1
        heard = np.concatenate([decoder.decode(packet) for packet in packets])
        pairs = (
            (original[FRAME : FRAME * 40], heard[FRAME + delay : FRAME * 40 + delay])
            for delay in range(FRAME)
        )
        kept.append(max(snr(*pair) for pair in pairs))
    assert kept[1] > kept[0] + 3


@pytest.mark.parametrize("every", [5, 8, 10])
def test_recovering_lost_packets_beats_guessing_them(every: int) -> None:
    packets = packets_of(voice(4.0), OpusSettings(bit_rate=32_000, loss_percent=20))
    lost = set(range(every, len(packets) - 1, every))
    clean = decoded(packets, set(), False)
    recovered, concealed = decoded(packets, lost, True), decoded(packets, lost, False)
    assert len(recovered) == len(concealed) == len(clean)
    assert snr(clean, recovered) > snr(clean, concealed) + 1
    assert sum(opus.has_redundancy(packet) for packet in packets) > len(packets) / 2


def test_concealment_goes_on_as_the_voice_did() -> None:
    decoder = OpusDecoder(RATE)
    for packet in packets_of(voice(1.0), OpusSettings()):
        heard = decoder.decode(packet)
    first = decoder.conceal(FRAME)
    assert 0.3 < np.abs(first).max() / np.abs(heard).max() < 2


def test_a_wideband_encoder_leaves_out_what_is_above_8_khz() -> None:
    sound = np.random.default_rng(1).integers(-9000, 9000, 2 * RATE).astype(np.int16)
    shares = []
    for wideband in (False, True):
        settings = OpusSettings(bit_rate=64_000, fec=False, wideband=wideband)
        heard = decoded(packets_of(sound, settings), set(), False)
        power = np.abs(np.fft.rfft(heard[RATE // 2 :])) ** 2
        shares.append(power[int(len(power) * 8.5 / 12) :].sum() / power.sum())
    assert shares[0] > 0.1 > 0.01 > shares[1]


def test_silence_is_sent_as_tiny_packets() -> None:
    packets = packets_of(np.zeros(RATE, np.int16), OpusSettings(dtx=True))
    assert sum(len(packet) <= 2 for packet in packets) > 25
    packets = packets_of(np.zeros(RATE, np.int16), OpusSettings(dtx=False))
    assert min(map(len, packets)) > 2


def test_a_stream_is_decoded_at_any_rate() -> None:
    packets = packets_of(voice(0.5), OpusSettings())
    for rate in opus.RATES:
        decoder = OpusDecoder(rate)
        assert {len(decoder.decode(packet)) for packet in packets} == {rate // 50}


@pytest.mark.parametrize("ms", [2.5, 5, 10, 20, 40, 60])
def test_a_packet_says_how_long_it_lasts(ms: float) -> None:
    encoder = OpusEncoder(RATE)
    sound = voice(1.0)[: int(ms * RATE / 1000)]
    packet = encoder.encode(sound)
    assert opus.packet_ticks(packet) == ms * 48
    assert len(OpusDecoder(RATE).decode(packet)) == len(sound)


@given(st.binary(min_size=1, max_size=20))
def test_a_packet_lasts_as_long_as_the_decoder_says(packet: bytes) -> None:
    try:
        samples = len(OpusDecoder(48_000).decode(packet))
    except MalformedDataError:
        return
    assert opus.packet_ticks(packet) == samples


def test_an_encoder_changes_its_settings_on_the_way() -> None:
    encoder = OpusEncoder(RATE, OpusSettings(bit_rate=32_000, complexity=1, fec=False))
    sound = voice(2.0)
    frames = [sound[at : at + FRAME] for at in range(0, len(sound) - FRAME, FRAME)]
    before = sum(len(encoder.encode(frame)) for frame in frames)
    encoder.configure(OpusSettings(bit_rate=12_000, complexity=1, fec=False))
    after = sum(len(encoder.encode(frame)) for frame in frames)
    assert after < before / 2
    encoder.adapt(loss_percent=20, complexity=3, wideband=True)
    assert encoder.settings == OpusSettings(12_000, 3, 20, False, wideband=True)
    encoder.reset()
    assert encoder.encode(frames[0])


@pytest.mark.parametrize("packet", [b"", b"\xff" * 3, b"\x03\xff" + bytes(5)])
def test_what_is_not_opus_is_refused_and_the_stream_goes_on(packet: bytes) -> None:
    decoder = OpusDecoder(RATE)
    with pytest.raises(MalformedDataError):
        decoder.decode(packet)
    with pytest.raises(MalformedDataError):
        opus.packet_ticks(packet)
    assert not opus.has_redundancy(b"")
    assert len(decoder.decode(packets_of(voice(0.1), OpusSettings())[0])) == FRAME


def test_values_out_of_range_are_refused() -> None:
    for make in (OpusEncoder, OpusDecoder):
        with pytest.raises(MediaValueError):
            make(44_100)
    for settings in ({"bit_rate": 500}, {"complexity": 11}, {"loss_percent": -1}):
        with pytest.raises(MediaValueError):
            OpusSettings(**settings)
    encoder, decoder = OpusEncoder(RATE), OpusDecoder(RATE)
    with pytest.raises(MediaValueError):
        encoder.encode(np.zeros(481, np.int16))
    with pytest.raises(MediaValueError):
        encoder.encode(np.zeros(480, np.float32))  # type: ignore[arg-type]
    for samples in (0, 481, RATE):
        with pytest.raises(MediaValueError):
            decoder.conceal(samples)
        with pytest.raises(MediaValueError):
            decoder.recover(b"\x00", samples)


def test_a_library_that_refuses_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def opus_encoder_create(self, *_: object) -> None:
            return None

        opus_decoder_create = opus_encoder_create

        def opus_strerror(self, code: int) -> bytes:
            return b"refused"

        def opus_encoder_ctl(self, *_: object) -> int:
            return -5

        def opus_encoder_destroy(self, state: int) -> None:
            return

    monkeypatch.setattr(opus, "_LIBRARY", Refusing())
    for make in (OpusEncoder, OpusDecoder):
        with pytest.raises(CodecError, match="libopus made no"):
            make(RATE)
    monkeypatch.setattr(Refusing, "opus_encoder_create", lambda *_: 1)
    with pytest.raises(CodecError, match="refused"):
        OpusEncoder(RATE)


def test_a_missing_library_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    assert opus.open_library(["/nowhere/libopus.so"]) is None
    monkeypatch.setattr(opus, "_LIBRARY", None)
    with pytest.raises(OpusMissingError, match="pip install av"):
        OpusDecoder(RATE)


def test_the_systems_library_is_the_last_that_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.util.find_library", lambda name: f"lib{name}.so.0")
    *own, last = opus.library_files()
    assert last == "libopus.so.0"
    assert own and all("libopus" in name for name in own)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert list(opus.library_files()) == ["libopus.so.0"]
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    assert list(opus.library_files()) == []
