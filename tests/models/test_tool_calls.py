import pytest
from hypothesis import given, strategies as st

from duologue.models.tool_calls import (
    LONGEST_CALL,
    ArgumentsDelta,
    CallEnded,
    CallRejected,
    CallStarted,
    Speech,
    ToolCallEvent,
    ToolCallParser,
)

NAMES = ("get_weather", "add")
CALL = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
OSLO = [
    CallStarted(0, "get_weather"),
    ArgumentsDelta(0, '{"city": "Oslo"}'),
    CallEnded(0, "get_weather", '{"city": "Oslo"}'),
]


def merged(events: list[ToolCallEvent]) -> list[ToolCallEvent]:
    """The events with neighbouring texts joined."""
    result: list[ToolCallEvent] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, Speech) and isinstance(last, Speech):
            result[-1] = Speech(last.text + event.text)
        elif isinstance(event, ArgumentsDelta) and isinstance(last, ArgumentsDelta):
            result[-1] = ArgumentsDelta(last.index, last.text + event.text)
        else:
            result.append(event)
    return result


def parse(text: str, size: int = 1, names: tuple[str, ...] = NAMES) -> list[ToolCallEvent]:
    parser = ToolCallParser(names)
    events: list[ToolCallEvent] = []
    for at in range(0, len(text), size):
        events += parser.push(text[at : at + size])
    return merged(events + parser.finish())


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        f"\n{CALL}\n",
        f"<tool_call>\n{CALL}\n</tool_call>",
        f"<tool_call>{CALL}",
        f"```json\n{CALL}\n```",
        f"```\n{CALL}\n```\n",
        f"[{CALL}]",
        '{"type": "function", "function": ' + CALL + "}",
        '{"name": "get_weather", "parameters": {"city": "Oslo"}}',
        '{"arguments": {"city": "Oslo"}, "name": "get_weather"}',
        '{"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}',
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_call_is_found_however_it_is_written(text: str, size: int) -> None:
    events = [event for event in parse(text, size) if event != Speech("\n")]
    assert events == OSLO


def test_several_calls_are_found() -> None:
    second = '{"name": "add", "arguments": {"a": 1}}'
    expected = [
        *OSLO,
        CallStarted(1, "add"),
        ArgumentsDelta(1, '{"a": 1}'),
        CallEnded(1, "add", '{"a": 1}'),
    ]
    for text in (
        f"{CALL}\n{second}",
        f"[{CALL}, {second}]",
        f"{CALL}; {second}",
        f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{second}\n</tool_call>",
        f"```json\n{CALL}\n```\n```json\n{second}\n```",
    ):
        assert parse(text) == expected


def test_speech_before_and_after_a_call_is_spoken() -> None:
    text = f"Let me look.\n<tool_call>\n{CALL}\n</tool_call>\nOne moment."
    assert parse(text) == [Speech("Let me look.\n"), *OSLO, Speech("One moment.")]


def test_a_call_without_arguments_has_an_empty_object() -> None:
    for text in ('{"name": "add"}', '{"name": "add", "arguments": null}'):
        assert parse(text)[-1] == CallEnded(0, "add", "{}")


def test_speech_is_passed_on_at_once() -> None:
    parser = ToolCallParser(NAMES)
    assert parser.push("Hello") == [Speech("Hello")]
    assert parser.push(" there, 3 < 4 [1]") == [Speech(" there, 3 < 4 [1]")]


def test_a_mark_that_may_open_a_call_is_held_back_only_until_it_cannot() -> None:
    parser = ToolCallParser(NAMES)
    assert parser.push("a <tool") == [Speech("a ")]
    assert parser.push("box>") == [Speech("<toolbox>")]
    assert parser.push("{") == []
    assert parser.push("x}") == [Speech("{x}")]


def test_the_name_is_known_before_the_arguments_are_complete() -> None:
    parser = ToolCallParser(NAMES)
    assert parser.push('{"name": "add", "arguments": {"a"') == [
        CallStarted(0, "add"),
        ArgumentsDelta(0, '{"a"'),
    ]
    assert parser.push(": 1") == [ArgumentsDelta(0, ": 1")]
    assert parser.push("}}") == [ArgumentsDelta(0, "}"), CallEnded(0, "add", '{"a": 1}')]
    assert parser.finish() == []


def test_a_call_that_breaks_off_is_not_complete() -> None:
    assert parse('{"name": "add", "arguments": {"a": 1') == [
        CallStarted(0, "add"),
        ArgumentsDelta(0, '{"a": 1'),
        CallEnded(0, "add", '{"a": 1', complete=False),
    ]


def test_a_call_that_breaks_off_before_its_name_is_not_spoken() -> None:
    assert parse('<tool_call>\n{"na') == [CallRejected('<tool_call>\n{"na')]


def test_a_function_that_was_not_offered_is_not_spoken() -> None:
    text = '{"name": "launch", "arguments": {}}'
    assert parse(text) == [CallRejected(text)]


@pytest.mark.parametrize(
    "text",
    [
        '{"temperature": 21}',
        '{"name": "Bob", "age": 5}',
        "```python\nprint({1: 2})\n```",
        "[1, 2, 3]",
        "Use {braces} and <tags> and `code`.",
        '[{"a": 1}]',
        "{",
        "``",
        "<tool_cal",
        "{}",
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_what_is_not_a_call_is_text(text: str, size: int) -> None:
    assert parse(text, size) == [Speech(text)]


def test_without_tools_everything_is_text() -> None:
    assert parse(CALL, names=()) == [Speech(CALL)]
    assert ToolCallParser(()).push("") == []


def test_an_endless_object_is_text() -> None:
    text = '{"name": "' + "x" * LONGEST_CALL
    assert parse(text, 1000) == [Speech(text)]


PIECES = [
    CALL,
    *'<tool_call> </tool_call> ``` { } [ ] , "name" : "add" "arguments" {} word'.split(),
]
PIECES += [*'" \\ 1 null "x" json'.split(), " ", "\n"]
TEXT = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


@given(TEXT, st.integers(1, 30))
def test_the_events_do_not_depend_on_the_deltas(text: str, size: int) -> None:
    assert parse(text, size) == parse(text)


@given(TEXT)
def test_every_call_that_starts_ends_once_with_its_deltas_joined(text: str) -> None:
    open_call: int | None = None
    joined = ""
    for event in parse(text):
        match event:
            case CallStarted(index):
                assert open_call is None
                open_call, joined = index, ""
            case ArgumentsDelta(index, delta):
                assert index == open_call
                joined += delta
            case CallEnded(index, _, arguments):
                assert index == open_call
                assert arguments == joined
                open_call = None
            case _:
                assert open_call is None
    assert open_call is None


@given(st.text(alphabet=st.characters(exclude_characters="<{[`"), min_size=1))
def test_text_without_marks_is_never_held_back(text: str) -> None:
    assert ToolCallParser(NAMES).push(text) == [Speech(text)]
