"""One request through its stages: what is concurrent, what waits, what is left of it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from duologue.engines.pipeline.flow import Chunk, Flow, Outcome
from duologue.engines.pipeline.pipeline_run import (
    HomeOutlet,
    Inbox,
    InProcess,
    PipelineRun,
    RunKey,
    StageError,
    StageFatal,
)
from duologue.engines.pipeline.stage_graph import Companions, Edge, Graph, Kind, Stage
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

GRAPH = Graph(
    "two",
    (
        Stage(name="think", task="", takes=(Kind.PROMPT,), gives=(Kind.TOKENS, Kind.TEXT)),
        Stage(name="talk", task="", takes=(Kind.TOKENS,), gives=(Kind.SPEECH,)),
    ),
    (Edge(source="think", target="talk", kind=Kind.TOKENS, window=2),),
)
GUIDED = Graph("guided", GRAPH.stages, GRAPH.edges, Companions(join="talk"))
Work = Callable[[RunKey, Inbox, HomeOutlet], Any]


class Client:
    """What came out, and the request that it came out of."""

    def __init__(self, think: Work, talk: Work, graph: Graph = GRAPH, **fields: Any) -> None:
        self.delivered: list[tuple[str, object]] = []
        self.now = 0.0
        self.run = PipelineRun(
            RunKey("s", 1),
            Flow(graph, **fields),
            {"think": InProcess(think), "talk": InProcess(talk)},
            lambda stage, kind, item: self.delivered.append((stage, item)),
            lambda: self.now,
        )

    async def outcome(self, **items: object) -> Outcome:
        with anyio.fail_after(PATIENCE_S):
            return await self.run.run(items or {"": "request"})


@asynccontextmanager
async def under_way(client: Client) -> AsyncIterator[list[Outcome]]:
    found: list[Outcome] = []

    async def run() -> None:
        found.append(await client.outcome())

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await anyio.wait_all_tasks_blocked()
            yield found


async def three_tokens(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
    async for _ in inbox:
        for number in range(3):
            await outlet.put(Kind.TOKENS, number)


async def say(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
    async for chunk in inbox:
        await outlet.put(Kind.SPEECH, chunk.items)


async def test_a_request_goes_through_its_stages_to_one_end() -> None:
    client = Client(three_tokens, say)
    assert await client.outcome() == Outcome("completed")
    assert client.delivered == [("talk", (0,)), ("talk", (1,)), ("talk", (2,))]
    assert client.run.over and not client.run.late


async def test_a_stage_works_while_the_one_before_it_goes_on() -> None:
    heard = anyio.Event()

    async def think(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        async for _ in inbox:
            await outlet.put(Kind.TOKENS, 0)
            await heard.wait()

    async def talk(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        async for _ in inbox:
            heard.set()

    assert (await Client(think, talk).outcome()).reason == "completed"


async def test_a_stage_that_waits_for_all_of_another_runs_behind_it_in_its_task() -> None:
    (edge,) = GRAPH.edges
    order: list[tuple[str, int]] = []

    async def think(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        await three_tokens(key, inbox, outlet)
        order.append(("think", anyio.get_current_task().id))

    async def talk(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        order.append(("talk", anyio.get_current_task().id))
        await say(key, inbox, outlet)

    whole = Graph("whole", GRAPH.stages, (replace(edge, streamed=False),))
    client = Client(think, talk, whole)
    assert await client.outcome() == Outcome("completed")
    assert [name for name, _ in order] == ["think", "talk"]
    assert order[0][1] == order[1][1]
    assert client.delivered


async def test_a_stage_behind_one_that_failed_does_not_begin() -> None:
    (edge,) = GRAPH.edges

    async def think(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        raise StageError.of("engine_error", "no")

    async def talk(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        raise AssertionError("it has begun")

    whole = Graph("whole", GRAPH.stages, (replace(edge, streamed=False),))
    outcome = await Client(think, talk, whole).outcome()
    assert outcome.failure is not None and outcome.failure.message == "no"


async def test_a_request_that_is_cancelled_before_it_runs_begins_nothing() -> None:
    async def begun(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        raise AssertionError("it has begun")

    client = Client(begun, begun)
    client.run.cancel()
    assert await client.outcome() == Outcome("cancelled")
    assert client.run.over


async def test_a_source_waits_for_the_window_and_goes_on_with_it() -> None:
    made: list[int] = []
    gate = anyio.Semaphore(0)

    async def think(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        async for _ in inbox:
            for number in range(6):
                await outlet.put(Kind.TOKENS, number)
                made.append(number)

    async def talk(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        async for _ in inbox:
            await gate.acquire()

    async with under_way(Client(think, talk)) as found:
        assert made == [0, 1, 2]  # one in hand, two in the window
        gate.release()
        await anyio.wait_all_tasks_blocked()
        assert made == [0, 1, 2, 3]
        for _ in range(5):
            gate.release()
    assert found == [Outcome("completed")]


async def test_a_stage_that_is_held_waits() -> None:
    client = Client(three_tokens, say)
    client.run.hold("talk", True)
    async with under_way(client) as found:
        assert client.delivered == []
        client.run.hold("talk", False)
    assert len(client.delivered) == 3
    assert found == [Outcome("completed")]


async def test_settled_means_that_nothing_is_under_way_behind_a_stage() -> None:
    order: list[str] = []

    async def think(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        async for _ in inbox:
            await outlet.put(Kind.TOKENS, 0)
            await outlet.settled()
            order.append("settled")

    async def talk(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        async for _ in inbox:
            await anyio.wait_all_tasks_blocked()
            order.append("said")

    await Client(think, talk).outcome()
    assert order == ["said", "settled"]


async def test_a_cancel_stops_all_stages() -> None:
    stopped: list[str] = []

    def sleeper(name: str) -> Work:
        async def work(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
            try:
                await anyio.sleep_forever()
            finally:
                stopped.append(name)
                assert inbox.stopped

        return work

    client = Client(sleeper("think"), sleeper("talk"))
    async with under_way(client) as found:
        client.run.cancel()
    assert found == [Outcome("cancelled")]
    assert sorted(stopped) == ["talk", "think"]


async def test_a_task_that_is_cancelled_leaves_no_stage_at_work() -> None:
    stopped: list[bool] = []

    async def think(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append(inbox.stopped)

    client = Client(think, say)
    async with anyio.create_task_group() as group:
        group.start_soon(client.outcome)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert client.run.over
    assert stopped == [True]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (StageError.of("engine_overloaded", "No room."), "engine_overloaded", "No room."),
        (ValueError("secret"), "engine_error", "The engine failed on this answer."),
    ],
)
async def test_a_stage_that_fails_fails_the_request_alone(
    error: Exception, code: str, message: str
) -> None:
    async def talk(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        async for _ in inbox:
            raise error

    outcome = await Client(three_tokens, talk).outcome()
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.message) == (code, message)


async def test_a_stage_that_is_broken_ends_the_process_after_its_request_has_been_ended() -> None:
    async def talk(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        raise StageFatal("the device is gone")

    client = Client(three_tokens, talk)
    with pytest.raises(StageFatal, match="stage talk: the device is gone"):
        await client.outcome()
    assert client.run.over


async def test_what_comes_after_a_stage_s_end_fails_the_request() -> None:
    kept: list[HomeOutlet] = []

    async def think(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        kept.append(outlet)

    async def talk(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        await anyio.sleep_forever()

    client = Client(think, talk)
    async with under_way(client) as found:
        kept[0].put_late(Kind.TOKENS, "late")
    assert found[0].reason == "failed"
    assert client.run.late == 1


async def test_a_stage_has_its_time() -> None:
    async def talk(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        await anyio.sleep_forever()

    client = Client(three_tokens, talk, answer_s={"talk": 0.0})
    outcome = await client.outcome()
    assert outcome.failure is not None
    assert outcome.failure.message == "The stage talk did not answer within 0 s."


async def test_a_companion_runs_beside_its_request_and_is_joined() -> None:
    async def think(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        async for chunk in inbox:
            await outlet.put(Kind.TEXT, f"{inbox.branch} heard {chunk.items[0]}")
            for number in range(2):
                await outlet.put(Kind.TOKENS, number + (10 if inbox.branch == "negative" else 0))

    async def talk(key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        async for chunk in inbox:
            plus, minus = (chunk.branches[name][0] for name in ("positive", "negative"))
            await outlet.put(Kind.SPEECH, (plus, minus))

    client = Client(think, talk, GUIDED, guided=True)
    assert await client.outcome(positive="a cat", negative="") == Outcome("completed")
    assert client.delivered == [
        ("think", "positive heard a cat"),
        ("talk", (0, 10)),
        ("talk", (1, 11)),
    ]


async def test_what_a_stage_gets_can_be_completed_when_it_gets_it() -> None:
    delivered: list[object] = []
    count = 0

    def number_it(stage: str, chunk: Chunk) -> Chunk:
        nonlocal count
        count += 1
        return Chunk(chunk.kind, (*chunk.items, count))

    run = PipelineRun(
        RunKey("s", 1),
        Flow(GRAPH),
        {"think": InProcess(three_tokens), "talk": InProcess(say)},
        lambda stage, kind, item: delivered.append(item),
        lambda: 0.0,
        number_it,
    )
    with anyio.fail_after(PATIENCE_S):
        await run.run({"": "request"})
    assert delivered == [(0, 2), (1, 3), (2, 4)]
