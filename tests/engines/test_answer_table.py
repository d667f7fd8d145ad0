"""Answers of a model in this process, and the prompts it warms."""

import anyio
import pytest
from anyio.streams.memory import MemoryObjectSendStream

from duologue.engines.answer_table import PIECES_AHEAD, AnswerTable
from duologue.engines.engine import ResponseRequest
from duologue.engines.language import LanguageError, TextPiece
from duologue.engines.llama_output import Failed, Item
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

REQUEST = ResponseRequest(instructions="", messages=())


class Desk:
    """A table, and the uses of the model that it stopped."""

    def __init__(self) -> None:
        self.stopped: list[str] = []
        self.table: AnswerTable[str] = AnswerTable(self.stopped.append)
        self.made = 0

    async def count(self, send: MemoryObjectSendStream[Item]) -> None:
        """An answer without an end."""
        async with send:
            while True:
                await send.send("word ")
                self.made += 1

    async def warm(self) -> None:
        with self.table.warming("s", "warming"):
            await anyio.sleep_forever()


async def test_a_reader_that_takes_nothing_holds_the_model_up_and_leaving_ends_it() -> None:
    desk = Desk()
    async with desk.table.answering("s", "use", desk.count, (), REQUEST) as pieces:
        await anyio.wait_all_tasks_blocked()
        assert desk.made == PIECES_AHEAD
        assert await anext(aiter(pieces)) == TextPiece("word ")
        assert desk.table.answers("s") and not desk.table.answers("other")
    assert desk.stopped == ["use"]
    assert not desk.table.answers("s")


async def test_what_fails_in_the_model_is_raised_as_it_is() -> None:
    desk = Desk()

    async def fail(send: MemoryObjectSendStream[Item]) -> None:
        async with send:
            await send.send(Failed(LanguageError.of("engine_error", "words")))

    with pytest.raises(LanguageError, match="words"):
        async with desk.table.answering("s", "use", fail, (), REQUEST) as pieces:
            async for _ in pieces:
                pass
    assert (desk.stopped, desk.table.answers("s")) == (["use"], False)


@pytest.mark.parametrize("end", ["answer", "forget"])
async def test_an_answer_and_the_end_of_the_session_end_its_warming(end: str) -> None:
    desk = Desk()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(desk.warm)
            await anyio.wait_all_tasks_blocked()
            if end == "forget":
                desk.table.forget("s")
            else:
                async with desk.table.answering("s", "use", desk.count, (), REQUEST):
                    assert desk.stopped == ["warming"]
    assert set(desk.stopped) - {"use"} == {"warming"}


async def test_a_warming_leaves_alone_the_one_that_came_after_it() -> None:
    """The first is told to stop, and ends when the second is there."""
    desk = Desk()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(desk.warm)
            await anyio.wait_all_tasks_blocked()
            desk.table.stop_warming("s")
            with desk.table.warming("s", "second"):
                await anyio.wait_all_tasks_blocked()
                assert desk.stopped == ["warming", "warming"]
                desk.table.stop_warming("s")
    assert desk.stopped[2:] == ["second", "second"]


async def test_what_is_forgotten_twice_or_was_never_there_is_no_error() -> None:
    desk = Desk()
    desk.table.forget("s")
    desk.table.forget("s")
    desk.table.stop_warming("s")
    assert desk.stopped == []
