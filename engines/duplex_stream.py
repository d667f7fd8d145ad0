"""The gateway's side of a frame-locked engine: sessions that have begun, over places on workers."""

from contextlib import AsyncExitStack
from typing import Protocol

import msgspec

from duologue.engines.duplex import (
    BeginDuplex,
    DuplexBegun,
    DuplexChoice,
    DuplexCommand,
    DuplexFailed,
    DuplexOutput,
    DuplexSpec,
    ForkDuplex,
)
from duologue.engines.engine import EngineError, EngineFull, EngineSpec, EngineUnavailable


class DuplexRefused(EngineError):
    """The session can't begin like this. ``code`` and ``message`` are a DuplexFailed's."""

    def __init__(self, failure: DuplexFailed) -> None:
        super().__init__(failure.message)
        self.code = failure.code
        self.message = failure.message


class DuplexPlace(Protocol):
    """A place on a worker, as :class:`duologue.engines.remote.RemoteStream` is one."""

    alias: str

    def send(self, command: DuplexCommand) -> None: ...

    async def receive_duplex(self) -> DuplexOutput: ...

    async def open_beside(self, session: str) -> "DuplexPlace": ...

    async def aclose(self) -> None: ...


class DuplexPlaces(Protocol):
    """Engines that give such places."""

    @property
    def spec(self) -> EngineSpec: ...

    @property
    def ready(self) -> bool: ...

    async def open_duplex(self, session: str) -> DuplexPlace: ...


class RemoteDuplexStream:
    """See :class:`duologue.engines.duplex.DuplexStream`."""

    def __init__(self, place: DuplexPlace, tick: int) -> None:
        self._place = place
        self.tick = tick

    def send(self, command: DuplexCommand) -> None:
        self._place.send(command)

    async def receive(self) -> DuplexOutput:
        return await self._place.receive_duplex()

    async def fork(self, session: str, choice: DuplexChoice | None = None) -> "RemoteDuplexStream":
        place = await self._place.open_beside(session)
        return await _begun(place, ForkDuplex(session="", source=self._place.alias, choice=choice))

    async def aclose(self) -> None:
        await self._place.aclose()


class RemoteDuplex:
    """See :class:`duologue.engines.duplex.Duplex`."""

    def __init__(self, engine: DuplexPlaces) -> None:
        self._engine = engine

    @property
    def spec(self) -> DuplexSpec:
        """Raises EngineUnavailable, also for an engine that is not frame-locked."""
        spec = self._engine.spec.duplex
        if spec is None:
            raise EngineUnavailable(0.0)
        return spec

    @property
    def ready(self) -> bool:
        return self._engine.ready

    async def open(self, session: str, begin: BeginDuplex) -> RemoteDuplexStream:
        return await _begun(await self._engine.open_duplex(session), begin)


async def _begun(place: DuplexPlace, begin: BeginDuplex | ForkDuplex) -> RemoteDuplexStream:
    """The place's session once it has begun; else the place is given back."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(place.aclose)
        place.send(begin)
        while True:
            match await place.receive_duplex():
                case DuplexBegun(tick=tick):
                    stack.pop_all()
                    return RemoteDuplexStream(place, tick)
                case DuplexFailed(code="engine_overloaded", retry_after_s=retry_after_s):
                    raise EngineFull(retry_after_s)
                case DuplexFailed() as failure:
                    raise DuplexRefused(msgspec.structs.replace(failure, session=""))
                case _:
                    continue
