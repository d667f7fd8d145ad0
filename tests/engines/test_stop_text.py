import pytest
from hypothesis import given, strategies as st

from duologue.engines.stop_text import StopText

LETTERS = st.text("ab", max_size=30)


def streamed(text: str, stops: tuple[str, ...], size: int) -> str:
    stop = StopText(stops)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    return "".join(map(stop.push, pieces)) + stop.finish()


def test_the_text_ends_before_a_stop_text_that_comes_in_pieces() -> None:
    stop = StopText(("STOP",))
    assert [stop.push(piece) for piece in ("go S", "TO", "P and on", "more")] == ["go ", "", "", ""]
    assert stop.stopped
    assert stop.finish() == ""


def test_what_only_began_like_a_stop_text_is_given_after_all() -> None:
    stop = StopText(("STOP",))
    assert [stop.push("a ST"), stop.push("ART"), stop.push(" S"), stop.finish()] == [
        "a ",
        "START",
        " ",
        "S",
    ]
    assert not stop.stopped


def test_without_stop_texts_nothing_is_held_back() -> None:
    assert StopText(()).push("all of it") == "all of it"


def test_a_stop_text_must_say_something() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopText(("",))


@given(LETTERS, st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.integers(1, 7))
def test_it_is_the_same_however_the_text_is_cut(text: str, stops: list[str], size: int) -> None:
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    _, begin = min(ends, default=(0, len(text)))
    assert streamed(text, tuple(stops), size) == text[:begin]
