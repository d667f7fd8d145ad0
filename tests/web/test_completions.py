"""Chat completions, as the stock ``openai`` client meets them on a real server."""

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import anyio
import anyio.lowlevel
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from duologue.engines.cascade import CascadeBackend, CascadeConfig, Parts
from duologue.engines.engine import Message, Respond, ResponseEnded, ResponseRequest, TextPart
from duologue.engines.fairness import Rank
from duologue.engines.llama_language import LlamaLanguage
from duologue.engines.llama_prompts import LlamaStage
from duologue.engines.pulse import Pulse
from duologue.engines.script import Clause, Reply
from duologue.engines.stand_ins import (
    StandInCompleter,
    StandInDetector,
    StandInLanguage,
    StandInRecognizer,
    StandInSynthesizer,
)
from duologue.web import completions
from duologue.web.settings import Settings
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

OpenHouse = Callable[..., AbstractAsyncContextManager[Any]]

GREETING = "Hello, I am a script. What can I do for you?"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SLOW = (Reply(clauses=(Clause("Late.", 300),), first_ms=3_600_000.0),)
KEY = "key-of-the-house"


def said(*texts: str) -> Any:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


@asynccontextmanager
async def client(house: Any, key: str = "any") -> AsyncIterator[AsyncOpenAI]:
    async with openai.DefaultAsyncHttpxClient(trust_env=False) as http:
        yield AsyncOpenAI(
            api_key=key,
            base_url=f"{house.url}/v1",
            max_retries=0,
            timeout=PATIENCE_S,
            http_client=http,
        )


async def plain(house: Any, messages: Any = None, **options: Any) -> ChatCompletion:
    options = {
        "model": "scripted",
        "messages": said("hi") if messages is None else messages,
        **options,
    }
    async with client(house) as ai:
        return cast(ChatCompletion, await ai.chat.completions.create(**options))


async def chunks(house: Any, messages: Any = None, **options: Any) -> list[ChatCompletionChunk]:
    options = {
        "model": "scripted",
        "messages": said("hi") if messages is None else messages,
        "stream": True,
        **options,
    }
    async with client(house) as ai:
        stream = await ai.chat.completions.create(**options)
        return [chunk async for chunk in stream]


async def until(met: Callable[[], bool]) -> None:
    while not met():
        await anyio.lowlevel.checkpoint()


async def outcomes(house: Any) -> dict[str, float]:
    async with house.http() as http:
        text = (await http.get("/metrics")).text
    found = re.findall(r'duologue_completions_total\{outcome="(\w+)"\} (\S+)', text)
    return {outcome: float(count) for outcome, count in found}


# -- answers --------------------------------------------------------------------------------


async def test_a_whole_answer(open_house: OpenHouse) -> None:
    async with open_house() as house:
        answer = await plain(house)
        assert house.engine.batch_sessions == 0
    assert answer.id.startswith("chatcmpl_")
    assert answer.model == "scripted"
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.role) == ("stop", "assistant")
    assert choice.message.content == GREETING
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (1, 11)
    assert answer.usage.total_tokens == 12


async def test_what_an_answer_waited_and_took_is_among_the_figures(open_house: OpenHouse) -> None:
    async with open_house() as house:
        await plain(house)
        async with house.http() as http:
            text = (await http.get("/metrics")).text
    for family in ("batch_queue", "engine_first_text", "engine_token"):
        assert f"duologue_{family}_seconds_count 1.0" in text


async def test_a_streamed_answer_with_its_usage(open_house: OpenHouse) -> None:
    async with open_house() as house:
        got = await chunks(house, stream_options={"include_usage": True})
    assert got[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in got[:-1])
    assert text == GREETING
    assert len(got) > 5
    reasons = [chunk.choices[0].finish_reason for chunk in got[:-1]]
    assert reasons == [None] * (len(got) - 2) + ["stop"]
    assert [chunk.usage for chunk in got[:-1]] == [None] * (len(got) - 1)
    assert got[-1].choices == []
    assert got[-1].usage is not None
    assert got[-1].usage.completion_tokens == 11


async def test_a_stream_says_nothing_of_usage_unasked_and_ends_with_its_mark(
    open_house: OpenHouse,
) -> None:
    async with open_house() as house, house.http() as http:
        body = {"model": "scripted", "messages": said("hi"), "stream": True}
        answer = await http.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all("usage" not in event for event in events)


async def test_an_answer_is_cut_at_the_tokens_it_may_have(open_house: OpenHouse) -> None:
    async with open_house() as house:
        answer = await plain(house, max_completion_tokens=3)
        assert answer.choices[0].message.content == "Hello, I am"
        assert answer.choices[0].finish_reason == "length"
        got = await chunks(house, max_tokens=3)
        assert got[-1].choices[0].finish_reason == "length"


async def test_a_call_of_a_tool_and_the_answer_to_its_result(open_house: OpenHouse) -> None:
    question = said('Please call get_weather {"city": "Oslo"} for me')
    async with open_house() as house:
        first = (await plain(house, question, tools=[WEATHER])).choices[0]
        assert first.finish_reason == "tool_calls"
        assert first.message.content is None
        assert first.message.tool_calls is not None
        (call,) = first.message.tool_calls
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == (
            "get_weather",
            {"city": "Oslo"},
        )
        # The message goes back as the client gives it out.
        history = [
            *question,
            first.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "Rain."},
        ]
        second = (await plain(house, history, tools=[WEATHER])).choices[0]
        assert (second.finish_reason, second.message.content) == ("stop", "Rain.")


async def test_a_streamed_call_of_a_tool(open_house: OpenHouse) -> None:
    choice: Any = {"type": "function", "function": {"name": "get_weather"}}
    async with open_house() as house:
        got = await chunks(
            house,
            said('get_weather {"city": "Oslo"}'),
            tools=[WEATHER],
            tool_choice=choice,
        )
    calls = [c for chunk in got for c in chunk.choices[0].delta.tool_calls or []]
    assert {call.index for call in calls} == {0}
    assert calls[0].id
    assert calls[0].function is not None
    assert calls[0].function.name == "get_weather"
    arguments = "".join(
        call.function.arguments or "" for call in calls if call.function is not None
    )
    assert json.loads(arguments) == {"city": "Oslo"}
    assert got[-1].choices[0].finish_reason == "tool_calls"


async def test_no_tool_is_called_when_none_may_be(open_house: OpenHouse) -> None:
    async with open_house() as house:
        answer = await plain(
            house, said("get_weather, please"), tools=[WEATHER], tool_choice="none"
        )
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content == GREETING


# -- refusals and failures ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "status", "code", "param"),
    [
        ({"model": "gpt-9"}, 404, "model_not_found", "model"),
        ({"n": 2}, 400, "unsupported_parameter", "n"),
        ({"stop": "x"}, 400, "unsupported_parameter", "stop"),
        ({"temperature": 3}, 400, "invalid_value", "temperature"),
        ({"messages": []}, 400, "invalid_value", "messages"),
        ({"extra_body": {"best_of": 2}}, 400, "unknown_parameter", "best_of"),
        ({"tool_choice": "auto"}, 400, "invalid_value", "tool_choice"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_its_name(
    open_house: OpenHouse, options: dict[str, Any], status: int, code: str, param: str
) -> None:
    async with open_house() as house:
        for asking in (plain, chunks):
            with pytest.raises(openai.APIStatusError) as caught:
                await asking(house, **options)
            error = caught.value
            assert (error.status_code, error.code, error.param) == (status, code, param)
            assert error.type == "invalid_request_error"
        assert not house.service.registry.active
        assert await outcomes(house) == {"refused": 2.0}


async def test_a_body_that_is_no_json_or_too_large_is_refused(open_house: OpenHouse) -> None:
    async with open_house() as house, house.http() as http:
        answer = await http.post("/v1/chat/completions", content=b"{")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
        answer = await http.post("/v1/chat/completions", content=b" " * (20 * 2**20 + 1))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "event_too_large")


async def test_a_key_is_needed_and_a_client_secret_will_not_do(open_house: OpenHouse) -> None:
    async with open_house(Settings(engine="scripted", api_keys=(KEY,))) as house:
        with pytest.raises(openai.AuthenticationError):
            await plain(house)
        async with client(house, KEY) as ai:
            answer = await ai.chat.completions.create(model="scripted", messages=said("hi"))
            assert answer.choices[0].message.content == GREETING
            secret = (await ai.realtime.client_secrets.create()).value
        async with client(house, secret) as ai:
            with pytest.raises(openai.PermissionDeniedError):
                await ai.chat.completions.create(model="scripted", messages=said("hi"))


async def test_an_answer_that_fails_before_its_first_word(open_house: OpenHouse) -> None:
    async with open_house(context_tokens=3) as house:
        for asking in (plain, chunks):
            with pytest.raises(openai.BadRequestError) as caught:
                await asking(house, said("one two three four"))
            assert caught.value.code == "context_length_exceeded"


async def test_an_answer_that_fails_on_the_way(open_house: OpenHouse) -> None:
    async with open_house() as house:
        with pytest.raises(openai.InternalServerError) as whole:
            await plain(house, said("fail"))
        assert (whole.value.status_code, whole.value.code) == (500, "engine_error")
        async with client(house) as ai:
            stream = await ai.chat.completions.create(
                model="scripted", messages=said("fail"), stream=True
            )
            words: list[str | None] = []
            with pytest.raises(openai.APIError) as streamed:
                async for chunk in stream:
                    words += [choice.delta.content for choice in chunk.choices]
        assert streamed.value.code == "engine_error"
        assert "".join(word or "" for word in words) == "This is going"


async def test_a_model_that_starts_or_is_draining_gives_no_answers(open_house: OpenHouse) -> None:
    async with open_house(ready=False) as house:
        with pytest.raises(openai.InternalServerError) as starting:
            await plain(house)
        assert (starting.value.status_code, starting.value.code) == (503, "engine_unavailable")
        assert starting.value.response.headers["retry-after"]
    async with open_house() as house:
        await house.service.registry.drain(0)
        with pytest.raises(openai.InternalServerError) as draining:
            await plain(house)
        assert draining.value.status_code == 503


async def test_an_engine_without_a_batch_lane_gives_no_completions(open_house: OpenHouse) -> None:
    async with open_house(batch=0) as house:
        with pytest.raises(openai.BadRequestError) as caught:
            await plain(house)
        assert caught.value.code == "unsupported_model"


async def test_a_worker_that_is_lost_is_told_and_the_next_one_answers(
    open_house: OpenHouse,
) -> None:
    replies = (*SLOW, Reply(clauses=(Clause("So it begins. " * 400, 1000),), match="endless"))
    async with open_house(replies=replies, word_ms=20.0) as house, client(house) as ai:
        stream = await ai.chat.completions.create(
            model="scripted", messages=said("endless"), stream=True
        )
        await anext(aiter(stream))
        failures: list[openai.InternalServerError] = []

        async def ask() -> None:
            with pytest.raises(openai.InternalServerError) as caught:
                await plain(house)
            failures.append(caught.value)

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await until(lambda: house.engine.batch_sessions == 2)
            house.engine._link.fail("the worker is gone")
        with pytest.raises(openai.APIError) as streamed:
            async for _ in stream:
                pass
        assert streamed.value.code == "engine_unavailable"
        assert (failures[0].status_code, failures[0].code) == (503, "engine_unavailable")
        assert failures[0].response.headers["retry-after"]
        await house.engine.wait_ready()
        answer = await plain(house, said("endless"), max_tokens=2)
        assert answer.choices[0].message.content == "So it"


# -- the queue ------------------------------------------------------------------------------


async def test_beyond_what_may_wait_requests_are_told_to_come_again(open_house: OpenHouse) -> None:
    async with open_house(batch=1, batch_limit=2, replies=SLOW) as house:
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(plain, house)
            await until(lambda: house.engine.batch_sessions == 2)
            with pytest.raises(openai.RateLimitError) as caught:
                await plain(house)
            assert caught.value.status_code == 429
            assert (caught.value.code, caught.value.type) == (
                "engine_overloaded",
                "rate_limit_error",
            )
            assert int(caught.value.response.headers["retry-after"]) >= 1
            # Conversations have places of their own.
            async with house.connect() as conversation:
                assert json.loads(await conversation.recv())["type"] == "session.created"
            group.cancel_scope.cancel()
        await until(lambda: house.engine.batch_sessions == 0)
        assert await outcomes(house) == {"cancelled": 2.0, "refused": 1.0}


async def test_a_client_that_goes_away_makes_room_at_once(open_house: OpenHouse) -> None:
    replies = (
        Reply(clauses=(Clause("So it begins. " * 400, 1000),), first_ms=0.0, match="endless"),
        Reply(clauses=(Clause("My turn.", 300),)),
    )
    async with open_house(batch=1, replies=replies, word_ms=50.0) as house, client(house) as ai:
        stream = await ai.chat.completions.create(
            model="scripted", messages=said("endless"), stream=True
        )
        await anext(aiter(stream))
        async with house.http() as http:
            body = {"model": "scripted", "messages": said("hi"), "stream": True}
            request = http.stream("POST", "/v1/chat/completions", json=body)
            async with request as waiting:
                lines = waiting.aiter_lines()
                assert await anext(lines) == ": waiting, position 1"
                assert waiting.headers["x-queue-position"] == "1"
                await stream.close()
                rest = [line async for line in lines]
        text = "".join(
            json.loads(line[6:])["choices"][0]["delta"].get("content", "")
            for line in rest
            if line.startswith("data: {")
        )
        assert text == "My turn."
        assert rest[-2] == "data: [DONE]"
        await until(lambda: house.engine.batch_sessions == 0)


async def test_a_whole_answer_is_told_where_its_request_stood(open_house: OpenHouse) -> None:
    async with open_house(batch=1, word_ms=1.0) as house, house.http() as http:
        positions = []

        async def ask() -> None:
            body = {"model": "scripted", "messages": said("long")}
            answer = await http.post("/v1/chat/completions", json=body)
            positions.append(answer.headers.get("x-queue-position"))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(ask)
        assert sorted(positions, key=str) == ["1", "2", None]


async def test_a_silent_stream_is_kept_alive(
    open_house: OpenHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completions, "ALIVE_SECONDS", 0.01)
    async with open_house(replies=SLOW) as house, house.http() as http:
        body = {"model": "scripted", "messages": said("hi"), "stream": True}
        async with http.stream("POST", "/v1/chat/completions", json=body) as waiting:
            lines = waiting.aiter_lines()
            assert [await anext(lines) for _ in range(3)][::2] == [": still at it"] * 2


# -- beside conversations -------------------------------------------------------------------


def cascade(language: LlamaLanguage | StandInLanguage) -> CascadeBackend:
    parts = Parts(StandInRecognizer(), StandInDetector(), (StandInSynthesizer(),))
    config = CascadeConfig(
        recognizer="/r", turn_detector="/t", language=LlamaStage(path="/qwen.gguf"), capacity=2
    )
    return CascadeBackend(config, Pulse(), language=language, load=lambda _: parts)


async def test_a_conversation_goes_first_and_the_request_goes_on_after_it(
    open_house: OpenHouse,
) -> None:
    completer = StandInCompleter()
    completer.answers = ["warm up"]
    stage = LlamaStage(path="/models/qwen-test.gguf", slots=2, context=400)
    language = LlamaLanguage(stage, Pulse(), lambda _: completer)
    async with open_house(backend=cascade(language)) as house:
        completer.completions.clear()
        text = "one two three four five six"
        completer.answers = [text, text]
        order: list[str] = []
        answers: dict[str, str] = {}

        async def request() -> None:
            answer = await plain(house, model=house.service.spec.model)
            answers["request"] = answer.choices[0].message.content or ""
            order.append("request")

        live = await house.engine.open("live")
        try:
            async with anyio.create_task_group() as group:
                while completer.gate.arrived.acquire(blocking=False):
                    pass
                completer.gate.close()
                group.start_soon(request)
                await until(lambda: completer.gate.arrived.acquire(blocking=False))
                message = Message("user", (TextPart("hello"),))
                wanted = ResponseRequest(instructions="", messages=(message,), modality="text")
                live.send(Respond(1, wanted, session=""))
                await until(lambda: language._turnstile.outranked(Rank.BATCH, served=False))
                completer.gate.open()
                heard = ""
                while not isinstance(output := await live.receive(), ResponseEnded):
                    heard += output.text
                order.append("conversation")
        finally:
            await live.aclose()
    assert order == ["conversation", "request"]
    assert heard.split() == answers["request"].split() == text.split()
    slots = [completion.slot for completion in completer.completions]
    # The request was stopped, and taken up again where it was, in a slot of its own.
    assert slots[0] == slots[-1] == 2
    assert set(slots[1:-1]) == {0}


async def test_a_stop_text_ends_the_answer_and_frees_the_model(open_house: OpenHouse) -> None:
    completer = StandInCompleter()
    completer.answers = ["warm up"]
    stage = LlamaStage(path="/models/qwen-test.gguf", slots=2, context=400)
    async with open_house(
        backend=cascade(LlamaLanguage(stage, Pulse(), lambda _: completer))
    ) as house:
        model = house.service.spec.model
        for _ in range(2):
            completer.answers = ["one two STOP three " + "more " * 100]
            answer = await plain(house, model=model, stop=["STOP", "never"])
            assert answer.choices[0].message.content == " one two "
            assert answer.choices[0].finish_reason == "stop"
