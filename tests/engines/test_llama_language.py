"""The language stage on a stand-in for llama.cpp: slots, slices, pauses, turns, cancellation."""

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from duologue.engines.answer_table import PIECES_AHEAD
from duologue.engines.engine import Message, ResponseRequest, TextPart, Tool
from duologue.engines.fairness import Rank
from duologue.engines.language import (
    Began,
    CallEnded,
    Finished,
    Generated,
    LanguageError,
    TextPiece,
)
from duologue.engines.llama_impl import Completed, Completion, LlamaError, OnStep
from duologue.engines.llama_language import BURST, LlamaLanguage
from duologue.engines.llama_prompts import LlamaStage
from duologue.engines.pulse import Pulse
from duologue.engines.stand_ins import StandInCompleter
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def loaded(
    completer: StandInCompleter, pulse: Pulse | None = None, **options: Any
) -> AsyncIterator[LlamaLanguage]:
    options = {"slots": 2, "context": 400, "max_new_tokens": 100, **options}
    stage = LlamaStage(path="/models/qwen-test.gguf", **options)
    language = LlamaLanguage(stage, pulse or Pulse(), lambda _: completer)
    await language.load()
    try:
        with anyio.fail_after(PATIENCE_S):
            yield language
    finally:
        completer.gate.open()
        await language.aclose()
    assert completer.closed


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def asked(*texts: str, **fields: Any) -> ResponseRequest:
    roles = ("user", "assistant")
    messages = tuple(
        Message(roles[index % 2], (TextPart(text),))  # type: ignore[arg-type]
        for index, text in enumerate(texts)
    )
    return ResponseRequest(instructions="Be kind.", messages=messages, **fields)


async def answer(
    language: LlamaLanguage,
    request: ResponseRequest,
    session: str = "a",
    rank: Callable[[], Rank] = lambda: Rank.FIRST,
) -> list[Generated]:
    async with language.answer(session, request, rank) as pieces:
        return [piece async for piece in pieces]


def said(pieces: list[Generated]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


def ending(pieces: list[Generated]) -> Finished:
    assert isinstance(pieces[-1], Finished)
    return pieces[-1]


async def arrive(completer: StandInCompleter, times: int = 1) -> None:
    """Wait until the model has come to its gate so often."""
    for _ in range(times):
        await anyio.to_thread.run_sync(completer.gate.arrived.acquire)


async def test_an_answer_streams_and_counts_its_tokens() -> None:
    completer = StandInCompleter()
    completer.answers = ["Hello to you too."]
    async with loaded(completer) as language:
        pieces = await answer(language, asked("hello"))
    assert said(pieces) == " Hello to you too."
    assert isinstance(pieces[0], Began)
    usage = ending(pieces).usage
    assert pieces[0].input_tokens == usage.input_tokens > 5
    assert (usage.cached_tokens, usage.output_tokens) == (0, 4)
    assert ending(pieces).reason == "completed"


async def test_the_second_turn_evaluates_only_what_is_new() -> None:
    completer = StandInCompleter()
    completer.answers = ["one two three", "four five"]
    async with loaded(completer) as language:
        await answer(language, asked("hello"))
        before = completer.evaluated
        pieces = await answer(language, asked("hello", "one two three", "and then"))
    new = completer.evaluated - before
    # The mark that closes the answer, those around the question, and the question.
    assert new == 6
    usage = ending(pieces).usage
    assert usage.cached_tokens == usage.input_tokens - new


async def test_sessions_keep_to_their_own_slots() -> None:
    completer = StandInCompleter()
    completer.answers = ["one"] * 4
    async with loaded(completer) as language:
        for turn in range(2):
            for session in ("a", "b"):
                await answer(language, asked(f"{session} {turn}"), session)
    assert [completion.slot for completion in completer.completions] == [0, 1, 0, 1]


async def test_an_answer_that_is_left_stops_the_model_and_frees_its_slot() -> None:
    completer = StandInCompleter()
    completer.answers = ["one two three four", "again"]
    async with loaded(completer, slots=1) as language:
        async with language.answer("a", asked("hello"), lambda: Rank.FIRST) as pieces:
            async for piece in pieces:
                if isinstance(piece, TextPiece):
                    completer.gate.close()
                    break
            completer.gate.open()
        completer.answers = ["again"]
        assert said(await answer(language, asked("hello"))) == " again"


async def test_a_prompt_is_given_up_in_the_middle_of_its_evaluation() -> None:
    completer = StandInCompleter(batch=4)
    completer.gate.close()
    async with loaded(completer, slots=1) as language:
        async with anyio.create_task_group() as group:
            group.start_soon(answer, language, asked("word " * 100))
            await arrive(completer)
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.wait_all_tasks_blocked()
                completer.gate.open()
        assert completer.evaluated <= 4
        completer.answers = ["fine"]
        assert said(await answer(language, asked("hello"))) == " fine"


async def test_a_long_prompt_makes_way_for_a_more_urgent_one() -> None:
    completer = StandInCompleter(batch=8)
    completer.answers = ["short", "long"]
    completer.gate.close()
    done: list[str] = []

    async def ask(session: str, text: str, rank: Rank) -> None:
        await answer(language, asked(text), session, lambda: rank)
        done.append(session)

    async with loaded(completer) as language, anyio.create_task_group() as group:
        group.start_soon(ask, "long", "word " * 150, Rank.DRAFT_FIRST)
        await arrive(completer)
        group.start_soon(ask, "short", "hi", Rank.FIRST)
        await anyio.wait_all_tasks_blocked()
        completer.gate.open()
    assert done == ["short", "long"]
    # What the long one had evaluated before it made way was not evaluated again.
    total = sum(len(tokens) for tokens in completer._slots.values())
    assert completer.evaluated <= total


async def test_equals_take_turns_in_bursts() -> None:
    completer = StandInCompleter()
    words = " ".join(f"w{n}" for n in range(3 * BURST))
    completer.gate.close()
    order: list[str] = []

    async def ask(session: str) -> None:
        nonlocal order
        async with language.answer(session, asked("go"), lambda: Rank.LATER) as pieces:
            async for piece in pieces:
                order += [session] * isinstance(piece, TextPiece)

    async with loaded(completer) as language, anyio.create_task_group() as group:
        completer.answers = [words, words]
        for session in ("a", "b"):
            group.start_soon(ask, session)
        await arrive(completer)
        await anyio.wait_all_tasks_blocked()
        completer.gate.open()
    assert order.count("a") == order.count("b") == 3 * BURST
    changes = sum(one != other for one, other in zip(order, order[1:], strict=False))
    assert changes >= 3


async def test_a_reader_that_is_slow_stops_the_model_and_misses_nothing() -> None:
    completer = StandInCompleter()
    words = " ".join(f"w{n}" for n in range(PIECES_AHEAD + 20))
    completer.answers = [words]
    async with loaded(completer) as language:
        async with language.answer("a", asked("go"), lambda: Rank.FIRST) as pieces:
            await anyio.wait_all_tasks_blocked()
            while len(completer.completions) < 1 or not language._turnstile.idle:
                await anyio.lowlevel.checkpoint()
            assert len(completer._slots[0]) - completer.evaluated == PIECES_AHEAD
            read = [piece async for piece in pieces]
    assert said(read).split() == words.split()
    assert len(completer.completions) == 2
    assert ending(read).usage.output_tokens == PIECES_AHEAD + 20


async def test_the_bound_on_tokens_is_kept() -> None:
    completer = StandInCompleter()
    completer.answers = ["one two three four five"]
    async with loaded(completer) as language:
        pieces = await answer(language, asked("go", max_output_tokens=3))
    assert said(pieces) == " one two three"
    assert ending(pieces).reason == "max_output_tokens"
    assert ending(pieces).usage.output_tokens == 3


async def test_an_empty_answer_is_complete() -> None:
    completer = StandInCompleter()
    completer.answers = [""]
    async with loaded(completer) as language:
        pieces = await answer(language, asked("go"))
    assert [type(piece) for piece in pieces] == [Finished]
    assert ending(pieces).usage.input_tokens > 0


async def test_a_call_in_the_text_becomes_a_call() -> None:
    completer = StandInCompleter()
    completer.answers = ['{"name": "look", "arguments": {"at": "me"}}']
    async with loaded(completer) as language:
        pieces = await answer(language, asked("go", tools=(Tool("look"),)))
    (call,) = (piece for piece in pieces if isinstance(piece, CallEnded))
    assert call.call_id.startswith("call_")


async def test_a_forced_call_is_generated_by_its_schema_without_a_pause() -> None:
    completer = StandInCompleter()
    completer.answers = ['{"name": "look", "arguments": {}}']
    async with loaded(completer) as language:
        await answer(language, asked("go", tools=(Tool("look"),), tool_choice="required"))
    assert completer.completions[0].schema is not None


async def test_too_long_a_message_and_a_broken_model_are_told_apart() -> None:
    completer = StandInCompleter()
    async with loaded(completer) as language:
        with pytest.raises(LanguageError) as caught:
            await answer(language, asked("word " * 900))
        assert caught.value.failure.code == "context_too_long"

        def fail(*_: object) -> Any:
            raise LlamaError("out of memory")

        completer.complete = fail  # type: ignore[method-assign]
        with pytest.raises(LanguageError, match="out of memory") as caught:
            await answer(language, asked("hello"))
        assert caught.value.failure.code == "engine_error"


async def test_warming_evaluates_the_beginning_once() -> None:
    completer = StandInCompleter()
    completer.answers = ["hello"]
    async with loaded(completer) as language:
        await language.warm("a", asked())
        warmed = completer.evaluated
        assert warmed > 3
        await language.warm("a", asked())
        assert completer.evaluated == warmed
        pieces = await answer(language, asked("hi"))
        assert ending(pieces).usage.cached_tokens == warmed
        # To warm less than the slot holds would cost it the rest.
        await language.warm("a", asked())
    assert len(completer.completions) == 2


async def test_warming_follows_the_words_of_an_utterance() -> None:
    completer = StandInCompleter()
    completer.answers = ["fine"]
    async with loaded(completer) as language:
        for words in ("tell me", "tell me about the", "tell me about the sea"):
            await language.warm("a", asked(words))
        before = completer.evaluated
        await answer(language, asked("tell me about the sea"))
    # The closing mark and the opening one: nothing of the words.
    assert completer.evaluated - before == 2


async def test_an_answer_stops_the_warming_of_its_session() -> None:
    completer = StandInCompleter(batch=4)
    completer.gate.close()
    completer.answers = ["hello"]
    async with loaded(completer) as language, anyio.create_task_group() as group:
        group.start_soon(language.warm, "a", asked("word " * 100))
        await arrive(completer)
        group.start_soon(answer, language, asked("hi"))
        await anyio.wait_all_tasks_blocked()
        completer.gate.open()
    assert completer.evaluated < 60


async def test_nothing_is_warmed_beside_an_answer_of_the_same_session() -> None:
    completer = StandInCompleter()
    completer.gate.close()
    completer.answers = ["hello"]
    async with loaded(completer) as language, anyio.create_task_group() as group:
        group.start_soon(answer, language, asked("hi"))
        await arrive(completer)
        await language.warm("a", asked("hi there"))
        completer.gate.open()
    assert len(completer.completions) == 1


async def test_a_prompt_that_cannot_be_warmed_is_no_failure() -> None:
    completer = StandInCompleter()
    async with loaded(completer) as language:
        await language.warm("a", asked("word " * 900))
    assert completer.completions == []


async def test_a_history_without_its_beginning_is_moved_rather_than_evaluated() -> None:
    completer = StandInCompleter()
    completer.answers = ["x"] * 3
    async with loaded(completer) as language:
        await answer(language, asked("one", "two", "three", "four", "five"))
        await answer(language, asked("three", "four", "five", "six", "seven"))
        await answer(language, asked("three", "four", "five", "six", "seven", "eight", "nine"))
    assert [completion.reuse for completion in completer.completions] == [False, True, False]


async def test_other_instructions_are_never_mixed_with_what_was_evaluated_under_the_old() -> None:
    completer = StandInCompleter()
    completer.answers = ["x"] * 2
    async with loaded(completer) as language:
        await answer(language, asked("one", "two", "three"))
        changed = ResponseRequest(instructions="Be rude.", messages=asked("three").messages)
        await answer(language, changed)
    assert not completer.completions[1].reuse


async def test_every_step_of_the_model_beats_the_pulse() -> None:
    pulse = Pulse()
    completer = StandInCompleter(batch=2)
    completer.answers = ["one two three"]
    async with loaded(completer, pulse) as language:
        await answer(language, asked("some more words to evaluate"))
    assert pulse.reading(0).steps > 6
    assert pulse.reading(10**18).running_s == 0.0


async def test_a_closed_session_is_forgotten_but_its_slot_may_serve_another() -> None:
    completer = StandInCompleter()
    completer.answers = ["x"] * 2
    async with loaded(completer) as language:
        await answer(language, asked("one"), "a")
        language.forget("a")
        pieces = await answer(language, asked("one"), "b")
    assert [completion.slot for completion in completer.completions] == [0, 0]
    assert ending(pieces).usage.cached_tokens > 0


async def test_it_says_what_it_is() -> None:
    async with loaded(StandInCompleter(), context=300) as language:
        assert (language.model, language.context_tokens) == ("qwen-test", 300)
        assert not language.sees
        assert not language.remote


# -- the batch lane -------------------------------------------------------------------------


def batch() -> Rank:
    return Rank.BATCH


async def test_the_batch_lane_makes_way_at_the_next_step_and_goes_on_where_it_was() -> None:
    completer = StandInCompleter()
    words = " ".join(f"w{n}" for n in range(BURST - 2))
    completer.answers = [words, words]
    done: list[str] = []
    texts: dict[str, str] = {}

    async def ask(session: str, rank: Rank) -> None:
        texts[session] = said(await answer(language, asked("go"), session, lambda: rank))
        done.append(session)

    async with loaded(completer) as language, anyio.create_task_group() as group:
        async with language.answer("request", asked("go"), batch) as pieces:
            assert isinstance(await anext(pieces), Began)
            first = await anext(pieces)
            assert isinstance(first, TextPiece)
            # It is in the middle of what an equal would not interrupt.
            completer.gate.close()
            await arrive(completer)
            group.start_soon(ask, "live", Rank.IDLE)
            await anyio.wait_all_tasks_blocked()
            completer.gate.open()
            rest = [piece async for piece in pieces]
            assert done == ["live"]
    assert texts["live"].split() == (first.text + said(rest)).split() == words.split()
    # Its slot is its own, and its prompt was evaluated once.
    slots = [completion.slot for completion in completer.completions]
    assert slots == [2, 0, 2]
    assert ending(rest).usage.output_tokens == BURST - 2


class PausingCompleter(StandInCompleter):
    """Closes its gate after the first word that it generates."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = threading.Event()

    def complete(self, completion: Completion, on_step: OnStep) -> Completed:
        def step(text: str, evaluated: int) -> bool:
            if text and not self.paused.is_set():
                self.gate.close()
                self.paused.set()
            return on_step(text, evaluated)

        return super().complete(completion, step)


async def test_a_forced_call_of_the_batch_lane_makes_way_and_begins_anew() -> None:
    completer = PausingCompleter()
    completer.answers = ['<tool_call> {"name": "look", "arguments": {}} </tool_call>'] * 2
    done: list[str] = []
    got: dict[str, list[Generated]] = {}

    async def ask(session: str, rank: Rank) -> None:
        request = asked("go", tools=(Tool("look"),), tool_choice="required")
        got[session] = await answer(language, request, session, lambda: rank)
        done.append(session)

    async with loaded(completer) as language, anyio.create_task_group() as group:
        group.start_soon(ask, "request", Rank.BATCH)
        await anyio.to_thread.run_sync(completer.paused.wait)
        group.start_soon(ask, "live", Rank.LATER)
        await anyio.wait_all_tasks_blocked()
        completer.gate.open()
    assert done == ["live", "request"]
    first, live, second = completer.completions
    assert (first, live.slot) == (second, 0)
    for pieces in got.values():
        assert sum(isinstance(piece, CallEnded) for piece in pieces) == 1
        assert ending(pieces).usage.output_tokens == 6


async def test_the_batch_lane_stands_aside_while_a_conversation_uses_another_model() -> None:
    completer, pulse = StandInCompleter(), Pulse()
    completer.answers = ["one two three"]
    pieces: list[Generated] = []

    async def ask() -> None:
        nonlocal pieces
        pieces = await answer(language, asked("go"), "request", batch)

    async with loaded(completer, pulse) as language, anyio.create_task_group() as group:
        with pulse.live.call():
            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert completer.completions == []
            completer.gate.close()
        await arrive(completer)
        with pulse.live.call():
            completer.gate.open()
            while not language._turnstile.idle:
                await anyio.lowlevel.checkpoint()
            assert pieces == []
    assert said(pieces) == " one two three"
    assert len(completer.completions) == 2


async def test_a_conversation_stands_aside_for_nothing() -> None:
    completer, pulse = StandInCompleter(), Pulse()
    completer.answers = ["one"]
    async with loaded(completer, pulse) as language:
        with pulse.live.call():
            assert said(await answer(language, asked("go"), "live", lambda: Rank.IDLE)) == " one"
