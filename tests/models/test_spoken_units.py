from duologue.models.spoken_units import CURRENCIES, MONTHS, UNITS


def test_the_months_are_in_order() -> None:
    names = list(dict.fromkeys(MONTHS.values()))
    assert len(names) == 12
    assert (names[0], names[10], names[11]) == ("January", "November", "December")


def test_plurals_are_formed_on_the_measured_thing() -> None:
    assert UNITS["km"] == ("kilometer", "kilometers")
    assert UNITS["mph"] == ("mile per hour", "miles per hour")
    assert UNITS["ft"] == ("foot", "feet")
    assert UNITS["Hz"] == ("hertz", "hertz")


def test_no_name_has_a_digit_or_a_symbol() -> None:
    names = [name for row in (*UNITS.values(), *CURRENCIES.values()) for name in row]
    assert all(name.replace(" ", "").isalpha() or name == "" for name in names)
