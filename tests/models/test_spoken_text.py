import re

import pytest
from hypothesis import given, strategies as st

from duologue.models.spoken_text import spoken_text

CASES = {
    # money
    "It costs $12.50.": "It costs twelve dollars and fifty cents.",
    "$1": "one dollar",
    "$0.99": "ninety-nine cents",
    "$1.01": "one dollar and one cent",
    "$3.5 million": "three point five million dollars",
    "$1,200": "one thousand two hundred dollars",
    "$5k": "five thousand dollars",
    "-$5": "minus five dollars",
    "$10-$20": "ten to twenty dollars",
    "20€": "twenty euros",
    "£3.20": "three pounds and twenty pence",
    "¥500": "five hundred yen",
    "5 USD": "five U S dollars",
    "50¢": "fifty cents",
    # parts of a hundred
    "45% of 3.5%": "forty-five percent of three point five percent",
    "5-10%": "five to ten percent",
    # order and years
    "the 21st, 2nd and 103rd": "the twenty-first, second and one hundred third",
    "in 1998, 2005 and 2010": "in nineteen ninety-eight, two thousand five and twenty ten",
    "the 1990s and the '80s": "the nineteen nineties and the eighties",
    "1998-2004": "nineteen ninety-eight to two thousand four",
    "1500 meters": "one thousand five hundred meters",
    # dates
    "2026-11-30": "November thirtieth, twenty twenty-six",
    "11/30/2026": "November thirtieth, twenty twenty-six",
    "30/11/2026": "November thirtieth, twenty twenty-six",
    "Nov. 30, 2026": "November thirtieth, twenty twenty-six",
    "30 November 2026": "the thirtieth of November, twenty twenty-six",
    "the 4th of July": "the fourth of July",
    "May 5-7": "May fifth to seventh",
    "March 2024": "March twenty twenty-four",
    # times
    "at 3:45": "at three forty-five",
    "at 3:00": "at three o'clock",
    "3:05 p.m. today": "three oh five PM today",
    "5pm": "five PM",
    "15:30": "fifteen thirty",
    "9am-5pm": "nine AM to five PM",
    "9:00-17:30": "nine o'clock to seventeen thirty",
    # versions and addresses
    "version 2.5": "version two point five",
    "v1.2.3": "version one point two point three",
    "Python 3.11": "Python three point eleven",
    "10.0.0.1": "ten dot zero dot zero dot one",
    # telephones and codes
    "555-123-4567": "five five five, one two three, four five six seven",
    "(800) 555-0199": "eight zero zero, five five five, zero one nine nine",
    "+44 20 7946 0958": "plus four four, two zero, seven nine four six, zero nine five eight",
    "555-1234": "five five five, one two three four",
    "PIN 4821": "PIN four eight two one",
    "code 007": "code zero zero seven",
    # the web
    "https://www.example.com/docs?x=1.": "example dot com slash docs.",
    "See example.org, please.": "See example dot org, please.",
    "bob.smith@example.co.uk": "bob dot smith at example dot co dot uk",
    "main.py": "main dot py",
    # measures
    "21°C or 70°F or 1°": "twenty-one degrees Celsius or seventy degrees Fahrenheit or one degree",
    "-10°C": "minus ten degrees Celsius",
    "5 km and 1kg": "five kilometers and one kilogram",
    "60 mph": "sixty miles per hour",
    "3.2 GHz": "three point two gigahertz",
    "100 m²": "one hundred square meters",
    "in 30 min. or so": "in thirty minutes or so",
    "5'10\"": "five foot ten",
    "5-10 km": "five to ten kilometers",
    "1920x1080": "one thousand nine hundred twenty by one thousand eighty",
    "a 5-year-old": "a five year-old",
    # abbreviations
    "Dr. Smith on Elm Dr.": "Doctor Smith on Elm Drive",
    "Mr. and Mrs. Lee": "Mr. and Missus Lee",
    "St. Paul on Main St.": "Saint Paul on Main Street",
    "fruit, e.g. apples, i.e. food": "fruit, for example apples, that is food",
    "cats, dogs, etc.": "cats, dogs, et cetera.",
    "cats vs. dogs": "cats versus dogs",
    "R&D w/o limits": "R and D without limits",
    "and/or he/she": "and or he or she",
    # fractions and sums
    "1/2 or 3/4": "one half or three quarters",
    "2 1/2": "two and a half",
    "1½ cups": "one and a half cups",
    "24/7": "twenty-four seven",
    "2 + 2 = 4": "two plus two equals four",
    "5 - 3": "five minus three",
    "6 × 7": "six times seven",
    "10^3 and x²": "ten cubed and x squared",
    # whatever else has a digit in it
    "10-20 people": "ten to twenty people",
    "#1 and No. 5": "number one and number five",
    "1,234,567": "one million two hundred thirty-four thousand five hundred sixty-seven",
    "0.5 and .5": "zero point five and zero point five",
    "it is -3.5": "it is minus three point five",
    "10k users, 4K video": "ten thousand users, four K video",
    "GPT-4, MP3, H2O": "GPT four, MP three, H two O",
    "a 3-2 win": "a three to two win",
    "٣ apples": "three apples",
    # what cannot be said
    "**Bold** 😀 :) `code`": "Bold code",
    "你好": "",
    "...": "",
    "": "",
    "café, naïve": "café, naïve",
    "Really?!? Yes!!": "Really? Yes!",
    "~5 or <10": "about five or less than ten",
    "snake_case": "snake case",
    "one—two -- three": "one — two — three",
}


@pytest.mark.parametrize(("written", "spoken"), CASES.items(), ids=lambda text: text[:30])
def test_everything_becomes_words(written: str, spoken: str) -> None:
    assert spoken_text(written) == spoken


@pytest.mark.parametrize("spoken", [spoken for spoken in CASES.values() if spoken])
def test_words_stay_as_they_are(spoken: str) -> None:
    assert spoken_text(spoken) == spoken


PIECES = st.sampled_from(
    "1 2 30 1998 007 3.5 1,000 $ € % ° : / - – . , + = x × k st am pm km GB v # @ * _ ( ) [ ] Dr. "
    "May Nov. ½ ² 😀 é 你 a the \n http:// .com ' \"".split(" ")
)


@given(st.lists(PIECES, max_size=12).map("".join) | st.lists(PIECES, max_size=12).map(" ".join))
def test_no_digit_and_no_symbol_is_left_of_any_mixture(text: str) -> None:
    assert re.fullmatch(r"(?:[^\W\d_]|[ .,;:!?'\"()—-])*", spoken_text(text))


@given(st.text(max_size=200))
def test_no_digit_and_no_symbol_is_left_of_any_text(text: str) -> None:
    spoken = spoken_text(text)
    assert re.fullmatch(r"(?:[^\W\d_]|[ .,;:!?'\"()—-])*", spoken)
    assert spoken == spoken.strip()
