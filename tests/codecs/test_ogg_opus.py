"""Opus in Ogg: our stream read by FFmpeg, FFmpeg's by us, and what is done about damage."""

import io

import av
import numpy as np
import pytest
from hypothesis import given, strategies

from duologue.codecs.media import MalformedDataError
from duologue.codecs.ogg_opus import CAPTURE, MOST_DAMAGED, OggOpusReader, OggOpusWriter, checksum
from duologue.codecs.opus import OpusDecoder, OpusEncoder

RATE = 24_000
FRAME = RATE // 50


def tone(seconds: float) -> np.ndarray:
    times = np.arange(int(seconds * RATE)) / RATE
    return (8000 * np.sin(2 * np.pi * 440 * times)).astype(np.int16)


def packets(seconds: float) -> list[bytes]:
    encoder = OpusEncoder(RATE)
    sound = tone(seconds)
    return [encoder.encode(sound[i : i + FRAME]) for i in range(0, len(sound), FRAME)]


def stream(parts: list[bytes]) -> bytes:
    writer = OggOpusWriter(RATE, serial=7)
    return writer.begin() + b"".join(writer.packet(part) for part in parts) + writer.end()


def test_ffmpeg_reads_what_is_written() -> None:
    with av.open(io.BytesIO(stream(packets(1.0)))) as container:
        assert container.streams.audio[0].codec_context.name in ("opus", "libopus")
        heard = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
    assert len(heard) == 48_000
    spectrum = np.abs(np.fft.rfft(heard[4800:43_200]))
    assert spectrum.argmax() * 48_000 / 38_400 == pytest.approx(440, abs=2)


def test_what_ffmpeg_writes_is_read() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="ogg") as container:
        track = container.add_stream("libopus", rate=48_000, layout="mono")
        sound = np.repeat(tone(1.0), 2)[None]
        frame = av.AudioFrame.from_ndarray(sound, format="s16", layout="mono")
        frame.rate = 48_000
        container.mux(track.encode(frame))
        container.mux(track.encode(None))
    reader = OggOpusReader()
    decoder = OpusDecoder(RATE)
    heard = np.concatenate([decoder.decode(one) for one in reader.feed(file.getvalue())])
    assert reader.skip == 312
    assert RATE <= len(heard) <= RATE + 2 * FRAME
    assert np.abs(heard).max() > 6000


@given(cuts=strategies.lists(strategies.integers(1, 400), max_size=30))
def test_pieces_of_any_length_give_the_same_packets(cuts: list[int]) -> None:
    sent = packets(0.2)
    data = stream(sent)
    reader = OggOpusReader()
    heard = []
    for cut in cuts:
        heard += reader.feed(data[:cut])
        data = data[cut:]
    heard += reader.feed(data)
    assert heard == sent


def test_a_packet_longer_than_255_bytes_has_several_segments() -> None:
    sent = [packets(0.02)[0] + bytes(length) for length in (0, 100, 255, 510, 1200)]
    assert OggOpusReader().feed(stream(sent)) == sent


def test_a_damaged_page_is_left_out_and_the_stream_goes_on() -> None:
    sent = packets(0.1)
    writer = OggOpusWriter(RATE, serial=7)
    pages = [writer.begin(), *(writer.packet(one) for one in sent)]
    pages[2] = pages[2][:-1] + bytes([pages[2][-1] ^ 1])
    reader = OggOpusReader()
    assert reader.feed(b"".join(pages)) == [sent[0], *sent[2:]]
    assert reader.damaged == 1


def test_what_only_looks_like_pages_is_not_searched_to_its_end() -> None:
    reader = OggOpusReader()
    with pytest.raises(MalformedDataError, match="damaged"):
        reader.feed(CAPTURE * 250_000)
    assert reader.damaged == MOST_DAMAGED + 1


@given(data=strategies.binary(max_size=200))
def test_the_checksum_is_that_of_the_rfc(data: bytes) -> None:
    remainder = 0
    for bit in "".join(f"{byte:08b}" for byte in data):
        carry = remainder >> 31 ^ int(bit)
        remainder = remainder << 1 & 0xFFFFFFFF ^ (0x04C11DB7 if carry else 0)
    assert checksum(data) == remainder


def test_what_lies_between_pages_is_skipped() -> None:
    sent = packets(0.06)
    assert OggOpusReader().feed(b"noise OggOg" + stream(sent)) == sent


def test_another_codec_is_refused() -> None:
    data = bytearray(OggOpusWriter(RATE, serial=7).begin())
    at = data.index(b"OpusHead")
    data[at : at + 8] = b"\x7fFLAC\x01\x00\x00"
    page = data[: data.index(b"OggS", 4)]
    page[22:26] = bytes(4)
    page[22:26] = checksum(bytes(page)).to_bytes(4, "little")
    with pytest.raises(MalformedDataError, match="OpusHead"):
        OggOpusReader().feed(bytes(page))


def test_what_never_becomes_a_page_is_not_kept() -> None:
    reader = OggOpusReader()
    for _ in range(1000):
        assert reader.feed(bytes(1000)) == []
    assert len(reader._buffer) < 10
