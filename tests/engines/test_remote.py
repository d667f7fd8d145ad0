import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import anyio
import msgspec
import pytest

from duologue.engines.engine import (
    AlignSpeech,
    CancelResponse,
    EndUtterance,
    EngineFull,
    EngineLost,
    EngineUnavailable,
    Hear,
    JudgeTurn,
    Output,
    Prepare,
    Respond,
    ResponseEnded,
    ResponseQueued,
    ResponseRequest,
    SpeechAligned,
    SpeechGenerated,
    TranscriptFinal,
    TurnJudged,
)
from duologue.engines.frames import FrameWriter
from duologue.engines.in_process import open_in_process
from duologue.engines.lane import LaneLimits
from duologue.engines.lanes import Admitted, Draining
from duologue.engines.remote import RemoteEngine, RemoteLimits, RemoteStream
from duologue.engines.script import Clause, Reply, ScriptedOptions
from duologue.engines.scripted import ScriptedBackend
from duologue.engines.supervisor import SupervisionRules
from duologue.engines.unix_stream import UnixStream, listen_at
from duologue.engines.worker_directory import socket_paths
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

Ask = Callable[..., Respond]
Read = Callable[[RemoteStream], Awaitable[list[Output]]]

AT_ONCE = Reply(clauses=(Clause("All at once.", 3000),), first_ms=0, pace=0)
ENDLESS = Reply(clauses=(Clause("On and on.", 600_000),), first_ms=0)


def framed(message: msgspec.Struct) -> bytes:
    writer = FrameWriter(1000)
    writer.put(message)
    return bytes(writer.take())


def scripted(*replies: Reply, **options: object) -> ScriptedBackend:
    given = {"replies": replies} if replies else {}
    return ScriptedBackend(ScriptedOptions(**given, **options))  # type: ignore[arg-type]


# -- places ---------------------------------------------------------------------------------


async def test_a_full_engine_says_so_until_a_place_is_given_back() -> None:
    async with open_in_process(scripted(capacity=1)) as engine:
        first = await engine.open("a")
        with pytest.raises(EngineFull) as raised:
            await engine.open("b")
        assert raised.value.retry_after > 0
        await first.aclose()
        second = await engine.open("b")
        await second.aclose()
        assert engine.sessions == 0


async def test_an_engine_without_a_worker_is_unavailable(tmp_path: Path) -> None:
    engine = RemoteEngine(tmp_path)
    assert not engine.ready
    with pytest.raises(EngineUnavailable) as raised:
        await engine.open("s")
    assert raised.value.retry_after > 0
    with pytest.raises(EngineUnavailable):
        _ = engine.spec


async def test_a_thousand_sessions_come_and_go_and_leave_nothing() -> None:
    backend = scripted(capacity=2)
    async with open_in_process(backend) as engine:
        for number in range(1000):
            stream = await engine.open(f"s{number}")
            await stream.aclose()
        last = await engine.open("last")
        assert engine.sessions == 1
        await last.aclose()
        assert engine.sessions == 0
    assert backend.performance.sessions == 0


async def test_one_name_can_be_opened_again_and_hears_nothing_old(ask: Ask, rest_of: Read) -> None:
    async with open_in_process(scripted(AT_ONCE)) as engine:
        first = await engine.open("s")
        first.send(ask("s", 1, "hello"))
        await first.aclose()
        second = await engine.open("s")
        second.send(ask("s", 2, "hello"))
        outputs = await rest_of(second)
        assert {output.generation for output in outputs if isinstance(output, SpeechGenerated)} == {
            2
        }
        await second.aclose()


async def test_two_gateways_share_the_places() -> None:
    async with open_in_process(scripted(capacity=1)) as engine:
        other = RemoteEngine(engine.directory)
        async with anyio.create_task_group() as group:
            with anyio.fail_after(PATIENCE_S):
                await group.start(other.run)
            stream = await engine.open("s")
            with pytest.raises(EngineFull):
                await other.open("s")
            await stream.aclose()
            theirs = None
            with anyio.fail_after(PATIENCE_S):
                while theirs is None:
                    # The close goes another way than the open, and may be behind it.
                    with suppress(EngineFull):
                        theirs = await other.open("s")
            await theirs.aclose()
            group.cancel_scope.cancel()


async def test_an_open_that_is_cancelled_gives_its_place_back() -> None:
    async with open_in_process(scripted(capacity=1)) as engine:
        for checkpoints in range(12):
            async with anyio.create_task_group() as group:
                group.start_soon(engine.open, "s")
                for _ in range(checkpoints):
                    await anyio.lowlevel.checkpoint()
                for stream in list(engine._streams.values()):
                    if stream.admitted:
                        await stream.aclose()
                group.cancel_scope.cancel()
            assert engine.sessions == 0
            stream = await engine.open("again")
            await stream.aclose()


@pytest.mark.parametrize(
    "greeting",
    [
        None,
        b"",
        b"\0\0\0\1\xc1",
        framed(Draining()),
        framed(Admitted("s")),
    ],
    ids=["closes at once", "closes", "nonsense", "not a welcome", "an answer to nothing"],
)
async def test_a_worker_that_does_not_welcome_is_knocked_at_again(
    tmp_path: Path, greeting: bytes | None
) -> None:
    knocks = 0
    enough = anyio.Event()

    async def answer(stream: UnixStream) -> None:
        nonlocal knocks
        knocks += 1
        if knocks >= 6:
            enough.set()
        try:
            if greeting is not None:
                await stream.receive(100)
                await stream.send(greeting)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass
        finally:
            await stream.aclose()

    engine = RemoteEngine(tmp_path, RemoteLimits(retry_s=0.001))
    control, data = socket_paths(tmp_path)
    with anyio.fail_after(PATIENCE_S):
        async with (
            listen_at(control) as first,
            listen_at(data) as second,
            anyio.create_task_group() as group,
        ):
            group.start_soon(first.serve, answer)
            group.start_soon(second.serve, answer)
            group.start_soon(engine.run)
            await enough.wait()
            assert not engine.ready
            group.cancel_scope.cancel()


# -- streams --------------------------------------------------------------------------------


async def test_what_is_heard_is_answered() -> None:
    async with open_in_process(scripted(transcripts=("good day",))) as engine:
        stream = await engine.open("s")
        stream.send(Hear("u", 0, bytes(3200), session="s"))
        stream.send(JudgeTurn("u", 1600, session="s"))
        stream.send(EndUtterance("u", 1600, session="s"))
        outputs: list[Output] = []
        with anyio.fail_after(PATIENCE_S):
            while not outputs or not isinstance(outputs[-1], TranscriptFinal):
                outputs.append(await stream.receive())
        assert isinstance(outputs[0], TurnJudged)
        assert outputs[-1] == TranscriptFinal("u", "good day", 0.1, session="s")
        await stream.aclose()


async def test_outputs_have_the_name_that_the_session_was_opened_by(
    ask: Ask, rest_of: Read
) -> None:
    async with open_in_process(scripted(AT_ONCE)) as engine:
        stream = await engine.open("sess_1")
        stream.send(ask("sess_1", 1, "hello"))
        assert {output.session for output in await rest_of(stream)} == {"sess_1"}
        await stream.aclose()


@pytest.mark.parametrize("checkpoints", range(8))
async def test_a_cancel_ends_an_answer_once_whenever_it_comes(
    ask: Ask, rest_of: Read, checkpoints: int
) -> None:
    async with open_in_process(scripted(ENDLESS)) as engine:
        stream = await engine.open("s")
        stream.send(ask("s", 1, "hello"))
        for _ in range(checkpoints):
            await anyio.lowlevel.checkpoint()
        stream.send(CancelResponse(1, session="s"))
        stream.send(ask("s", 2, "hello"))
        stream.send(CancelResponse(2, session="s"))
        ends = await rest_of(stream) + await rest_of(stream)
        told = [(e.generation, e.reason) for e in ends if isinstance(e, ResponseEnded)]
        assert told == [(1, "cancelled"), (2, "cancelled")]
        await stream.aclose()


async def test_a_session_that_does_not_read_is_lost_and_no_other(
    ask: Ask, rest_of: Read, loss_of: Read
) -> None:
    backend = scripted(AT_ONCE, capacity=2)
    async with open_in_process(backend, RemoteLimits(inbox=40)) as engine:
        deaf, well = await engine.open("deaf"), await engine.open("well")
        for generation in (1, 2):
            deaf.send(ask("deaf", generation, "hello"))
            well.send(ask("well", generation, "hello"))
            assert isinstance((await rest_of(well))[-1], ResponseEnded)
        assert await loss_of(deaf) == []
        with pytest.raises(EngineLost):
            deaf.send(ask("deaf", 3, "hello"))
        assert engine.sessions == 1
        await deaf.aclose()
        freed = await engine.open("freed")
        await freed.aclose()
        await well.aclose()


async def test_a_stream_that_was_closed_is_lost(ask: Ask, loss_of: Read) -> None:
    async with open_in_process(scripted(AT_ONCE)) as engine:
        stream = await engine.open("s")
        for _ in range(2):
            await stream.aclose()
        assert await loss_of(stream) == []
        with pytest.raises(EngineLost):
            stream.send(ask("s", 1, "hello"))


async def test_closing_ends_a_read_that_waits(loss_of: Read) -> None:
    async with open_in_process(scripted()) as engine:
        stream = await engine.open("s")
        async with anyio.create_task_group() as group:
            group.start_soon(loss_of, stream)
            await anyio.wait_all_tasks_blocked()
            await stream.aclose()


async def test_a_request_that_no_frame_can_hold_fails_and_the_session_goes_on(
    ask: Ask, rest_of: Read
) -> None:
    limits = RemoteLimits(lanes=LaneLimits(frame_bytes=10_000))
    async with open_in_process(scripted(AT_ONCE), limits) as engine:
        stream = await engine.open("s")
        large = ResponseRequest(instructions="x" * 20_000, messages=())
        stream.send(Prepare(large, session="s"))
        stream.send(Respond(1, large, session="s"))
        (end,) = await rest_of(stream)
        assert isinstance(end, ResponseEnded)
        assert end.failure is not None
        assert (end.reason, end.failure.code) == ("failed", "context_too_long")
        stream.send(AlignSpeech("r", "words", bytes(20_000), session="s"))
        assert await stream.receive() == SpeechAligned("r", (), session="s")
        with pytest.raises(ValueError, match="Hear"):
            stream.send(Hear("u", 0, bytes(20_000), session="s"))
        stream.send(ask("s", 2, "hello"))
        await stream.aclose()


async def test_a_lane_that_is_overfull_loses_the_worker_which_is_found_again(
    ask: Ask, rest_of: Read, loss_of: Read
) -> None:
    limits = RemoteLimits(lanes=LaneLimits(queue_bytes=100_000))
    async with open_in_process(scripted(AT_ONCE), limits) as engine:
        flooding, other = await engine.open("flooding"), await engine.open("other")
        with pytest.raises(EngineLost):
            for _ in range(20):
                flooding.send(Hear("u", 0, bytes(20_000), session="flooding"))
        for stream in (flooding, other):
            assert await loss_of(stream) == []
            await stream.aclose()
        with anyio.fail_after(PATIENCE_S):
            await engine.wait_ready()
        again = await engine.open("again")
        again.send(ask("again", 1, "hello"))
        assert isinstance((await rest_of(again))[-1], ResponseEnded)
        await again.aclose()


async def test_the_depth_of_an_inbox_can_be_read(ask: Ask) -> None:
    async with open_in_process(scripted(AT_ONCE)) as engine:
        stream = await engine.open("s")
        stream.send(ask("s", 1, "hello"))
        first = await stream.receive()
        assert isinstance(first, SpeechGenerated)
        with anyio.fail_after(PATIENCE_S):
            while stream.waiting < 30:
                await anyio.lowlevel.checkpoint()
        await stream.aclose()
        assert stream.waiting == 0


# -- the worker's death ---------------------------------------------------------------------


async def test_the_death_of_a_worker_is_told_to_every_session_and_the_next_one_is_found(
    deploy: Callable[..., object], ask: Ask, rest_of: Read, loss_of: Read
) -> None:
    async with deploy(ScriptedOptions(replies=(ENDLESS,))) as deployment:  # type: ignore[attr-defined]
        engine, supervisor = deployment.engine, deployment.supervisor
        speaking, idle = await engine.open("speaking"), await engine.open("idle")
        speaking.send(ask("speaking", 1, "hello"))
        assert isinstance(await speaking.receive(), SpeechGenerated)
        os.kill(supervisor.pid, signal.SIGKILL)
        for stream in (speaking, idle):
            outputs = await loss_of(stream)
            assert not any(isinstance(output, ResponseEnded) for output in outputs)
            with pytest.raises(EngineLost):
                stream.send(ask("s", 2, "hello"))
            await stream.aclose()
        assert not engine.ready
        with pytest.raises(EngineUnavailable):
            await engine.open("speaking")
        with anyio.fail_after(PATIENCE_S):
            await engine.wait_ready()
        again = await engine.open("speaking")
        again.send(ask("speaking", 2, "hello"))
        assert isinstance(await again.receive(), SpeechGenerated)
        await again.aclose()
        assert supervisor.restarts == 1


async def test_a_worker_that_drains_takes_no_more_sessions(
    deploy: Callable[..., object], ask: Ask, loss_of: Read
) -> None:
    async with deploy(ScriptedOptions(replies=(ENDLESS,))) as deployment:  # type: ignore[attr-defined]
        engine, supervisor = deployment.engine, deployment.supervisor
        stream = await engine.open("s")
        stream.send(ask("s", 1, "hello"))
        await supervisor.drain(60)
        refused = False
        with anyio.fail_after(PATIENCE_S):
            while not refused:
                assert isinstance(await stream.receive(), SpeechGenerated)
                refused = not engine.ready
        with pytest.raises(EngineUnavailable):
            await engine.open("late")
        await stream.aclose()


async def test_a_worker_that_does_not_answer_is_unavailable(
    deploy: Callable[..., object],
) -> None:
    limits, rules = RemoteLimits(open_s=0.01), SupervisionRules(stop_s=0.01)
    async with deploy(limits=limits, rules=rules) as deployment:  # type: ignore[attr-defined]
        os.kill(deployment.supervisor.pid, signal.SIGSTOP)
        with pytest.raises(EngineUnavailable):
            await deployment.engine.open("s")
        assert deployment.engine.sessions == 0


async def test_a_batch_session_is_counted_apart_from_conversations(ask: Ask, rest_of: Read) -> None:
    async with open_in_process(scripted(AT_ONCE)) as engine:
        stream = await engine.open_batch("s")
        assert (engine.sessions, engine.batch_sessions) == (0, 1)
        stream.send(ask("s", 1, "hi", modality="text"))
        outputs = await rest_of(stream)
        assert outputs[0] == ResponseQueued(1, 0, session="s")
        assert isinstance(outputs[-1], ResponseEnded)
        await stream.aclose()
        assert engine.batch_sessions == 0
