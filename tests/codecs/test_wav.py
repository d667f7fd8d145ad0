"""WAVE files: every format both ways, and files that lie, are cut short or never finished.

tests/data/wav holds one file a malformation. The name says what is wrong and begins with what is
to come of it: ok (all four samples), cut (the whole samples that are there, marked as truncated),
empty (no samples) or bad (refused).
"""

import io
import struct
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from hypothesis.extra.numpy import arrays

from duologue.codecs import g711, wav
from duologue.codecs.media import (
    AudioChunk,
    CodecError,
    MalformedDataError,
    MediaTime,
    MediaValueError,
)
from duologue.codecs.wav import WavEncoding, WavFormat, WavWriter, read_wav, wav_header, write_wav

FILES = sorted((Path(__file__).parent.parent / "data" / "wav").glob("*.wav"))
WRITABLE = [encoding for encoding in WavEncoding if encoding is not WavEncoding.FLOAT64]
SAMPLES = np.array([0, 1, -1, 1000, -1000, 32767, -32768], np.int16)

# What an encoding may lose, in int16 steps: for G.711 half its coarsest interval, for 8 bits the
# distance of full scale from the topmost level.
TOLERANCE = {WavEncoding.PCM8: 256, WavEncoding.ALAW: 512, WavEncoding.MULAW: 644}


def sound(samples: Any, rate: int = 16000) -> AudioChunk:
    return AudioChunk(samples, rate, MediaTime(0, rate))


def named(kind: str) -> Any:
    files = [path for path in FILES if path.name.startswith(kind + "-")]
    assert files
    return pytest.mark.parametrize("path", files, ids=lambda path: path.stem)


def int16_steps(samples: Any) -> Any:
    return samples * (32768.0 if samples.dtype == np.float32 else 1.0)


class Pipe(io.BytesIO):
    """A stream that cannot seek."""

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise OSError("a pipe has no position")

    def seek(self, *_: Any) -> int:
        raise OSError("a pipe has no position")


@named("ok")
def test_a_file_that_can_be_understood_is_read_whole(path: Path) -> None:
    audio = read_wav(path.read_bytes())
    assert audio.samples.tolist() == [[1], [-2], [3], [-4]]
    assert audio.format == WavFormat(WavEncoding.PCM16, 8000, 1)
    assert not audio.truncated


@named("cut")
def test_a_file_cut_short_gives_the_whole_samples_that_are_there(path: Path) -> None:
    audio = read_wav(path.read_bytes())
    assert audio.samples.tolist() == [[1], [-2], [3], [-4]]
    assert audio.truncated


@named("empty")
def test_a_file_without_samples_is_an_empty_sound(path: Path) -> None:
    audio = read_wav(path.read_bytes())
    assert audio.samples.shape == (0, 1)
    assert audio.truncated == ("cut" in path.name)
    assert len(audio.mono()) == 0


@named("bad")
def test_a_file_that_makes_no_sense_is_refused(path: Path) -> None:
    with pytest.raises(MalformedDataError):
        read_wav(path.read_bytes())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_cut_anywhere_is_read_or_refused(path: Path) -> None:
    data = path.read_bytes()
    for length in range(len(data)):
        try:
            audio = read_wav(data[:length])
        except CodecError:
            continue
        assert audio.samples.tolist() == [[1], [-2], [3], [-4]][: len(audio.samples)]


@given(st.binary(max_size=120), st.booleans())
@example(b"fmt \xff\xff\xff\xff", True)
def test_any_bytes_are_read_or_refused(data: bytes, with_start: bool) -> None:
    try:
        audio = read_wav(b"RIFF\0\0\0\0WAVE" + data if with_start else data)
    except CodecError:
        return
    assert audio.samples.ndim == 2


@given(
    st.sampled_from(WRITABLE), st.integers(0, 60), st.binary(min_size=1, max_size=4), st.booleans()
)
def test_a_damaged_header_is_read_or_refused(
    encoding: WavEncoding, at: int, damage: bytes, extensible: bool
) -> None:
    header = wav_header(WavFormat(encoding, 8000, 2), 24, extensible=extensible)
    data = bytearray(header + bytes(24))
    data[at : at + len(damage)] = damage
    try:
        audio = read_wav(bytes(data))
    except CodecError:
        return
    assert len(audio.samples) <= len(data)


@pytest.mark.parametrize("encoding", WRITABLE)
def test_what_is_written_is_read_back(encoding: WavEncoding) -> None:
    audio = read_wav(write_wav(sound(SAMPLES), encoding))
    assert audio.format == WavFormat(encoding, 16000)
    assert not audio.truncated
    error = np.abs(int16_steps(audio.samples[:, 0]) - SAMPLES)
    assert error.max() <= TOLERANCE.get(encoding, 0)


@given(
    arrays(np.float32, st.integers(0, 50), elements=st.floats(-1, 1, width=32)),
    st.sampled_from(WRITABLE),
    st.integers(1, 10**6),
)
def test_any_sound_is_read_back_at_the_precision_of_its_encoding(
    samples: Any, encoding: WavEncoding, rate: int
) -> None:
    data = write_wav(sound(samples, rate), encoding)
    assert len(data) % 2 == 0
    chunk = read_wav(data).mono()
    assert (chunk.rate, chunk.start) == (rate, MediaTime(0, rate))
    steps = {WavEncoding.PCM16: 1.0, WavEncoding.PCM24: 2.0**-7, WavEncoding.PCM32: 2.0**-8}
    tolerance = TOLERANCE.get(encoding, steps.get(encoding, 0.0))
    difference = np.abs(int16_steps(chunk.samples) - samples * 32768.0)
    assert difference.max(initial=0) <= tolerance


def test_floats_are_stored_as_they_are() -> None:
    samples = np.array([1.5, -2.25, 1e-20], np.float32)
    audio = read_wav(write_wav(sound(samples), WavEncoding.FLOAT32))
    assert np.array_equal(audio.samples[:, 0], samples)


@pytest.mark.parametrize("encoding", [WavEncoding.PCM24, WavEncoding.PCM32])
def test_wild_floats_saturate_and_nan_is_silence(encoding: WavEncoding) -> None:
    samples = np.array([2, -2, np.inf, -np.inf, np.nan], np.float32)
    read = read_wav(write_wav(sound(samples), encoding)).samples[:, 0]
    assert read.tolist() == pytest.approx([1, -1, 1, -1, 0], abs=1e-6)


def test_eight_bits_round_half_to_even_and_saturate() -> None:
    samples = np.array([-32768, -129, -128, 0, 127, 128, 384, 32767], np.int16)
    data = write_wav(sound(samples), WavEncoding.PCM8)
    assert list(data[-8:]) == [0, 127, 128, 128, 128, 128, 130, 255]


def test_g711_files_hold_the_codes() -> None:
    codes = bytes(range(256))
    for encoding, decode in (
        (WavEncoding.MULAW, g711.decode_mulaw),
        (WavEncoding.ALAW, g711.decode_alaw),
    ):
        data = wav_header(WavFormat(encoding, 8000), len(codes)) + codes
        assert np.array_equal(read_wav(data).samples[:, 0], decode(codes))


def test_float64_is_read_and_what_is_too_large_becomes_infinite() -> None:
    header = bytearray(wav_header(WavFormat(WavEncoding.FLOAT32, 8000), 24))
    struct.pack_into("<IHH", header, 28, 64000, 8, 64)
    audio = read_wav(bytes(header) + struct.pack("<3d", 0.5, -1e300, 0.1))
    assert audio.format.encoding is WavEncoding.FLOAT64
    assert audio.samples.dtype == np.float32
    assert audio.samples[:, 0].tolist() == [0.5, -np.inf, np.float32(0.1)]


def test_float64_is_not_written() -> None:
    with pytest.raises(MediaValueError, match="read only"):
        write_wav(sound(SAMPLES), WavEncoding.FLOAT64)
    with pytest.raises(MediaValueError, match="read only"):
        wav_header(WavFormat(WavEncoding.FLOAT64, 8000), 0)


def test_known_bytes_of_a_24_bit_file() -> None:
    data = wav_header(WavFormat(WavEncoding.PCM24, 8000), 6) + b"\x01\x00\x00\xff\xff\xff"
    assert read_wav(data).samples[:, 0].tolist() == [2**-23, -(2**-23)]


def test_python_s_own_reader_agrees_on_the_header() -> None:
    with wave.open(io.BytesIO(write_wav(sound(SAMPLES, 24000)))) as other:
        assert (other.getframerate(), other.getnchannels(), other.getsampwidth()) == (24000, 1, 2)
        assert other.readframes(99) == SAMPLES.astype("<i2").tobytes()


def test_python_s_own_writer_is_understood() -> None:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as other:
        other.setparams((2, 2, 44100, 0, "NONE", ""))
        other.writeframes(struct.pack("<4h", 1, 2, 3, 4))
    audio = read_wav(stream.getvalue())
    assert audio.format == WavFormat(WavEncoding.PCM16, 44100, 2)
    assert audio.samples.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("encoding", WRITABLE)
@pytest.mark.parametrize("extensible", [False, True])
def test_headers_state_consistent_sizes(encoding: WavEncoding, extensible: bool) -> None:
    layout = WavFormat(encoding, 8000, 3)
    header = wav_header(layout, 3 * layout.frame_bytes, extensible=extensible)
    data = header + bytes(3 * layout.frame_bytes)
    data += bytes(len(data) % 2)
    assert struct.unpack_from("<I", data, 4)[0] == len(data) - 8
    assert (b"fact" in header) == (encoding.name[:3] != "PCM")
    audio = read_wav(data)
    assert audio.format == layout and audio.samples.shape == (3, 3)


def test_two_channels_are_averaged_to_one() -> None:
    data = wav_header(WavFormat(WavEncoding.PCM16, 8000, 2), 12)
    data += struct.pack("<6h", 1, 2, 3, 4, -32768, -32768)
    assert read_wav(data).mono().samples.tolist() == [2, 4, -32768]
    data = wav_header(WavFormat(WavEncoding.FLOAT32, 8000, 2), 8) + struct.pack("<2f", 0.5, 0.25)
    mono = read_wav(data).mono()
    assert mono.samples.dtype == np.float32 and mono.samples.tolist() == [0.375]


@pytest.mark.parametrize("encoding", WRITABLE)
@pytest.mark.parametrize("extensible", [False, True])
def test_a_writer_states_the_length_at_the_end(encoding: WavEncoding, extensible: bool) -> None:
    stream = io.BytesIO(b"before")
    stream.seek(6)
    with WavWriter(stream, WavFormat(encoding, 16000), extensible=extensible) as writer:
        for part in (SAMPLES[:3], SAMPLES[3:3], SAMPLES[3:]):
            writer.write(part)
        assert writer.frames == len(SAMPLES)
    data = stream.getvalue()
    assert data[:6] == b"before" and stream.tell() == len(data)
    plain = write_wav(sound(SAMPLES), encoding)
    audio = read_wav(data[6:])
    assert np.array_equal(audio.samples, read_wav(plain).samples)
    assert not audio.truncated
    if not extensible:
        assert data[6:] == plain


@pytest.mark.parametrize("stop", ["close", "no close"])
def test_what_a_pipe_got_so_far_can_be_read(stop: str) -> None:
    stream = Pipe()
    writer = WavWriter(stream, WavFormat(WavEncoding.PCM16, 16000))
    writer.write(SAMPLES)
    if stop == "close":
        writer.close()
        writer.close()
    data = stream.getvalue()
    assert struct.unpack_from("<I", data, 4)[0] == wav.UNKNOWN_SIZE
    audio = read_wav(data)
    assert np.array_equal(audio.samples[:, 0], SAMPLES) and not audio.truncated


def test_a_writer_takes_frames_of_several_channels() -> None:
    stream = io.BytesIO()
    with WavWriter(stream, WavFormat(WavEncoding.PCM16, 16000, 2)) as writer:
        writer.write(np.array([[1, 2], [3, 4]], np.int16))
        with pytest.raises(MediaValueError, match="2 channels"):
            writer.write(SAMPLES)
        with pytest.raises(MediaValueError):
            writer.write(np.zeros((1, 1, 2), np.int16))
        assert writer.frames == 2
    assert read_wav(stream.getvalue()).samples.tolist() == [[1, 2], [3, 4]]


def test_a_closed_writer_writes_no_more() -> None:
    stream = io.BytesIO()
    writer = WavWriter(stream, WavFormat(WavEncoding.PCM8, 16000))
    writer.write(SAMPLES[:1])
    writer.close()
    before = stream.getvalue()
    writer.close()
    with pytest.raises(MediaValueError, match="closed"):
        writer.write(SAMPLES)
    assert stream.getvalue() == before


def test_a_file_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wav, "MAX_DATA_BYTES", 8)
    writer = WavWriter(io.BytesIO(), WavFormat(WavEncoding.PCM16, 16000))
    writer.write(SAMPLES[:4])
    with pytest.raises(MediaValueError, match="full"):
        writer.write(SAMPLES[:1])
    with pytest.raises(MediaValueError, match="cannot hold"):
        write_wav(sound(SAMPLES))


@pytest.mark.parametrize("size", [-2, 2**32, 3])
def test_a_header_states_whole_frames_of_at_most_4_gib(size: int) -> None:
    with pytest.raises(MediaValueError):
        wav_header(WavFormat(WavEncoding.PCM16, 8000), size)


@pytest.mark.parametrize("rate, channels", [(0, 1), (2**31, 1), (8000, 0), (8000, 65)])
def test_a_format_is_within_bounds(rate: int, channels: int) -> None:
    with pytest.raises(MediaValueError):
        WavFormat(WavEncoding.PCM16, rate, channels)
