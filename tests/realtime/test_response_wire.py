"""What a client asks of a response."""

from typing import Any

import pytest

from duologue.realtime.json_fields import Fields
from duologue.realtime.response_wire import decode_response
from duologue.sessions.errors import ProtocolError
from duologue.sessions.events import ItemReference, ResponseParams
from duologue.sessions.items import FunctionOutputItem, InputText, MessageItem
from duologue.sessions.session_config import UNSET, AudioFormat, FunctionTool


def decode(**response: Any) -> ResponseParams:
    return decode_response(Fields(response, "response"), AudioFormat.PCM)


def refused(**response: Any) -> tuple[str, str | None]:
    with pytest.raises(ProtocolError) as caught:
        decode(**response)
    return caught.value.code, caught.value.param


HELLO = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}


def test_everything_that_can_be_asked_is_read() -> None:
    assert decode(
        conversation="none",
        instructions="Be brief.",
        output_modalities=["text"],
        audio={"output": {"format": {"type": "audio/pcmu"}, "voice": "marin"}},
        tools=[{"type": "function", "name": "f"}],
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=20,
        metadata={"k": "v"},
        prompt={"id": "p"},
        reasoning={"effort": "low"},
    ) == ResponseParams(
        conversation=False,
        input=None,
        instructions="Be brief.",
        modality="text",
        voice="marin",
        output_format=AudioFormat.PCMU,
        tools=(FunctionTool("f"),),
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=20,
        metadata={"k": "v"},
    )


def test_what_is_left_out_comes_from_the_session() -> None:
    assert decode() == ResponseParams()
    assert decode().max_output_tokens is UNSET
    assert decode(max_output_tokens="inf").max_output_tokens is None


@pytest.mark.parametrize("name", [None, "auto", "conv_123"])
def test_the_one_conversation_has_several_names(name: str | None) -> None:
    assert decode(conversation=name).conversation is True


def test_another_conversation_is_refused() -> None:
    assert refused(conversation="mine") == ("invalid_value", "response.conversation")


def test_input_holds_items_and_references_to_items() -> None:
    output = {"type": "function_call_output", "call_id": "c", "output": "1"}
    reference = {"type": "item_reference", "id": "item_9"}
    assert decode(input=[reference, HELLO, output]).input == (
        ItemReference("item_9"),
        MessageItem("", "user", (InputText("hello"),)),
        FunctionOutputItem("", "c", "1"),
    )
    assert decode(input=[]).input == ()


@pytest.mark.parametrize(
    ("response", "code", "param"),
    [
        ({"input": {}}, "invalid_type", "response.input"),
        ({"input": [{"type": "x"}]}, "invalid_value", "response.input[0].type"),
        (
            {"input": [{"type": "item_reference"}]},
            "missing_required_parameter",
            "response.input[0].id",
        ),
        ({"input": [HELLO] * 2001}, "invalid_value", "response.input"),
        (
            {
                "input": [
                    {
                        "type": "message",
                        "role": "user",
                        "content": [{"type": "input_audio", "audio": "AAA="}],
                    }
                ]
            },
            "unsupported",
            "response.input[0].content",
        ),
        ({"metadata": {"k": 1}}, "invalid_type", "response.metadata.k"),
        ({"metadata": {"k": "v" * 513}}, "invalid_value", "response.metadata.k"),
        ({"metadata": {str(n): "" for n in range(17)}}, "invalid_value", "response.metadata"),
        ({"tools": [{"type": "mcp"}]}, "unsupported", "response.tools[0].type"),
        ({"audio": {"output": {"voice": 1}}}, "invalid_type", "response.audio.output.voice"),
        ({"max_output_tokens": 0}, "invalid_value", "response.max_output_tokens"),
    ],
)
def test_a_wrong_field_is_named(response: dict[str, Any], code: str, param: str) -> None:
    assert refused(**response) == (code, param)
