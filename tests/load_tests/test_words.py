import pytest

from load_tests.words import WordErrors, normalised, number_words, word_errors


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (40, "forty"),
        (99, "ninety nine"),
        (305, "three hundred five"),
        (1_024, "one thousand twenty four"),
        (1_234_567, "one two three four five six seven"),
    ],
)
def test_numbers_become_words(number: int, words: str) -> None:
    assert number_words(number) == words


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Press 1 now.", "press one now"),
        ("You're next!", "you are next"),
        ("That's not a full-featured PBX", "that is not a full featured P.B.X.".replace(".", " ")),
        ("I can\u2019t", "I cannot"),
        ("OK, dialling", "okay dialing"),
        ("www.asterisk.org", "www dot asterisk dot org"),
        ("your party's name", "your partys name"),
        ("the # key", "the pound key"),
        ("voicemail", "voice mail"),
    ],
)
def test_two_spellings_of_one_thing_are_no_error(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)
    assert word_errors(one, other).errors == 0


@pytest.mark.parametrize(
    ("understood", "errors"),
    [
        ("the cat sat", 0),
        ("the cat", 1),
        ("the cat sat down", 1),
        ("the dog sat", 1),
        ("dog", 3),
        ("", 3),
    ],
)
def test_substitutions_insertions_and_deletions_each_count_once(
    understood: str, errors: int
) -> None:
    assert word_errors("The cat sat.", understood) == WordErrors(errors, 3)


def test_errors_of_several_texts_are_counted_against_all_their_words() -> None:
    total = word_errors("one two three", "one two") + word_errors("four", "four")
    assert total.rate == 0.25


def test_a_rate_exceeds_one_when_more_was_heard_than_was_said() -> None:
    assert word_errors("yes", "no no no").rate == 3.0
    assert WordErrors(0, 0).rate == 0.0


def test_a_comma_divides_words_but_not_the_digits_of_a_number() -> None:
    assert normalised("Sorry,you owe 1,200.") == "sorry you owe one thousand two hundred".split()
