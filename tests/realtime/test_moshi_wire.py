"""What a client of Moshi may send, and what ends its conversation."""

import pytest

from duologue.codecs.media import MalformedDataError
from duologue.codecs.ogg_opus import OggOpusWriter
from duologue.engines.duplex import DuplexSpec
from duologue.realtime.moshi_wire import LONGEST_SOUND, MOST_SECONDS, MoshiReader

SPEC = DuplexSpec(sample_rate=24_000, frame_samples=1920)
SILENCE = b"\xf8\xff\xfe"
"""20 ms."""


def message(packets: int, packet: bytes = SILENCE) -> bytes:
    pages = OggOpusWriter(24_000, serial=1)
    return b"\x01" + pages.begin() + b"".join(pages.packet(packet) for _ in range(packets))


def test_sound_comes_out_in_the_models_frames() -> None:
    frames = list(MoshiReader(SPEC).feed(message(10)))
    assert [len(frame) for frame in frames] == [3840, 3840]


def test_control_bytes_are_told_and_what_has_no_meaning_is_left_alone() -> None:
    reader = MoshiReader(SPEC)
    messages = (b"\x03\x02", b"\x03\x03", b"\x03\x09", b"\x03", b"\x06", b"\x00", b"", b"\x01")
    assert [part for one in messages for part in reader.feed(one)] == ["pause", "restart"]


def test_more_sound_than_anybody_says_at_once_is_refused_before_it_is_decoded() -> None:
    reader = MoshiReader(SPEC)
    reader._decoder = None  # type: ignore[assignment]
    long = b"\xfb\x03"
    with pytest.raises(MalformedDataError, match="seconds"):
        list(reader.feed(message(int(MOST_SECONDS / 0.06) + 1, long)))


def test_a_message_too_long_to_be_sound_is_refused_unread() -> None:
    with pytest.raises(MalformedDataError, match="bytes"):
        list(MoshiReader(SPEC).feed(b"\x01" + bytes(LONGEST_SOUND + 1)))
