"""Frames that are told apart by how loud they are."""

import numpy as np

from duologue.codecs.ogg_opus import OggOpusReader
from duologue.codecs.opus import OpusDecoder
from load_tests.frames import LEVELS, RATE, Talker, level_of, spoken


def test_frames_are_told_apart_after_they_were_coded() -> None:
    pages, decoder = OggOpusReader(), OpusDecoder(RATE)
    levels = []
    for message in spoken(2.0):
        packets = [decoder.decode(packet) for packet in pages.feed(message[1:])]
        levels.append(level_of(np.concatenate(packets)))
    assert levels[1:] == [index % LEVELS for index in range(1, 25)]


def test_silence_has_no_level() -> None:
    assert level_of(np.zeros(1920, np.int16)) is None
    assert level_of(np.zeros(0, np.int16)) is None


def test_frames_that_are_passed_over_are_lost_and_strangers_are_silence() -> None:
    talker = Talker(0)
    talker.sent.extend((index, float(index)) for index in range(4))
    assert talker._matched(2) == 2.0
    assert (talker.lost, talker.silent) == (2, 0)
    assert talker._matched(7) is None
    assert talker._matched(None) is None
    assert (talker.lost, talker.silent) == (2, 2)
    assert talker._matched(3) == 3.0
