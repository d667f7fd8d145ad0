"""Coded pictures to pictures."""

from fractions import Fraction

import av
import numpy as np
import pytest
from aiortc.codecs.h264 import H264Encoder
from aiortc.codecs.vpx import Vp8Encoder

from duologue.codecs.frame_assembly import CodedPicture
from duologue.codecs.media import MalformedDataError
from duologue.codecs.video_decoder import VideoDecoder
from duologue.codecs.video_pattern import pattern, read_pattern
from duologue.codecs.video_payload import PIECES

ENCODERS = {"VP8": Vp8Encoder, "H264": H264Encoder}


def coded(name, count=12, width=160, height=128):
    encoder, read = ENCODERS[name](), PIECES[name]
    for number in range(count):
        planes = np.frombuffer(pattern(number, width, height), np.uint8).reshape(-1, width)
        frame = av.VideoFrame.from_ndarray(planes, format="yuv420p")
        frame.pts, frame.time_base = number * 3000, Fraction(1, 90_000)
        payloads, timestamp = encoder.encode(frame)
        data = b"".join(read(payload).data for payload in payloads)
        yield CodedPicture(data, timestamp, number == 0, False)


def shown(frame):
    return read_pattern(frame.to_ndarray(format="gray8"))


@pytest.mark.parametrize("name", ["VP8", "H264"])
def test_the_last_of_several_pictures_is_shown(name):
    pictures = list(coded(name))
    decoder = VideoDecoder(name)
    assert shown(decoder.decode(pictures[:5], lambda: False)) == 4
    assert shown(decoder.decode(pictures[5:], lambda: False)) == 11
    assert decoder.decoded == 12


@pytest.mark.parametrize("name", ["VP8", "H264"])
def test_garbage_is_told_and_a_key_picture_helps(name):
    decoder = VideoDecoder(name)
    with pytest.raises(MalformedDataError):
        for junk in (b"\0\0\0\1\x65" + b"junk" * 30, b"\x00" * 9, b"\xff" * 60):
            if decoder.decode([CodedPicture(junk, 0, True, False)], lambda: False) is None:
                raise MalformedDataError("nothing was shown")
    assert shown(decoder.decode(list(coded(name, 2)), lambda: False)) == 1


def test_pictures_that_no_other_needs_are_passed_over():
    first, *others = coded("VP8", 4)
    others = [CodedPicture(p.data, p.timestamp, False, True) for p in others]
    decoder = VideoDecoder("VP8")
    decoder.decode([first, *others], lambda: False)
    assert decoder.decoded == 2


def test_work_ends_when_nobody_waits_for_it():
    decoder = VideoDecoder("VP8")
    assert decoder.decode(list(coded("VP8", 3)), lambda: True) is None
    assert decoder.decoded == 0


def test_another_size_is_just_decoded():
    decoder = VideoDecoder("VP8")
    decoder.decode(list(coded("VP8", 2)), lambda: False)
    frame = decoder.decode(list(coded("VP8", 2, 320, 240)), lambda: False)
    assert (frame.width, frame.height, shown(frame)) == (320, 240, 1)
