from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from duologue.engines.batch_lane import BatchLane
from duologue.engines.engine import (
    CancelResponse,
    Command,
    Output,
    Respond,
    ResponseEnded,
    ResponseQueued,
    ResponseRequest,
)

pytestmark = pytest.mark.anyio

REQUEST = ResponseRequest(instructions="", messages=(), modality="text")


class Setting:
    """A lane that runs: what it said, and which answers it began."""

    def __init__(self, limit: int) -> None:
        self.said: list[Output] = []
        self.begun: list[str] = []
        self.lane = BatchLane(limit, 3.0, self.said.append)

    async def begin(self, command: Command) -> None:
        self.begun.append(command.session)

    async def ask(self, *sessions: str, generation: int = 1) -> None:
        for session in sessions:
            self.lane.admit(session)
            self.lane.respond(Respond(generation, REQUEST, session=session))
        await anyio.wait_all_tasks_blocked()

    def positions(self, session: str) -> list[int]:
        queued = [one for one in self.said if isinstance(one, ResponseQueued)]
        return [one.position for one in queued if one.session == session]


@asynccontextmanager
async def setting(width: int = 1, limit: int = 8) -> AsyncIterator[Setting]:
    made = Setting(limit)
    made.lane.open(width)
    async with anyio.create_task_group() as group:
        group.start_soon(made.lane.run, made.begin)
        yield made
        group.cancel_scope.cancel()


async def test_answers_begin_in_order_as_there_is_room_and_hear_their_position() -> None:
    async with setting() as at:
        await at.ask("a", "b", "c")
        assert at.begun == ["a"]
        at.lane.end("a")
        await anyio.wait_all_tasks_blocked()
        assert at.begun == ["a", "b"]
        assert [at.positions(session) for session in "abc"] == [[0], [1, 0], [2, 1]]


async def test_an_answer_that_waits_is_cancelled_at_once() -> None:
    async with setting() as at:
        await at.ask("a", "b", "c")
        assert at.lane.cancel(CancelResponse(1, session="b"))
        assert at.said[-1] == ResponseEnded(1, "cancelled", session="b")
        at.lane.end("a")
        await anyio.wait_all_tasks_blocked()
        assert at.begun == ["a", "c"]
        assert not at.lane.cancel(CancelResponse(1, session="b"))


async def test_one_that_runs_or_is_another_is_not_its_to_cancel() -> None:
    async with setting() as at:
        await at.ask("a", "b")
        assert not at.lane.cancel(CancelResponse(1, session="a"))
        assert not at.lane.cancel(CancelResponse(7, session="b"))
        assert not any(isinstance(one, ResponseEnded) for one in at.said)


async def test_a_session_that_closes_makes_room_wherever_it_was() -> None:
    async with setting() as at:
        await at.ask("a", "b", "c")
        at.lane.forget("b")
        at.lane.forget("a")
        at.lane.forget("nobody")
        await anyio.wait_all_tasks_blocked()
        assert at.begun == ["a", "c"]
        assert at.lane.taken == 1


async def test_it_is_full_at_its_limit_and_closed_without_a_width() -> None:
    async with setting(limit=2) as at:
        await at.ask("a")
        assert not at.lane.full
        await at.ask("b")
        assert at.lane.full
        assert at.lane.retry_after() == 3.0
    async with setting(width=0) as at:
        assert at.lane.full


async def test_a_second_answer_of_a_session_fails_while_the_first_is_under_way() -> None:
    async with setting() as at:
        await at.ask("a")
        at.lane.respond(Respond(2, REQUEST, session="a"))
        (ended,) = [one for one in at.said if isinstance(one, ResponseEnded)]
        assert (ended.generation, ended.reason) == (2, "failed")
        at.lane.end("a")
        at.lane.respond(Respond(3, REQUEST, session="a"))
        await anyio.wait_all_tasks_blocked()
        assert at.begun == ["a", "a"]
