import threading

import anyio
import anyio.lowlevel
import pytest

from duologue.engines.fairness import Rank
from duologue.engines.pulse import Pulse, Stopwatch
from duologue.engines.turnstile import ModelThread, Turnstile

pytestmark = pytest.mark.anyio


async def pass_through(turnstile: Turnstile, name: str, rank: Rank, order: list[str]) -> None:
    async with turnstile.turn(name, rank):
        order.append(name)
        await anyio.lowlevel.checkpoint()


async def test_who_waits_is_let_in_by_rank() -> None:
    turnstile, order = Turnstile(), []
    async with anyio.create_task_group() as group:
        await turnstile.enter("first", Rank.IDLE)
        for name, rank in (("idle", Rank.IDLE), ("later", Rank.LATER), ("urgent", Rank.FIRST)):
            group.start_soon(pass_through, turnstile, name, rank, order)
        await anyio.wait_all_tasks_blocked()
        assert order == []
        turnstile.leave()
    assert order == ["urgent", "later", "idle"]
    assert turnstile.idle


async def test_a_cancelled_waiter_does_not_keep_the_place() -> None:
    turnstile, order = Turnstile(), []
    await turnstile.enter("inside", Rank.FIRST)
    async with anyio.create_task_group() as group:
        group.start_soon(pass_through, turnstile, "cancelled", Rank.FIRST, order)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    turnstile.leave()
    assert turnstile.idle
    await pass_through(turnstile, "next", Rank.IDLE, order)
    assert order == ["next"]


async def test_a_waiter_cancelled_just_when_it_is_let_in_lets_the_next_one_in() -> None:
    turnstile, order = Turnstile(), []
    await turnstile.enter("inside", Rank.FIRST)
    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as inner:
                inner.start_soon(pass_through, turnstile, "cancelled", Rank.FIRST, order)
                await anyio.wait_all_tasks_blocked()
                group.start_soon(pass_through, turnstile, "next", Rank.FIRST, order)
                await anyio.wait_all_tasks_blocked()
                turnstile.leave()
                scope.cancel()
    assert order[-1] == "next"
    assert turnstile.idle


async def test_a_wider_turnstile_lets_as_many_in() -> None:
    turnstile = Turnstile(2)
    await turnstile.enter("a", Rank.FIRST)
    await turnstile.enter("b", Rank.FIRST)
    with pytest.raises(TimeoutError):
        with anyio.fail_after(0):
            await turnstile.enter("c", Rank.FIRST)
    turnstile.leave()
    await turnstile.enter("c", Rank.FIRST)


async def test_one_inside_makes_way_for_the_more_urgent_and_once_served_for_equals() -> None:
    turnstile, order = Turnstile(), []
    await turnstile.enter("inside", Rank.LATER)
    assert not turnstile.outranked(Rank.LATER, served=True)
    async with anyio.create_task_group() as group:
        group.start_soon(pass_through, turnstile, "equal", Rank.LATER, order)
        await anyio.wait_all_tasks_blocked()
        assert not turnstile.outranked(Rank.LATER, served=False)
        assert turnstile.outranked(Rank.LATER, served=True)
        assert turnstile.outranked(Rank.IDLE, served=False)
        assert not turnstile.outranked(Rank.FIRST, served=True)
        turnstile.leave()


async def test_a_model_is_called_off_the_loop_by_one_at_a_time() -> None:
    thread = ModelThread(Pulse())
    inside, most, idents = 0, 0, set()
    lock = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
            idents.add(threading.get_ident())
        with lock:
            inside -= 1

    async with anyio.create_task_group() as group:
        for name in "abcdef":
            group.start_soon(thread.call, name, Rank.FIRST, work)
    assert most == 1
    assert threading.get_ident() not in idents


async def test_a_call_is_a_step_of_the_pulse_even_when_it_fails() -> None:
    pulse = Pulse()
    thread = ModelThread(pulse)

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await thread.call("a", Rank.FIRST, fail)
    assert pulse.reading(0).steps == 1
    assert thread.turnstile.idle


async def test_a_call_counts_as_live_from_before_it_waits_to_its_end() -> None:
    pulse, order = Pulse(), []
    thread = ModelThread(pulse)
    await thread.turnstile.enter("inside", Rank.FIRST)
    assert not pulse.live.busy, "who enters by hand is not counted"
    async with anyio.create_task_group() as group:
        group.start_soon(thread.call, "a", Rank.FIRST, lambda: order.append(pulse.live.busy))
        await anyio.wait_all_tasks_blocked()
        assert pulse.live.busy
        thread.turnstile.leave()
    assert order == [True]
    assert not pulse.live.busy


async def test_the_batch_lane_makes_way_and_is_not_made_way_for() -> None:
    turnstile = Turnstile()
    await turnstile.enter("inside", Rank.BATCH)
    async with anyio.create_task_group() as group:
        order: list[str] = []
        group.start_soon(pass_through, turnstile, "batch", Rank.BATCH, order)
        await anyio.wait_all_tasks_blocked()
        assert not turnstile.outranked(Rank.IDLE, served=True)
        assert not turnstile.outranked(Rank.BATCH, served=False)
        group.start_soon(pass_through, turnstile, "idle", Rank.IDLE, order)
        await anyio.wait_all_tasks_blocked()
        assert turnstile.outranked(Rank.BATCH, served=False)
        turnstile.leave()
    assert order == ["idle", "batch"]


async def test_what_was_waited_for_a_turn_is_measured() -> None:
    waits = Stopwatch()
    turnstile = Turnstile(waits=waits)
    async with turnstile.turn("a", Rank.FIRST), anyio.create_task_group() as group:

        async def wait() -> None:
            async with turnstile.turn("b", Rank.FIRST):
                pass

        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert sum(waits.reading().counts) == 1
        turnstile.leave()
    turnstile.leave()
    assert sum(waits.reading().counts) == 2
