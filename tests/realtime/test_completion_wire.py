from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from duologue.engines.engine import ResponseEnded, ToolInvocation, Usage
from duologue.realtime.completion_wire import Chunks, Naming, comment, encode_completion

NAMING = Naming("chatcmpl_1", "m", 1_700_000_000)
ENDED = ResponseEnded(1, "completed", usage=Usage(input_tokens=5, output_tokens=3), session="s")


def test_a_completion_is_one_to_openais_types() -> None:
    calls = [ToolInvocation("c1", "look", "{}")]
    for text, made in (("Hello.", []), ("", calls), ("", [])):
        answer = ChatCompletion.model_validate_json(
            encode_completion(NAMING, text, made, ENDED), strict=True
        )
        (choice,) = answer.choices
        assert choice.message.content == (text if not made else None)
        assert choice.finish_reason == ("tool_calls" if made else "stop")
        assert answer.usage is not None
        assert answer.usage.total_tokens == 8


def test_chunks_are_some_to_openais_types() -> None:
    chunks = Chunks(NAMING, include_usage=True)
    events = chunks.first() + chunks.text("Hi\n\n") + chunks.call_started("c1", "look")
    events += chunks.call_delta("c1", "{}") + chunks.call_started("c2", "say")
    events += comment("still here") + chunks.last(ENDED)
    lines = [line for line in events.decode().split("\n\n") if not line.startswith(":")]
    assert lines[-2:] == ["data: [DONE]", ""]
    read = [
        ChatCompletionChunk.model_validate_json(line.removeprefix("data: "), strict=True)
        for line in lines[:-2]
    ]
    assert read[1].choices[0].delta.content == "Hi\n\n"
    calls = [call for chunk in read[:-1] for call in chunk.choices[0].delta.tool_calls or []]
    assert [(call.index, call.id) for call in calls] == [(0, "c1"), (0, None), (1, "c2")]
    assert read[-2].choices[0].finish_reason == "tool_calls"
    assert read[-1].usage is not None


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("completed", "stop"),
        ("max_output_tokens", "length"),
        ("content_filter", "content_filter"),
    ],
)
def test_why_it_is_over(reason: Any, finish: str) -> None:
    ended = msgspec.structs.replace(ENDED, reason=reason)
    answer = ChatCompletion.model_validate_json(encode_completion(NAMING, "a", [], ended))
    assert answer.choices[0].finish_reason == finish
