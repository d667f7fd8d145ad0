"""So many calls into a model at a time, in fair order."""

from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import anyio.to_thread

from duologue.engines.fairness import FairQueue, Rank, Ticket
from duologue.engines.live_calls import LiveCalls
from duologue.engines.pulse import Pulse, Stopwatch

T = TypeVar("T")


class Turnstile:
    """Lets `width` through at a time. Used on one event loop; :meth:`outranked` from any thread."""

    def __init__(
        self, width: int = 1, live: LiveCalls | None = None, waits: Stopwatch | None = None
    ) -> None:
        """`live` is told of every :meth:`turn`, from before it waits; `waits`, how long it did."""
        self._live = live or LiveCalls()
        self._waits = waits or Stopwatch()
        self._queue = FairQueue()
        self._waiting: dict[Ticket, anyio.Event] = {}
        self._room = width
        self._width = width

    @property
    def idle(self) -> bool:
        """Nobody is inside and nobody waits."""
        return self._room == self._width and not len(self._queue)

    def outranked(self, rank: Rank, served: bool) -> bool:
        """Whether someone waits who should have the place of one with this rank.

        `served`: it has had its share for now, and makes way for its equals too.
        """
        best = self._queue.best_rank()
        return best is not None and (best < rank or (served and best == rank))

    def forget(self, key: Hashable) -> None:
        """The session is over."""
        self._queue.forget(key)

    async def enter(self, key: Hashable, rank: Rank) -> None:
        """Wait for one's turn; :meth:`leave` must follow. Not entered when cancelled."""
        if self._room and not len(self._queue):
            self._room -= 1
            return
        ticket = self._queue.add(key, rank)
        self._waiting[ticket] = event = anyio.Event()
        try:
            await event.wait()
        except BaseException:
            del self._waiting[ticket]
            if event.is_set():
                self.leave()
            else:
                self._queue.discard(ticket)
            raise
        del self._waiting[ticket]

    def leave(self) -> None:
        """Let the next one in."""
        ticket = self._queue.take()
        if ticket is None:
            self._room += 1
        else:
            self._waiting[ticket].set()

    @asynccontextmanager
    async def turn(self, key: Hashable, rank: Rank) -> AsyncIterator[None]:
        with self._live.call():
            asked = anyio.current_time()
            await self.enter(key, rank)
            self._waits.add(anyio.current_time() - asked)
            try:
                yield
            finally:
                self.leave()


class ModelThread:
    """Calls into one model: off the event loop, one at a time, counted by the pulse."""

    def __init__(self, pulse: Pulse) -> None:
        self.turnstile = Turnstile(live=pulse.live, waits=pulse.waits)
        self._pulse = pulse
        self._limiter = anyio.CapacityLimiter(1)

    async def call(self, key: Hashable, rank: Rank, work: Callable[[], T]) -> T:
        """The result of `work`, called in a thread when its turn has come; see :meth:`run`."""
        async with self.turnstile.turn(key, rank):
            return await self.run(work)

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, called in a thread now; the caller has the turn.

        A caller that is cancelled meanwhile waits for the end of its work, so `work` should look
        at a flag of its own from time to time.
        """
        return await anyio.to_thread.run_sync(self._counted, work, limiter=self._limiter)

    def _counted(self, work: Callable[[], T]) -> T:
        with self._pulse.step():
            return work()
