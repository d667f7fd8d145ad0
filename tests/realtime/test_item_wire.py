"""Items of a conversation, both ways."""

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from duologue.realtime.item_wire import MAX_AUDIO_BYTES, decode_base64, decode_item, encode_item
from duologue.realtime.json_fields import Fields
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import (
    FunctionCallItem,
    FunctionOutputItem,
    InputAudio,
    InputImage,
    InputText,
    Item,
    MessageItem,
    OutputAudio,
    OutputText,
)
from duologue.sessions.session_config import AudioFormat

Json = dict[str, Any]
EXAMPLES: list[Item] = [
    MessageItem("s", "system", (InputText("rules"),)),
    MessageItem(
        "u",
        "user",
        (
            InputText("hello"),
            InputAudio("said"),
            InputAudio(None),
            InputImage("https://example.org/cat.png", "high"),
        ),
        "incomplete",
    ),
    MessageItem("a", "assistant", (OutputText("words"), OutputAudio("spoken")), "in_progress"),
    FunctionCallItem("f", "call_1", "look_up", '{"q": 1}'),
    FunctionOutputItem("o", "call_1", "42"),
]


def decode(item: Json, form: AudioFormat = AudioFormat.PCM) -> tuple[Item, bytes | None]:
    return decode_item(Fields(item, "item"), form)


def refused(item: Json) -> tuple[str, str | None]:
    with pytest.raises(ProtocolError) as caught:
        decode(item)
    return caught.value.code, caught.value.param


def message(role: str, *content: Json) -> Json:
    return {"type": "message", "role": role, "content": list(content)}


@pytest.mark.parametrize("item", EXAMPLES, ids=lambda item: item.id)
def test_an_item_comes_back_as_it_was(item: Item) -> None:
    shown = json.loads(json.dumps(encode_item(item)))
    assert shown["object"] == "realtime.item"
    assert decode(shown) == (item, None)


def test_an_item_needs_neither_id_nor_status() -> None:
    item, _ = decode(message("user"))
    assert item == MessageItem("", "user", ())
    item, _ = decode({"type": "function_call", "name": "f", "arguments": ""})
    assert item == FunctionCallItem("", "", "f", "")


def test_the_audio_of_a_message_is_apart_from_it() -> None:
    item, audio = decode(message("user", {"type": "input_audio", "audio": "AAAA/w=="}))
    assert item == MessageItem("", "user", (InputAudio(None),))
    assert audio == b"\0\0\0\xff"
    assert encode_item(item, audio)["content"] == [
        {"type": "input_audio", "transcript": None, "audio": "AAAA/w=="}
    ]


def test_audio_is_read_in_the_sessions_format() -> None:
    spoken = message("user", {"type": "input_audio", "audio": "AAAA"})
    assert decode(spoken, AudioFormat.PCMU)[1] == b"\0\0\0"
    assert refused(spoken) == ("invalid_audio", "item.content[0].audio")


@pytest.mark.parametrize(
    ("item", "code", "param"),
    [
        ({}, "missing_required_parameter", "item.type"),
        ({"type": "mcp_call"}, "unsupported", "item.type"),
        ({"type": "mcp_approval_response"}, "unsupported", "item.type"),
        ({"type": "item_reference", "id": "i"}, "invalid_value", "item.type"),
        ({"type": "message"}, "missing_required_parameter", "item.role"),
        ({"type": "message", "role": "tool"}, "invalid_value", "item.role"),
        ({"type": "message", "role": "user"}, "missing_required_parameter", "item.content"),
        ({**message("user"), "id": 3}, "invalid_type", "item.id"),
        ({**message("user"), "id": "x" * 300}, "invalid_value", "item.id"),
        ({**message("user"), "status": "done"}, "invalid_value", "item.status"),
        (message("user", {}), "missing_required_parameter", "item.content[0].type"),
        (message("user", {"type": "output_text"}), "invalid_value", "item.content[0].type"),
        (message("system", {"type": "input_audio"}), "invalid_value", "item.content[0].type"),
        (message("assistant", {"type": "audio"}), "invalid_value", "item.content[0].type"),
        (
            message("user", {"type": "input_text"}),
            "missing_required_parameter",
            "item.content[0].text",
        ),
        (
            message("assistant", {"type": "output_audio", "audio": "AAAA"}),
            "missing_required_parameter",
            "item.content[0].transcript",
        ),
        (
            message("user", {"type": "input_audio", "audio": 1}),
            "invalid_type",
            "item.content[0].audio",
        ),
        (
            message("user", {"type": "input_image", "image_url": "file:///etc/passwd"}),
            "invalid_value",
            "item.content[0].image_url",
        ),
        (
            message("user", *[{"type": "input_audio", "audio": "AAA="}] * 2),
            "unsupported",
            "item.content[1].audio",
        ),
        ({"type": "function_call", "name": "f"}, "missing_required_parameter", "item.arguments"),
        (
            {"type": "function_call_output", "output": ""},
            "missing_required_parameter",
            "item.call_id",
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": {}},
            "invalid_type",
            "item.output",
        ),
    ],
)
def test_a_wrong_item_is_named(item: Json, code: str, param: str) -> None:
    assert refused(item) == (code, param)


def test_too_much_audio_is_refused() -> None:
    audio = "A" * (MAX_AUDIO_BYTES // 3 * 4 + 4)
    assert refused(message("user", {"type": "input_audio", "audio": audio}))[0] == "event_too_large"


@settings(max_examples=300)
@given(st.text(alphabet="AZaz09+/=-_ \n", max_size=12))
def test_base64_is_accepted_only_if_it_decodes_as_a_whole(text: str) -> None:
    alphabet = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
    body = text.rstrip("=")
    whole = len(text) % 4 == 0 and len(text) - len(body) <= 2 and set(body) <= alphabet
    try:
        decode_base64(text, "audio")
    except ProtocolError:
        assert not whole
    else:
        assert whole
