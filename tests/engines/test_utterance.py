import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from duologue.codecs.pcm import bytes_from_int16
from duologue.engines.utterance import FOLD_SECONDS, MOST_SECONDS, Utterance

RATE = 16_000


def loud(seconds: float) -> bytes:
    samples = np.full(int(seconds * RATE), 8000, np.int16)
    samples[::2] *= -1
    return bytes_from_int16(samples)


def quiet(seconds: float) -> bytes:
    return bytes(int(seconds * RATE) * 2)


def heard(*pieces: bytes, start: int = 0) -> Utterance:
    utterance = Utterance("u", start)
    for piece in pieces:
        utterance.hear(utterance.end, piece)
    return utterance


def test_audio_comes_back_by_position() -> None:
    utterance = heard(loud(0.1), quiet(0.1), start=1000)
    assert utterance.end == 1000 + 3200
    assert len(utterance.audio(1000, 2600)) == 1600
    assert np.abs(utterance.audio(1000, 2600)).min() > 0.2
    assert not utterance.audio(2600, 4200).any()
    assert len(utterance.audio(0, 99_999)) == 3200


def test_an_overlap_is_heard_once_and_a_gap_is_silence() -> None:
    utterance = heard(loud(0.1))
    utterance.hear(800, loud(0.1))
    assert utterance.end == 2400
    utterance.hear(4000, loud(0.1))
    assert utterance.end == 5600
    assert not utterance.audio(2400, 4000).any()
    utterance.hear(0, loud(0.1))
    assert utterance.end == 5600


def test_a_result_serves_its_own_position() -> None:
    utterance = heard(loud(1))
    utterance.learn(RATE, "hello")
    assert utterance.known(RATE) == "hello"
    assert utterance.known(RATE // 2) is None


def test_a_result_serves_a_position_behind_or_before_it_if_all_between_is_silence() -> None:
    utterance = heard(loud(1), quiet(0.5))
    utterance.learn(RATE + 4800, "hello")
    assert utterance.known(RATE) == "hello"
    assert utterance.known(RATE - 3200) is None


def test_a_result_does_not_serve_much_later_positions_even_in_silence() -> None:
    utterance = heard(loud(1), quiet(1))
    utterance.learn(RATE, "hello")
    assert utterance.known(RATE + 1600) == "hello"
    assert utterance.known(RATE + 4800) is None


def test_speech_after_a_result_makes_it_stale() -> None:
    utterance = heard(loud(1), quiet(0.2), loud(0.2))
    utterance.learn(RATE + 3200, "hello")
    assert utterance.known(utterance.end) is None


def test_nothing_behind_the_end_of_a_closed_utterance_counts() -> None:
    utterance = heard(loud(1), quiet(1))
    utterance.close(RATE)
    utterance.learn(99_999, "hello")
    assert utterance.known(RATE) == "hello"
    assert utterance.heard_until == RATE
    assert len(utterance.open_part(99_999)) == RATE


def test_a_long_utterance_is_folded_and_keeps_what_a_turn_is_judged_by() -> None:
    utterance = heard(*[loud(1)] * (FOLD_SECONDS + 1))
    assert utterance.long
    utterance.fold(20 * RATE, "the beginning")
    assert not utterance.long
    assert utterance.text_with("and more") == "the beginning and more"
    assert len(utterance.open_part(utterance.end)) == 7 * RATE
    assert len(utterance.last(8, utterance.end)) == 8 * RATE
    assert utterance.known(10 * RATE) == "the beginning"


def test_what_nobody_recognises_is_bounded() -> None:
    utterance = Utterance("u", 0)
    minute = quiet(60)
    for _ in range(MOST_SECONDS // 60 + 2):
        utterance.hear(utterance.end, minute)
    assert len(utterance.audio(0, utterance.end)) == MOST_SECONDS * RATE
    assert utterance.folded.until == utterance.end - MOST_SECONDS * RATE


def test_a_gap_in_positions_cannot_take_more_than_is_kept() -> None:
    utterance = Utterance("u", 0)
    utterance.hear(10**9, loud(0.1))
    assert utterance.end == 10**9 + 1600
    assert len(utterance.audio(0, 2 * 10**9)) == 1600


def test_a_pause_is_silence_after_sound() -> None:
    assert not heard(quiet(1)).pauses(1600)
    utterance = heard(loud(0.5), quiet(0.1))
    assert utterance.pauses(1600)
    assert utterance.quiet_from == 8000
    utterance.hear(utterance.end, loud(0.1))
    assert not utterance.pauses(1600)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 4000), min_size=1, max_size=30), st.integers(0, 50_000))
def test_any_cutting_of_the_audio_gives_the_same_utterance(sizes: list[int], start: int) -> None:
    noise = np.random.default_rng(0).integers(-9000, 9000, sum(sizes)).astype(np.int16)
    pcm = bytes_from_int16(noise)
    whole = Utterance("u", start)
    whole.hear(start, pcm)
    pieces, at = Utterance("u", start), 0
    for size in sizes:
        pieces.hear(start + at, pcm[2 * at : 2 * (at + size)])
        at += size
    assert pieces.end == whole.end
    assert np.array_equal(pieces.audio(start, pieces.end), whole.audio(start, whole.end))
    assert pieces.quiet_from == pytest.approx(whole.quiet_from, abs=320)
