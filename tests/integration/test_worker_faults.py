"""Workers that are killed, stopped and starved, or go wrong by themselves: real processes.

What each test holds to account: the sessions of the worker are told, one answer has one end, the
others notice nothing, the worker is replaced where it has to be, and nothing is left of it.
"""

import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import psutil
import pytest

from duologue.engines.engine import (
    AlignSpeech,
    EngineLost,
    EngineStream,
    Message,
    Output,
    Respond,
    ResponseEnded,
    ResponseRequest,
    SpeechAligned,
    SpeechGenerated,
    TextGenerated,
    TextPart,
)
from duologue.engines.lane import LaneLimits
from duologue.engines.lanes import Hello, gateway_lane, new_gateway_name
from duologue.engines.lifeline import WorkerConfig
from duologue.engines.placement import PlacedEngine
from duologue.engines.remote import RemoteEngine, RemoteLimits, RemoteStream
from duologue.engines.script import Clause, Reply, ScriptedOptions
from duologue.engines.supervisor import SupervisionRules, Supervisor
from duologue.engines.unix_stream import connect
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

FAULTY = Path(__file__).parent / "faulty_worker.py"
RULES = SupervisionRules(stop_s=2.0, backoff_s=0.01)
ENDLESS = ScriptedOptions(replies=(Reply(clauses=(Clause("On and on.", 600_000),)),))


class Fleet:
    """Supervised workers of one model, and the engine that they are together."""

    def __init__(self, supervisors: list[Supervisor], remotes: list[RemoteEngine]) -> None:
        self.supervisors = supervisors
        self.remotes = remotes
        self.engine = PlacedEngine(remotes)

    async def until_replaced(self, restarts: int = 1) -> str:
        """Wait until the first worker has been replaced; why it had to be."""
        with anyio.fail_after(PATIENCE_S):
            while self.supervisors[0].restarts < restarts:
                await self.supervisors[0].wait_change()
            await self.remotes[0].wait_ready()
        return self.supervisors[0].last_fault


Start = Callable[..., AbstractAsyncContextManager[Fleet]]


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the workers' directories are made. In the end nothing is left: no process, no task, no
    socket, no file, no memory that is shared."""
    folder = Path(tempfile.mkdtemp(prefix="duo", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(folder))
    files = open_files()
    before = children()
    yield folder
    assert children() <= before
    assert list(folder.glob("duologue*")) == []
    assert str(folder) not in Path("/proc/net/unix").read_text()
    assert not [name for name in os.listdir("/dev/shm") if "duologue" in name]
    assert "memfd:duologue" not in Path("/proc/self/maps").read_text()
    assert open_files() == files
    shutil.rmtree(folder)


def children() -> set[int]:
    """Process ids; a server that other tests share may be among them."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def open_files() -> list[str]:
    """What of sockets, pipes and shared memory this process holds, besides the event loop's own."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith(("/memfd:", "/tmp/duo")):
            found.append(target)
    return found


@pytest.fixture
def start(runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAULTY} "$@"\n')
    program.chmod(0o700)

    @asynccontextmanager
    async def start(
        options: ScriptedOptions | None = None,
        *,
        workers: int = 1,
        rules: SupervisionRules = RULES,
        lanes: LaneLimits | None = None,
    ) -> AsyncIterator[Fleet]:
        """Workers with a script or, without one, :mod:`faulty_worker`'s."""
        if options is None:
            monkeypatch.setattr(sys, "executable", str(program))
        limits = lanes or LaneLimits()
        supervisors = [
            Supervisor(
                WorkerConfig(
                    name=f"test-{number}",
                    backend="scripted" if options else "faulty",
                    directory="",
                    options=msgspec.msgpack.encode(options or {}),
                    heartbeat_s=0.05,
                    log_level="critical",
                    limits=limits,
                ),
                rules,
            )
            for number in range(workers)
        ]
        remotes = [
            RemoteEngine(supervisor.directory, RemoteLimits(lanes=limits))
            for supervisor in supervisors
        ]
        tasks = len(anyio.get_running_tasks())
        async with anyio.create_task_group() as group:
            for supervisor, remote in zip(supervisors, remotes, strict=True):
                group.start_soon(supervisor.run)
                group.start_soon(remote.run)
            with anyio.fail_after(PATIENCE_S):
                for remote in remotes:
                    await remote.wait_ready()
            yield Fleet(supervisors, remotes)
            group.cancel_scope.cancel()
        assert len(anyio.get_running_tasks()) == tasks

    return start


def ask(generation: int, text: str, modality: str = "audio") -> Respond:
    request = ResponseRequest(instructions="", messages=(Message("user", (TextPart(text),)),))
    request = msgspec.structs.replace(request, modality=modality)
    return Respond(generation, request, session="s")


async def rest_of(stream: EngineStream) -> list[Output]:
    """All up to the end of an answer."""
    outputs: list[Output] = []
    with anyio.fail_after(PATIENCE_S):
        while not outputs or not isinstance(outputs[-1], ResponseEnded):
            outputs.append(await stream.receive())
    return outputs


async def end_of(stream: EngineStream, command: Respond) -> ResponseEnded:
    stream.send(command)
    last = (await rest_of(stream))[-1]
    assert isinstance(last, ResponseEnded)
    return last


async def lost(stream: RemoteStream) -> None:
    """The session is told that its worker is gone."""
    with anyio.fail_after(PATIENCE_S), pytest.raises(EngineLost):
        while True:
            await stream.receive()
    await stream.aclose()


async def answers(fleet: Fleet, text: str = "hello") -> None:
    """A new session is answered to the end."""
    stream = await fleet.engine.open("new")
    assert (await end_of(stream, ask(1, text))).reason == "completed"
    await stream.aclose()


# -- killed and stopped ---------------------------------------------------------------------


async def test_of_two_workers_the_sessions_of_the_killed_one_are_told_and_no_others(
    start: Start,
) -> None:
    async with start(ENDLESS, workers=2) as fleet:
        streams = [await remote.open("s") for remote in fleet.remotes]
        for stream in streams:
            stream.send(ask(1, "hello"))
            assert isinstance(await stream.receive(), SpeechGenerated)
        os.kill(fleet.supervisors[0].pid or 0, signal.SIGKILL)
        await lost(streams[0])
        # Speech of the other goes on while the first is away, and its place is still its own.
        for _ in range(3):
            assert isinstance(await streams[1].receive(), SpeechGenerated)
        assert "SIGKILL" in await fleet.until_replaced()
        assert fleet.supervisors[1].restarts == 0
        stream = await fleet.remotes[0].open("s")
        stream.send(ask(1, "hello"))
        assert isinstance(await stream.receive(), SpeechGenerated)
        for one in (stream, streams[1]):
            await one.aclose()


async def test_a_worker_that_is_stopped_counts_as_lost(start: Start) -> None:
    rules = msgspec.structs.replace(RULES, silence_s=1.0)
    async with start(ENDLESS, rules=rules) as fleet:
        stream = await fleet.remotes[0].open("s")
        os.kill(fleet.supervisors[0].pid or 0, signal.SIGSTOP)
        await lost(stream)
        assert "no heartbeat" in await fleet.until_replaced()


async def test_a_step_that_never_ends_costs_the_worker(start: Start) -> None:
    async with start(rules=msgspec.structs.replace(RULES, step_s=1.0)) as fleet:
        stream = await fleet.remotes[0].open("s")
        stream.send(ask(1, "hang"))
        await lost(stream)
        assert "a step has run" in await fleet.until_replaced()
        await answers(fleet)


async def test_a_gateway_that_is_killed_leaves_nothing_in_the_worker(
    start: Start, tmp_path: Path
) -> None:
    program = tmp_path / "gateway.py"
    program.write_text(GATEWAY)
    async with start(ScriptedOptions(capacity=1)) as fleet:
        command = [sys.executable, str(program), str(fleet.supervisors[0].directory)]
        async with await anyio.open_process(command, stderr=None) as gateway:
            assert gateway.stdout is not None
            try:
                # It has the one place, and shares memory with the worker.
                with anyio.fail_after(PATIENCE_S):
                    assert await gateway.stdout.receive() == b"shared\n"
                assert memfds(fleet) > 0
            finally:
                gateway.kill()
        with anyio.fail_after(PATIENCE_S):
            while memfds(fleet):  # noqa: ASYNC110 (it is another process)
                await anyio.sleep(0.01)
        await answers(fleet)


GATEWAY = """
import sys
from pathlib import Path
import anyio
from duologue.engines.engine import AlignSpeech
from duologue.engines.remote import RemoteEngine

async def main():
    engine = RemoteEngine(Path(sys.argv[1]))
    async with anyio.create_task_group() as group:
        group.start_soon(engine.run)
        await engine.wait_ready()
        stream = await engine.open("s")
        for _ in range(3):
            stream.send(AlignSpeech("r", "a word", bytes(2_000_000), session="s"))
            await stream.receive()
        sys.stdout.write("shared\\n")
        sys.stdout.flush()
        await anyio.sleep_forever()

anyio.run(main)
"""


def memfds(fleet: Fleet) -> int:
    """Shared memory that the first worker has mapped."""
    return Path(f"/proc/{fleet.supervisors[0].pid}/maps").read_text().count("memfd:duologue")


# -- steps that go wrong --------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 1, 2])
async def test_an_exception_in_a_step_fails_that_answer_and_nothing_else(
    start: Start, step: int
) -> None:
    async with start() as fleet:
        stream, other = [await fleet.remotes[0].open("s") for _ in range(2)]
        other.send(ask(1, "hello"))
        ended = await end_of(stream, ask(1, f"raise at {step}"))
        assert ended.reason == "failed"
        assert ended.failure is not None
        assert ended.failure.code == "engine_error"
        assert "goes wrong" not in ended.failure.message
        assert (await rest_of(other))[-1].reason == "completed"  # type: ignore[union-attr]
        assert (await end_of(stream, ask(2, "hello"))).reason == "completed"
        assert fleet.supervisors[0].restarts == 0
        for one in (stream, other):
            await one.aclose()


@pytest.mark.parametrize("step", [0, 1, 2])
async def test_a_stage_that_is_broken_costs_the_worker(start: Start, step: int) -> None:
    async with start() as fleet:
        stream, other = [await fleet.remotes[0].open("s") for _ in range(2)]
        stream.send(ask(1, f"break at {step}"))
        for one in (stream, other):
            await lost(one)
        assert "the model is broken" in await fleet.until_replaced()
        await answers(fleet)


async def test_a_step_without_memory_fails_its_answer_and_nothing_else(start: Start) -> None:
    async with start(rules=SupervisionRules()) as fleet:
        stream = await fleet.remotes[0].open("s")
        for generation in range(1, 4):
            ended = await end_of(stream, ask(generation, "eat memory"))
            assert ended.reason == "failed"
        assert (await end_of(stream, ask(4, "hello"))).reason == "completed"
        assert fleet.supervisors[0].restarts == 0
        await stream.aclose()


async def test_a_worker_without_memory_is_replaced(start: Start) -> None:
    async with start() as fleet:
        stream = await fleet.remotes[0].open("s")
        stream.send(ask(1, "starve"))
        await lost(stream)
        await fleet.until_replaced()
        await answers(fleet)


@pytest.mark.parametrize("modality", ["audio", "text"])
async def test_a_stage_that_goes_on_after_its_end_is_not_heard(start: Start, modality: str) -> None:
    async with start() as fleet:
        stream = await fleet.remotes[0].open("s")
        stream.send(ask(1, "talk on", modality))
        outputs = await rest_of(stream)
        stream.send(ask(2, "hello", modality))
        more = await rest_of(stream)
        said = "".join(
            output.text for output in outputs if isinstance(output, SpeechGenerated | TextGenerated)
        )
        assert said.split() == "First. Then some. And the last.".split()
        assert all(getattr(output, "generation", 2) == 2 for output in more)
        await stream.aclose()


# -- what can't be understood ---------------------------------------------------------------


async def test_a_worker_that_sends_no_messages_is_connected_to_anew(start: Start) -> None:
    async with start() as fleet:
        stream = await fleet.remotes[0].open("s")
        stream.send(ask(1, "garbage"))
        await lost(stream)


async def test_a_gateway_that_sends_no_messages_is_cut_off_and_no_other(start: Start) -> None:
    async with start() as fleet:
        stream = await fleet.remotes[0].open("s")
        strangers = [
            await connect(fleet.supervisors[0].directory / name) for name in ("control", "data")
        ]
        name = new_gateway_name()
        for stranger in strangers:
            lane = gateway_lane(stranger, LaneLimits())
            lane.send(Hello(name))
            await lane.flush()
        assert await strangers[0].receive()
        await strangers[1].send(b"\0\0\0\1\301")
        with (
            anyio.fail_after(PATIENCE_S),
            pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)),
        ):
            while True:
                await strangers[1].receive()
        assert (await end_of(stream, ask(1, "hello"))).reason == "completed"
        for stranger in strangers:
            await stranger.aclose()
        await stream.aclose()


# -- shared memory that can't be had --------------------------------------------------------

SPEECH = bytes(1_000_000)


async def aligned(stream: RemoteStream, times: int) -> None:
    """So much speech goes to the worker and is spoken of, several times."""
    for number in range(times):
        stream.send(AlignSpeech(f"r{number}", "a word", SPEECH, session="s"))
        with anyio.fail_after(PATIENCE_S):
            output = await stream.receive()
        assert isinstance(output, SpeechAligned)
        assert output.reference == f"r{number}"


async def test_large_messages_share_memory(start: Start) -> None:
    async with start(ScriptedOptions()) as fleet:
        stream = await fleet.remotes[0].open("s")
        await aligned(stream, 3)
        assert memfds(fleet) == 1
        await stream.aclose()


async def test_without_room_for_shared_memory_large_messages_take_the_socket(
    start: Start,
) -> None:
    # No message fits: as a full /dev/shm would have it for memory that has a name there.
    async with start(ScriptedOptions(), lanes=LaneLimits(shared_bytes=4096)) as fleet:
        stream = await fleet.remotes[0].open("s")
        await aligned(stream, 40)
        await stream.aclose()


async def test_without_descriptors_large_messages_take_the_socket(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", none_left)
    async with start(ScriptedOptions()) as fleet:
        stream = await fleet.remotes[0].open("s")
        await aligned(stream, 3)
        assert memfds(fleet) == 0
        await stream.aclose()


FULL = """
mount -t tmpfs -o size=4096 none /dev/shm || exit 77
head -c 4096 /dev/zero > /dev/shm/full
exec "$@"
"""


async def test_a_full_dev_shm_is_nobody_s_problem(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", FULL, "sh"]
    tried = await anyio.run_process([*unshare, "true"], check=False)
    if tried.returncode != 0:
        pytest.skip("no namespaces of one's own here")
    program = tmp_path / "confined"
    words = " ".join(f"'{word}'" for word in unshare)
    program.write_text(f'#!/bin/sh\nexec {words} {sys.executable} "$@"\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    async with start(ScriptedOptions()) as fleet:
        stream = await fleet.remotes[0].open("s")
        await aligned(stream, 3)
        await stream.aclose()


# -- the machine ----------------------------------------------------------------------------


async def test_a_socket_that_is_taken_is_a_fault_that_is_told(
    runtime: Path, tmp_path: Path
) -> None:
    folder = runtime / "taken"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(folder / "control"))
        config = WorkerConfig(
            name="test",
            backend="scripted",
            directory=str(folder),
            options=msgspec.msgpack.encode(ScriptedOptions()),
            log_level="critical",
        )
        supervisor = Supervisor(config, msgspec.structs.replace(RULES, backoff_s=60))
        async with anyio.create_task_group() as group:
            group.start_soon(supervisor.run)
            with anyio.fail_after(PATIENCE_S):
                while supervisor.state != "waiting":
                    await supervisor.wait_change()
            assert "Address already in use" in supervisor.last_fault
            group.cancel_scope.cancel()
    shutil.rmtree(folder)
