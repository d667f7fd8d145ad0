import msgspec
import pytest

from duologue.engines.engine import (
    Message,
    ResponseRequest,
    TextPart,
    Tool,
    ToolInvocation,
    UtterancePart,
)
from duologue.engines.script import (
    ECHO,
    Choice,
    Clause,
    Reply,
    ScriptedCall,
    ScriptedOptions,
    choose,
    count_tokens,
    last_user_text,
    sentences,
    shorten,
    wanted_calls,
)

WEATHER = Tool("get_weather")
CLOCK = Tool("get_time")


def request(text: str, *more: Message, **fields: object) -> ResponseRequest:
    messages = (Message("user", (TextPart(text),)), *more)
    return msgspec.structs.replace(ResponseRequest(instructions="", messages=messages), **fields)


def choice(text: str, *more: Message, turn: int = 0, **fields: object) -> Choice:
    return choose(ScriptedOptions(), request(text, *more, **fields), {}, turn)


def said(chosen: Choice) -> str:
    return "".join(clause.text for clause in chosen.reply.clauses)


def test_replies_take_turns() -> None:
    numbers = [choice("hello", turn=turn).number for turn in range(6)]
    assert numbers == [0, 1, 2, 0, 1, 2]


def test_a_reply_that_matches_comes_before_one_in_turn() -> None:
    assert len(choice("Give me a LONG answer").reply.clauses) == 10
    assert choice("now fail").reply.failure is not None


def test_an_utterance_is_matched_by_its_transcript() -> None:
    message = Message("user", (UtterancePart("u1"),))
    asked = ResponseRequest(instructions="", messages=(message,))
    assert choose(ScriptedOptions(), asked, {"u1": "a long one"}, 0).reply.match == "long"


def test_only_the_last_user_message_is_matched() -> None:
    messages = (
        Message("user", (TextPart("long"),)),
        Message("assistant", (TextPart("fail"),)),
        Message("user", (TextPart("hello"),)),
    )
    assert last_user_text(messages, {}) == "hello"
    assert last_user_text((), {}) == ""


@pytest.mark.parametrize("where", ["text", "instructions"])
def test_the_request_is_echoed_when_asked_for(where: str) -> None:
    asked = request(ECHO) if where == "text" else request("hello", instructions=f"Please {ECHO}.")
    echoed = said(choose(ScriptedOptions(), asked, {}, 0))
    assert msgspec.json.decode(echoed, type=ResponseRequest) == asked


def test_the_output_of_a_tool_is_said_back() -> None:
    called = Message("assistant", tool_calls=(ToolInvocation("c1", "get_weather", "{}"),))
    output = Message("tool", (TextPart("It is raining."),), call_id="c1")
    assert said(choice("get_weather", called, output, tools=(WEATHER,))) == "It is raining."


def test_a_tool_is_called_by_name_with_the_arguments_that_follow() -> None:
    chosen = choice('get_weather {"city": {"name": "Oslo"}} please', tools=(CLOCK, WEATHER))
    assert chosen.reply.calls == (ScriptedCall("get_weather", '{"city": {"name": "Oslo"}}'),)


@pytest.mark.parametrize("text", ["get_weather", "get_weather { oh", "call a tool"])
def test_a_tool_without_arguments_gets_an_empty_object(text: str) -> None:
    assert choice(text, tools=(WEATHER,)).reply.calls == (ScriptedCall("get_weather", "{}"),)


def test_part_of_a_longer_name_is_no_call() -> None:
    assert wanted_calls(request("x", tools=(Tool("get"),)), "get_weather") == ()


def test_the_choice_decides_whether_a_tool_is_called() -> None:
    tools = (CLOCK, WEATHER)
    asked = request("hello", tools=tools)
    assert wanted_calls(asked, "get_time") == (ScriptedCall("get_time"),)
    none = msgspec.structs.replace(asked, tool_choice="none")
    assert wanted_calls(none, "get_time") == ()
    required = msgspec.structs.replace(asked, tool_choice="required")
    assert wanted_calls(required, "hello") == (ScriptedCall("get_time"),)
    named = msgspec.structs.replace(asked, tool_choice="function:get_weather")
    assert wanted_calls(named, "get_time") == (ScriptedCall("get_weather"),)


def test_several_tools_are_called_at_once_only_when_that_is_allowed() -> None:
    asked = request("x", tools=(CLOCK, WEATHER))
    assert len(wanted_calls(asked, "get_time and get_weather")) == 2
    single = msgspec.structs.replace(asked, parallel_tool_calls=False)
    assert len(wanted_calls(single, "get_time and get_weather")) == 1


@pytest.mark.parametrize("fields", [{}, {"tools": (CLOCK,), "tool_choice": "none"}])
def test_a_scripted_call_needs_a_tool_that_may_be_called(fields: dict[str, object]) -> None:
    options = ScriptedOptions(replies=(Reply(calls=(ScriptedCall("get_time"),)),))
    assert choose(options, request("hello", **fields), {}, 0).reply.calls == ()
    allowed = request("hello", tools=(CLOCK,))
    assert len(choose(options, allowed, {}, 0).reply.calls) == 1


def test_sentences_become_clauses_that_join_to_the_text() -> None:
    text = "One two. Three? And four"
    clauses = sentences(text)
    assert "".join(clause.text for clause in clauses) == text
    assert [clause.ms for clause in clauses] == [600, 300, 600]


@pytest.mark.parametrize(
    ("words", "texts", "ms"),
    [
        (0, [], []),
        (1, ["One"], [300]),
        (2, ["One two."], [600]),
        (3, ["One two.", " Three"], [600, 150]),
        (9, ["One two.", " Three four."], [600, 300]),
    ],
)
def test_an_answer_is_cut_after_so_many_words(words: int, texts: list[str], ms: list[int]) -> None:
    cut = shorten((Clause("One two.", 600), Clause(" Three four.", 300)), words)
    assert [clause.text for clause in cut] == texts
    assert [clause.ms for clause in cut] == ms


def test_tokens_are_the_words_of_the_whole_prompt() -> None:
    messages = (
        Message("user", (UtterancePart("u1"), TextPart("and more"))),
        Message("assistant", tool_calls=(ToolInvocation("c", "f", '{"a": 1}'),)),
    )
    asked = ResponseRequest(instructions="be kind", messages=messages)
    assert count_tokens(asked, {"u1": "three words here"}) == 2 + 3 + 2 + 3


@pytest.mark.parametrize(
    "options",
    [
        {"replies": ()},
        {"replies": (Reply(match="x"),)},
        {"chunk_ms": 1},
        {"probabilities": ()},
        {"voices": ()},
    ],
)
def test_a_script_that_can_not_be_played_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        ScriptedOptions(**options)  # type: ignore[arg-type]
