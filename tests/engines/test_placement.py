from contextlib import AsyncExitStack

import anyio
import pytest

from duologue.engines.engine import (
    EngineFull,
    EngineSpec,
    EngineStream,
    EngineUnavailable,
    Respond,
    ResponseEnded,
    ResponseRequest,
)
from duologue.engines.in_process import open_in_process
from duologue.engines.placement import PlacedEngine, by_queue, by_room
from duologue.engines.script import ScriptedOptions
from duologue.engines.scripted import ScriptedBackend
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


class Worker:
    """A replica that refuses as it is told, and notes who asked."""

    def __init__(self, name: str, capacity: int = 4, sessions: int = 0, ready: bool = True) -> None:
        self.name = name
        self.capacity = capacity
        self.sessions = sessions
        self.batch_sessions = 0
        self.ready = ready
        self.refusal: Exception = EngineUnavailable(1)
        self.asked: list[str] = []
        self.ready_event = anyio.Event()

    @property
    def spec(self) -> EngineSpec:
        if not self.ready:
            raise EngineUnavailable(1)
        return EngineSpec(model=self.name, voices=(), default_voice="", context_tokens=1)

    async def wait_ready(self) -> None:
        await self.ready_event.wait()

    async def open(self, session: str) -> EngineStream:
        self.asked.append(session)
        raise self.refusal

    async def open_batch(self, session: str) -> EngineStream:
        return await self.open(session)


async def test_the_one_with_the_most_free_places_comes_first() -> None:
    small = Worker("small", capacity=2)
    busy = Worker("busy", capacity=8, sessions=7)
    large = Worker("large", capacity=8, sessions=4)
    away = Worker("away", capacity=99, ready=False)
    assert by_room([small, busy, large, away]) == [large, small, busy]


async def test_sessions_are_spread_over_the_workers_and_stay_there() -> None:
    async with AsyncExitStack() as stack:
        backends = [ScriptedBackend(ScriptedOptions(capacity=2)) for _ in range(2)]
        engine = PlacedEngine(
            [await stack.enter_async_context(open_in_process(backend)) for backend in backends]
        )
        streams = [await engine.open(f"s{number}") for number in range(4)]
        assert [backend.performance.sessions for backend in backends] == [2, 2]
        assert (engine.capacity, engine.sessions) == (4, 4)
        with pytest.raises(EngineFull):
            await engine.open("one more")
        for stream in streams:
            await stream.aclose()
        assert engine.sessions == 0


async def test_all_that_a_session_asks_goes_to_the_worker_that_took_it() -> None:
    async with AsyncExitStack() as stack:
        backends = [ScriptedBackend() for _ in range(2)]
        replicas = [await stack.enter_async_context(open_in_process(one)) for one in backends]
        engine = PlacedEngine(replicas)
        streams = {f"s{number}": await engine.open(f"s{number}") for number in range(4)}
        request = ResponseRequest(instructions="", messages=(), modality="text")
        # One session after the other: taking turns among the workers would not come out even.
        for name, stream in streams.items():
            for generation in range(1, 5):
                stream.send(Respond(generation, request, session=name))
        for stream in streams.values():
            ends = 0
            with anyio.fail_after(PATIENCE_S):
                while ends < 4:
                    ends += isinstance(await stream.receive(), ResponseEnded)
        asked = [
            {command.session.partition("/")[0] for command in one.requests} for one in backends
        ]
        assert [len(names) for names in asked] == [2, 2]
        assert asked[0].isdisjoint(asked[1])
        for stream in streams.values():
            await stream.aclose()


async def test_a_full_one_is_passed_over_and_told_of_only_when_all_are() -> None:
    one, two = Worker("one"), Worker("two")
    one.refusal, two.refusal = EngineFull(7), EngineUnavailable(1)
    with pytest.raises(EngineFull) as raised:
        await PlacedEngine([one, two]).open("s")
    assert raised.value.retry_after == 7
    assert (one.asked, two.asked) == (["s"], ["s"])


async def test_without_a_ready_worker_the_engine_is_unavailable() -> None:
    engine = PlacedEngine([Worker("one", ready=False), Worker("two", ready=False)])
    assert not engine.ready
    with pytest.raises(EngineUnavailable):
        await engine.open("s")
    with pytest.raises(EngineUnavailable):
        _ = engine.spec


async def test_the_engine_is_ready_with_its_first_worker() -> None:
    one, two = Worker("one", ready=False), Worker("two", ready=False)
    engine = PlacedEngine([one, two])
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(engine.wait_ready)
            await anyio.wait_all_tasks_blocked()
            two.ready = True
            two.ready_event.set()
    assert engine.ready
    assert engine.spec.model == "two"


def test_an_engine_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="one replica"):
        PlacedEngine([])


async def test_the_one_with_room_soonest_says_when_to_come_again() -> None:
    slow, quick, away = Worker("slow"), Worker("quick"), Worker("away")
    slow.refusal, quick.refusal = EngineFull(9), EngineFull(3)
    for replicas in ([slow, quick, away], [away, quick, slow]):
        with pytest.raises(EngineFull) as caught:
            await PlacedEngine(replicas).open("s")
        assert caught.value.retry_after == 3


async def test_requests_go_where_the_fewest_wait() -> None:
    crowded, calm = Worker("crowded", capacity=99), Worker("calm", capacity=2)
    crowded.batch_sessions = 3
    assert by_queue([crowded, calm]) == [calm, crowded]
    calm.batch_sessions = 3
    assert by_queue([crowded, calm]) == [crowded, calm]
    assert PlacedEngine([crowded, calm]).batch_sessions == 6


async def test_requests_are_spread_over_the_batch_lanes_and_stay_there() -> None:
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(
                open_in_process(ScriptedBackend(ScriptedOptions(capacity=1)), batch_limit=1)
            )
            for _ in range(2)
        ]
        placed = PlacedEngine(engines)
        streams = [await placed.open_batch(f"s{number}") for number in range(2)]
        assert [engine.batch_sessions for engine in engines] == [1, 1]
        with pytest.raises(EngineFull):
            await placed.open_batch("more")
        # Conversations have places of their own.
        streams.append(await placed.open("live"))
        for stream in streams:
            await stream.aclose()
        assert placed.batch_sessions == placed.sessions == 0
