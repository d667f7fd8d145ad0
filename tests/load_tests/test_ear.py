import pytest

from load_tests.ear import Ear


def sound(seconds: float, value: int = 1) -> bytes:
    return value.to_bytes(2, "little") * round(24_000 * seconds)


def test_audio_is_played_from_its_arrival_at_the_rate_it_was_recorded() -> None:
    ear = Ear()
    ear.receive("a", sound(0.2), now=10.0)
    ear.receive("a", sound(0.3), now=10.05)
    assert ear.quiet_at == pytest.approx(10.5)
    assert ear.audible(10.49)
    assert not ear.audible(10.51)


def test_a_piece_that_comes_too_late_leaves_a_gap_of_that_length() -> None:
    ear = Ear()
    ear.receive("a", sound(0.2), now=1.0)
    ear.receive("a", sound(0.2), now=1.26)
    ear.receive("a", sound(0.2), now=1.3)
    assert ear.gaps == pytest.approx([0.06])


def test_silence_between_two_answers_is_not_a_gap() -> None:
    ear = Ear()
    ear.receive("a", sound(0.2), now=1.0)
    ear.complete("a")
    ear.receive("b", sound(0.2), now=9.0)
    assert ear.gaps == []


def test_silence_before_another_item_is_not_a_gap_of_the_first() -> None:
    ear = Ear()
    ear.receive("a", sound(0.2), now=1.0)
    ear.receive("b", sound(0.2), now=9.0)
    ear.receive("b", sound(0.2), now=9.5)
    assert ear.gaps == pytest.approx([0.3])


def test_an_interruption_says_what_was_heard_of_the_item_being_played() -> None:
    ear = Ear()
    ear.receive("a", sound(2.0), now=1.0)
    ear.receive("a", sound(2.0), now=1.1)
    assert ear.flush(2.5) == ("a", 1500)
    assert not ear.audible(2.5)
    assert ear.heard_ms("a", 9.0) == 1500


def test_waiting_within_an_item_is_not_counted_as_hearing_it() -> None:
    ear = Ear()
    ear.receive("a", sound(0.5), now=0.0)
    ear.receive("a", sound(0.5), now=2.0)
    assert ear.flush(2.25) == ("a", 750)


def test_an_interruption_of_silence_cuts_nothing() -> None:
    ear = Ear()
    assert ear.flush(0.0) is None
    ear.receive("a", sound(0.5), now=0.0)
    assert ear.flush(0.6) is None
    assert ear.heard_ms("a", 0.6) == 500


def test_silence_after_an_interruption_is_not_a_gap() -> None:
    ear = Ear()
    ear.receive("a", sound(1.0), now=0.0)
    ear.flush(0.5)
    ear.receive("a", sound(1.0), now=3.0)
    assert ear.gaps == []


def test_only_what_was_heard_is_kept() -> None:
    ear = Ear(keep=True)
    ear.receive("a", sound(1.0), now=0.0)
    ear.receive("a", sound(1.0), now=0.1)
    ear.receive("a", sound(1.0), now=0.2)
    ear.flush(1.5)
    assert [(piece.start, len(piece.pcm) / 48_000) for piece in ear.pieces] == [
        (0.0, 1.0),
        (1.0, 0.5),
    ]
