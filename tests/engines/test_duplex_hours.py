"""Two hours of a frame-locked session, in as long as the ticks take."""

import gc
import random

import anyio
import numpy as np
import psutil
import pytest

from duologue.engines.duplex import (
    BeginDuplex,
    DuplexBegun,
    DuplexOutput,
    DuplexSpec,
    FrameHeard,
    FrameSpoken,
)
from duologue.engines.duplex_backend import DuplexBackend
from duologue.engines.duplex_limits import DuplexLimits
from duologue.engines.duplex_script import DuplexScriptOptions, EchoModel
from duologue.engines.engine import OpenSession
from duologue.engines.pulse import Pulse
from tests.talker import Clock, Here

pytestmark = pytest.mark.anyio

SMALL = DuplexSpec(sample_rate=150, frame_samples=48)
"""Quickly copied, and 320 ms, as what is looked for is in the count of ticks and in the clock."""
PERIOD_S = SMALL.frame_ms / 1000
TICKS = round(2 * 3600 / PERIOD_S)
JITTER_S = 0.015


class Mouth:
    """Takes what a session says, and holds it against what it heard."""

    def __init__(self) -> None:
        self.begun = False
        self.ticks = 0
        self.wrong = 0
        self.text = 0

    def __call__(self, output: DuplexOutput) -> None:
        if isinstance(output, DuplexBegun):
            self.begun = True
        elif isinstance(output, FrameSpoken):
            expected = level(self.ticks - 1) if self.ticks else 0
            said = int(np.frombuffer(output.pcm, "<i2")[0])
            order = (output.tick, output.heard) == (self.ticks, self.ticks)
            self.wrong += not order or said != expected
            self.ticks += 1
            self.text += len(output.text)


def level(number: int) -> int:
    return 1 + number % 30_000


async def test_two_hours_neither_grow_nor_drift() -> None:
    clock, mouth, rng = Clock(), Mouth(), random.Random(1)
    options = DuplexScriptOptions(limits=DuplexLimits(slots=1))
    backend = DuplexBackend(
        lambda: EchoModel(options, SMALL), options.limits, Here(), Pulse(), clock
    )
    send, receive = anyio.create_memory_object_stream[object](8)
    process = psutil.Process()
    memory = []
    async with send, receive, anyio.create_task_group() as group:

        async def run(*, task_status: anyio.abc.TaskStatus[None]) -> None:
            await backend.run(receive, mouth, task_status=task_status)  # type: ignore[arg-type]

        await group.start(run)
        send.send_nowait(OpenSession(session="s"))
        send.send_nowait(BeginDuplex(session="s"))
        while not mouth.begun:
            await anyio.lowlevel.checkpoint()
        began = clock.now
        for tick in range(TICKS):
            clock.now = began + tick * PERIOD_S + rng.uniform(0, JITTER_S)
            pcm = np.full(48, level(tick), "<i2").tobytes()
            send.send_nowait(FrameHeard(session="s", sequence=tick, pcm=pcm))
            while mouth.ticks <= tick:
                await anyio.lowlevel.checkpoint()
            if tick in (TICKS // 4, TICKS - 1):
                gc.collect()
                memory.append(process.memory_info().rss)
        group.cancel_scope.cancel()
    assert (mouth.ticks, mouth.wrong) == (TICKS, 0)
    totals = backend.scheduler.totals
    assert (totals.steps, totals.silent, totals.dropped, totals.missed) == (TICKS, 0, 0, 0)
    assert mouth.text > 0
    assert memory[1] - memory[0] < 2 * 2**20
