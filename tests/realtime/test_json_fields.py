"""Fields of a client's JSON: the right value, or an error that names the place."""

from collections.abc import Callable
from typing import Any

import pytest

from duologue.realtime.json_fields import DEEPEST, MAX_INTEGER, Fields
from duologue.sessions.errors import ProtocolError

FIELDS = Fields(
    {
        "text": "t",
        "number": 0.5,
        "whole": 3.0,
        "integer": 7,
        "yes": True,
        "nothing": None,
        "list": ["a", "b"],
        "mixed": ["a", 1],
        "inner": {"text": 1},
        "rows": [{"text": "x"}, 2],
    },
    "session",
)


def failure(read: Callable[[], object]) -> tuple[str, str | None]:
    with pytest.raises(ProtocolError) as caught:
        read()
    return caught.value.code, caught.value.param


def test_what_is_there_is_read() -> None:
    assert FIELDS.string("text") == "t"
    assert FIELDS.number("number", 0, 1) == 0.5
    assert FIELDS.integer("integer", 0, 9) == 7
    assert FIELDS.boolean("yes") is True
    assert FIELDS.strings("list") == ("a", "b")
    assert FIELDS.choice("text", ("s", "t")) == "t"


def test_a_whole_number_counts_as_an_integer_and_a_boolean_does_not() -> None:
    assert FIELDS.integer("whole", 0) == 3
    assert failure(lambda: FIELDS.integer("yes", 0)) == ("invalid_type", "session.yes")
    assert failure(lambda: FIELDS.number("yes", 0, 1)) == ("invalid_type", "session.yes")
    assert failure(lambda: FIELDS.integer("number", 0)) == ("invalid_type", "session.number")


@pytest.mark.parametrize("name", ["nothing", "absent"])
def test_null_and_absence_read_alike_but_can_be_told_apart(name: str) -> None:
    assert FIELDS.string(name) is None
    assert FIELDS.integer(name, 1) is None
    assert FIELDS.number(name, 1, 2) is None
    assert FIELDS.boolean(name) is None
    assert FIELDS.object(name) is None
    assert FIELDS.array(name) is None
    assert FIELDS.objects(name) is None
    assert FIELDS.strings(name) is None
    assert FIELDS.has(name) == (name == "nothing")


def test_what_is_required_has_to_be_there() -> None:
    expected = ("missing_required_parameter", "session.nothing")
    assert failure(lambda: FIELDS.required_string("nothing")) == expected
    assert failure(lambda: FIELDS.required_id("nothing")) == expected
    assert failure(lambda: FIELDS.required_integer("nothing", 0)) == expected
    assert failure(lambda: FIELDS.required_object("nothing")) == expected


@pytest.mark.parametrize(
    ("read", "param"),
    [
        (lambda: FIELDS.string("integer"), "session.integer"),
        (lambda: FIELDS.number("text", 0, 1), "session.text"),
        (lambda: FIELDS.boolean("integer"), "session.integer"),
        (lambda: FIELDS.array("text"), "session.text"),
        (lambda: FIELDS.object("list"), "session.list"),
        (lambda: FIELDS.strings("mixed"), "session.mixed[1]"),
        (lambda: FIELDS.objects("rows"), "session.rows[1]"),
        (lambda: FIELDS.required_object("inner").string("text"), "session.inner.text"),
        (lambda: Fields([]), ""),
    ],
)
def test_the_wrong_type_is_named_with_its_place(read: Callable[[], object], param: str) -> None:
    assert failure(read) == ("invalid_type", param)


@pytest.mark.parametrize(
    "read",
    [
        lambda: FIELDS.integer("integer", 8),
        lambda: FIELDS.integer("integer", 0, 6),
        lambda: FIELDS.number("number", 0.6, 1),
        lambda: FIELDS.choice("text", ("a",)),
        lambda: FIELDS.string("text", 0),
        lambda: Fields({"id": ""}).required_id("id"),
        lambda: Fields({"n": float("nan")}).number("n", 0, 1),
        lambda: Fields({"n": MAX_INTEGER + 1}).integer("n", 0),
        lambda: Fields({"n": float("inf")}).number("n", 0, 1),
    ],
)
def test_a_value_outside_its_range_is_refused(read: Callable[[], object]) -> None:
    assert failure(read)[0] == "invalid_value"


def test_a_long_value_is_quoted_in_part() -> None:
    with pytest.raises(ProtocolError) as caught:
        Fields({"kind": "x" * 10_000}).choice("kind", ("a",))
    assert len(caught.value.message) < 200


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_a_value_is_kept_only_if_it_can_be_written_again() -> None:
    assert Fields({"v": {"a": [1, "b"]}}).kept("v") == {"a": [1, "b"]}
    assert Fields({"v": nested(DEEPEST - 1)}).kept("v") == nested(DEEPEST - 1)
    assert failure(lambda: Fields({"v": nested(DEEPEST)}).kept("v"))[0] == "invalid_value"
    assert failure(lambda: Fields({"v": [2**63]}).kept("v"))[0] == "invalid_value"


def test_a_number_that_is_too_large_is_told_how_large_it_may_be() -> None:
    with pytest.raises(ProtocolError, match=f"must be from 1 to {MAX_INTEGER}") as caught:
        Fields({"max_tokens": 2**60}).integer("max_tokens", 1)
    assert caught.value.param == "max_tokens"
