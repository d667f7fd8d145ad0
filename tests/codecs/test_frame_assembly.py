"""Coded pictures from packets that come as networks bring them."""

import random

import pytest

from duologue.codecs.frame_assembly import (
    ASK_AGAIN,
    GIVE_UP,
    KEY_INTERVAL,
    MOST_ASKED,
    MOST_BYTES,
    MOST_MISSING,
    MOST_WAITING,
    REORDER,
    FrameAssembly,
    Wanted,
)
from duologue.codecs.video_payload import vp8_piece

STEP = 3000
KEY, DELTA, MORE = b"\x10\x00", b"\x10\x01", b"\x00"


class Line:
    """Pictures of three packets; number 0 is a key picture."""

    def __init__(self):
        self.assembly = FrameAssembly(vp8_piece)
        self.now = 0.0
        self.seen = []

    def give(self, sequence, *, key=None, payload=None):
        picture, part = divmod(sequence, 3)
        head = (KEY if (picture == 0 if key is None else key) else DELTA) if part == 0 else MORE
        body = head + bytes([picture % 256, part]) if payload is None else payload
        self.seen += self.assembly.push(sequence, picture * STEP, part == 2, body, self.now)

    def wait(self, seconds):
        self.now += seconds
        pictures, wanted = self.assembly.handle_timer(self.now)
        self.seen += pictures
        return wanted

    @property
    def times(self):
        return [picture.timestamp // STEP for picture in self.seen]


@pytest.fixture
def line():
    return Line()


def test_packets_in_order_become_pictures(line):
    for number in range(9):
        line.give(number)
    assert line.times == [0, 1, 2]
    assert [picture.key for picture in line.seen] == [True, False, False]
    assert line.seen[1].data == b"\x01\x01\x00\x01\x01\x01\x02"


def test_order_and_copies_do_not_matter(line):
    numbers = [*range(3, 30), 4, 7, 9] * 2
    random.Random(5).shuffle(numbers)
    for number in [0, 1, 2, *numbers]:
        line.give(number)
    assert line.times == list(range(10))
    assert line.assembly.late > 0


def test_a_stream_is_taken_up_at_a_key_picture(line):
    for number in range(3, 9):
        line.give(number)
    assert line.seen == []
    assert line.wait(0.02) == Wanted(key=True)
    assert line.wait(0.02) == Wanted()
    assert line.wait(KEY_INTERVAL) == Wanted(key=True)
    for number in range(9, 15):
        line.give(number, key=number == 9)
    assert line.times == [3, 4]
    assert line.wait(KEY_INTERVAL) == Wanted()


def test_what_is_missing_is_asked_for_and_fills_the_gap(line):
    for number in (0, 1, 2, 3, 6, 8):
        line.give(number)
    assert line.wait(REORDER / 2) == Wanted()
    assert line.wait(REORDER) == Wanted((4, 5, 7))
    assert line.wait(0.02) == Wanted()
    assert line.wait(ASK_AGAIN) == Wanted((4, 5, 7))
    for number in (4, 5, 7):
        line.give(number)
    assert line.times == [0, 1, 2]
    assert line.wait(ASK_AGAIN) == Wanted()


def test_nothing_is_asked_for_more_than_a_few_times(line):
    for number in (0, 1, 2, 4):
        line.give(number)
    asked = 0
    while line.now < GIVE_UP - 0.02:
        asked += len(line.wait(0.02).packets)
    assert 1 < asked <= MOST_ASKED


def test_what_never_comes_is_given_up_for_a_key_picture(line):
    for number in [0, 1, 2, *range(4, 9)]:
        line.give(number)
    wanted = line.wait(GIVE_UP)
    assert wanted.key and line.assembly.broken
    for number in range(9, 15):
        line.give(number)
    assert line.times == [0]
    for number in range(15, 18):
        line.give(number, key=True)
    assert line.times == [0, 5]
    assert line.assembly.given_up == 1


def test_a_key_picture_behind_a_gap_ends_the_wait(line):
    for number in [0, 1, 2, 4, 6, 7, 8]:
        line.give(number, key=number in (0, 6))
    line.wait(GIVE_UP)
    assert line.times == [0, 2]


def test_a_large_hole_is_not_asked_for(line):
    for number in (0, 1, 2, 2 + 2 * MOST_MISSING):
        line.give(number)
    assert line.wait(2 * REORDER).packets == ()


def test_packets_behind_a_gap_are_bounded(line):
    for number in [0, 1, 2, *range(4, 4 + 3 * MOST_WAITING)]:
        line.give(number)
        assert len(line.assembly) <= MOST_WAITING
    assert line.assembly.broken


def test_a_picture_is_bounded(line):
    for number in range(MOST_BYTES // 60_000 + 5):
        line.seen += line.assembly.push(number, 0, False, KEY + bytes(60_000), 0.0)
    line.seen += line.assembly.push(number + 1, 0, True, MORE + b"x", 0.0)
    assert line.seen == []
    assert line.assembly.broken


def test_a_new_time_is_a_new_picture_even_without_a_marker(line):
    for number in range(3):
        line.seen += line.assembly.push(number, number * STEP, False, KEY + b"a", 0.0)
    assert line.times == [0, 1]


def test_garbage_keeps_its_place_and_nothing_else(line):
    for number in range(3):
        line.give(number)
    line.give(3, payload=b"\x90")
    line.give(4)
    line.give(5)
    line.give(6, payload=b"")
    for number in (7, 8):
        line.give(number)
    for number in range(9, 12):
        line.give(number)
    assert line.times == [0, 3]
    assert line.assembly.malformed == 1


def test_a_new_numbering_begins_with_a_key_picture(line):
    for number in range(6):
        line.give(number)
    line.assembly.restart()
    for number in range(900, 906):
        line.give(number, key=number == 903)
    assert line.times == [0, 1, 301]


def test_what_can_not_be_decoded_asks_for_a_key_picture(line):
    for number in range(3):
        line.give(number)
    line.assembly.breaks()
    for number in range(3, 6):
        line.give(number)
    assert line.times == [0]
    assert line.wait(0.02).key
