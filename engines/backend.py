"""What runs inside a worker process."""

from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectReceiveStream

from duologue.engines.engine import Command, EngineSpec, Output

Emit = Callable[[Output], None]
"""Hands an output to the session's gateway. Never waits; called on the worker's event loop only."""

BURST = 32
"""Commands that are taken without a turn for other tasks between them."""


T = TypeVar("T")


async def incoming(commands: MemoryObjectReceiveStream[T]) -> AsyncIterator[T]:
    """The commands until their end: those that wait are given together, up to :data:`BURST`.

    The stream itself gives others a turn before each, which costs more than most commands do.
    """
    async for command in commands:
        yield command
        for _ in range(BURST - 1):
            try:
                command = commands.receive_nowait()
            except (anyio.WouldBlock, anyio.EndOfStream):
                break
            yield command


class Backend(Protocol):
    """A model, or a cascade of them, that serves many sessions at once in one process."""

    @property
    def spec(self) -> EngineSpec:
        """Known once :meth:`run` has reported that it started."""

    @property
    def capacity(self) -> int:
        """Sessions that may be open at once."""

    async def run(
        self,
        commands: MemoryObjectReceiveStream[Command],
        emit: Emit,
        *,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        """Serve until ``commands`` ends.

        Calls ``task_status.started()`` after the models are loaded and one turn has been run
        through the real path. A request that goes wrong is answered with its failure; an
        exception that leaves this method ends the worker. A closed session's work is cancelled
        and nothing more is emitted for it.
        """
