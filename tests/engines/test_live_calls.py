import anyio
import pytest

from duologue.engines.live_calls import LiveCalls
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


async def test_it_is_quiet_when_the_last_call_is_over() -> None:
    live, order = LiveCalls(), []

    async def wait() -> None:
        await live.quiet()
        order.append("quiet")

    async with anyio.create_task_group() as group:
        with live.call():
            with live.call():
                group.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
            assert live.busy
            await anyio.wait_all_tasks_blocked()
            order.append("over")
    assert order == ["over", "quiet"]
    assert not live.busy


async def test_nobody_waits_where_nothing_runs() -> None:
    with anyio.fail_after(PATIENCE_S):
        await LiveCalls().quiet()


async def test_who_waits_for_quiet_does_not_take_a_short_one_for_it() -> None:
    live, order = LiveCalls(), []

    async def wait() -> None:
        await live.quiet()
        order.append(live.busy)

    async with anyio.create_task_group() as group:
        with live.call():
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
        with live.call():
            await anyio.wait_all_tasks_blocked()
            assert order == []
    assert order == [False]
