import pytest

from duologue.models.json_scan import decoded, scan_call


def test_a_whole_call_is_read() -> None:
    text = '{"name": "look_up", "arguments": {"word": "a}b", "deep": [{}, {"x": 1}]}} rest'
    scan = scan_call(text, 0)
    assert scan.name == "look_up"
    assert text[scan.arguments_start : scan.arguments_end] == (
        '{"word": "a}b", "deep": [{}, {"x": 1}]}'
    )
    assert scan.end is not None
    assert text[scan.end :] == " rest"
    assert scan.looks_like_call
    assert not scan.broken


def test_arguments_that_are_being_written_are_known_so_far() -> None:
    text = '{"name": "add", "arguments": {"a": 1, "b'
    scan = scan_call(text, 0)
    assert scan.end is None
    assert text[scan.arguments_start : scan.arguments_end] == '{"a": 1, "b'


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "add", "parameters": {}}',
        '{"type": "function", "function": {"name": "add", "arguments": {}}}',
        '{"id": "1", "arguments": {}, "name": "add"}',
        '{"function": "add", "args": {}}',
    ],
)
def test_other_ways_of_writing_a_call_are_read(text: str) -> None:
    scan = scan_call(text, 0)
    assert scan.name == "add"
    assert scan.looks_like_call
    assert scan.end == len(text)


@pytest.mark.parametrize("text", ["{print(1)}", "{'name': 1}", '{"name" 1}', '{"temperature": 3'])
def test_what_is_no_call_is_found_out_early(text: str) -> None:
    assert scan_call(text, 0).broken


def test_arguments_in_a_string_are_told_apart() -> None:
    assert scan_call('{"name": "add", "arguments": "{\\"a\\": 1}"}', 0).arguments_quoted
    assert scan_call('{"name": "add", "arguments": null}', 0).arguments_quoted
    assert not scan_call('{"name": "add", "arguments": {"a": 1}}', 0).arguments_quoted


@pytest.mark.parametrize(
    ("value", "text"), [('"a\\nb"', "a\nb"), ("null", ""), ('"\\x"', "\\x"), ('"a\nb"', "a\nb")]
)
def test_strings_are_decoded_as_well_as_can_be_told(value: str, text: str) -> None:
    assert decoded(value) == text


def test_every_beginning_of_a_call_can_be_scanned() -> None:
    text = '{"name": "a\\"b", "arguments": {"x": [1, "}", {"y": null}], "z": "\\\\"}, "id": 1.5}'
    for end in range(1, len(text)):
        assert scan_call(text[:end], 0).end is None
    assert scan_call(text, 0).end == len(text)
