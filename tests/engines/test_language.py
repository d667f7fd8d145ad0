import re

from duologue.engines.language import LanguageError, new_call_id


def test_call_identifiers_look_the_same_and_are_not() -> None:
    first, second = new_call_id(), new_call_id()
    assert first != second
    assert re.fullmatch(r"call_[0-9a-f]{24}", first)


def test_an_error_carries_its_failure_and_says_it() -> None:
    error = LanguageError.of("upstream_error", "It is away.")
    assert (error.failure.code, error.failure.message) == ("upstream_error", "It is away.")
    assert str(error) == "It is away."
