"""A stage's actor without Ray around it."""

from collections.abc import AsyncIterator
from itertools import permutations
from typing import Any

import anyio
import msgspec
import pytest

from duologue.engines.engine import CloseSession, ResponseEnded
from duologue.engines.pipeline.stage_graph import Kind
from duologue.engines.stage_messages import BeginStage, Clause, FeedStage, Spoken, StageGave
from duologue.engines.voice_backend import VoicesConfig
from tests.patience import PATIENCE_S

pytest.importorskip("ray", reason="needs duologue[cluster]")
ray_stage_impl = pytest.importorskip("duologue.engines.cluster.ray_stage_impl")

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore")]  # Ray's own

OUTPUTS = msgspec.msgpack.Decoder(list[ray_stage_impl.StageOutput | ResponseEnded])


@pytest.fixture
async def actor() -> AsyncIterator[Any]:
    """The voices."""
    options = msgspec.msgpack.encode(VoicesConfig(tone=True))
    actor = ray_stage_impl.StageActor("voices", options)
    async with anyio.create_task_group() as group:
        group.start_soon(actor.run)
        with anyio.fail_after(PATIENCE_S):
            await actor.describe()
        yield actor
        group.cancel_scope.cancel()


def clause(generation: int, text: str) -> FeedStage:
    items = (msgspec.msgpack.encode(Clause(text)),)
    return FeedStage(session="s", generation=generation, kind=Kind.CLAUSE.value, items=items)


async def test_commands_are_taken_in_the_order_in_which_they_were_given(actor: Any) -> None:
    assert await actor.open("s")
    outputs = actor.outputs("s")
    number = 0
    for generation, order in enumerate(permutations(range(4)), 1):
        commands = [
            BeginStage(session="s", generation=generation),
            clause(generation, "One."),
            clause(generation, "Two."),
            FeedStage(session="s", generation=generation, last=True),
        ]
        for at in order:
            await actor.tell("s", number + at, msgspec.msgpack.encode(commands[at]))
        number += len(commands)
        said: list[str] = []
        with anyio.fail_after(PATIENCE_S):
            while "end" not in said:
                for output in OUTPUTS.decode(await anext(outputs)):
                    if isinstance(output, StageGave):
                        said.append(msgspec.msgpack.decode(output.item, type=Spoken).text)
                    elif isinstance(output, ResponseEnded):
                        assert output.reason == "completed"
                        said.append("end")
        assert said == ["One.", "Two.", "end"], order


async def test_a_session_that_is_closed_takes_no_more_commands(actor: Any) -> None:
    assert await actor.open("s")
    await actor.tell("s", 1, msgspec.msgpack.encode(BeginStage(session="s", generation=1)))
    await actor.tell("s", 0, msgspec.msgpack.encode(CloseSession(session="s")))
    with anyio.fail_after(PATIENCE_S):
        assert [output async for output in actor.outputs("s")] == []
