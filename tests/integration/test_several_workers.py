"""One model in two worker processes: what happens to one does not happen to the other."""

import signal
from collections.abc import Iterator
from typing import Any

import anyio
import httpx
import openai
import psutil
import pytest
from openai import AsyncOpenAI

from load_tests.server import Server, serving
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.weights]


@pytest.fixture
def two_workers() -> Iterator[Server]:
    with serving(["--engine", "scripted", "--workers", "2", "--slots", "1"]) as running:
        yield running


async def until_places(server: Server, count: int) -> None:
    """Wait until the workers that are ready hold so many conversations."""
    async with httpx.AsyncClient(trust_env=False) as client:
        while True:
            text = (await client.get(f"{server.url}/metrics")).text
            if f"\nduologue_places {float(count)}\n" in text:
                return
            await anyio.sleep(0.02)


async def status_of_the_answer(wire: Any) -> str:
    event = await wire.receive()
    while event["type"] != "response.done":
        event = await wire.receive()
    return str(event["response"]["status"])


async def works_again(wire: Any) -> None:
    """The next answer that is not refused while the worker starts is a whole one."""
    while True:
        await wire.say("Are you there?")
        await wire.send("response.create")
        event = await wire.until("response.done", "error")
        if event["type"] == "response.done" and event["response"]["status"] == "completed":
            return


def workers_of(server: Server) -> list[psutil.Process]:
    children = psutil.Process(server.pid).children()
    return [child for child in children if "duologue.engines.worker" in child.cmdline()]


async def test_the_sessions_of_a_worker_stay_there_and_only_they_lose_by_its_death(
    two_workers: Server, open_session: Any
) -> None:
    with anyio.fail_after(PATIENCE_S):
        await until_places(two_workers, 2)
        # Each worker has one place, so the two sessions are apart.
        async with open_session(two_workers) as one, open_session(two_workers) as other:
            for wire in (one, other):
                await wire.say("Hello there.")
                await wire.send("response.create")
                await wire.until("response.output_audio.delta")
            workers_of(two_workers)[0].send_signal(signal.SIGKILL)
            statuses = [await status_of_the_answer(wire) for wire in (one, other)]
            assert sorted(statuses) == ["completed", "failed"]
            # Its place comes back, and both go on.
            await until_places(two_workers, 2)
            for wire in (one, other):
                await works_again(wire)


async def test_chat_completions_are_given_by_either(two_workers: Server) -> None:
    async with openai.DefaultAsyncHttpxClient(trust_env=False) as http:
        ai = AsyncOpenAI(
            api_key="any", base_url=f"{two_workers.url}/v1", max_retries=0, http_client=http
        )
        texts = []

        async def ask() -> None:
            answer = await ai.chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": "hi"}]
            )
            texts.append(answer.choices[0].message.content)

        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(ask)
    assert texts == ["Hello, I am a script. What can I do for you?"] * 6
