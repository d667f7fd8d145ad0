import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from duologue.engines.engine import (
    EngineSpec,
    ImagePart,
    Message,
    ResponseRequest,
    TextPart,
    ToolInvocation,
)
from duologue.realtime.chat_refusal import ChatRefusal
from duologue.realtime.chat_wire import WITHOUT_EFFECT, ChatRequest, decode_chat_request
from duologue.sessions.errors import ProtocolError

SPEC = EngineSpec(
    model="m",
    voices=("v",),
    default_voice="v",
    context_tokens=100,
    sees=True,
    batch=1,
    sampling=("temperature", "top_p", "seed", "stop"),
)
HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def decode(spec: EngineSpec = SPEC, **fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": HI, **fields}
    return decode_chat_request(json.dumps(body).encode(), spec)


def asked(*messages: dict[str, Any]) -> ResponseRequest:
    return decode(messages=list(messages)).request


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def test_a_plain_request() -> None:
    request = ResponseRequest(instructions="", messages=(user("hi"),), modality="text", whole=True)
    assert decode() == ChatRequest(request)


def test_everything_that_is_honoured_arrives() -> None:
    made = decode(
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        temperature=0.5,
        top_p=0.9,
        seed=-7,
        stop=["a", "b"],
        max_completion_tokens=9,
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "look"}},
        parallel_tool_calls=False,
    )
    request = made.request
    assert (made.stream, made.include_usage) == (True, True)
    assert (request.temperature, request.top_p, request.seed) == (0.5, 0.9, -7)
    assert (request.stop, request.max_output_tokens) == (("a", "b"), 9)
    assert (request.tool_choice, request.parallel_tool_calls) == ("function:look", False)
    (tool,) = request.tools
    assert (tool.name, json.loads(tool.parameters)) == ("look", {"type": "object"})


def test_null_is_as_good_as_nothing() -> None:
    names = ("stream", "temperature", "stop", "n", "logit_bias", "tools", "tool_choice", "user")
    nothing: dict[str, Any] = dict.fromkeys(names)
    assert decode(**nothing) == decode()


def test_values_that_change_nothing_are_accepted() -> None:
    neutral: dict[str, Any] = {
        "n": 1,
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "logprobs": False,
        "response_format": {"type": "text"},
        "modalities": ["text"],
        **dict.fromkeys(WITHOUT_EFFECT, "x"),
    }
    assert decode(**neutral) == decode()


def test_the_system_messages_at_the_beginning_are_the_instructions() -> None:
    request = asked(
        {"role": "system", "content": "Be kind."},
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        *HI,
        {"role": "system", "content": "Now be rude."},
    )
    assert request.instructions == "Be kind.\n\nBe brief."
    assert request.messages == (user("hi"), Message("system", (TextPart("Now be rude."),)))


def test_calls_and_their_results_are_told_apart() -> None:
    function = {"name": "look", "arguments": "{}"}
    request = asked(
        *HI,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
        {"role": "assistant", "content": "A cat.", "refusal": None},
        {"role": "assistant", "refusal": "I won't."},
    )
    assert request.messages[1:] == (
        Message("assistant", (), (ToolInvocation("c1", "look", "{}"),)),
        Message("tool", (TextPart("a cat"),), call_id="c1"),
        Message("assistant", (TextPart("A cat."),)),
        Message("assistant", (TextPart("I won't."),)),
    )


def test_pictures_go_to_a_model_that_sees() -> None:
    parts = [
        {"type": "text", "text": "what is it?"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
    ]
    request = asked({"role": "user", "content": parts})
    picture = ImagePart("https://example.org/a.png", "low")
    assert request.messages[0].parts == (TextPart("what is it?"), picture)
    blind = msgspec.structs.replace(SPEC, sees=False)
    with pytest.raises(ProtocolError) as caught:
        decode(blind, messages=[{"role": "user", "content": parts}])
    assert caught.value.param == "messages[0].content[1].type"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]},
            "messages[0].function_call",
        ),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio"),
        (
            {"messages": [{"role": "tool", "tool_call_id": "c", "content": "x"}]},
            "messages[0].tool_call_id",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "system", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}],
                    }
                ]
            },
            "messages[0].content[0].image_url.url",
        ),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"seed": 0.5}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"functions": []}, "functions"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function.name",
        ),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(**fields)
    assert caught.value.param == param
    refusal = ChatRefusal.of(caught.value)
    assert (refusal.status, refusal.type) == (400, "invalid_request_error")
    assert json.loads(refusal.encode())["error"]["param"] == param


@pytest.mark.parametrize(
    ("spec", "fields", "status", "code"),
    [
        ({}, {"model": "other"}, 404, "model_not_found"),
        ({"batch": 0}, {}, 400, "unsupported_model"),
        ({}, {"best_of": 1}, 400, "unknown_parameter"),
        (
            {},
            {"stream": True, "stream_options": {"speed": 1}},
            400,
            "unknown_parameter",
        ),
    ],
)
def test_what_this_server_has_not_got_is_named(
    spec: dict[str, Any], fields: dict[str, Any], status: int, code: str
) -> None:
    with pytest.raises(ChatRefusal) as caught:
        decode(msgspec.structs.replace(SPEC, **spec), **fields)
    assert (caught.value.status, caught.value.code) == (status, code)


@pytest.mark.parametrize(
    "fields", [{"temperature": 1}, {"top_p": 0.5}, {"seed": 1}, {"stop": "x"}, {"tools": [TOOL]}]
)
def test_what_the_model_cannot_honour_is_refused(fields: dict[str, Any]) -> None:
    plain = msgspec.structs.replace(SPEC, sampling=(), calls_tools=False)
    with pytest.raises(ProtocolError) as caught:
        decode(plain, **fields)
    assert caught.value.param in fields
    assert ChatRefusal.of(caught.value).code == "unsupported_parameter"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 100_000, b"{}"])
def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_chat_request(body, SPEC)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
FIELDS = ("stop", "tools", "tool_choice", "stream_options", "seed", "n", "max_tokens", "messages")


@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_nothing_that_a_client_sends_breaks_the_reader(fields: dict[str, Any]) -> None:
    try:
        decode(**fields)
    except (ProtocolError, ChatRefusal) as error:
        assert error.message
