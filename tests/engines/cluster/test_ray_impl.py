"""Workers on two machines of a Ray cluster, both of them this one."""

import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import psutil
import pytest

from duologue.engines.cascade import CascadeBackend, CascadeConfig, Parts
from duologue.engines.engine import (
    EngineFull,
    EngineLost,
    EngineUnavailable,
    Message,
    Respond,
    ResponseEnded,
    ResponseRequest,
    SpeechGenerated,
    TextPart,
    Usage,
)
from duologue.engines.in_process import open_in_process
from duologue.engines.language import Finished, TextPiece
from duologue.engines.lifeline import WorkerConfig
from duologue.engines.llama_prompts import LlamaStage
from duologue.engines.placement import PlacedEngine
from duologue.engines.remote import RemoteEngine, RemoteStream
from duologue.engines.script import ScriptedOptions
from duologue.engines.stand_ins import StandInDetector, StandInLanguage, StandInRecognizer
from duologue.engines.supervisor import SupervisionRules
from duologue.engines.voice_backend import VoicesConfig
from tests.patience import PATIENCE_S
from tests.ray_cluster import local_cluster

ray = pytest.importorskip("ray", reason="needs duologue[cluster]")
ray_stage_impl = pytest.importorskip("duologue.engines.cluster.ray_stage_impl")
ray_impl = pytest.importorskip("duologue.engines.cluster.ray_impl")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.timeout(900),
]

HELLO = TextPart("hello")
END = Finished("completed", Usage())
note = logging.getLogger(__name__).info
CONFIG = WorkerConfig(
    name="scripted",
    backend="scripted",
    directory="",
    options=msgspec.msgpack.encode(ScriptedOptions(capacity=4)),
    heartbeat_s=0.1,
    log_level="warning",
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with local_cluster() as cluster:
        ray_impl.join_cluster(cluster.address)
        yield cluster
        ray_impl.leave_cluster()


class Placed:
    def __init__(self, workers: list[Any]) -> None:
        self.workers = workers
        self.remotes = [RemoteEngine(Path(one.name), dial=one.dial) for one in workers]
        self.engine = PlacedEngine(self.remotes)

    async def ready(self) -> None:
        with anyio.fail_after(PATIENCE_S):
            for remote in self.remotes:
                await remote.wait_ready()


@asynccontextmanager
async def placed(count: int) -> AsyncIterator[Placed]:
    workers = [
        ray_impl.RayWorker(
            msgspec.structs.replace(CONFIG, name=f"scripted-{number}"),
            SupervisionRules(),
        )
        for number in range(count)
    ]
    all_of_them = Placed(workers)
    async with anyio.create_task_group() as group:
        for worker in workers:
            group.start_soon(worker.run)
        for remote in all_of_them.remotes:
            group.start_soon(remote.run)
        await all_of_them.ready()
        yield all_of_them
        group.cancel_scope.cancel()


async def answer(stream: RemoteStream, generation: int) -> str:
    """How an answer ended."""
    message = Message("user", (TextPart("hello"),))
    request = ResponseRequest(instructions="", messages=(message,), modality="text")
    stream.send(Respond(generation, request, session="s"))
    with anyio.fail_after(PATIENCE_S):
        while not isinstance(output := await stream.receive(), ResponseEnded):
            pass
    return output.reason


def kill(node: Any) -> None:
    """SIGKILL to all of Ray's own processes of a machine."""
    for kind in node.all_processes.values():
        for info in kind:
            info.process.kill()


async def drain_node(cluster: Any, node: Any) -> None:
    """What an operator does to empty a machine. Its time is over at once: Ray ends nothing then."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node"]
    command += ["--address", cluster.address, "--node-id", node.node_id]
    command += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "to be emptied"]
    await anyio.run_process([*command, "--deadline-remaining-seconds", "0"])


async def until(met: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE_S):
        while not met():  # noqa: ASYNC110
            await anyio.sleep(0.02)


async def test_a_machine_that_is_lost_takes_its_own_sessions_only(cluster: Any) -> None:
    second = cluster.add_node(num_cpus=1)
    removed = False
    try:
        async with placed(2) as here:
            assert len({worker.node for worker in here.workers}) == 2
            # Each of them has the most room in its turn.
            streams = [await here.engine.open("s"), await here.engine.open("t")]
            assert [remote.sessions for remote in here.remotes] == [1, 1]
            assert [await answer(stream, 1) for stream in streams] == ["completed"] * 2
            lost = next(at for at, one in enumerate(here.workers) if one.node == second.node_id)
            kept = 1 - lost
            began = anyio.current_time()
            kill(second)
            with anyio.fail_after(PATIENCE_S), pytest.raises(EngineLost):
                while True:
                    await streams[lost].receive()
            note(f"told {anyio.current_time() - began:.2f} s after the kill")
            await anyio.to_thread.run_sync(lambda: cluster.remove_node(second, False))
            removed = True
            for generation in range(2, 6):
                assert await answer(streams[kept], generation) == "completed"
            assert here.engine.ready
            # What is placed now is placed where there is a machine, and that one stays as it was.
            opened = await here.engine.open("next")
            assert await answer(opened, 1) == "completed"
            assert here.remotes[kept].sessions == 2
            third = cluster.add_node(num_cpus=1)  # which has to be the main thread
            await here.ready()
            assert here.workers[lost].node == third.node_id
            again = await here.remotes[lost].open("again")
            assert await answer(again, 1) == "completed"
            await anyio.to_thread.run_sync(lambda: cluster.remove_node(third, False))
    finally:
        if not removed:
            cluster.remove_node(second, False)


async def test_a_machine_that_is_drained_finishes_its_sessions(cluster: Any) -> None:
    drained: set[str] = set()
    worker = ray_impl.RayWorker(CONFIG, SupervisionRules(), draining=lambda: frozenset(drained))
    remote = RemoteEngine(Path("scripted"), dial=worker.dial)
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        group.start_soon(remote.run)
        with anyio.fail_after(PATIENCE_S):
            await remote.wait_ready()
        stream = await remote.open("s")
        await until(lambda: worker.sessions == 1)
        drained.add(worker.node)
        await until(lambda: not remote.ready)
        with pytest.raises((EngineUnavailable, EngineFull)):
            await remote.open("late")
        assert await answer(stream, 1) == "completed"
        assert worker.restarts == 0
        drained.clear()
        await stream.aclose()
        await until(lambda: worker.restarts == 1)
        assert worker.last_fault == "it was drained"
        group.cancel_scope.cancel()


async def test_ray_drain_node_empties_a_machine_when_its_sessions_have_ended(cluster: Any) -> None:
    second = cluster.add_node(num_cpus=1)
    try:
        async with placed(2) as here:
            at = next(at for at, one in enumerate(here.workers) if one.node == second.node_id)
            worker, remote, other = here.workers[at], here.remotes[at], here.remotes[1 - at]
            stream = await remote.open("s")
            await drain_node(cluster, second)
            await until(lambda: not remote.ready)
            with pytest.raises(EngineUnavailable):
                await remote.open("refused")
            # What comes now goes to the machine that is left; who is there stays, and is answered.
            late = await here.engine.open("late")
            assert other.sessions == 1
            assert await answer(stream, 1) == await answer(late, 1) == "completed"
            assert worker.restarts == 0 and second.any_processes_alive()
            await stream.aclose()
            await until(lambda: worker.restarts == 1)
            assert worker.last_fault == "it was drained"
            # Without work it leaves the cluster by itself.
            await until(lambda: not second.any_processes_alive())
            third = cluster.add_node(num_cpus=1)  # which has to be the main thread
            await here.ready()
            assert worker.node == third.node_id
            assert await answer(await remote.open("again"), 1) == "completed"
            assert await answer(late, 2) == "completed"
            await anyio.to_thread.run_sync(lambda: cluster.remove_node(third, False))
    finally:
        cluster.remove_node(second, False)


async def test_nothing_is_left_of_a_worker_that_was_stopped(cluster: Any) -> None:
    async with placed(1):
        pass

    def left() -> list[str]:
        found = []
        for process in psutil.process_iter(["cmdline"]):
            line = " ".join(process.info["cmdline"] or ())
            if "duologue.engines.worker" in line and process.ppid() != 1:
                parents = [one.name() for one in process.parents()]
                if any("ray" in name for name in parents):
                    found.append(line)
        return found

    await until(lambda: not left())


@asynccontextmanager
async def stage_actor(address: str) -> AsyncIterator[Any]:
    """The voices as an actor."""
    config = WorkerConfig(
        name="voices-0",
        backend="voices",
        directory=address,
        options=msgspec.msgpack.encode(VoicesConfig(tone=True)),
    )
    stage = ray_stage_impl.RayStage(config, SupervisionRules(backoff_s=0.01), cpus=0.5)
    async with anyio.create_task_group() as group:
        group.start_soon(stage.run)
        yield stage
        group.cancel_scope.cancel()


async def test_a_stage_on_another_machine_gets_and_gives_through_the_object_store(
    cluster: Any,
) -> None:
    second = cluster.add_node(num_cpus=1)
    address = f"ray://{ray_impl.cluster_address()}/voices-test"
    language = StandInLanguage()
    language.answers = [[TextPiece("Hello. "), END]]  # for the rehearsal
    backend = CascadeBackend(
        CascadeConfig(
            recognizer="/r",
            turn_detector="/t",
            language=LlamaStage(path="/l.gguf", family="qwen"),
            capacity=2,
            voice_workers=(address,),
            answer_s={"tts": 30.0},
        ),
        language=language,
        load=lambda _: Parts(StandInRecognizer(), StandInDetector(), ()),
    )
    async with stage_actor(address) as stage, open_in_process(backend) as engine:
        stream = await engine.open("s")

        async def answer(generation: int, *pieces: Any) -> tuple[str, ResponseEnded]:
            language.answers.append(pieces)
            request = ResponseRequest(instructions="", messages=(Message("user", (HELLO,)),))
            stream.send(Respond(generation, request, session="s"))
            said = ""
            with anyio.fail_after(PATIENCE_S):
                while not isinstance(output := await stream.receive(), ResponseEnded):
                    if isinstance(output, SpeechGenerated):
                        said += output.text
            return said, output

        # The first sentence is 480 kB of speech: too much to travel with a call.
        said, end = await answer(1, TextPiece("a" * 1000 + ". "), TextPiece("And you?"), END)
        assert said == "a" * 1000 + ". And you?"
        assert end.reason == "completed"
        language.answers.append([TextPiece("Hello there. "), anyio.Event(), END])
        request = ResponseRequest(instructions="", messages=(Message("user", (HELLO,)),))
        stream.send(Respond(2, request, session="s"))
        with anyio.fail_after(PATIENCE_S):
            while not isinstance(await stream.receive(), SpeechGenerated):
                pass
        actor = ray.get_actor("voices-test", namespace=ray_impl.NAMESPACE)
        ray.kill(actor)
        with anyio.fail_after(PATIENCE_S):
            while not isinstance(output := await stream.receive(), ResponseEnded):
                pass
        assert output.failure is not None and output.failure.code == "engine_unavailable"
        await until(lambda: stage.restarts >= 1 and stage.state == "ready")
        for generation in range(3, 300):
            said, end = await answer(generation, TextPiece("Here again."), END)
            if end.reason == "completed":
                break
            await anyio.sleep(0.1)
        assert said == "Here again."
        await stream.aclose()
    await anyio.to_thread.run_sync(lambda: cluster.remove_node(second, True))
