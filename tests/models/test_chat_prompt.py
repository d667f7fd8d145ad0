import json
import re

import pytest

from duologue.models.chat import ChatMessage, Prompt, ToolCall, ToolSpec
from duologue.models.chat_prompt import Family, chat_prompt, family_of

HELLO = ChatMessage("user", "Hello.")
WEATHER = ToolSpec("get_weather", "The weather.", '{"type": "object"}')
CLOCK = ToolSpec("get_time")


def test_families_are_known_by_their_names() -> None:
    assert family_of("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf") is Family.QWEN
    assert family_of("SmolLM2-135M-Instruct") is Family.SMOLLM2
    assert family_of("llama-3.2-1b") is Family.OTHER


def test_the_callers_instructions_come_after_the_spoken_style() -> None:
    system, user = chat_prompt(Family.QWEN, [HELLO], instructions="You sell shoes. ")
    assert system.role == "system"
    assert system.content.endswith("\n\nYou sell shoes.")
    assert "aloud" in system.content
    assert user == Prompt("user", "Hello.")


def test_written_answers_have_no_spoken_style() -> None:
    system, _ = chat_prompt(Family.QWEN, [HELLO], spoken=False)
    assert "aloud" not in system.content


def test_smollm2_is_shown_four_turns_and_no_tools() -> None:
    prompts = chat_prompt(Family.SMOLLM2, [HELLO], tools=[WEATHER])
    assert [prompt.role for prompt in prompts] == ["system", *["user", "assistant"] * 4, "user"]
    assert "get_weather" not in prompts[0].content
    assert prompts[-1].content == "Hello."


def test_the_beginning_is_the_same_from_turn_to_turn() -> None:
    history = [HELLO, ChatMessage("assistant", "Hi!"), ChatMessage("user", "Bye.")]
    first = chat_prompt(Family.SMOLLM2, history[:1], instructions="Be kind.")
    second = chat_prompt(Family.SMOLLM2, history, instructions="Be kind.")
    assert second[: len(first)] == first


def test_system_messages_of_the_history_join_the_instructions() -> None:
    history = [HELLO, ChatMessage("system", "It is noon."), ChatMessage("user", "Well?")]
    prompts = chat_prompt(Family.OTHER, history, instructions="Be kind.")
    assert [prompt.role for prompt in prompts] == ["system", "user"]
    assert prompts[0].content.endswith("Be kind.\n\nIt is noon.")
    assert prompts[1].content == "Hello.\nWell?"


def test_tools_are_described_as_json_lines() -> None:
    system = chat_prompt(Family.QWEN, [HELLO], tools=[WEATHER, CLOCK])[0].content
    match = re.search(r"<tools>\n(.*)\n</tools>", system, re.S)
    assert match is not None
    described = [json.loads(line)["function"] for line in match[1].split("\n")]
    assert [tool["name"] for tool in described] == ["get_weather", "get_time"]
    assert described[0]["parameters"] == {"type": "object"}


@pytest.mark.parametrize(
    ("choice", "names", "ending"),
    [
        ("auto", ["get_weather", "get_time"], "</tool_call>"),
        ("required", ["get_weather", "get_time"], "Now call one of the functions."),
        ("function:get_time", ["get_time"], "Now call the function get_time."),
    ],
)
def test_the_choice_of_tools_decides_what_is_offered(
    choice: str, names: list[str], ending: str
) -> None:
    tools = [WEATHER, CLOCK]
    system = chat_prompt(Family.QWEN, [HELLO], tools=tools, tool_choice=choice)[0].content
    assert re.findall(r'"function", "function": \{"name": "(\w+)"', system) == names
    assert system.endswith(ending)


def test_no_tools_are_described_when_none_may_be_called() -> None:
    with_none = chat_prompt(Family.QWEN, [HELLO], tools=[WEATHER], tool_choice="none")
    assert with_none == chat_prompt(Family.QWEN, [HELLO])


def test_a_choice_of_a_missing_tool_is_refused() -> None:
    with pytest.raises(ValueError, match="'launch'"):
        chat_prompt(Family.QWEN, [HELLO], tools=[WEATHER], tool_choice="function:launch")


def test_calls_and_their_outputs_are_written_in_tags() -> None:
    history = [
        HELLO,
        ChatMessage("assistant", "One moment.", (ToolCall("1", "get_time", '{"zone": "UTC"}'),)),
        ChatMessage("tool", "12:00", call_id="1"),
        ChatMessage("user", "And?"),
    ]
    prompts = chat_prompt(Family.QWEN, history)[1:]
    assert prompts == [
        Prompt("user", "Hello."),
        Prompt(
            "assistant",
            'One moment.\n<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n'
            "</tool_call>",
        ),
        Prompt("user", "<tool_response>\n12:00\n</tool_response>\nAnd?"),
    ]


def test_messages_that_say_nothing_are_left_out() -> None:
    history = [HELLO, ChatMessage("assistant", "  "), ChatMessage("user", "Well?")]
    assert chat_prompt(Family.QWEN, history)[1:] == [Prompt("user", "Hello.\nWell?")]
