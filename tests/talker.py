"""Frame-locked sessions in tests: a clock that the test moves, and somebody who talks."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import numpy as np

from duologue.engines.duplex import BeginDuplex, DuplexOutput, FrameHeard, FrameSpoken
from duologue.engines.duplex_backend import DuplexBackend
from duologue.engines.duplex_limits import DuplexLimits
from duologue.engines.duplex_model import DuplexModel
from duologue.engines.duplex_stream import RemoteDuplex, RemoteDuplexStream
from duologue.engines.in_process import open_in_process
from duologue.engines.pulse import Pulse
from duologue.engines.remote import RemoteEngine
from tests.patience import PATIENCE_S

PERIOD_S = 0.08
T = TypeVar("T")
Output = TypeVar("Output", bound=DuplexOutput)


class Here:
    """Runs the model's calls on the event loop: nothing here takes long."""

    async def call(self, work: Callable[[], T]) -> T:
        return work()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def frame(number: int) -> bytes:
    """A frame of 24 kHz that is told by its level."""
    return np.full(1920, 100 + number, "<i2").tobytes()


def level(pcm: bytes) -> int:
    return int(np.frombuffer(pcm, "<i2")[0])


class Talker:
    """A session, spoken to frame by frame."""

    def __init__(self, stream: RemoteDuplexStream, clock: Clock) -> None:
        self.stream = stream
        self.clock = clock
        self.sequence = 0

    async def expect(self, kind: type[Output]) -> Output:
        with anyio.fail_after(PATIENCE_S):
            output = await self.stream.receive()
        assert isinstance(output, kind), output
        return output

    def hear(self, pcm: bytes = b"") -> None:
        pcm = pcm or frame(self.sequence)
        self.stream.send(FrameHeard(session="", sequence=self.sequence, pcm=pcm))
        self.sequence += 1

    async def talk(self, pcm: bytes = b"") -> FrameSpoken:
        """A frame in and a frame out, a period later than the one before."""
        self.clock.now += PERIOD_S
        self.hear(pcm)
        return await self.expect(FrameSpoken)


class Setting:
    def __init__(self, engine: RemoteEngine, backend: DuplexBackend[Any], clock: Clock) -> None:
        self.engine = engine
        self.duplex = RemoteDuplex(engine)
        self.backend = backend
        self.clock = clock

    async def open(self, name: str = "a", instructions: str = "", **begin: Any) -> Talker:
        asked = BeginDuplex(session="", instructions=instructions, **begin)
        return Talker(await self.duplex.open(name, asked), self.clock)

    async def fork(self, talker: Talker, name: str) -> Talker:
        child = Talker(await talker.stream.fork(name), self.clock)
        child.sequence = talker.sequence
        return child


@asynccontextmanager
async def setting(model: DuplexModel[Any], limits: DuplexLimits) -> AsyncIterator[Setting]:
    """The model behind the sockets, with a clock that moves when a talker talks."""
    clock = Clock()
    backend = DuplexBackend(lambda: model, limits, Here(), Pulse(), clock)
    async with open_in_process(backend) as engine:
        yield Setting(engine, backend, clock)
