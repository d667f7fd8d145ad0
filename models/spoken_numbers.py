"""How numbers are read where they stand: dates, times, money, units, codes, ranges.

Rules are applied in the order of `RULES`, the more particular before the more general; after the
last one no digit is left.
"""

import re
from collections.abc import Callable

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
from duologue.models.spoken_units import CURRENCIES, MONTHS, SCALES, UNITS

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]

_N = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_START = r"(?<![\w.,])"
_END = r"(?![\w]|[.,]\d)"
_MONTH = "|".join(sorted(MONTHS, key=len, reverse=True))
_YEAR_BEFORE = (
    "in|since|from|by|until|till|before|after|during|of|year|years|circa|around|early|late|mid|and"
)


def _year_or_number(text: str) -> str:
    return year(int(text)) if len(text) == 4 and 1100 <= int(text) <= 2099 else number(text)


def _day(text: str) -> str:
    return ordinal(int(text)) if 1 <= int(text) <= 31 else number(text)


def _full_date(month: int, day: int, year_digits: str) -> str:
    """November thirtieth, twenty twenty-six; a two-digit year is read as it stands."""
    names = list(dict.fromkeys(MONTHS.values()))
    if len(year_digits) == 4:
        spoken = year(int(year_digits))
    elif year_digits[0] == "0":
        spoken = f"oh {digits(year_digits[1])}"
    else:
        spoken = cardinal(int(year_digits))
    return f"{names[month - 1]} {ordinal(day)}, {spoken}"


def _iso_date(match: re.Match[str]) -> str:
    month, day = int(match[2]), int(match[3])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return " ".join(number(part) for part in match.groups() if part)
    return _full_date(month, day, match[1]) + (" " if match[4] else "")


def _slash_date(match: re.Match[str]) -> str:
    """American order, unless the first number can only be a day."""
    first, second = int(match[1]), int(match[2])
    if first > 12 >= second:
        first, second = second, first
    if not (1 <= first <= 12 and 1 <= second <= 31):
        return " slash ".join(number(part) for part in match.groups())
    return _full_date(first, second, match[3])


def _month_day(match: re.Match[str]) -> str:
    month, day, last, in_year = match[1], match[2], match[3], match[4]
    spoken = f"{MONTHS[month]} {_day(day)}"
    if last:
        spoken += f" to {_day(last)}"
    return spoken + (f", {_year_or_number(in_year)}" if in_year else "")


def _day_month(match: re.Match[str]) -> str:
    the = "" if match[1] else "the "
    in_year = f", {_year_or_number(match[4])}" if match[4] else ""
    return f"{match[1] or ''}{the}{_day(match[2])} of {MONTHS[match[3]]}{in_year}"


def _month_year(match: re.Match[str]) -> str:
    return f"{MONTHS[match[1]]} {_year_or_number(match[2])}"


def _half_of_day(text: str | None) -> str:
    return f" {text[0].upper()}M" if text else ""


def _time(match: re.Match[str]) -> str:
    hour, minute, second, half = int(match[1]), int(match[2]), match[3], match[4]
    if hour > 24 or minute > 59:
        return f"{number(match[1])} {number(match[2])}" + (f" {number(second)}" if second else "")
    spoken = clock(hour, minute)
    if minute == 0 and not half and not second:
        spoken = "midnight" if hour in (0, 24) else f"{cardinal(hour)} o'clock"
        if hour > 12 and hour != 24:
            spoken = f"{cardinal(hour)} hundred"
    if second:
        if minute == 0:
            spoken += " zero"
        spoken += f" {'oh ' if int(second) < 10 else ''}{cardinal(int(second))}"
    return spoken + _half_of_day(half)


def _grouped_digits(match: re.Match[str]) -> str:
    """A phone or card number: digit by digit, a short pause between its groups."""
    plus = "plus " if "+" in match[0] else ""
    return plus + ", ".join(digits(group) for group in re.findall(r"\d+", match[0]))


def _dotted(match: re.Match[str]) -> str:
    """A version ("point") or, with four parts, an address on the Internet ("dot")."""
    parts = match[2].split(".")
    joint = " dot " if len(parts) == 4 else " point "
    return ("version " if match[1] else "") + joint.join(cardinal(int(part)) for part in parts)


def _version(match: re.Match[str]) -> str:
    whole, part = match[2], match[3]
    spoken = f"{match[1]}{cardinal(int(whole))}"
    if part:
        long = len(part) == 2 and part[0] != "0"
        spoken += f" point {cardinal(int(part)) if long else digits(part)}"
    return spoken


def _money(sign: str, amount: str, symbol: str, scale: str | None) -> str:
    """Twelve dollars and fifty cents; three point five million dollars."""
    one, many, one_part, many_part = CURRENCIES[symbol]
    minus = "minus " if sign else ""
    if scale:
        return f"{minus}{number(amount)} {SCALES[scale]} {many}"
    whole, _, part = amount.partition(".")
    if len(part) != 2 or not one_part:
        return f"{minus}{number(amount)} {plural(amount, one, many)}"
    units = f"{number(whole)} {plural(whole, one, many)}"
    parts = f"{cardinal(int(part))} {one_part if part == '01' else many_part}"
    if int(part) == 0:
        return minus + units
    return minus + (parts if int(whole.replace(",", "")) == 0 else f"{units} and {parts}")


def _money_before(match: re.Match[str]) -> str:
    last = f" to {_money('', match[4], match[2], match[5])}" if match[4] else ""
    if last and not match[5]:
        return f"{'minus ' if match[1] else ''}{number(match[3])}{last}"
    return _money(match[1], match[3], match[2], match[5]) + last


def _percent(match: re.Match[str]) -> str:
    return f"{number(match[1])} percent"


def _degrees(match: re.Match[str]) -> str:
    scale = {"C": " Celsius", "F": " Fahrenheit", "K": " Kelvin"}.get(match[2] or "", "")
    return f"{number(match[1])} {plural(match[1], 'degree', 'degrees')}{scale}"


def _unit(match: re.Match[str]) -> str:
    one, many = UNITS[match[2]]
    return f"{number(match[1])} {plural(match[1], one, many)}"


def _height(match: re.Match[str]) -> str:
    return f"{cardinal(int(match[1]))} foot {cardinal(int(match[2]))}"


def _decade(match: re.Match[str]) -> str:
    words = year(int(match[1])) if len(match[1]) == 4 else cardinal(int(match[1]))
    return words[:-1] + "ies" if words.endswith("y") else words + "s"


def _mixed(match: re.Match[str]) -> str:
    part = fraction(int(match[2]), int(match[3]))
    if match[2] == "1":
        part = part.replace("one ", "a ", 1)
    return f"{cardinal(int(match[1]))} and {part}"


def _slashed(match: re.Match[str]) -> str:
    top, bottom = int(match[1]), int(match[2])
    if 0 < top < bottom <= 100:
        return fraction(top, bottom)
    return f"{number(match[1])} {number(match[2])}"


def _range(match: re.Match[str]) -> str:
    first, last = match[1], match[2]
    if len(first) == 4 and len(last) == 2 and 1100 <= int(first) <= 2099:
        return f"{year(int(first))} to {cardinal(int(last))}"
    if len(first) == 4 and len(last) == 4 and first.isdigit() and last.isdigit():
        return f"{_year_or_number(first)} to {_year_or_number(last)}"
    return f"{number(first)} to {number(last)}"


def _power(match: re.Match[str]) -> str:
    exponent = match[2].translate(_SUPERSCRIPTS)
    named = {"2": " squared", "3": " cubed"}.get(exponent)
    base = number(match[1]) if match[1][0].isdigit() else match[1]
    return base + (named or f" to the power of {number(exponent)}")


def _scientific(match: re.Match[str]) -> str:
    return f"{number(match[1])} times ten to the power of {number(match[2])}"


_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_VULGAR = {
    "½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5",
    "⅗": "3/5", "⅘": "4/5", "⅙": "1/6", "⅚": "5/6", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8",
}  # fmt: skip
_SYMBOLS = "|".join(re.escape(symbol) for symbol in sorted(CURRENCIES, key=len, reverse=True))
_SCALE = "|".join(sorted(SCALES, key=len, reverse=True))
_UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))
_HALF = r"\s?([ap])\.?\s?m\b\.?(?!\w)"
_TO = r"\s?[-–—]\s?"


def _rule(pattern: str, say: Callable[[re.Match[str]], str], flags: int = 0) -> Rule:
    return re.compile(pattern, flags), say


RULES: tuple[Rule, ...] = (
    _rule(
        rf"(\d)?([{''.join(_VULGAR)}])", lambda m: f"{m[1] + ' ' if m[1] else ''}{_VULGAR[m[2]]}"
    ),
    # Dates.
    _rule(rf"{_START}(\d{{4}})-(\d\d)-(\d\d)(?:(T)(?=\d)|{_END})", _iso_date),
    _rule(rf"{_START}(\d{{1,2}})/(\d{{1,2}})/(\d{{4}}|\d\d){_END}", _slash_date),
    _rule(
        rf"\b({_MONTH})\.? (\d{{1,2}})(?:st|nd|rd|th)?(?:{_TO}(\d{{1,2}})(?:st|nd|rd|th)?)?"
        rf"(?:,? (\d{{4}}))?{_END}(?!:)",
        _month_day,
    ),
    _rule(
        rf"(\b[Tt]he )?{_START}(\d{{1,2}})(?:st|nd|rd|th)? (?:of )?({_MONTH})\b\.?"
        rf"(?:,? (\d{{4}}))?{_END}",
        _day_month,
    ),
    _rule(rf"\b({_MONTH})\.?,? (\d{{4}}){_END}", _month_year),
    # Times.
    _rule(rf"(?<=[\dm]){_TO}(?=\d\d?(?::\d\d|{_HALF}))", lambda m: " to ", re.I),
    _rule(rf"{_START}(\d\d?):(\d\d)(?::(\d\d)(?:\.\d+)?)?(?:{_HALF}|{_END})", _time, re.I),
    _rule(rf"{_START}(\d\d?){_HALF}", lambda m: number(m[1]) + _half_of_day(m[2]), re.I),
    _rule(rf"{_START}(\d+):(\d+){_END}", lambda m: f"{number(m[1])} to {number(m[2])}"),
    # Numbers that are names: read digit by digit.
    _rule(r"(?<![\w.])(?:\+?1[-. ]?)?\(\d{3}\)[-. ]?\d{3}[-. ]?\d{4}(?!\w)", _grouped_digits),
    _rule(rf"{_START}(?:\+?1[-. ])?\d{{3}}[-. ]\d{{3}}[-. ]\d{{4}}{_END}", _grouped_digits),
    _rule(rf"(?<![\w.])\+\d{{1,3}}(?:[- ]?\(?\d{{1,5}}\)?){{2,6}}{_END}", _grouped_digits),
    _rule(rf"{_START}\d{{3}}-\d{{4}}{_END}", _grouped_digits),
    _rule(rf"{_START}\d{{3}}-\d\d-\d{{4}}{_END}", _grouped_digits),
    _rule(rf"{_START}\d{{4}}(?:[- ]\d{{4}}){{2,4}}{_END}", _grouped_digits),
    _rule(
        r"\b((?:PIN|pin|Pin|code|Code|ZIP|zip|Zip|password|passcode|extension|digits)"
        rf"(?: code| number| is|:)* )(\d{{3,}}){_END}",
        lambda m: m[1] + digits(m[2]),
    ),
    # Versions and addresses.
    _rule(rf"\b([vV])?(?<![\d.,])(\d+(?:\.\d+){{2,3}}){_END}", _dotted),
    _rule(rf"\b([vV])(\d+)(?:\.(\d+))?{_END}", lambda m: _version(m).replace(m[1], "version ", 1)),
    _rule(
        r"\b((?:[Vv]ersion|[Rr]elease|Python|Java|Node|PHP|Ruby|Go|iOS|macOS|Android|Ubuntu|Debian)"
        rf" )(\d+)\.(\d+){_END}",
        _version,
    ),
    # Money, percentages, measures.
    _rule(
        rf"(?<!\w)([-−])?({_SYMBOLS})\s?({_N})(?:{_TO}(?:\2)?\s?({_N}))?(?:[- ]?({_SCALE})\b)?",
        _money_before,
    ),
    _rule(
        rf"([-−])?{_START}({_N})(?:\s?({_SCALE}))?\s?({_SYMBOLS})(?!\w)",
        lambda m: _money(m[1], m[2], m[4], m[3]),
    ),
    _rule(
        rf"{_START}({_N}){_TO}(?=[-−]?{_N}\s?(?:%|°|{_UNIT})(?!\w))",
        lambda m: f"{number(m[1])} to ",
    ),
    _rule(rf"{_START}([-−+]?{_N})\s?%", _percent),
    _rule(rf"{_START}([-−+]?{_N})\s?(?:°|º|℃|℉)\s?([CFK]\b)?", _degrees),
    _rule(r"(?<![\w.,'])(\d)'\s?(\d{1,2})(?:\"|''|(?!\w))", _height),
    _rule(rf"{_START}({_N})\"(?=[\s.,;)]|$)(?<!\s\")", lambda m: f"{number(m[1])} inches"),
    _rule(rf"{_START}({_N})(?:[x×]| x )(?={_N})", lambda m: f"{number(m[1])} by "),
    _rule(r"(?<!\w)(?:'|\b(?<=the )|\b(?<=early )|\b(?<=late )|\b(?<=mid-))(\d0)s\b", _decade),
    _rule(rf"{_START}(\d{{3}}0)s\b", _decade),
    _rule(rf"{_START}([-−+]?{_N})[ -]?({_UNIT})(?![\w²³])(?:\.(?=\s+[a-z]))?", _unit),
    _rule(rf"{_START}(\d+)[eE]([-+]?\d+){_END}", _scientific),
    _rule(rf"{_START}({_N}|[a-zA-Z])\s?\^\s?([-−]?\d+){_END}", _power),
    _rule(r"(?<![\w.,])(\d+(?:\.\d+)?|[a-zA-Z])([⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)", _power),
    _rule(rf"{_START}({_N})[kK]\b", lambda m: f"{number(m[1])} thousand" if "k" in m[0] else m[0]),
    _rule(rf"{_START}({_N})[x×](?!\w)", lambda m: f"{number(m[1])} times"),
    # Order, parts, ranges.
    _rule(rf"{_START}(\d[\d,]*)(?:st|nd|rd|th)\b", lambda m: ordinal(int(m[1].replace(",", "")))),
    _rule(rf"{_START}(\d+) (\d+)/(\d+){_END}", _mixed),
    _rule(rf"{_START}9/11{_END}", lambda m: "nine eleven"),
    _rule(rf"{_START}(\d+)/(\d+){_END}", _slashed),
    _rule(r"(?:#|№\s?|\b[Nn]os?\. ?)(?=\d)", lambda m: "number "),
    _rule(rf"(?<![\w.,-])({_N})(?:-|\s?–\s?)({_N}){_END}(?!-\d)", _range),
    _rule(rf"{_START}(?:\d+-){{2,}}\d+{_END}", _grouped_digits),
    _rule(r"(?<=\d)\s?[*×·]\s?(?=\d)", lambda m: " times "),
    _rule(r"(?<=\d)\s?÷\s?(?=\d)", lambda m: " divided by "),
    _rule(r"(?<=[\w)]) [-−] (?=\d)", lambda m: " minus "),
    # Years and all that is left.
    _rule(rf"\b((?i:{_YEAR_BEFORE}) )(1[1-9]\d\d|20\d\d){_END}", lambda m: m[1] + year(int(m[2]))),
    _rule(rf"{_START}(1[1-9]\d\d|20\d\d){_END}(?! [a-z]+s\b)", lambda m: year(int(m[1]))),
    _rule(rf"(?<![\w.,)])([-−+]?{_N}){_END}", lambda m: number(m[1])),
    _rule(rf"{_N}|\.\d+", lambda m: f" {number(m[0].lstrip(','))} "),
    _rule(r"\d+", lambda m: f" {digits(m[0])} "),
)


def numbers_as_words(text: str) -> str:
    """`text` with every number read out, as an American would in a conversation."""
    for pattern, say in RULES:
        text = pattern.sub(say, text)
    return text
