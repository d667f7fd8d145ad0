"""What an engine is asked for a response."""

import pytest

from duologue.engines.engine import EngineSpec, Message, TextPart, Tool
from duologue.sessions.errors import ProtocolError
from duologue.sessions.events import ItemReference, ResponseParams
from duologue.sessions.history import History
from duologue.sessions.items import InputAudio, InputImage, InputText, MessageItem
from duologue.sessions.response_requests import answer_limit, input_items, response_request
from duologue.sessions.session_config import FunctionTool, SessionConfig, Truncation

SPEC = EngineSpec(model="m", voices=("v",), default_voice="v", context_tokens=1000)
PLAIN = ResponseParams()
PROMPT = (Message("user", (TextPart("Hi."),)),)


def said(text, item_id=""):
    return MessageItem(item_id, "user", (InputText(text),))


def history_of(*items):
    history = History(100, 10_000)
    for item in items:
        history.add(item)
    return history


def test_the_responses_own_settings_win_over_the_sessions():
    config = SessionConfig(
        instructions="the session's", voice="v", tool_choice="none", parallel_tool_calls=False
    )
    tools = (FunctionTool("look", "sees", "{}"),)
    own = ResponseParams(
        instructions="", voice="w", modality="text", tools=tools, tool_choice="required"
    )
    asked = response_request(SPEC, config, PLAIN, PROMPT)
    assert (asked.instructions, asked.voice, asked.modality) == ("the session's", "v", "audio")
    assert (asked.tools, asked.tool_choice, asked.parallel_tool_calls) == ((), "none", False)
    asked = response_request(SPEC, config, own, PROMPT)
    assert (asked.instructions, asked.voice, asked.modality) == ("", "w", "text")
    assert (asked.tools, asked.tool_choice) == ((Tool("look", "sees", "{}"),), "required")


@pytest.mark.parametrize(
    ("config", "params", "limit"),
    [
        (SessionConfig(), PLAIN, None),
        (SessionConfig(max_output_tokens=9), PLAIN, 9),
        (SessionConfig(max_output_tokens=9), ResponseParams(max_output_tokens=5), 5),
        (SessionConfig(max_output_tokens=9), ResponseParams(max_output_tokens=None), None),
    ],
)
def test_a_response_may_have_a_limit_of_its_own_or_none(config, params, limit):
    assert answer_limit(config, params) == limit
    assert response_request(SPEC, config, params, PROMPT).max_output_tokens == limit


def test_room_is_kept_for_the_answer_the_instructions_and_the_tools():
    long = tuple(Message("user", (TextPart("word " * 40),)) for _ in range(50))

    def kept(config, params=PLAIN):
        return len(response_request(SPEC, config, params, long).messages)

    usual = kept(SessionConfig())
    assert 0 < usual < 50
    assert kept(SessionConfig(max_output_tokens=10)) > usual
    assert kept(SessionConfig(instructions="be kind " * 100)) < usual
    tool = FunctionTool("look", "sees " * 200)
    assert kept(SessionConfig(tools=(tool,))) < usual


def test_a_prompt_that_does_not_fit_is_refused_where_none_is_to_be_cut():
    long = (Message("user", (TextPart("word " * 4000),)),)
    with pytest.raises(ProtocolError) as caught:
        response_request(SPEC, SessionConfig(truncation=Truncation("disabled")), PLAIN, long)
    assert caught.value.code == "context_too_long"


def test_without_input_the_conversation_is_answered():
    items = (said("One.", "a"), said("Two.", "b"))
    assert input_items(PLAIN, history_of(*items), SPEC) == items


def test_input_may_name_items_of_the_conversation():
    history = history_of(said("One.", "a"), said("Two.", "b"))
    new = said("Three.")
    given = ResponseParams(input=(new, ItemReference("a")))
    assert input_items(given, history, SPEC) == (new, said("One.", "a"))
    assert input_items(ResponseParams(input=()), history, SPEC) == ()


@pytest.mark.parametrize(
    ("entry", "code", "words"),
    [
        (ItemReference("nowhere"), "bad_response_create", "nowhere"),
        (MessageItem("", "user", (InputAudio(None),)), "missing_required_parameter", "transcript"),
        (MessageItem("", "user", (InputImage("data:image/png;base64,"),)), "unsupported", "images"),
    ],
)
def test_input_that_can_not_be_answered_is_refused(entry, code, words):
    with pytest.raises(ProtocolError, match=words) as caught:
        input_items(ResponseParams(input=(entry,)), history_of(), SPEC)
    assert (caught.value.code, caught.value.param) == (code, "response.input")
