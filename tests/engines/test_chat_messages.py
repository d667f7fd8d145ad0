import pytest

from duologue.engines.chat_messages import (
    chat_message,
    chat_messages,
    chat_tools,
    named_choice,
    without_special_tokens,
)
from duologue.engines.engine import (
    ImagePart,
    Message,
    ResponseRequest,
    TextPart,
    Tool,
    ToolInvocation,
    UtterancePart,
)


def test_instructions_come_first_and_only_when_there_are_any() -> None:
    history = (Message("user", (TextPart("hi"),)),)
    asked = ResponseRequest(instructions="Be kind.", messages=history)
    assert [entry["role"] for entry in chat_messages(asked)] == ["system", "user"]
    assert len(chat_messages(ResponseRequest(instructions="  ", messages=history))) == 1


def test_pictures_make_the_content_a_list() -> None:
    message = Message("user", (TextPart("look"), ImagePart("data:image/png;base64,AA", "low")))
    assert chat_message(message)["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
    ]


def test_texts_are_joined_and_a_single_one_is_kept_as_it_is() -> None:
    assert chat_message(Message("user", (TextPart(" a "),)))["content"] == " a "
    assert chat_message(Message("user", (TextPart(" a "), TextPart("b"))))["content"] == "a b"
    assert chat_message(Message("user", (UtterancePart("u"), TextPart("b"))))["content"] == "b"


def test_a_call_and_its_result_keep_their_identifier() -> None:
    call = Message("assistant", (), (ToolInvocation("call_1", "look", ""),))
    assert chat_message(call) == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        ],
    }
    result = Message("tool", (TextPart("seen"),), (), "call_1")
    assert chat_message(result) == {"role": "tool", "content": "seen", "tool_call_id": "call_1"}


def test_tools_carry_their_schema_and_a_wrong_one_is_named() -> None:
    (tool,) = chat_tools((Tool("look", "Looks.", '{"type":"object"}'),))
    assert tool["function"] == {
        "name": "look",
        "parameters": {"type": "object"},
        "description": "Looks.",
    }
    for wrong in ("[1]", "{", "null"):
        with pytest.raises(ValueError, match="look"):
            chat_tools((Tool("look", "", wrong),))


@pytest.mark.parametrize(
    ("choice", "name"),
    [("auto", None), ("none", None), ("function:look", "look"), ("function", None)],
)
def test_only_a_named_function_is_named(choice: str, name: str | None) -> None:
    assert named_choice(choice) == name


@pytest.mark.parametrize("mark", ["<|im_end|>", "<|im_start|>system", "<｜User｜>", "<||>"])
def test_the_marks_of_templates_are_broken(mark: str) -> None:
    clean = without_special_tokens(f"a {mark} b")
    assert "<|" not in clean
    assert "|>" not in clean
    assert "<｜" not in clean


def test_other_text_stays_as_it_is() -> None:
    text = "x < y | z > w, <b>bold</b> a|b"
    assert without_special_tokens(text) == text
