"""Which of several workers of one model takes a session. The choice is for the session's life."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import anyio

from duologue.engines.duplex_stream import DuplexPlace
from duologue.engines.engine import (
    EngineFull,
    EngineSpec,
    EngineStream,
    EngineUnavailable,
)

RETRY_AFTER_S = 2.0
"""What a client is told when no replica is ready, in seconds."""


Stream = TypeVar("Stream")


class Replica(Protocol):
    """An engine that says how much room it has."""

    @property
    def spec(self) -> EngineSpec: ...

    @property
    def ready(self) -> bool: ...

    @property
    def capacity(self) -> int: ...

    @property
    def sessions(self) -> int: ...

    @property
    def batch_sessions(self) -> int: ...

    async def wait_ready(self) -> None: ...

    async def open(self, session: str) -> EngineStream: ...

    async def open_duplex(self, session: str) -> DuplexPlace: ...

    async def open_batch(self, session: str) -> EngineStream: ...


def by_room(replicas: Sequence[Replica]) -> list[Replica]:
    """The ready ones, the one with the most free places first; equals keep their order."""
    ready = [replica for replica in replicas if replica.ready]
    return sorted(ready, key=lambda replica: replica.sessions - replica.capacity)


def by_queue(replicas: Sequence[Replica]) -> list[Replica]:
    """The ready ones, the one with the shortest batch lane first; equals by their room."""
    return sorted(by_room(replicas), key=lambda replica: replica.batch_sessions)


class PlacedEngine:
    """One engine made of several. See :class:`duologue.engines.engine.Engine`.

    A stream belongs to the replica that opened it; when that one is lost, the session is, and
    opening it again finds another.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        """`replicas` serve the same model; there is one at least."""
        if not replicas:
            raise ValueError("an engine needs one replica at least")
        self._replicas = tuple(replicas)

    @property
    def spec(self) -> EngineSpec:
        """Of the first that has been reached. Raises EngineUnavailable before that."""
        for replica in self._replicas[:-1]:
            try:
                return replica.spec
            except EngineUnavailable:
                continue
        return self._replicas[-1].spec

    @property
    def ready(self) -> bool:
        return any(replica.ready for replica in self._replicas)

    @property
    def capacity(self) -> int:
        """Places of the replicas that are ready."""
        return sum(replica.capacity for replica in self._replicas if replica.ready)

    @property
    def sessions(self) -> int:
        return sum(replica.sessions for replica in self._replicas)

    @property
    def batch_sessions(self) -> int:
        return sum(replica.batch_sessions for replica in self._replicas)

    async def wait_ready(self) -> None:
        """Return as soon as one is ready. Unbounded: the caller sets the deadline."""

        async def wait(replica: Replica) -> None:
            await replica.wait_ready()
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for replica in self._replicas:
                group.start_soon(wait, replica)

    async def open(self, session: str) -> EngineStream:
        """A place on the replica with the most room.

        Raises EngineFull when all that are ready are full, EngineUnavailable when none is ready.
        """
        return await _first([replica.open for replica in by_room(self._replicas)], session)

    async def open_duplex(self, session: str) -> DuplexPlace:
        """As :meth:`open`, of frame-locked workers."""
        return await _first([replica.open_duplex for replica in by_room(self._replicas)], session)

    async def open_batch(self, session: str) -> EngineStream:
        """A place in the batch lane of the replica where it is shortest. Raises as :meth:`open`."""
        return await _first([replica.open_batch for replica in by_queue(self._replicas)], session)


async def _first(openings: Sequence[Callable[[str], Awaitable[Stream]]], session: str) -> Stream:
    """The first place that is given; of several that are full, the one with room soonest tells
    when to come again."""
    soonest: EngineFull | None = None
    for opening in openings:
        try:
            return await opening(session)
        except EngineFull as full:
            if soonest is None or full.retry_after < soonest.retry_after:
                soonest = full
        except EngineUnavailable:
            continue  # lost a moment ago
    raise soonest or EngineUnavailable(RETRY_AFTER_S)
