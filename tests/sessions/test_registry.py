"""Who may come in, who must go, and how the process empties."""

import gc
import weakref

import anyio
import anyio.lowlevel
import pytest

from duologue.engines import engine
from duologue.sessions import effects, registry
from duologue.sessions.events import CreateResponse, ResponseParams
from duologue.sessions.headcount import ROW_BYTES, Headcount
from duologue.sessions.registry import Draining, SessionsFull, new_id
from duologue.sessions.session_config import SessionConfig
from tests.patience import PATIENCE_S
from tests.sessions.conftest import Wire, quiet

pytestmark = pytest.mark.anyio


def test_ids_can_not_be_guessed_and_show_what_they_name():
    made = {new_id("item") for _ in range(1000)}
    assert len(made) == 1000
    assert all(one.startswith("item_") and len(one) == 25 for one in made)


# -- coming in ------------------------------------------------------------------------------


async def test_a_session_holds_a_place_here_and_on_the_engine(house):
    async with house() as home:
        conversation, _, place = await home.visit()
        assert home.registry.active == 1
        assert home.deployment.taken == 1
        assert place.session == conversation.id
        assert home.registry.engine is home.deployment


async def test_beyond_the_limit_nobody_comes_in(house):
    async with house(max_sessions=2) as home:
        await home.visit()
        _, wire, _ = await home.visit()
        with pytest.raises(SessionsFull) as refused:
            await home.registry.open(SessionConfig())
        assert refused.value.retry_after > 0
        assert home.deployment.taken == 2
        wire.hang_up()
        await quiet()
        await home.visit()
        assert home.registry.active == 2


async def test_sessions_of_other_processes_count(house):
    async with house(max_sessions=2) as home:
        board = bytearray(2 * ROW_BYTES)
        home.registry.headcount, beside = Headcount(board, 0), Headcount(board, 1)
        beside.enter()
        await home.visit()
        assert beside.others == 1
        with pytest.raises(SessionsFull):
            await home.registry.open(SessionConfig())
        beside.leave()
        _, wire, _ = await home.visit()
        wire.hang_up()
        await quiet()
        assert beside.others == 1


async def test_who_is_still_coming_in_counts(house):
    async with house(max_sessions=1) as home:
        home.deployment.gate = anyio.Event()
        home.tasks.start_soon(home.registry.open, SessionConfig())
        await quiet()
        with pytest.raises(SessionsFull):
            await home.registry.open(SessionConfig())
        home.deployment.gate.set()
        await quiet()
        assert home.registry.active == 1


@pytest.mark.parametrize("refusal", [engine.EngineFull(3.0), engine.EngineUnavailable(3.0)])
async def test_an_engine_that_refuses_is_heard_and_no_place_is_lost(house, refusal):
    async with house(max_sessions=1) as home:
        home.deployment.answers = [refusal]
        with pytest.raises(type(refusal)):
            await home.registry.open(SessionConfig())
        assert home.registry.active == 0
        await home.visit()


@pytest.mark.parametrize("steps", range(5))
async def test_who_gives_up_at_any_await_leaves_nothing_on_the_engine(house, steps):
    async with house(max_sessions=1, idle_timeout=0.0) as home:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(home.registry.open, SessionConfig())
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
        await quiet()
        assert home.registry.active == 0
        assert home.deployment.taken == 0
        await home.registry.open(SessionConfig())


# -- leaving --------------------------------------------------------------------------------


async def test_a_thousand_visits_leave_nothing(house):
    async with house(max_sessions=3) as home:
        remembered = []
        for _ in range(1000):
            conversation, wire, place = await home.visit()
            remembered.append(weakref.ref(conversation))
            wire.hang_up()
            await quiet()
            assert place.closed
        assert home.registry.active == 0
        assert home.deployment.taken == 0
        del conversation, wire, place
        home.deployment.places.clear()
        with anyio.fail_after(PATIENCE_S):
            while any(one() is not None for one in remembered):
                await quiet()  # the last one may be on its way out
                gc.collect()
        assert len(anyio.get_running_tasks()) <= 4


async def test_a_place_that_was_kept_is_given_back_by_the_reaper(house, monkeypatch):
    monkeypatch.setattr(registry, "REAP_INTERVAL", 0.001)
    async with house(max_sessions=1) as home:
        _, wire, place = await home.visit()
        home.deployment.refusals = [engine.EngineError("no") for _ in range(3)]
        wire.hang_up()
        with anyio.fail_after(PATIENCE_S):
            while home.registry.active:
                with pytest.raises(SessionsFull):
                    await home.registry.open(SessionConfig())
                await quiet()
        assert place.closed
        assert home.deployment.refusals == []
        await home.visit()


# -- emptying -------------------------------------------------------------------------------


async def test_leaving_ends_every_session_with_the_code_for_a_restart(house):
    async with house() as home:
        visits = [await home.visit() for _ in range(3)]
    assert [wire.closed[0] for _, wire, _ in visits] == [1012, 1012, 1012]
    assert home.deployment.taken == 0


async def test_who_drains_takes_nobody_in(house):
    async with house() as home:
        await home.registry.drain(0.0)
        with pytest.raises(Draining):
            await home.registry.open(SessionConfig())


async def test_draining_waits_for_who_is_there(house):
    async with house() as home:
        _, wire, _ = await home.visit()
        home.tasks.start_soon(home.registry.drain, 1000.0)
        await quiet()
        assert home.registry.draining
        assert wire.closed is None
        wire.hang_up()
        await quiet()
        assert wire.closed == (1000, "the client is gone")


async def test_draining_does_not_wait_for_ever(house):
    async with house() as home:
        _, wire, _ = await home.visit()
        await home.registry.drain(0.0)
        assert wire.closed == (1012, "the server is restarting")
        assert home.registry.active == 0


async def test_draining_ends_a_response_before_it_closes(house):
    async with house() as home:
        _, wire, _ = await home.visit()
        wire.say(CreateResponse(None, ResponseParams()))
        await quiet()
        await home.registry.drain(0.0)
        assert wire.all(effects.ResponseDone)[0].response.status == "cancelled"


async def test_several_may_wait_until_it_is_empty(house):
    async with house() as home:
        _, wire, _ = await home.visit()
        done = []

        async def drain():
            await home.registry.drain(1000.0)
            done.append(True)

        home.tasks.start_soon(drain)
        home.tasks.start_soon(drain)
        await quiet()
        wire.hang_up()
        await quiet()
        assert done == [True, True]


async def test_who_comes_in_while_it_begins_to_drain_is_turned_away(house):
    async with house() as home:
        home.deployment.gate = anyio.Event()
        outcome = []

        async def come_in():
            try:
                await home.registry.open(SessionConfig())
            except Draining:
                outcome.append("turned away")

        home.tasks.start_soon(come_in)
        await quiet()
        await home.registry.drain(0.0)
        home.deployment.gate.set()
        await quiet()
        assert outcome == ["turned away"]
        assert home.registry.active == 0
        assert home.deployment.taken == 0


async def test_a_session_that_can_not_be_closed_holds_nobody_else_up(house, monkeypatch):
    async with house() as home:
        (broken, _, _), (_, wire, _) = await home.visit(), await home.visit()

        def breaks(event, now):
            raise RuntimeError("broken")

        monkeypatch.setattr(broken.session, "receive", breaks)
        monkeypatch.setattr(broken, "clean_up", lambda: anyio.lowlevel.checkpoint())
        monkeypatch.setattr(registry, "CLOSE_SECONDS", 0.0)
        await home.registry.drain(0.0)
        await quiet()
        assert wire.closed == (1012, "the server is restarting")
        assert home.registry.active == 1
        home.registry._forget(broken)


async def test_an_exception_inside_ends_the_sessions_and_goes_on_its_way(house):
    wires: list[Wire] = []
    with pytest.raises(BaseExceptionGroup) as raised:
        async with house() as home:
            wires.append((await home.visit())[1])
            raise KeyError("outside")
    assert raised.group_contains(KeyError)
    assert wires[0].closed[0] == 1012


async def test_a_guest_counts_and_is_told_to_go(house):
    async with house(max_sessions=1) as home:
        told = []
        left = anyio.Event()

        def end(code, reason):
            told.append((code, reason))
            left.set()

        async def stay(*, task_status):
            with home.registry.guest(end):
                task_status.started()
                await left.wait()

        async with anyio.create_task_group() as tasks:
            await tasks.start(stay)
            assert home.registry.active == 1
            with pytest.raises(SessionsFull):
                await home.registry.open(SessionConfig())
            with pytest.raises(SessionsFull), home.registry.guest(end):
                pass
            await home.registry.drain(0)
        assert told == [(1012, "the server is restarting")]
        assert home.registry.active == home.registry.headcount.own == 0
        with pytest.raises(Draining), home.registry.guest(end):
            pass
