"""What one packet holds of a picture."""

import pytest
from aiortc.codecs.h264 import H264Encoder
from aiortc.codecs.vpx import Vp8Encoder
from hypothesis import given, strategies as st

from duologue.codecs.media import MalformedDataError
from duologue.codecs.video_payload import PIECES, h264_piece, vp8_piece

SLICE, IDR, SPS = b"\x61", b"\x65", b"\x67"


@pytest.mark.parametrize(
    ("payload", "data", "starts", "key", "disposable"),
    [
        (b"\x10\x00abc", b"\x00abc", True, True, False),
        (b"\x10\x01abc", b"\x01abc", True, False, False),
        (b"\x00\x00abc", b"\x00abc", False, False, False),
        (b"\x11\x00abc", b"\x00abc", False, False, False),
        (b"\x30\x01abc", b"\x01abc", True, False, True),
        (b"\x90\x80\x11\x00abc", b"\x00abc", True, True, False),
        (b"\x90\x80\x91\x22\x00abc", b"\x00abc", True, True, False),
        (b"\x90\xe0\x11\x22\x33\x00abc", b"\x00abc", True, True, False),
        (b"\x90\x10\x33\x00abc", b"\x00abc", True, True, False),
    ],
)
def test_a_vp8_descriptor_is_read_off(payload, data, starts, key, disposable):
    piece = vp8_piece(payload)
    assert (piece.data, piece.starts, piece.key) == (data, starts, key)
    assert piece.disposable is disposable


@pytest.mark.parametrize("payload", [b"", b"\x10", b"\x90", b"\x90\x80", b"\x90\xf0\x80\x11"])
def test_half_a_vp8_descriptor_is_malformed(payload):
    with pytest.raises(MalformedDataError):
        vp8_piece(payload)


def test_single_units_become_annex_b():
    piece = h264_piece(IDR + b"abc")
    assert (piece.data, piece.starts, piece.key) == (b"\0\0\0\1" + IDR + b"abc", True, True)
    assert not h264_piece(SLICE + b"abc").key
    assert h264_piece(b"\x01abc").disposable


def test_an_aggregate_is_taken_apart():
    piece = h264_piece(b"\x78\0\2" + SPS + b"a\0\2" + b"\x68b")
    assert piece.data == b"\0\0\0\1" + SPS + b"a\0\0\0\1\x68b"
    assert piece.key and not piece.disposable


def test_fragments_are_joined():
    first, middle = h264_piece(b"\x7c\x85abc"), h264_piece(b"\x7c\x05def")
    assert first.data + middle.data == b"\0\0\0\1\x65abcdef"
    assert (first.starts, first.key, middle.starts, middle.key) == (True, True, False, False)


@pytest.mark.parametrize(
    "payload", [b"", b"\x7c", b"\x7c\x85", b"\x78\0\0", b"\x78\0\x09a", b"\x79ab"]
)
def test_half_an_h264_packet_is_malformed(payload):
    with pytest.raises(MalformedDataError):
        h264_piece(payload)


@given(st.binary(max_size=64), st.sampled_from(sorted(PIECES)))
def test_garbage_is_malformed_or_a_piece(payload, name):
    try:
        PIECES[name](payload)
    except MalformedDataError:
        pass


def test_what_is_sent_can_be_read():
    data = bytes(range(1, 200)) * 20
    vp8 = Vp8Encoder._packetize(data, 5)
    assert len(vp8) > 1
    assert b"".join(vp8_piece(payload).data for payload in vp8) == data
    unit = IDR + bytes([7]) * 3000
    h264 = H264Encoder._packetize([unit])
    assert len(h264) > 1
    assert b"".join(h264_piece(payload).data for payload in h264) == b"\0\0\0\1" + unit
