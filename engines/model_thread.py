"""A thread that a model has to itself: what a device keeps for a thread stays in one place."""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol, TypeVar

import anyio

from duologue.engines.pulse import Pulse

T = TypeVar("T")


class Caller(Protocol):
    """See :class:`ModelThread`."""

    async def call(self, work: Callable[[], T]) -> T: ...


class ModelThread:
    """Runs one call at a time, in order, off the event loop. One task at a time may use it."""

    def __init__(self, name: str, pulse: Pulse) -> None:
        self._pulse = pulse
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # A daemon, as a step that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. It can't be stopped: a cancel takes effect after it."""
        loop = asyncio.get_running_loop()
        done = anyio.Event()
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                with self._pulse.step():
                    results.append(work())
            except BaseException as error:
                errors.append(error)
            loop.call_soon_threadsafe(done.set)

        self._calls.put(run)
        with anyio.CancelScope(shield=True):
            await done.wait()
        if errors:
            raise errors[0]
        return results[0]

    def close(self) -> None:
        """Let the thread end after what it is at. Idempotent."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
