"""Frames that are told apart by how loud they are."""

import numpy as np

from duologue.codecs.ogg_opus import OggOpusReader
from duologue.codecs.opus import OpusDecoder
from duologue.engines.duplex import DuplexSpec
from duologue.realtime.moshi_wire import MoshiReader, MoshiWriter
from load_tests.binary_socket import FrameBuffer
from load_tests.frames import LEVELS, RATE, Talker, level_of, spoken


def test_frames_are_told_apart_after_they_were_coded_both_ways() -> None:
    spec = DuplexSpec()
    reader, writer = MoshiReader(spec), MoshiWriter(spec, 1)
    pages, decoder = OggOpusReader(), OpusDecoder(RATE)
    levels = []
    for frame in spoken(20.0):
        ((_, message),) = FrameBuffer().feed(unmasked(frame))
        for pcm in reader.feed(message):
            assert isinstance(pcm, bytes)
            back = writer.sound(pcm)
            packets = [decoder.decode(packet) for packet in pages.feed(back[1:])]
            levels.append(level_of(np.concatenate(packets)))
    assert levels == [index % LEVELS for index in range(250)]


def unmasked(frame: bytes) -> bytes:
    """A client's frame that is masked with zeros, as a server's."""
    size = frame[1] & 0x7F
    head = {126: 4, 127: 10}.get(size, 2)
    return bytes((frame[0], size)) + frame[2:head] + frame[head + 4 :]


def test_silence_has_no_level() -> None:
    assert level_of(np.zeros(1920, np.int16)) is None
    assert level_of(np.zeros(0, np.int16)) is None


def test_frames_that_are_passed_over_are_lost_and_strangers_are_silence() -> None:
    talker = Talker(0)
    talker.sent.extend((index, float(index)) for index in range(4))
    assert talker._matched(None) is None
    assert talker.silent == 0, "the model had not heard us yet"
    assert talker._matched(2) == 2.0
    assert (talker.lost, talker.silent) == (2, 0)
    assert talker._matched(7) is None
    assert talker._matched(None) is None
    assert (talker.lost, talker.silent) == (2, 2)
    assert talker._matched(3) == 3.0
