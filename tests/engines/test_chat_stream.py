import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from duologue.engines.chat_stream import LONGEST_EVENT, ChatStream, EventLines
from duologue.engines.engine import Usage
from duologue.engines.language import (
    CallDelta,
    CallEnded,
    CallStarted,
    Finished,
    Generated,
    LanguageError,
    TextPiece,
)


def chunk(finish: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return json.dumps({"choices": [choice]}).encode()


def call(index: int | None, name: str = "", arguments: Any = "", call_id: str = "") -> bytes:
    part: dict[str, Any] = {"function": {"arguments": arguments}}
    if index is not None:
        part["index"] = index
    if name:
        part["function"]["name"] = name
    if call_id:
        part["id"] = call_id
    return chunk(tool_calls=[part])


def read(*events: bytes) -> list[Generated]:
    stream = ChatStream()
    pieces = [piece for event in events for piece in stream.take(event)]
    return pieces + stream.finish()


# -- lines ----------------------------------------------------------------------------------


def lines(*chunks: bytes) -> list[bytes]:
    reader = EventLines()
    found = [data for chunk in chunks for data in reader.push(chunk)]
    return found + list(reader.finish())


def test_events_are_cut_at_empty_lines_whatever_the_line_ending() -> None:
    assert lines(b"data: a\n\ndata: b\r\n\r\ndata: c") == [b"a", b"b", b"c"]


def test_comments_and_other_fields_are_passed_over() -> None:
    assert lines(b": ping\nevent: x\nid: 1\ndata: a\n\n: pong\n\n") == [b"a"]


def test_several_data_lines_make_one_event() -> None:
    assert lines(b"data: a\ndata: b\n\n") == [b"a\nb"]


def test_letters_that_only_look_like_line_endings_do_not_end_a_line() -> None:
    text = "a\u2028b\u0085c\x0bd".encode()
    assert lines(b"data: " + text + b"\n\n") == [text]


@given(st.lists(st.integers(1, 7), max_size=40))
def test_any_cutting_gives_the_same_events(sizes: list[int]) -> None:
    whole = b"data: one\n\n: x\n\ndata:two\r\n\r\ndata: three\ndata: four\n\n"
    chunks, at = [], 0
    for size in sizes:
        chunks.append(whole[at : at + size])
        at += size
    assert lines(*chunks, whole[at:]) == lines(whole)


def test_an_event_without_end_is_refused() -> None:
    reader = EventLines()
    with pytest.raises(LanguageError, match="without an end"):
        for _ in range(LONGEST_EVENT // 2**16 + 2):
            list(reader.push(b"data: " + b"x" * 2**16 + b"\n"))
    with pytest.raises(LanguageError, match="without an end"):
        list(EventLines().push(b"x" * (LONGEST_EVENT + 1)))


# -- text -----------------------------------------------------------------------------------


def test_text_is_passed_on_and_the_usage_comes_last() -> None:
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert read(
        chunk(role="assistant", content=""),
        chunk(content="Hello"),
        chunk(content=" you"),
        chunk("stop"),
        json.dumps({"choices": [], "usage": usage}).encode(),
        b"[DONE]",
    ) == [
        TextPiece("Hello"),
        TextPiece(" you"),
        Finished("completed", Usage(input_tokens=7, cached_tokens=4, output_tokens=2)),
    ]


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "completed"),
        ("tool_calls", "completed"),
        ("length", "max_output_tokens"),
        ("content_filter", "content_filter"),
        ("eos", "completed"),
    ],
)
def test_the_reason_is_translated(finish: str, reason: str) -> None:
    (*_, last) = read(chunk(content="a"), chunk(finish))
    assert last == Finished(reason, Usage(output_tokens=1))  # type: ignore[arg-type]


def test_the_mark_of_the_end_is_enough() -> None:
    (*_, last) = read(chunk(content="a"), b" [DONE]")
    assert isinstance(last, Finished)


def test_a_stream_that_breaks_off_is_a_failure() -> None:
    stream = ChatStream()
    stream.take(chunk(content="a"))
    with pytest.raises(LanguageError, match="broke off"):
        stream.finish()


def test_thoughts_are_not_said_but_a_refusal_is() -> None:
    pieces = read(chunk(reasoning_content="hm"), chunk(refusal="No."), chunk("stop"))
    assert pieces[:-1] == [TextPiece("No.")]


def test_an_answer_in_one_piece_is_read_too() -> None:
    message = {"role": "assistant", "content": "All at once."}
    body = {"choices": [{"message": message, "finish_reason": "stop"}]}
    assert read(json.dumps(body).encode())[0] == TextPiece("All at once.")


def test_text_in_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert read(chunk(content=parts), chunk("stop"))[0] == TextPiece("ab")


# -- calls ----------------------------------------------------------------------------------


def test_calls_are_merged_by_index() -> None:
    assert read(
        call(0, "look", "", "call_a"),
        call(0, "", '{"at":'),
        call(0, "", '"me"}'),
        call(1, "say", "{}", "call_b"),
        chunk("tool_calls"),
    )[:-1] == [
        CallStarted("call_a", "look"),
        CallDelta("call_a", '{"at":'),
        CallDelta("call_a", '"me"}'),
        CallEnded("call_a", '{"at":"me"}'),
        CallStarted("call_b", "say"),
        CallDelta("call_b", "{}"),
        CallEnded("call_b", "{}"),
    ]


def test_calls_without_an_index_are_told_apart_by_their_names() -> None:
    pieces = read(call(None, "look", '{"a":1}'), call(None, "look", '{"a":2}'), chunk("stop"))
    assert [piece.arguments for piece in pieces if isinstance(piece, CallEnded)] == [
        '{"a":1}',
        '{"a":2}',
    ]


def test_a_part_without_anything_belongs_to_the_call_before() -> None:
    pieces = read(call(None, "look", '{"a"'), call(None, "", ":1}"), chunk("stop"))
    assert [piece.arguments for piece in pieces if isinstance(piece, CallEnded)] == ['{"a":1}']


def test_arguments_before_the_name_wait_for_it() -> None:
    pieces = read(call(0, "", '{"a"'), call(0, "look", ":1}"), chunk("stop"))
    assert [type(piece) for piece in pieces[:-1]] == [CallStarted, CallDelta, CallEnded]
    assert pieces[2] == CallEnded(pieces[0].call_id, '{"a":1}')  # type: ignore[union-attr]


def test_arguments_as_an_object_become_text_and_missing_ones_an_empty_object() -> None:
    pieces = read(call(0, "look", {"a": 1}), call(1, "say"), chunk("stop"))
    assert [piece.arguments for piece in pieces if isinstance(piece, CallEnded)] == [
        '{"a":1}',
        "{}",
    ]


def test_identifiers_are_kept_where_they_can_be_used_and_made_up_otherwise() -> None:
    pieces = read(
        call(0, "a", "{}", "abc123"),
        call(1, "b", "{}", "abc123"),
        call(2, "c", "{}"),
        call(3, "d", "{}", "no good id!"),
        chunk("stop"),
    )
    identifiers = [piece.call_id for piece in pieces if isinstance(piece, CallStarted)]
    assert identifiers[0] == "abc123"
    assert all(identifier.startswith("call_") for identifier in identifiers[1:])
    assert len(set(identifiers)) == 4


def test_text_after_a_call_ends_the_call() -> None:
    pieces = read(call(0, "look", "{}"), chunk(content="Done."), chunk("stop"))
    assert [type(piece) for piece in pieces] == [
        CallStarted,
        CallDelta,
        CallEnded,
        TextPiece,
        Finished,
    ]


# -- what is wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b"[1]",
        b"\xff\xfe",
        b'{"choices":[1]}',
        b'{"choices":5}',
        b'{"choices":[{"delta":{"content":5}}]}',
        b'{"choices":[{"delta":{"tool_calls":[5]}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"index":[],"function":{"name":"a"}}]}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"function":{"name":5}}]}}]}',
        b'{"choices":[{"delta":{},"finish_reason":[1]}]}',
        b'{"usage":5}',
        b'{"usage":{"prompt_tokens":"many"}}',
    ],
)
def test_what_is_no_completion_is_the_endpoints_failure(data: bytes) -> None:
    with pytest.raises(LanguageError) as caught:
        ChatStream().take(data)
    assert caught.value.failure.code == "upstream_error"


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    try:
        ChatStream().take(data)
    except LanguageError:
        pass


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "tool_calls",
                    "function",
                    "name",
                    "index",
                    "id",
                    "content",
                    "usage",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.lists(JSON, max_size=4))
def test_no_json_raises_anything_else(values: list[Any]) -> None:
    stream = ChatStream()
    try:
        for value in values:
            stream.take(json.dumps({"choices": [{"delta": value}]}).encode())
            stream.take(json.dumps(value).encode())
        stream.finish()
    except LanguageError:
        pass


def test_a_reported_error_is_passed_on_in_its_own_words_but_shortly() -> None:
    with pytest.raises(LanguageError, match="no room") as caught:
        ChatStream().take(b'{"error":{"message":"no\\n  room"}}')
    assert caught.value.failure.code == "upstream_error"
    with pytest.raises(LanguageError) as caught:
        ChatStream().take(json.dumps({"error": "x" * 5000}).encode())
    assert len(caught.value.failure.message) < 400
