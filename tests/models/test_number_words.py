import pytest

from duologue.models.number_words import (
    cardinal,
    clock,
    digits,
    fraction,
    number,
    ordinal,
    plural,
    year,
)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "zero"),
        (21, "twenty-one"),
        (105, "one hundred five"),
        (1_001, "one thousand one"),
        (-7, "minus seven"),
        (10**15, "one" + " zero" * 15),
        (-(10**15), "minus one" + " zero" * 15),
    ],
)
def test_cardinals(value: int, words: str) -> None:
    assert cardinal(value) == words


def test_ordinals() -> None:
    said = [ordinal(value) for value in (1, 2, 3, 12, 20, 101)]
    assert said == ["first", "second", "third", "twelfth", "twentieth", "one hundred first"]


def test_years() -> None:
    assert year(1998) == "nineteen ninety-eight"
    assert year(1905) == "nineteen oh five"
    assert year(1900) == "nineteen hundred"
    assert year(2000) == "two thousand"
    assert year(2005) == "two thousand five"
    assert year(2026) == "twenty twenty-six"


def test_digits_pass_over_everything_else() -> None:
    assert digits("0-1a2") == "zero one two"


def test_numbers_as_written() -> None:
    assert number("-1,200.50") == "minus one thousand two hundred point five zero"
    assert number("+3") == "plus three"
    assert number(".5") == "zero point five"
    assert number("007") == "zero zero seven"
    assert number("0.07") == "zero point zero seven"


@pytest.mark.parametrize("text", ["", "-", "1e5", "a", "."])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a number"):
        number(text)


def test_times_of_day() -> None:
    assert clock(3, 45) == "three forty-five"
    assert clock(3, 5) == "three oh five"
    assert clock(3, 0) == "three"


def test_fractions() -> None:
    assert fraction(1, 2) == "one half"
    assert fraction(3, 2) == "three halves"
    assert fraction(3, 4) == "three quarters"
    assert fraction(2, 21) == "two twenty-firsts"
    assert fraction(1, 360) == "one over three hundred sixty"


def test_only_one_is_singular() -> None:
    assert [plural(count, "dog", "dogs") for count in ("1", "-1", "0", "1.0", "11")] == [
        "dog", "dog", "dogs", "dogs", "dogs",
    ]  # fmt: skip
