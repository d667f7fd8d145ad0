"""Which of several workers of one model takes a session. The choice is for the session's life."""

from collections.abc import Sequence
from typing import Protocol

import anyio

from duologue.engines.engine import (
    EngineFull,
    EngineSpec,
    EngineStream,
    EngineUnavailable,
)

RETRY_AFTER_S = 2.0
"""What a client is told when no replica is ready, in seconds."""


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

    async def wait_ready(self) -> None: ...

    async def open(self, session: str) -> EngineStream: ...


def by_room(replicas: Sequence[Replica]) -> list[Replica]:
    """The ready ones, the one with the most free places first; equals keep their order."""
    ready = [replica for replica in replicas if replica.ready]
    return sorted(ready, key=lambda replica: replica.sessions - replica.capacity)


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
        refusal: EngineFull | EngineUnavailable = EngineUnavailable(RETRY_AFTER_S)
        for replica in by_room(self._replicas):
            try:
                return await replica.open(session)
            except EngineFull as full:
                refusal = full
            except EngineUnavailable:
                continue  # lost a moment ago
        raise refusal
