import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from duologue.engines.engine import (
    EngineUnavailable,
    Output,
    Respond,
    ResponseEnded,
)
from duologue.engines.in_process import open_in_process
from duologue.engines.remote import RemoteStream
from duologue.engines.script import ScriptedOptions
from duologue.engines.scripted import ScriptedBackend

pytestmark = pytest.mark.anyio


async def test_a_backend_here_answers_and_can_be_looked_into(
    ask: Callable[..., Respond], rest_of: Callable[[RemoteStream], Awaitable[list[Output]]]
) -> None:
    backend = ScriptedBackend()
    async with open_in_process(backend) as engine:
        assert engine.ready
        assert engine.spec == backend.spec
        stream = await engine.open("s")
        asked = ask("s", 1, "hello", modality="text")
        stream.send(asked)
        outputs = await rest_of(stream)
        assert isinstance(outputs[-1], ResponseEnded)
        assert backend.requests[0].request == asked.request
        await stream.aclose()


async def test_a_backend_that_does_not_start_is_raised_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    backend = ScriptedBackend(ScriptedOptions(start_failure="on purpose"))
    with pytest.raises(ExceptionGroup) as raised:
        async with open_in_process(backend):
            raise AssertionError("it did start")
    assert raised.group_contains(RuntimeError, match="on purpose")
    assert os.listdir(tmp_path) == []


async def test_leaving_loses_the_streams(
    loss_of: Callable[[RemoteStream], Awaitable[list[Output]]],
) -> None:
    async with open_in_process(ScriptedBackend()) as engine:
        stream = await engine.open("s")
    assert await loss_of(stream) == []
    await stream.aclose()
    with pytest.raises(EngineUnavailable):
        await engine.open("s")
    assert not engine.ready
    await anyio.lowlevel.checkpoint()
