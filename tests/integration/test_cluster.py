"""A server whose workers are on two machines of a Ray cluster, and what its clients see when one of
them is lost. Both machines are this one."""

import sys
from collections.abc import Iterator
from typing import Any

import anyio
import httpx
import pytest

from load_tests.server import Server, serving
from tests.patience import PATIENCE_S
from tests.ray_cluster import local_cluster

pytest.importorskip("ray", reason="needs duologue[cluster]")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.weights,
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.timeout(900),
]


@pytest.fixture
def cluster() -> Iterator[Any]:
    with local_cluster() as cluster:
        yield cluster


async def until_places(server: Server, count: int) -> None:
    """Wait until the workers that are ready hold so many conversations."""
    async with httpx.AsyncClient(trust_env=False) as client:
        while True:
            text = (await client.get(f"{server.url}/metrics")).text
            if f"\nduologue_places {float(count)}\n" in text:
                return
            await anyio.sleep(0.05)


async def works_again(wire: Any) -> None:
    """The next answer that is not refused while the worker starts is a whole one."""
    while True:
        await wire.say("Are you there?")
        await wire.send("response.create")
        event = await wire.until("response.done", "error")
        if event["type"] == "response.done" and event["response"]["status"] == "completed":
            return


async def test_clients_of_a_machine_that_is_lost_are_told_and_the_others_go_on(
    cluster: Any, open_session: Any
) -> None:
    second = cluster.add_node(num_cpus=1)
    options = ["--engine", "scripted", "--workers", "2", "--slots", "1"]
    with (
        serving([*options, "--cluster", cluster.address], seconds=PATIENCE_S) as server,
        anyio.fail_after(600),
    ):
        await until_places(server, 2)
        # Each worker has one place, so the two sessions are on different machines.
        async with open_session(server) as one, open_session(server) as other:
            for wire in (one, other):
                wire.patience = PATIENCE_S
                await wire.say("Tell me something long.")
                await wire.send("response.create")
                await wire.until("response.output_audio.delta")
            for info in second.all_processes["raylet"]:
                info.process.kill()
                info.process.wait()
            killed = anyio.current_time()
            ends: dict[str, float] = {}

            async def follow(wire: Any) -> None:
                event = await wire.receive()
                while event["type"] != "response.done":
                    event = await wire.receive()
                ends[event["response"]["status"]] = anyio.current_time() - killed

            async with anyio.create_task_group() as group:
                group.start_soon(follow, one)
                group.start_soon(follow, other)
            assert sorted(ends) == ["completed", "failed"]
            sys.stderr.write(f"failed {ends['failed']:.2f} s after the kill\n")
            await until_places(server, 1)
            for wire in (one, other):
                codes = [event["error"]["code"] for event in wire.seen if event["type"] == "error"]
                assert codes in ([], ["engine_unavailable"])
            # A machine that comes takes the lost one's place.
            cluster.add_node(num_cpus=1)
            await until_places(server, 2)
            for wire in (one, other):
                await works_again(wire)
