import pytest
from hypothesis import given, strategies as st

from duologue.models.clauses import LONGEST, ClauseSplitter


def clauses(text: str, size: int = 1) -> list[str]:
    splitter = ClauseSplitter()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return [clause for piece in pieces for clause in splitter.push(piece)] + splitter.flush()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Yes. Of course I can do that.", ["Yes.", " Of course I can do that."]),
        ("Good morning, how are you today?", ["Good morning,", " how are you today?"]),
        ("Well, I do not think so.", ["Well,", " I do not think so."]),
        (
            "The train to the city leaves at noon.",
            ["The train to the city", " leaves at noon."],
        ),
        ("I went to see the old castle.", ["I went to see the old", " castle."]),
        ("It is 3.5 or 3,5 or 1,000.", ["It is 3.5 or 3,5", " or 1,000."]),
        ("Dr. Smith is here. He waits.", ["Dr. Smith is here.", " He waits."]),
        ("It's J. R. Smith, e.g. the man.", ["It's J. R. Smith,", " e.g. the man."]),
        ("1. Take an apple.\n2. Eat it.", ["1. Take an apple.", "\n2. Eat it."]),
        ('She said "No." Then she left.', ['She said "No."', " Then she left."]),
        ("See www.example.com now.", ["See www.example.com now."]),
        ("Oh... I see.", ["Oh...", " I see."]),
        ("你好。我很好。", ["你好。", "我很好。"]),
        ("It is [a quite long link](x) here.", ["It is [a quite long link](x)", " here."]),
        ("", []),
        ("   ", ["   "]),
    ],
)
def test_where_a_text_is_cut(text: str, expected: list[str]) -> None:
    assert clauses(text) == expected


def test_the_first_clause_comes_as_soon_as_a_space_follows_it() -> None:
    splitter = ClauseSplitter()
    assert splitter.push("Good morning,") == []
    assert splitter.push(" how") == ["Good morning,"]


def test_a_number_that_is_still_growing_is_not_cut() -> None:
    splitter = ClauseSplitter()
    assert splitter.push("It is 3.") == []
    assert splitter.push("5 now") == []
    assert splitter.flush() == ["It is 3.5 now"]


def test_what_follows_a_text_that_was_broken_off_is_no_first_clause() -> None:
    splitter = ClauseSplitter()
    assert splitter.push("Let me") == []
    assert splitter.flush() == ["Let me"]
    assert splitter.push("Done, I think. ") == ["Done, I think."]


def test_a_hurried_clause_ends_early_but_not_on_a_word_that_leans_on_the_next() -> None:
    splitter = ClauseSplitter(lambda letters: True)
    text = "Good day! The weather is mild with a clear sky and a breeze, or so they say, of course."
    said = [clause for letter in text for clause in splitter.push(letter)] + splitter.flush()
    assert said == [
        "Good day!",
        " The weather is mild",
        " with a clear",
        " sky and a breeze,",
        " or so they say,",
        " of course.",
    ]


def test_how_much_waits_decides_whether_there_is_a_hurry() -> None:
    splitter = ClauseSplitter(lambda letters: letters > 20)
    text = "Sure! Two eggs and some flour make the dough."
    said = [clause for letter in text for clause in splitter.push(letter)] + splitter.flush()
    assert said == ["Sure!", " Two eggs and some flour", " make the dough."]


def test_later_clauses_end_at_a_comma_once_they_are_long_enough() -> None:
    text = "Sure! First, take two eggs and a cup of flour, then mix them, and wait."
    assert clauses(text) == [
        "Sure!",
        " First, take two eggs and a cup of flour,",
        " then mix them, and wait.",
    ]


def test_later_one_word_sentences_are_joined_to_the_next() -> None:
    assert clauses("Sure! Yes. No. All of it. Good.") == ["Sure!", " Yes. No. All of it.", " Good."]


def test_code_stays_in_one_piece() -> None:
    code = "```python\nfor x in range(10):\n    print(x, 2 * x)\n```"
    assert clauses(f"Sure! Look:\n{code}\nThat is it.") == [
        "Sure!", " Look:", f"\n{code}", "\nThat is it.",
    ]  # fmt: skip


def test_a_text_without_punctuation_is_cut_all_the_same() -> None:
    pieces = clauses("word " * 200)
    assert max(map(len, pieces)) <= LONGEST + 5
    assert len(clauses("x" * 5000)) > 5


@given(
    st.text(alphabet='ab .,!?3\n"`*[]。Dr-', max_size=300) | st.text(max_size=100),
    st.integers(1, 20),
)
def test_the_clauses_joined_are_the_text(text: str, size: int) -> None:
    assert "".join(clauses(text, size)) == text


@given(st.text(alphabet='ab .,!?3\n"`*[]。Dr-', max_size=300), st.integers(2, 40))
def test_the_cuts_do_not_depend_on_the_deltas(text: str, size: int) -> None:
    assert clauses(text, size) == clauses(text)


@given(st.text(alphabet="ab12 .,", max_size=400))
def test_no_cut_falls_inside_a_word_or_a_number(text: str) -> None:
    at = 0
    for clause in clauses(text)[:-1]:
        at += len(clause)
        assert text[at].isspace()
