from array import array

import numpy as np
import pytest

from duologue.engines.engine import SPOKEN_RATE
from duologue.engines.stamps import (
    STAMP_BYTES,
    TONE_AMPLITUDE,
    Stamp,
    find_stamps,
    read_stamp,
    stamp,
    tone,
    tone_hz,
)

VALUE = Stamp(7, 123_456_789_012_345, 3, 2, 41)


def test_a_stamp_is_read_back() -> None:
    assert read_stamp(stamp(VALUE) + bytes(100)) == VALUE


def test_audio_without_a_stamp_has_none() -> None:
    assert read_stamp(tone(440, 0, 2400)) is None
    assert read_stamp(b"") is None


def test_a_cut_stamp_is_none() -> None:
    assert read_stamp(stamp(VALUE)[:-2]) is None
    assert find_stamps(bytes(10) + stamp(VALUE)[:-2]) == []


def test_stamps_are_found_wherever_the_audio_was_cut() -> None:
    second = Stamp(8, 1, 0, 0, 41)
    pcm = bytes(6) + stamp(VALUE) + tone(440, 0, 50) + stamp(second) + bytes(4)
    assert find_stamps(pcm) == [(3, VALUE), (3 + STAMP_BYTES // 2 + 50, second)]


def test_a_stamp_between_two_samples_is_no_stamp() -> None:
    assert find_stamps(bytes(1) + stamp(VALUE) + bytes(1)) == []


@pytest.mark.parametrize(("reply", "clause", "voice"), [(0, 0, 0), (3, 5, 1), (1000, 0, 4)])
def test_a_tone_has_its_frequency(reply: int, clause: int, voice: int) -> None:
    hz = tone_hz(reply, clause, voice)
    samples = np.frombuffer(tone(hz, 0, SPOKEN_RATE), dtype=np.int16)
    assert int(np.argmax(np.abs(np.fft.rfft(samples)))) == hz
    assert abs(samples).max() <= TONE_AMPLITUDE


def test_a_tone_goes_on_where_it_was_cut() -> None:
    whole = tone(225, 0, 5000)
    assert tone(225, 0, 1234) + tone(225, 1234, 5000 - 1234) == whole
    assert len(array("h", whole)) == 5000


def test_clauses_and_voices_sound_different() -> None:
    heard = {tone_hz(r, c, v) for r in range(8) for c in range(8) for v in range(5)}
    assert len(heard) == 8 * 8 * 5
