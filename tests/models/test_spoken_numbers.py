import pytest

from duologue.models.spoken_numbers import numbers_as_words


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("13/13/2026", "thirteen slash thirteen slash two thousand twenty-six"),
        ("2026-13-45", "two thousand twenty-six thirteen forty-five"),
        ("2026-11-30T10:15", "November thirtieth, twenty twenty-six ten fifteen"),
        ("25:99", "twenty-five ninety-nine"),
        ("00:00", "midnight"),
        ("12:00:05", "twelve zero oh five"),
        ("ratio 3:1", "ratio three to one"),
        (
            "4111 1111 1111 1111",
            "four one one one, one one one one, one one one one, one one one one",
        ),
        ("078-05-1120", "zero seven eight, zero five, one one two zero"),
        ("1-2-3-4", "one, two, three, four"),
        ("6.02e23", "six point zero two e twenty-three"),
        ("3 x 4", "three by four"),
        ("2x faster", "two times faster"),
        ("9/11", "nine eleven"),
        ("50/50", "fifty fifty"),
        ("7/8/26", "July eighth, twenty-six"),
        ("1998–99", "nineteen ninety-eight to ninety-nine"),
        ("iOS 17.4", "iOS seventeen point four"),
        ("US$2.5bn", "two point five billion dollars"),
        ("100 CHF", "one hundred Swiss francs"),
        ("the 00s", "the zeros"),
    ],
)
def test_numbers_are_read_where_they_stand(written: str, spoken: str) -> None:
    assert " ".join(numbers_as_words(written).split()) == spoken


def test_text_without_numbers_is_untouched() -> None:
    text = "No. It may be so, May, at noon - in March."
    assert numbers_as_words(text) == text


@pytest.mark.parametrize("unfinished", ["3:", "$", "5 -", "1/", "v", "12:3", "3.", "1,00", "10^"])
def test_what_breaks_off_is_still_read(unfinished: str) -> None:
    assert not any(character.isdigit() for character in numbers_as_words(unfinished))
