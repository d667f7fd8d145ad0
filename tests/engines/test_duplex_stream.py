"""Frame-locked sessions on a worker process that can be killed."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest

from duologue.engines.duplex import BeginDuplex, DuplexStream, FrameHeard, FrameSpoken
from duologue.engines.duplex_limits import DuplexLimits
from duologue.engines.duplex_script import DuplexScriptOptions
from duologue.engines.duplex_stream import RemoteDuplex
from duologue.engines.engine import EngineLost, EngineUnavailable
from duologue.engines.lifeline import WorkerConfig
from duologue.engines.remote import RemoteEngine
from duologue.engines.script import ScriptedOptions
from duologue.engines.supervisor import Supervisor
from tests.patience import PATIENCE_S
from tests.talker import frame

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def worker(
    backend: str, options: msgspec.Struct
) -> AsyncIterator[tuple[Supervisor, RemoteEngine]]:
    config = WorkerConfig(
        name="test", backend=backend, directory="", options=msgspec.msgpack.encode(options)
    )
    supervisor = Supervisor(config)
    engine = RemoteEngine(supervisor.directory)
    async with anyio.create_task_group() as group:
        group.start_soon(supervisor.run)
        group.start_soon(engine.run)
        with anyio.fail_after(PATIENCE_S):
            await engine.wait_ready()
        yield supervisor, engine
        group.cancel_scope.cancel()


async def spoken(stream: DuplexStream, sequence: int) -> FrameSpoken:
    stream.send(FrameHeard(session="", sequence=sequence, pcm=frame(sequence)))
    with anyio.fail_after(PATIENCE_S):
        while True:
            output = await stream.receive()
            if isinstance(output, FrameSpoken) and output.heard == sequence:
                return output


async def test_sessions_are_told_when_their_worker_is_killed_and_new_ones_begin() -> None:
    options = DuplexScriptOptions(limits=DuplexLimits(slots=4, slow=True))
    async with worker("scripted-duplex", options) as (supervisor, engine):
        duplex = RemoteDuplex(engine)
        streams = [await duplex.open(name, BeginDuplex(session="")) for name in "ab"]
        assert (await spoken(streams[0], 0)).session == "a"
        assert supervisor.pid is not None
        os.kill(supervisor.pid, signal.SIGKILL)
        for stream in streams:
            with anyio.fail_after(PATIENCE_S), pytest.raises(EngineLost):
                while True:
                    await stream.receive()
            with pytest.raises(EngineLost):
                stream.send(FrameHeard(session="", sequence=1, pcm=frame(1)))
            await stream.aclose()
        with anyio.fail_after(PATIENCE_S):
            await engine.wait_ready()
        again = await duplex.open("c", BeginDuplex(session=""))
        assert (await spoken(again, 0)).tick >= 0


async def test_an_engine_that_takes_turns_has_no_frames() -> None:
    async with worker("scripted", ScriptedOptions()) as (_, engine):
        duplex = RemoteDuplex(engine)
        with pytest.raises(EngineUnavailable):
            _ = duplex.spec
        with anyio.fail_after(PATIENCE_S), pytest.raises((EngineUnavailable, EngineLost)):
            await duplex.open("a", BeginDuplex(session=""))
