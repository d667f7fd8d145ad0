"""Items that a Live client adds."""

import pytest

from duologue.realtime.json_fields import Fields, Json
from duologue.realtime.live_items import decode_decision_item, decode_response_item
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import (
    FunctionCallItem,
    FunctionOutputItem,
    InputImage,
    InputText,
    Item,
    MessageItem,
    OutputText,
)


@pytest.mark.parametrize(
    ("item", "read"),
    [
        (
            {"role": "user", "content": "a"},
            MessageItem("", "user", (InputText("a"),)),
        ),
        (
            {"role": "developer", "content": [{"type": "input_text", "text": "a"}]},
            MessageItem("", "system", (InputText("a"),)),
        ),
        (
            {"role": "assistant", "content": [{"type": "output_text", "text": "a"}], "id": "x"},
            MessageItem("x", "assistant", (OutputText("a"),)),
        ),
        (
            {
                "role": "user",
                "content": [{"type": "input_image", "image_url": "data:x", "detail": "original"}],
            },
            MessageItem("", "user", (InputImage("data:x", "high"),)),
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            FunctionCallItem("", "c", "f", "{}"),
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": "42"},
            FunctionOutputItem("", "c", "42"),
        ),
        (
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [
                    {"type": "input_text", "text": "4"},
                    {"type": "input_text", "text": "2"},
                ],
            },
            FunctionOutputItem("", "c", "4\n2"),
        ),
    ],
)
def test_an_item_for_the_backend_is_read(item: Json, read: Item) -> None:
    assert decode_response_item(Fields(item, "item")) == read


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "reasoning"}, "item.type"),
        ({"role": "somebody", "content": "a"}, "item.role"),
        ({"role": "user", "content": []}, "item.content"),
        ({"content": "a"}, "item.role"),
        ({"type": "function_call_output", "output": "a"}, "item.call_id"),
    ],
)
def test_one_that_is_wrong_is_refused_with_its_place(item: Json, param: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_response_item(Fields(item, "item"))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"role": "user", "content": "I am late."}, "user: I am late."),
        (
            {"role": "user", "content": [{"type": "input_json", "data": {"a": 1}}]},
            "user: {'a': 1}",
        ),
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"},
            "call of f: x",
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": "42"},
            "result of a tool: 42",
        ),
    ],
)
def test_an_item_for_decisions_is_read_as_text(item: Json, text: str) -> None:
    assert decode_decision_item(Fields(item, "item")) == text


def test_an_item_for_decisions_has_no_other_fields() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_decision_item(Fields({"role": "user", "content": "a", "mood": 1}, "item"))
    assert caught.value.param == "item.mood"
