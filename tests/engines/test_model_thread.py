"""Calls into a model, from the event loop."""

import threading

import anyio
import pytest

from duologue.engines.model_thread import ModelThread
from duologue.engines.pulse import Pulse
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


async def test_calls_run_in_order_on_one_thread_that_is_not_the_loops() -> None:
    pulse = Pulse()
    thread = ModelThread("model", pulse)
    threads = [await thread.call(threading.get_ident) for _ in range(3)]
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()
    assert pulse.reading(0).steps == 3
    thread.close()


async def test_what_a_call_raises_is_raised_here_and_the_next_one_runs() -> None:
    thread = ModelThread("model", Pulse())
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 // 0)
    assert await thread.call(lambda: 1) == 1
    thread.close()


async def test_a_cancel_waits_for_the_call() -> None:
    thread = ModelThread("model", Pulse())
    go = threading.Event()
    done = []

    def work() -> None:
        go.wait(PATIENCE_S)
        done.append(True)

    async def call() -> None:
        await thread.call(work)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
        go.set()
    assert done == [True]
    thread.close()
