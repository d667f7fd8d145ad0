"""Any text as words that a voice can say.

A voice's pronunciation rules pass over what they do not know, often without a word. So everything
that is not a word becomes one here: numbers and what stands beside them, addresses, abbreviations,
symbols. English; American where customs differ.
"""

import re
import unicodedata
from collections.abc import Callable

from duologue.models.plain_text import plain_text
from duologue.models.spoken_numbers import numbers_as_words

_PUNCTUATION = frozenset(".,;:!?'\"()—- ")

_ADDRESS_MARKS = {
    ".": " dot ", "/": " slash ", "-": " dash ", "_": " underscore ", "+": " plus ",
    "~": " tilde ", "%": " percent ", ":": " colon ", "@": " at ",
}  # fmt: skip
_TOP_LEVEL = (
    "com|org|net|edu|gov|io|ai|dev|app|co|me|info|tv|uk|us|ca|de|fr|eu|au|jp|in|ch|nl|it|es|tech"
)
_EMAIL = re.compile(r"\b(?:mailto:)?([\w.+-]+@[\w-]+(?:\.[\w-]+)+)", re.I)
_URL = re.compile(
    rf"\b(?:https?://|ftp://|www\.)([^\s<>\"']+)|(?<![\w@.])((?:[a-z0-9-]+\.)+(?:{_TOP_LEVEL})\b"
    r"(?:/[^\s<>\"']*)?)",
    re.I,
)
_FILE = re.compile(
    r"\b([\w-]+)\.(py|js|ts|rs|cpp|java|sh|txt|md|json|csv|pdf|png|jpg|jpeg|gif|svg|exe|yaml|yml|"
    r"toml|html|css|xml|mp3|mp4|wav|zip|gz|docx|xlsx)\b"
)

_TITLES = {
    "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Prof": "Professor", "Rev": "Reverend",
    "Hon": "Honorable", "Gov": "Governor", "Sen": "Senator", "Rep": "Representative",
    "Gen": "General", "Col": "Colonel", "Sgt": "Sergeant", "Capt": "Captain", "Lt": "Lieutenant",
    "Pres": "President",
}  # fmt: skip
_ABBREVIATIONS = {
    "e.g.": "for example", "eg.": "for example", "i.e.": "that is", "ie.": "that is",
    "vs.": "versus", "vs": "versus", "approx.": "approximately", "dept.": "department",
    "Dept.": "Department", "est.": "established", "Inc.": "Incorporated", "Ltd.": "Limited",
    "Corp.": "Corporation", "Co.": "Company", "Jr.": "Junior", "Sr.": "Senior", "Mt.": "Mount",
    "Ft.": "Fort", "Ave.": "Avenue", "Blvd.": "Boulevard", "Rd.": "Road", "Ln.": "Lane",
    "Apt.": "Apartment", "apt.": "apartment", "Vol.": "Volume", "vol.": "volume",
    "Fig.": "Figure", "fig.": "figure", "Ch.": "Chapter", "ch.": "chapter", "Sec.": "Section",
    "Ed.": "Edition", "ed.": "edition", "max.": "maximum", "min.": "minimum", "avg.": "average",
    "incl.": "including", "excl.": "excluding", "misc.": "miscellaneous", "tel.": "telephone",
    "Tel.": "Telephone", "ext.": "extension", "w/o": "without", "w/": "with ", "b/c": "because",
    "Ph.D.": "P H D", "Mon.": "Monday", "Tue.": "Tuesday", "Tues.": "Tuesday",
    "Wed.": "Wednesday", "Thu.": "Thursday", "Thurs.": "Thursday", "Fri.": "Friday",
    "Jan.": "January", "Feb.": "February", "Aug.": "August", "Sept.": "September",
    "Oct.": "October", "Nov.": "November", "Dec.": "December", "aka": "also known as",
    "a.k.a.": "also known as", "etc": "et cetera", "ASAP": "as soon as possible",
    "pp.": "pages",
}  # fmt: skip
_ABBREVIATION = re.compile(
    r"(?<![\w.])(?<!\d )("
    + "|".join(re.escape(key) for key in sorted(_ABBREVIATIONS, key=len)[::-1])
    + r")"
    r"(?![\w])"
)

_SAINTS = (
    "Andrew|Andrews|Anne|Anthony|Augustine|Bernard|Catherine|Clair|David|Francis|George|Helena|"
    "Helens|James|John|Johns|Joseph|Kitts|Lawrence|Louis|Lucia|Martin|Mary|Michael|Moritz|"
    "Nicholas|Patrick|Paul|Peter|Petersburg|Stephen|Thomas|Tropez|Vincent"
)

_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "Δ": "delta", "ε": "epsilon",
    "θ": "theta", "λ": "lambda", "μ": "mu", "µ": "mu", "π": "pi", "σ": "sigma", "Σ": "sigma",
    "τ": "tau", "φ": "phi", "ω": "omega", "Ω": "omega",
}  # fmt: skip
_SYMBOLS = {
    "&": "and", "@": "at", "+": "plus", "=": "equals", "%": "percent", "°": "degrees",
    "±": "plus or minus", "×": "times", "÷": "divided by", "−": "minus", "≈": "about",
    "≤": "at most", "≥": "at least",
    "≠": "is not equal to", "<": "less than", ">": "greater than", "∞": "infinity",
    "√": "the square root of", "→": "to", "←": "from", "$": "dollars", "€": "euros",
    "£": "pounds", "¥": "yen", "¢": "cents", "§": "section", "©": "copyright", "™": "trademark",
    "®": "registered", "℃": "degrees Celsius", "℉": "degrees Fahrenheit", "№": "number",
    "∑": "the sum of", "∏": "the product of", "₹": "rupees", "₽": "rubles", "₿": "bitcoin",
}  # fmt: skip


def _address(text: str) -> str:
    for mark, word in _ADDRESS_MARKS.items():
        text = text.replace(mark, word)
    # Digits in an address are part of a name: "user42" is no amount.
    return re.sub(r"\d+", lambda match: f" {match[0]} ", text)


def _say_email(match: re.Match[str]) -> str:
    return _address(match[1])


def _say_url(match: re.Match[str]) -> str:
    """Host and path; the scheme, the www, and what follows a question mark go without saying."""
    whole: str = match[1] or match[2]
    address = whole.rstrip(".,;:!?)/'\"]")
    after = whole[len(address) :].lstrip("/")
    address = re.sub(r"^www\.", "", re.split(r"[?#]", address)[0], flags=re.I).rstrip("/")
    return _address(address) + after


def _say_doctor(match: re.Match[str]) -> str:
    return "Doctor " if match[1] else "Drive"


_RULES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (_EMAIL, _say_email),
    (_URL, _say_url),
    (_FILE, r"\1 dot \2"),
    # Initials: "U.S." is two letters, not two sentences.
    (
        re.compile(r"\b(?:[A-Z]\.){2,}(?=\s+[A-Z][a-z]|\s*$)"),
        lambda m: m[0].replace(".", " ").strip() + ".",
    ),
    (re.compile(r"\b(?:[A-Z]\.){2,}(?!\w)"), lambda m: m[0].replace(".", " ").strip()),
    (re.compile(r"\b([A-Z])\.(?= [A-Z][a-z])"), r"\1"),
    (re.compile(rf"\b({'|'.join(_TITLES)})\.(?=\s+[A-Z])"), lambda m: _TITLES[m[1]]),
    (re.compile(r"\bDr\.?\s+(?=([A-Z]))|\bDr\."), _say_doctor),
    (re.compile(rf"\bSt\.?\s+(?=(?:{_SAINTS})\b)"), "Saint "),
    (re.compile(r"((?:\b[A-Z][\w']*|\d(?:st|nd|rd|th))\s)St\."), r"\1Street"),
    (re.compile(r"\bSt\.\s+(?=[A-Z])"), "Saint "),
    (re.compile(r"\bSt\."), "Street"),
    (re.compile(r"\betc\.(?=\s+[A-Z]|\s*$)"), "et cetera."),
    (re.compile(r"\betc\."), "et cetera"),
    (_ABBREVIATION, lambda m: _ABBREVIATIONS[m[1]]),
    (re.compile(r"\b24/7\b"), "twenty-four seven"),
    (re.compile(r"~\s?(?=[$€£]?\d)"), "about "),
    (re.compile(r"<\s?(?=[$€£]?\d)"), "less than "),
    (re.compile(r">\s?(?=[$€£]?\d)"), "more than "),
    (re.compile(r"(?<=[A-Za-z])(?<![ap]m)-(?=\d)|(?<=\d)-(?=[A-Za-z])"), " "),
    (re.compile(r"\b([CFJ])#(?!\w)"), r"\1 sharp"),
    (re.compile(r"#(?=[A-Za-z])"), "hashtag "),
)
_AFTER: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b([A-Z]{2,})/([A-Z]{2,})\b"), r"\1 \2"),
    (re.compile(r"\b(and)/(or)\b", re.I), r"\1 \2"),
    (re.compile(r"(?<=\w)\s?/\s?(?=\w)"), " or "),
    (re.compile(r"(?<=\w)_+(?=\w)"), " "),
    (re.compile(r"\s?[–—]\s?|\s+-+\s+|--+"), " — "),
    (re.compile(r"\.{2,}"), "..."),
    (re.compile(r"[!?]*\?[!?]*"), "?"),
    (re.compile(r"!+"), "!"),
)


def spoken_text(text: str) -> str:
    """`text` as it is said aloud: Latin letters, spaces and punctuation, without one digit.

    Markdown and emoji go, see `plain_text`; letters of other scripts than the Latin are dropped,
    except for the Greek ones of formulas. The result is "" where nothing is left to say.
    """
    text = unicodedata.normalize("NFC", plain_text(text))
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = numbers_as_words(_ascii_digits(text))
    for pattern, word in _AFTER:
        text = pattern.sub(word, text)
    text = "".join(_said(character) for character in text)
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r" (?=[.,;:!?)])", "", text)
    text = re.sub(r"(?<=\()\s+|\(\s*\)", "", text).strip()
    return text if any(character.isalpha() for character in text) else ""


def _ascii_digits(text: str) -> str:
    """Digits of every script as 0 to 9; the rules know no others."""
    return "".join(
        str(unicodedata.digit(character)) if character.isdecimal() else character
        for character in text
    )


def _said(character: str) -> str:
    if character in _PUNCTUATION:
        return character
    if character.isspace() or character in "|_":
        return " "
    word = _SYMBOLS.get(character) or _GREEK.get(character)
    if word:
        return f" {word} "
    if character.isalpha() and unicodedata.name(character, "").startswith("LATIN"):
        return character
    return ""
