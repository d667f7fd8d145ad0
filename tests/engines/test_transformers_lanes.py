"""Who gets the model next, with transformers played by a stand-in whose steps can be held up."""

import threading
from collections.abc import Sequence
from types import SimpleNamespace

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

pytest.importorskip("transformers")
pytest.importorskip("torch")

from duologue.engines.chat_messages import Json
from duologue.engines.engine import Message, ResponseRequest, TextPart
from duologue.engines.fairness import Rank
from duologue.engines.language import TextPiece
from duologue.engines.pulse import Pulse
from duologue.engines.transformers_impl import Choice, Memory
from duologue.engines.transformers_language import BURST, TransformersLanguage
from duologue.engines.transformers_stage import TransformersStage
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

WORDS = 12


class StandInModel:
    """Each character of the prompt is a step, each word of the answer another. The step with the
    number `held` waits in the thread until it is let go."""

    context = 2048
    knows_tools = True

    def __init__(self, held: int) -> None:
        self.steps: list[str] = []
        self.arrived = threading.Event()
        self.let_go = threading.Event()
        self._held = held

    def prompt(self, messages: list[Json], tools: list[Json], answering: bool) -> list[int]:
        return [ord(character) for character in messages[-1]["content"]]

    def memory(self) -> Memory:
        return SimpleNamespace(tokens=[])

    def begin(self, memory: Memory, tokens: Sequence[int], choice: Choice) -> "StandInGeneration":
        return StandInGeneration(self, tokens)

    def step(self, name: str) -> None:
        self.steps.append(name)
        if len(self.steps) == self._held:
            self.arrived.set()
            self.let_go.wait(PATIENCE_S)

    def close(self) -> None:
        pass


class StandInGeneration:
    cached = 0

    def __init__(self, model: StandInModel, tokens: Sequence[int]) -> None:
        self._model = model
        self._name = chr(tokens[0])
        self.prompted = len(tokens)
        self.evaluated = 0
        self.generated = 0

    def step(self) -> str | None:
        self._model.step(self._name)
        if self.evaluated < self.prompted:
            self.evaluated += 1
            return ""
        if self.generated == WORDS:
            return None
        self.generated += 1
        return f" w{self.generated}"

    def rest(self) -> str:
        return ""


async def loaded(model: StandInModel, pulse: Pulse) -> TransformersLanguage:
    language = TransformersLanguage(TransformersStage(path="/m"), pulse, lambda _: model)
    await language.load()
    return language


async def answer(language: TransformersLanguage, prompt: str, rank: Rank) -> str:
    messages = (Message("user", (TextPart(prompt),)),)
    request = ResponseRequest(instructions="", messages=messages)
    async with language.answer(prompt, request, lambda: rank) as pieces:
        return "".join([piece.text async for piece in pieces if isinstance(piece, TextPiece)])


async def waited_for(language: TransformersLanguage, rank: Rank, served: bool = False) -> None:
    """Return when somebody waits who should have the place of one with this rank."""
    with anyio.fail_after(PATIENCE_S):
        while not language._turnstile.outranked(rank, served):
            await anyio.lowlevel.checkpoint()


async def arrival(model: StandInModel) -> None:
    assert await anyio.to_thread.run_sync(model.arrived.wait, PATIENCE_S)


@pytest.mark.parametrize("held", [3, 24], ids=["in its prompt", "in its answer"])
async def test_the_batch_lane_makes_way_at_the_next_step_for_a_whole_answer(held: int) -> None:
    model = StandInModel(held)
    language = await loaded(model, Pulse())
    texts: dict[str, str] = {}

    async def ask(prompt: str, rank: Rank) -> None:
        texts[prompt[0]] = await answer(language, prompt, rank)

    async with anyio.create_task_group() as group:
        group.start_soon(ask, "b" * 20, Rank.BATCH)
        await arrival(model)
        group.start_soon(ask, "live", Rank.IDLE)
        await waited_for(language, Rank.BATCH)
        model.let_go.set()
    conversation = len("live") + WORDS + 1
    batch = 20 + WORDS + 1
    assert model.steps == ["b"] * held + ["l"] * conversation + ["b"] * (batch - held)
    # Nothing was lost by that, and nothing said twice.
    assert texts["b"] == texts["l"] == "".join(f" w{number + 1}" for number in range(WORDS))


async def test_equals_take_turns_in_bursts() -> None:
    model = StandInModel(1)
    language = await loaded(model, Pulse())
    async with anyio.create_task_group() as group:
        group.start_soon(answer, language, "one", Rank.FIRST)
        await arrival(model)
        group.start_soon(answer, language, "two", Rank.FIRST)
        await waited_for(language, Rank.FIRST, served=True)
        model.let_go.set()
    assert model.steps[: 2 * BURST] == ["o"] * BURST + ["t"] * BURST


async def test_the_batch_lane_stands_aside_while_a_conversation_uses_another_model() -> None:
    model, pulse = StandInModel(3), Pulse()
    language = await loaded(model, pulse)
    async with anyio.create_task_group() as group:
        with pulse.live.call():
            group.start_soon(answer, language, "before", Rank.BATCH)
            await anyio.wait_all_tasks_blocked()
            assert model.steps == []
        await arrival(model)
        with pulse.live.call():
            model.let_go.set()
            with anyio.fail_after(PATIENCE_S):
                while not language._turnstile.idle:
                    await anyio.lowlevel.checkpoint()
            assert len(model.steps) == 3
    assert len(model.steps) == len("before") + WORDS + 1
