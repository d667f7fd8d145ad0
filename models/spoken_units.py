"""What the abbreviations beside numbers stand for."""

MONTHS = {
    "January": "January", "Jan": "January", "February": "February", "Feb": "February",
    "March": "March", "Mar": "March", "April": "April", "Apr": "April", "May": "May",
    "June": "June", "Jun": "June", "July": "July", "Jul": "July", "August": "August",
    "Aug": "August", "September": "September", "Sept": "September", "Sep": "September",
    "October": "October", "Oct": "October", "November": "November", "Nov": "November",
    "December": "December", "Dec": "December",
}  # fmt: skip
"""As written, with or without a full stop, to the whole name; in the order of the year."""

SCALES = {
    "thousand": "thousand", "million": "million", "billion": "billion", "trillion": "trillion",
    "k": "thousand", "K": "thousand", "m": "million", "M": "million", "mn": "million",
    "b": "billion", "B": "billion", "bn": "billion", "T": "trillion", "tn": "trillion",
}  # fmt: skip
"""The powers of ten that follow an amount of money."""

_DOLLAR = ("dollar", "dollars", "cent", "cents")
_EURO = ("euro", "euros", "cent", "cents")
_POUND = ("pound", "pounds", "penny", "pence")
_YEN = ("yen", "yen", "", "")

CURRENCIES = {
    "$": _DOLLAR, "US$": _DOLLAR, "USD": ("U S dollar", "U S dollars", "cent", "cents"),
    "A$": ("Australian dollar", "Australian dollars", "cent", "cents"),
    "C$": ("Canadian dollar", "Canadian dollars", "cent", "cents"),
    "€": _EURO, "EUR": _EURO, "£": _POUND, "GBP": _POUND, "¥": _YEN, "JPY": _YEN,
    "¢": ("cent", "cents", "", ""), "₹": ("rupee", "rupees", "paisa", "paise"),
    "CHF": ("Swiss franc", "Swiss francs", "", ""), "₽": ("ruble", "rubles", "", ""),
    "₿": ("bitcoin", "bitcoins", "", ""), "BTC": ("bitcoin", "bitcoins", "", ""),
    "₩": ("won", "won", "", ""),
}  # fmt: skip
"""One, several, one part and several parts of each currency."""


def _pairs(*rows: tuple[str, str]) -> dict[str, tuple[str, str]]:
    """Units whose plural adds an s to the first word, or has "/" for an irregular one."""
    table: dict[str, tuple[str, str]] = {}
    for keys, name in rows:
        one, _, many = name.partition("/")
        first, *rest = one.split(" ", 1)
        for key in keys.split():
            table[key] = (one, many or " ".join([first + "s", *rest]))
    return table


UNITS = _pairs(
    ("km/h kph kmh", "kilometer per hour"), ("mph", "mile per hour"), ("m/s", "meter per second"),
    ("km", "kilometer"), ("m", "meter"), ("cm", "centimeter"), ("mm", "millimeter"),
    ("µm μm", "micrometer"), ("nm", "nanometer"), ("mi", "mile"), ("ft", "foot/feet"),
    ("yd", "yard"), ("km² km2", "square kilometer/square kilometers"),
    ("m² m2", "square meter/square meters"), ("cm² cm2", "square centimeter/square centimeters"),
    ("sqft", "square foot/square feet"), ("m³ m3", "cubic meter/cubic meters"),
    ("kg", "kilogram"), ("g", "gram"), ("mg", "milligram"), ("µg μg", "microgram"),
    ("lb lbs", "pound"), ("oz", "ounce"), ("l L", "liter"), ("ml mL", "milliliter"),
    ("cl", "centiliter"), ("dl", "deciliter"), ("gal", "gallon"), ("tbsp", "tablespoon"),
    ("tsp", "teaspoon"), ("kB KB", "kilobyte"), ("MB", "megabyte"), ("GB", "gigabyte"),
    ("TB", "terabyte"), ("PB", "petabyte"), ("MiB", "mebibyte"), ("GiB", "gibibyte"),
    ("kbps", "kilobit per second"), ("Mbps", "megabit per second"),
    ("Gbps", "gigabit per second"), ("Hz", "hertz/hertz"), ("kHz", "kilohertz/kilohertz"),
    ("MHz", "megahertz/megahertz"), ("GHz", "gigahertz/gigahertz"), ("W", "watt"),
    ("kW", "kilowatt"), ("MW", "megawatt"), ("GW", "gigawatt"), ("Wh", "watt hour/watt hours"),
    ("kWh", "kilowatt hour/kilowatt hours"), ("mAh", "milliamp hour/milliamp hours"),
    ("V", "volt"), ("kV", "kilovolt"), ("mV", "millivolt"), ("mA", "milliamp"), ("Ω", "ohm"),
    ("dB", "decibel"), ("Pa", "pascal"), ("kPa", "kilopascal"), ("hPa", "hectopascal"),
    ("psi", "pound per square inch"), ("cal", "calorie"), ("kcal", "kilocalorie"),
    ("J", "joule"), ("kJ", "kilojoule"), ("s sec secs", "second"), ("ms", "millisecond"),
    ("µs μs", "microsecond"), ("ns", "nanosecond"), ("min mins", "minute"), ("h hr hrs", "hour"),
    ("yr yrs", "year"), ("px", "pixel"), ("fps", "frame per second"),
    ("rpm", "revolution per minute"), ("ppm", "part per million"),
)  # fmt: skip
"""One and several of each unit, by its symbol."""
