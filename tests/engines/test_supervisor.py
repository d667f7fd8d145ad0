import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import msgspec
import psutil
import pytest

from duologue.engines.engine import Output, Respond, SpeechGenerated
from duologue.engines.lifeline import Beat, Started, StartFailed, WorkerConfig
from duologue.engines.pulse import Reading
from duologue.engines.remote import RemoteEngine, RemoteStream
from duologue.engines.script import Clause, Reply, ScriptedOptions
from duologue.engines.supervisor import Backoff, SupervisionRules, Supervisor, Watch
from tests.patience import PATIENCE_S

RULES = SupervisionRules(
    ready_s=60, silence_s=3, step_s=20, backoff_s=0.1, backoff_limit_s=30, healthy_s=30
)
WELL = Beat(0, Reading(1, 0.0))

Ask = Callable[..., Respond]
Read = Callable[[RemoteStream], Awaitable[list[Output]]]
Left = Callable[[Supervisor], bool]


def config(options: ScriptedOptions | None = None, directory: str = "") -> WorkerConfig:
    return WorkerConfig(
        name="test",
        backend="scripted",
        directory=directory,
        options=msgspec.msgpack.encode(options or ScriptedOptions()),
        heartbeat_s=0.05,
        log_level="critical",
    )


@pytest.fixture
def no_process_is_left() -> Callable[[], bool]:
    """Whether all have ended that the test has started."""
    others = set(psutil.Process().children())
    return lambda: set(psutil.Process().children()) <= others


@pytest.fixture
def nothing_is_left(no_process_is_left: Callable[[], bool]) -> Left:
    return lambda supervisor: not supervisor.directory.exists() and no_process_is_left()


# -- the rules ------------------------------------------------------------------------------


def test_the_wait_doubles_up_to_its_limit() -> None:
    backoff = Backoff(RULES)
    waits = [backoff.after(0) for _ in range(12)]
    assert waits[:4] == [0.1, 0.2, 0.4, 0.8]
    assert waits[-1] == 30


def test_a_worker_that_was_healthy_starts_the_count_again() -> None:
    backoff = Backoff(RULES)
    for _ in range(5):
        backoff.after(29)
    assert backoff.after(30) == 0.1
    assert backoff.after(0) == 0.2


def test_the_wait_has_a_limit_however_often_it_fails() -> None:
    backoff = Backoff(RULES)
    for _ in range(3000):
        assert backoff.after(0) <= 30


def test_a_worker_must_be_ready_in_time() -> None:
    watch = Watch(RULES, 100)
    assert watch.deadline == 160
    assert watch.fault(159) == ""
    assert "not ready within 60 s" in watch.fault(160)
    assert watch.healthy_s(160) == 0


def test_a_ready_worker_must_be_heard_from() -> None:
    watch = Watch(RULES, 100)
    watch.receive(Started(4), 110)
    watch.receive(WELL, 112)
    assert watch.fault(114.9) == ""
    assert "no heartbeat for 3 s" in watch.fault(115)
    assert watch.healthy_s(115) == 5


def test_a_step_that_never_ends_is_a_fault_although_the_heart_beats() -> None:
    watch = Watch(RULES, 100)
    watch.receive(Started(4), 110)
    watch.receive(Beat(1, Reading(5, 19.0)), 111)
    assert watch.fault(111) == ""
    watch.receive(Beat(1, Reading(5, 21.0)), 113)
    assert "21.0 s" in watch.fault(113)


def test_a_start_that_failed_is_a_fault() -> None:
    watch = Watch(RULES, 100)
    watch.receive(StartFailed("no weights"), 101)
    assert "no weights" in watch.fault(101)


def test_a_directory_too_long_for_sockets_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        Supervisor(config(directory="/tmp/" + "x" * 100))


# -- with a process -------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_stopped_worker_is_noticed_killed_and_replaced(
    deploy: Callable[..., object], ask: Ask, loss_of: Read
) -> None:
    reply = Reply(clauses=(Clause("On and on.", 600_000),))
    async with deploy(ScriptedOptions(replies=(reply,)), rules=RULES) as deployment:  # type: ignore[attr-defined]
        engine, supervisor = deployment.engine, deployment.supervisor
        stream = await engine.open("s")
        stream.send(ask("s", 1, "hello"))
        assert isinstance(await stream.receive(), SpeechGenerated)
        os.kill(supervisor.pid, signal.SIGSTOP)
        await loss_of(stream)
        await stream.aclose()
        with anyio.fail_after(PATIENCE_S):
            await engine.wait_ready()
        assert "no heartbeat" in supervisor.last_fault
        assert supervisor.restarts == 1


@pytest.mark.anyio
async def test_a_worker_with_a_hung_step_is_replaced(
    deploy: Callable[..., object], ask: Ask, loss_of: Read
) -> None:
    rules = msgspec.structs.replace(RULES, step_s=0.2)
    options = ScriptedOptions(replies=(Reply(clauses=(Clause("Well,", 100),), hang=True),))
    async with deploy(options, rules=rules) as deployment:  # type: ignore[attr-defined]
        stream = await deployment.engine.open("s")
        stream.send(ask("s", 1, "hello"))
        assert len(await loss_of(stream)) == 1
        await stream.aclose()
        with anyio.fail_after(PATIENCE_S):
            await deployment.engine.wait_ready()
        assert "a step has run" in deployment.supervisor.last_fault


@pytest.mark.anyio
async def test_a_worker_that_can_not_start_is_tried_again(nothing_is_left: Left) -> None:
    rules = msgspec.structs.replace(RULES, backoff_s=0.001)
    supervisor = Supervisor(config(ScriptedOptions(start_failure="no weights")), rules)
    async with anyio.create_task_group() as group:
        group.start_soon(supervisor.run)
        with anyio.fail_after(PATIENCE_S):
            while supervisor.restarts < 2:
                await supervisor.wait_change()
        assert supervisor.last_fault == "it could not start: RuntimeError: no weights"
        group.cancel_scope.cancel()
    assert nothing_is_left(supervisor)


@pytest.mark.anyio
async def test_a_process_that_can_not_be_made_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, nothing_is_left: Left
) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    rules = msgspec.structs.replace(RULES, backoff_s=0.001)
    supervisor = Supervisor(config(), rules)
    async with anyio.create_task_group() as group:
        group.start_soon(supervisor.run)
        with anyio.fail_after(PATIENCE_S):
            while supervisor.restarts < 2:
                await supervisor.wait_change()
        assert "could not be started" in supervisor.last_fault
        group.cancel_scope.cancel()
    assert nothing_is_left(supervisor)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("exit 3", "exit status 3"),
        ("kill -9 $$", "killed by SIGKILL"),
        (r"printf '\0\0\0\1\301'; exec sleep 600", "can't be understood"),
        (r"printf '\377\377\377\377'; exec sleep 600", "can't be understood"),
        ("exec 1>&-; exec sleep 600", "killed by SIGKILL"),
    ],
)
async def test_a_worker_that_goes_wrong_is_ended_and_its_fault_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, fault: str, nothing_is_left: Left
) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{program}\n")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    supervisor = Supervisor(config(), msgspec.structs.replace(RULES, backoff_s=60, stop_s=0.1))
    async with anyio.create_task_group() as group:
        group.start_soon(supervisor.run)
        with anyio.fail_after(PATIENCE_S):
            while supervisor.state != "waiting":
                await supervisor.wait_change()
        assert fault in supervisor.last_fault
        group.cancel_scope.cancel()
    assert nothing_is_left(supervisor)


@pytest.mark.anyio
async def test_a_worker_that_is_not_ready_in_time_is_killed(
    nothing_is_left: Left, no_process_is_left: Callable[[], bool]
) -> None:
    rules = msgspec.structs.replace(RULES, ready_s=0.01, backoff_s=60)
    supervisor = Supervisor(config(), rules)
    async with anyio.create_task_group() as group:
        group.start_soon(supervisor.run)
        with anyio.fail_after(PATIENCE_S):
            while supervisor.state != "waiting":
                await supervisor.wait_change()
        assert "not ready within" in supervisor.last_fault
        assert no_process_is_left()
        group.cancel_scope.cancel()
    assert nothing_is_left(supervisor)


@pytest.mark.anyio
@pytest.mark.parametrize("checkpoints", [0, 1, 2, 3, 5, 8, 20, 100, 1000])
async def test_a_start_can_be_cancelled_anywhere(checkpoints: int, nothing_is_left: Left) -> None:
    supervisor = Supervisor(config(), RULES)
    async with anyio.create_task_group() as group:
        group.start_soon(supervisor.run)
        for _ in range(checkpoints):
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert supervisor.state == "stopped"
    assert nothing_is_left(supervisor)


@pytest.mark.anyio
@pytest.mark.parametrize("state", ["starting", "ready"])
async def test_a_supervisor_can_be_cancelled_in_any_state(
    state: str, nothing_is_left: Left
) -> None:
    supervisor = Supervisor(config(), RULES)
    async with anyio.create_task_group() as group:
        group.start_soon(supervisor.run)
        with anyio.fail_after(PATIENCE_S):
            while supervisor.state != state or supervisor.pid is None:
                await supervisor.wait_change()
        group.cancel_scope.cancel()
    assert nothing_is_left(supervisor)


@pytest.mark.anyio
async def test_a_worker_that_does_not_end_in_order_is_killed(nothing_is_left: Left) -> None:
    rules = msgspec.structs.replace(RULES, stop_s=0.01)
    supervisor = Supervisor(config(), rules)
    async with anyio.create_task_group() as group:
        group.start_soon(supervisor.run)
        with anyio.fail_after(PATIENCE_S):
            while supervisor.state != "ready":
                await supervisor.wait_change()
        assert supervisor.pid is not None
        os.kill(supervisor.pid, signal.SIGSTOP)
        group.cancel_scope.cancel()
    assert nothing_is_left(supervisor)


@pytest.mark.anyio
async def test_a_drained_worker_ends_with_its_last_session_and_is_not_replaced(
    nothing_is_left: Left,
) -> None:
    supervisor = Supervisor(config(), RULES)
    engine = RemoteEngine(supervisor.directory)
    async with anyio.create_task_group() as group:
        group.start_soon(engine.run)
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as supervising:
                supervising.start_soon(supervisor.run)
                await engine.wait_ready()
                stream = await engine.open("s")
                await supervisor.drain(60)
                assert supervisor.state == "draining"
                await stream.aclose()
        group.cancel_scope.cancel()
    assert (supervisor.state, supervisor.restarts) == ("stopped", 0)
    assert nothing_is_left(supervisor)


@pytest.mark.anyio
async def test_a_drain_has_a_deadline(nothing_is_left: Left) -> None:
    supervisor = Supervisor(config(), RULES)
    engine = RemoteEngine(supervisor.directory)
    async with anyio.create_task_group() as group:
        group.start_soon(engine.run)
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as supervising:
                supervising.start_soon(supervisor.run)
                await engine.wait_ready()
                stream = await engine.open("s")
                await supervisor.drain(0.01)
        await stream.aclose()
        group.cancel_scope.cancel()
    assert nothing_is_left(supervisor)


@pytest.mark.anyio
async def test_a_drain_before_the_start_ends_the_supervisor(nothing_is_left: Left) -> None:
    supervisor = Supervisor(config(), RULES)
    await supervisor.drain(1)
    with anyio.fail_after(PATIENCE_S):
        await supervisor.run()
    assert nothing_is_left(supervisor)


@pytest.mark.anyio
async def test_a_directory_that_was_given_is_kept(tmp_path: Path) -> None:
    supervisor = Supervisor(config(directory=str(tmp_path)), RULES)
    async with anyio.create_task_group() as group:
        group.start_soon(supervisor.run)
        with anyio.fail_after(PATIENCE_S):
            while supervisor.state != "ready":
                await supervisor.wait_change()
        group.cancel_scope.cancel()
    assert os.listdir(tmp_path) == []
