"""The stage with vLLM played by a stand-in; with vLLM itself where that is installed."""

from collections.abc import AsyncGenerator
from importlib.util import find_spec
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from blockbuster import BlockBuster

from duologue.engines.chat_messages import Json
from duologue.engines.engine import (
    EngineError,
    ImagePart,
    Message,
    ResponseRequest,
    TextPart,
    Tool,
    Usage,
)
from duologue.engines.fairness import Rank
from duologue.engines.language import (
    Began,
    CallDelta,
    CallEnded,
    CallStarted,
    Finished,
    Generated,
    LanguageError,
    TextPiece,
)
from duologue.engines.pulse import Pulse
from duologue.engines.vllm_contract import Ask, CallParser, Delta, ParsedCall, Prompt, VllmError
from duologue.engines.vllm_language import VllmLanguage
from duologue.engines.vllm_stage import VllmStage
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

WEATHER = Tool("weather", "tells it", '{"type": "object", "properties": {}}')


class StandInVllm:
    """A token is a word; answers are the deltas of ``answer``, an Event among them waits."""

    context = 100
    block = 4
    sees = False
    knows_tools = True
    lost = False

    def __init__(self) -> None:
        self.answer: list[Delta | anyio.Event | Exception] = [Delta("Yes.", [1], 5, 0, "stop")]
        self.asked: list[tuple[str, list[str], Ask]] = []
        self.aborted: list[str] = []
        self.closed = False
        self.found: CallParser | None = None

    async def prompt(self, messages: list[Json], tools: list[Json], answering: bool) -> Prompt:
        words = [word for entry in messages for word in str(entry["content"]).split()]
        return words + (["<assistant>"] if answering else [])

    def tokens(self, prompt: Prompt) -> list[int]:
        return [hash(word) for word in prompt]

    async def generate(self, request: str, prompt: Prompt, ask: Ask) -> AsyncGenerator[Delta, None]:
        self.asked.append((request, prompt, ask))
        for delta in self.answer:
            if isinstance(delta, anyio.Event):
                await delta.wait()
            elif isinstance(delta, Exception):
                raise delta
            else:
                yield delta

    async def abort(self, request: str) -> None:
        self.aborted.append(request)

    def parser(self, tools: list[Json], choice: str) -> CallParser | None:
        return self.found

    def close(self) -> None:
        self.closed = True


def request(text: str = "Hi.", **fields: object) -> ResponseRequest:
    messages = (Message("user", (TextPart(text),)),)
    return ResponseRequest(instructions="", messages=messages, **fields)  # type: ignore[arg-type]


async def loaded(engine: StandInVllm, **stage: object) -> VllmLanguage:
    language = VllmLanguage(VllmStage(path="/m", **stage), Pulse(), lambda _: engine)  # type: ignore[arg-type]
    await language.load()
    return language


async def read(language: VllmLanguage, asked: ResponseRequest) -> list[Generated]:
    async with language.answer("s", asked, lambda: Rank.FIRST) as pieces:
        return [piece async for piece in pieces]


async def test_an_answer_that_is_over_is_no_generator_left_lying() -> None:
    class Ending(StandInVllm):
        ended: tuple[str, ...] = ()

        async def generate(
            self, request: str, prompt: Prompt, ask: Ask
        ) -> AsyncGenerator[Delta, None]:
            try:
                yield Delta("Yes.", [1], 5, 0, "stop")
            except GeneratorExit:
                self.ended += ("as if it was not wanted",)
                raise
            self.ended += ("by itself",)

    engine = Ending()
    await read(await loaded(engine), request())
    assert engine.ended == ("by itself",)
    assert engine.aborted == []


async def test_text_comes_as_it_is_made_with_what_it_cost() -> None:
    engine = StandInVllm()
    engine.answer = [Delta("Yes, ", [1, 2], 5, 4), Delta("sure.", [3], 5, 4, "stop")]
    assert await read(await loaded(engine), request()) == [
        Began(5, 4),
        TextPiece("Yes, "),
        TextPiece("sure."),
        Finished("completed", Usage(input_tokens=5, cached_tokens=4, output_tokens=3)),
    ]
    assert engine.aborted == []


async def test_an_answer_that_reaches_its_bound_says_so() -> None:
    engine = StandInVllm()
    engine.answer = [Delta("Yes", [1], 5, 0, "length")]
    pieces = await read(await loaded(engine), request(max_output_tokens=1))
    assert isinstance(pieces[-1], Finished)
    assert pieces[-1].reason == "max_output_tokens"
    assert engine.asked[0][2].most == 1


async def test_the_request_decides_before_the_stage_does() -> None:
    engine = StandInVllm()
    language = await loaded(engine, temperature=0.5, seed=7)
    await read(language, request())
    await read(language, request(temperature=0.0, top_p=0.5, seed=1, stop=("END",)))
    first, second = (ask for _, _, ask in engine.asked)
    assert (first.temperature, first.top_p, first.seed, first.stop) == (0.5, None, 7, ())
    assert (second.temperature, second.top_p, second.seed) == (0.0, 0.5, 1)
    assert second.stop == ("END",)


async def test_conversations_come_before_the_batch_lane() -> None:
    engine = StandInVllm()
    language = await loaded(engine)
    await read(language, request())
    async with language.answer("b", request(), lambda: Rank.BATCH) as pieces:
        async for _ in pieces:
            pass
    live, batch = (ask.priority for _, _, ask in engine.asked)
    assert live < batch


async def test_leaving_an_answer_frees_it_at_once() -> None:
    engine = StandInVllm()
    engine.answer = [Delta("Well, ", [1], 5, 0), anyio.Event()]
    language = await loaded(engine)
    async with language.answer("s", request(), lambda: Rank.FIRST) as pieces:
        async for piece in pieces:
            if isinstance(piece, TextPiece):
                break
    assert engine.aborted == [engine.asked[0][0]]


async def test_cancelling_a_reader_that_waits_frees_the_answer() -> None:
    engine = StandInVllm()
    engine.answer = [anyio.Event()]
    language = await loaded(engine)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def answer() -> None:
                await read(language, request())

            group.start_soon(answer)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
    assert engine.aborted == [engine.asked[0][0]]


async def test_a_prompt_is_warmed_once_for_whole_blocks() -> None:
    engine = StandInVllm()
    language = await loaded(engine)
    await language.warm("s", request("one two three four"))
    await language.warm("s", request("one two three four five"))
    await language.warm("s", request("one two three four five six seven eight"))
    warmed = [(prompt, ask) for _, prompt, ask in engine.asked]
    assert [len(prompt) for prompt, _ in warmed] == [4, 8]
    assert {(ask.most, ask.priority) for _, ask in warmed} == {(1, int(Rank.IDLE))}


async def test_less_than_a_block_is_not_worth_warming() -> None:
    engine = StandInVllm()
    await (await loaded(engine)).warm("s", request("one two"))
    assert engine.asked == []


async def test_an_answer_does_not_wait_for_the_warming() -> None:
    engine = StandInVllm()
    engine.answer = [anyio.Event()]
    language = await loaded(engine)
    async with anyio.create_task_group() as group:
        group.start_soon(language.warm, "s", request("one two three four"))
        await anyio.wait_all_tasks_blocked()
        warming = engine.asked[0][0]
        engine.answer = [Delta("Yes.", [1], 5, 4, "stop")]
        pieces = await read(language, request("one two three four"))
    assert engine.aborted == [warming]
    assert TextPiece("Yes.") in pieces


async def test_calls_in_the_text_are_found() -> None:
    engine = StandInVllm()
    text = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    engine.answer = [Delta(text, [1], 5, 0, "stop")]
    pieces = await read(await loaded(engine), request(tools=(WEATHER,)))
    assert [type(piece) for piece in pieces] == [Began, CallStarted, CallDelta, CallEnded, Finished]


class Parser:
    """Finds what it is told to."""

    def __init__(self, *found: tuple[str, list[ParsedCall]]) -> None:
        self.found = list(found)

    def push(self, delta: Delta, prompt: list[int], over: bool) -> tuple[str, list[ParsedCall]]:
        return self.found.pop(0)


async def test_what_vllms_parser_finds_is_called_and_thoughts_are_not_said() -> None:
    engine = StandInVllm()
    engine.answer = [Delta("x", [1], 5, 0) for _ in range(4)]
    engine.answer.append(Delta("x", [1], 5, 0, "stop"))
    engine.found = Parser(
        ("", []),
        ("Well.", []),
        ("", [ParsedCall(0, "weather", "")]),
        ("", [ParsedCall(0, "", "{}")]),
        ("", [ParsedCall(1, "weather", "")]),
    )
    began, said, start, delta, end, second, empty, last, finished = await read(
        await loaded(engine), request(tools=(WEATHER,))
    )
    assert said == TextPiece("Well.")
    assert isinstance(start, CallStarted) and isinstance(second, CallStarted)
    assert delta == CallDelta(start.call_id, "{}")
    assert end == CallEnded(start.call_id, "{}")
    assert (empty, last) == (CallDelta(second.call_id, "{}"), CallEnded(second.call_id, "{}"))
    assert isinstance(finished, Finished)


async def test_a_call_that_is_insisted_on_is_forced_by_its_schema() -> None:
    engine = StandInVllm()
    engine.found = Parser()
    await read(await loaded(engine), request(tools=(WEATHER,), tool_choice="required"))
    schema = engine.asked[0][2].schema
    assert schema is not None
    assert schema["properties"]["name"] == {"const": "weather"}


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (VllmError("no"), "engine_error"),
        (VllmError("gone", lost=True), "engine_unavailable"),
    ],
)
async def test_a_failure_is_told(failure: VllmError, code: str) -> None:
    engine = StandInVllm()
    engine.answer = [failure]
    with pytest.raises(LanguageError) as raised:
        await read(await loaded(engine), request())
    assert raised.value.failure.code == code


async def test_a_model_without_eyes_refuses_pictures() -> None:
    asked = request()
    seen = Message("user", (ImagePart("data:image/png;base64,AA=="),))
    language = await loaded(StandInVllm())
    with pytest.raises(LanguageError, match="no pictures"):
        await read(language, ResponseRequest(instructions="", messages=(*asked.messages, seen)))


async def test_a_history_that_can_not_be_shortened_is_too_long() -> None:
    language = await loaded(StandInVllm())
    with pytest.raises(LanguageError) as raised:
        await read(language, request("word " * 200))
    assert raised.value.failure.code == "context_too_long"


async def test_the_end_of_vllms_process_is_the_end_of_the_worker() -> None:
    engine = StandInVllm()
    language = await loaded(engine)
    engine.lost = True
    with anyio.fail_after(PATIENCE_S), pytest.raises(EngineError, match="ended"):
        await language.watch()
    await language.aclose()
    assert engine.closed


async def test_a_step_runs_as_long_as_somebody_waits() -> None:
    engine = StandInVllm()
    engine.answer = [anyio.Event()]
    pulse = Pulse()
    language = VllmLanguage(VllmStage(path="/m"), pulse, lambda _: engine)
    await language.load()
    async with anyio.create_task_group() as group:
        group.start_soon(read, language, request())
        await anyio.wait_all_tasks_blocked()
        assert pulse.reading(10**20).running_s > 0
        group.cancel_scope.cancel()
    assert pulse.reading(10**20).running_s == 0


@pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed")
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")  # vLLM and torch warn of each other
async def test_vllm_itself_answers_warms_calls_and_is_cancelled(
    tmp_path: Path, blockbuster: BlockBuster
) -> None:
    blockbuster.deactivate()  # vLLM looks at files on its event loop
    from load_tests.tiny_model import write_model

    language = VllmLanguage(
        VllmStage(path=str(write_model(tmp_path)), places=2, batch=2, eager=True), Pulse()
    )
    await language.load()
    try:
        long = request("Tell me a story. " * 80, temperature=0.0, max_output_tokens=16)
        first = await read(language, long)
        again = await read(language, long)
        texts = ["".join(p.text for p in one if isinstance(p, TextPiece)) for one in (first, again)]
        assert texts[0] == texts[1] != ""
        assert isinstance(again[0], Began)
        assert again[0].cached_tokens > 0
        async with language.answer("s", request("Hi."), lambda: Rank.FIRST) as pieces:
            async for _ in pieces:
                break
        asked = request("Call it.", tools=(WEATHER,), tool_choice="required")
        assert any(isinstance(piece, CallEnded) for piece in await read(language, asked))
    finally:
        await language.aclose()


@pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed")
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")  # vLLM and torch warn of each other
async def test_in_vllm_itself_a_conversation_overtakes_what_waits_of_the_batch_lane(
    tmp_path: Path, blockbuster: BlockBuster
) -> None:
    blockbuster.deactivate()  # vLLM looks at files on its event loop
    from vllm import SamplingParams

    from duologue.engines.vllm_impl import VllmEngine
    from load_tests.tiny_model import Geometry, write_model

    # So long that nothing which holds a place ends by itself.
    folder = write_model(tmp_path, Geometry(max_position_embeddings=32_768))
    stage = VllmStage(path=str(folder), places=1, batch=1, eager=True)
    engine = await anyio.to_thread.run_sync(VllmEngine, stage)
    language = VllmLanguage(stage, Pulse(), lambda _: engine)
    await language.load()
    places = engine.llm.vllm_config.scheduler_config.max_num_seqs
    held = [anyio.Event() for _ in range(places)]
    for_ever = SamplingParams(max_tokens=30_000, ignore_eos=True)
    began: list[str] = []

    async def hold(number: int) -> None:
        name, rank = f"hold-{number}", int(Rank.BATCH)
        prompt = {"prompt_token_ids": [number + 5]}
        async for _ in engine.llm.generate(prompt, for_ever, name, priority=rank):
            held[number].set()

    async def ask(name: str, rank: Rank) -> None:
        async with language.answer(name, request(name), lambda: rank) as pieces:
            async for piece in pieces:
                if isinstance(piece, Began):
                    began.append(name)
                    return

    async def known(requests: int) -> None:
        """Until vLLM has so many."""
        while engine.llm.output_processor.get_num_unfinished_requests() < requests:
            await anyio.lowlevel.checkpoint()

    try:
        async with anyio.create_task_group() as holding:
            for number in range(places):
                holding.start_soon(hold, number)
            for event in held:
                await event.wait()
            async with anyio.create_task_group() as asking:
                for number in range(4):
                    asking.start_soon(ask, f"batch {number}", Rank.BATCH)
                await known(places + 4)
                asking.start_soon(ask, "conversation", Rank.FIRST)
                await known(places + 5)
                assert began == []
                await engine.abort("hold-0")
            assert began[0] == "conversation"
            assert sorted(began[1:]) == [f"batch {number}" for number in range(4)]
            for number in range(1, places):
                await engine.abort(f"hold-{number}")
    finally:
        await language.aclose()
