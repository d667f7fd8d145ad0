from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import pytest

from duologue.engines.batch_session import BatchSession
from duologue.engines.engine import (
    CancelResponse,
    DropUtterance,
    EngineFailure,
    Output,
    Respond,
    ResponseEnded,
    ResponseRequest,
    TextGenerated,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallStarted,
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
from duologue.engines.stand_ins import StandInLanguage
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

END = Finished("completed", Usage(input_tokens=5, output_tokens=2))
Pieces = Sequence[Generated | Exception | anyio.Event]


class Setting:
    def __init__(self, language: StandInLanguage, session: BatchSession) -> None:
        self.language = language
        self.session = session
        self.said: list[Output] = []

    async def ask(self, pieces: Pieces, stop: tuple[str, ...] = ()) -> list[Output]:
        self.language.answers.append(pieces)
        request = ResponseRequest(instructions="", messages=(), modality="text", stop=stop)
        self.session.take(Respond(1, request, session="s"))
        await anyio.wait_all_tasks_blocked()
        return self.said

    def ending(self) -> ResponseEnded:
        (ended,) = [one for one in self.said if isinstance(one, ResponseEnded)]
        assert self.said[-1] is ended
        return ended

    @property
    def text(self) -> str:
        return "".join(one.text for one in self.said if isinstance(one, TextGenerated))


@asynccontextmanager
async def setting() -> AsyncIterator[Setting]:
    language = StandInLanguage()
    session = BatchSession("s", language, lambda output: at.said.append(output))
    at = Setting(language, session)
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as group:
            await group.start(session.live)
            yield at
            session.close()
    assert language.forgotten == ["s"]


async def test_an_answer_is_text_of_the_lowest_rank_with_one_end() -> None:
    async with setting() as at:
        await at.ask([Began(5, 1), TextPiece("Hel"), TextPiece("lo."), END])
        assert at.text == "Hello."
        assert at.ending() == ResponseEnded(1, "completed", usage=END.usage, session="s")
        assert set(at.language.ranks) == {Rank.BATCH}


async def test_a_stop_text_ends_it_and_leaves_the_model() -> None:
    async with setting() as at:
        await at.ask(
            [Began(5, 1), TextPiece("one ST"), TextPiece("OP two"), TextPiece("three"), END],
            ("STOP",),
        )
        assert at.text == "one "
        assert (at.ending().reason, at.language.left) == ("completed", 1)
        assert TextPiece("three") not in at.language.read
        assert at.ending().usage == Usage(input_tokens=5, cached_tokens=1, output_tokens=2)


async def test_what_was_held_back_comes_before_the_end_and_before_a_call() -> None:
    async with setting() as at:
        call: Pieces = [CallStarted("c", "f"), CallDelta("c", "{}"), CallEnded("c", "{}")]
        await at.ask([TextPiece("a S"), *call, TextPiece("b S"), END], ("STOP",))
        kinds = [TextGenerated, TextGenerated, ToolCallStarted, ToolCallDelta, ToolCallEnded]
        assert [type(one) for one in at.said] == [
            *kinds,
            TextGenerated,
            TextGenerated,
            ResponseEnded,
        ]
        assert at.text == "a Sb S"


async def test_a_cancelled_answer_has_ended_at_once_and_says_no_more() -> None:
    async with setting() as at:
        await at.ask([TextPiece("a"), anyio.Event(), TextPiece("b"), END])
        at.session.take(CancelResponse(1, session="s"))
        assert at.ending().reason == "cancelled"
        await anyio.wait_all_tasks_blocked()
        assert at.language.left == 1
        at.session.take(CancelResponse(1, session="s"))
        assert at.ending().reason == "cancelled"


async def test_a_failure_is_told_apart_from_a_cancel() -> None:
    async with setting() as at:
        await at.ask([TextPiece("a"), LanguageError.of("upstream_error", "It is away.")])
        assert at.ending().reason == "failed"
        assert at.ending().failure == EngineFailure("upstream_error", "It is away.")


async def test_what_we_got_wrong_tells_nothing_of_our_insides() -> None:
    async with setting() as at:
        await at.ask([RuntimeError("secret")])
        failure = at.ending().failure
        assert failure is not None
        assert (failure.code, "secret" in failure.message) == ("engine_error", False)


async def test_a_closed_session_says_nothing_and_stops_the_model() -> None:
    async with setting() as at:
        await at.ask([TextPiece("a"), anyio.Event(), END])
        at.session.close()
        await anyio.wait_all_tasks_blocked()
        assert at.language.left == 1
        assert [type(one) for one in at.said] == [TextGenerated]


async def test_a_conversations_commands_mean_nothing_here() -> None:
    async with setting() as at:
        at.session.take(DropUtterance("u", session="s"))
        assert at.said == []


async def test_an_answer_that_just_stops_is_complete() -> None:
    async with setting() as at:
        await at.ask([TextPiece("a")])
        assert at.ending().reason == "completed"
