"""The ranks of a Moshi besides the first: their processes, and what they are told.

Orders are written and not answered; the ranks come together in the sums of a step. Which slot holds
which pages is decided by the first rank alone. What a follower saves of a slot stays in its own
memory, under a number that the first rank's part goes by.
"""

import logging
import os
import select
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol
from weakref import finalize

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.engines.frames import FrameReader, FrameWriter
from duologue.engines.moshi_orders import (
    ORDER_BYTES,
    Change,
    ClearSlot,
    CopySlot,
    Failed,
    Follow,
    FollowerReport,
    Forget,
    KeepSlot,
    Meet,
    Order,
    Ready,
    RestoreSlot,
    StepSlots,
)

log = logging.getLogger("duologue.engines.worker")

STOP_S: Final = 5.0
"""For followers to end in order."""

FORCED_EXIT: Final = 70
_READ_BYTES: Final = 65536


class CrewLost(RuntimeError):
    """A rank is gone, or could not begin. The text says which, and why."""


class Kept:
    """What every follower has saved of a slot. When nobody refers to it any more, it is
    forgotten."""

    def __init__(self, number: int) -> None:
        self.number = number


class Crew(Protocol):
    """Told of whatever the first rank does with its slots, just before it does it."""

    def step(
        self, active: NDArray[np.bool_], pages: NDArray[np.int64], rings: NDArray[np.int64]
    ) -> None:
        """``[size]`` each; see :class:`duologue.engines.moshi_orders.StepSlots`."""

    def clear(self, slot: int) -> None: ...

    def copy(self, source: int, target: int, pages: Sequence[int]) -> None: ...

    def keep(self, slot: int) -> Kept | None: ...

    def restore(self, slot: int, kept: Kept | None, pages: Sequence[int]) -> None: ...


class Alone:
    """There is no other rank."""

    def step(
        self, active: NDArray[np.bool_], pages: NDArray[np.int64], rings: NDArray[np.int64]
    ) -> None:
        return None

    def clear(self, slot: int) -> None:
        return None

    def copy(self, source: int, target: int, pages: Sequence[int]) -> None:
        return None

    def keep(self, slot: int) -> Kept | None:
        return None

    def restore(self, slot: int, kept: Kept | None, pages: Sequence[int]) -> None:
        return None


class FollowerProcess:
    """One rank's process. It ends when its standard input does."""

    def __init__(self, told: Follow) -> None:
        """Raises OSError when it can't be started."""
        self.rank = told.rank
        self._process = subprocess.Popen(
            [sys.executable, "-m", "duologue.engines.moshi_follower"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._reader = FrameReader(ORDER_BYTES)
        self._decoder = msgspec.msgpack.Decoder(list[FollowerReport])
        self.tell(told)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """Where it reports."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def tell(self, order: Order) -> None:
        """Waits only while it has much to do already. Raises CrewLost when it is gone."""
        assert self._process.stdin is not None
        writer = FrameWriter(ORDER_BYTES)
        writer.put(order)
        frame = memoryview(writer.take())
        try:
            while frame:
                frame = frame[os.write(self._process.stdin.fileno(), frame) :]
        except BrokenPipeError:
            raise CrewLost(f"rank {self.rank} is gone") from None

    def hear(self) -> Ready:
        """Wait for its next report. Raises CrewLost where that is its end."""
        while data := os.read(self.fileno(), _READ_BYTES):
            for payload in self._reader.feed(data):
                for report in self._decoder.decode(payload):
                    if isinstance(report, Failed):
                        raise CrewLost(f"rank {self.rank} failed: {report.reason}")
                    return report
        raise CrewLost(f"rank {self.rank} has ended with status {self._process.wait()}")

    def end(self) -> None:
        """No more orders."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def reap(self, patience_s: float) -> None:
        """Wait for its end; kill it after that time."""
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """It has ended, and what it said is not asked for."""
        assert self._process.stdout is not None
        self._process.stdout.close()


class FollowerCrew:
    """See :class:`Crew`. All calls but :meth:`close` are the model's thread's."""

    def __init__(self, orders: Sequence[Follow], lost: Callable[[str], None]) -> None:
        """Start the processes, which load meanwhile. ``lost`` is called once, on a thread of its
        own, when one ends after :meth:`meet`; the others then wait for it for ever.

        Raises OSError when one can't be started.
        """
        self.followers: list[FollowerProcess] = []
        self._lost = lost
        self._numbers = 0
        self._forgotten: deque[int] = deque()
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._wait_for_loss, name="crew", daemon=True)
        try:
            for told in orders:
                self.followers.append(FollowerProcess(told))
        except OSError:
            self.close()
            raise

    def wait_ready(self) -> None:
        """Until all have loaded. Raises CrewLost when one could not."""
        for follower in self.followers:
            follower.hear()

    def meet(self, port: int, graphs: bool) -> None:
        """Let them come to where the first rank waits, and watch over them."""
        self._tell(Meet(port, graphs))
        self._watch.start()

    def close(self) -> None:
        """Let all of them end. Idempotent; bounded."""
        if self._closing.is_set():
            return
        self._closing.set()
        for follower in self.followers:
            follower.end()
        for follower in self.followers:
            follower.reap(STOP_S)
        if self._watch.is_alive() and self._watch is not threading.current_thread():
            self._watch.join()
        for follower in self.followers:
            follower.forget()

    def step(
        self, active: NDArray[np.bool_], pages: NDArray[np.int64], rings: NDArray[np.int64]
    ) -> None:
        told = np.stack([active.astype(np.int64), pages, rings], axis=1)
        self._change(StepSlots(len(active), told.tobytes()))

    def clear(self, slot: int) -> None:
        self._change(ClearSlot(slot))

    def copy(self, source: int, target: int, pages: Sequence[int]) -> None:
        self._change(CopySlot(source, target, tuple(pages)))

    def keep(self, slot: int) -> Kept | None:
        self._numbers += 1
        kept = Kept(self._numbers)
        self._change(KeepSlot(slot, kept.number))
        finalize(kept, self._forgotten.append, kept.number).atexit = False
        return kept

    def restore(self, slot: int, kept: Kept | None, pages: Sequence[int]) -> None:
        assert kept is not None
        self._change(RestoreSlot(slot, kept.number, tuple(pages)))

    def _change(self, change: Change) -> None:
        if self._forgotten:
            numbers = [self._forgotten.popleft() for _ in range(len(self._forgotten))]
            self._tell(Forget(tuple(numbers)))
        self._tell(change)

    def _tell(self, order: Order) -> None:
        for follower in self.followers:
            follower.tell(order)

    def _wait_for_loss(self) -> None:
        reports = select.poll()
        for follower in self.followers:
            reports.register(follower, select.POLLIN)
        (found, _), *_ = reports.poll()
        if self._closing.is_set():
            return
        lost = next(one for one in self.followers if one.fileno() == found)
        try:
            lost.hear()
        except CrewLost as error:
            self._lost(str(error))


def end_worker(reason: str) -> None:
    """The first rank's step may wait for the lost one for ever: there is no end in order."""
    log.critical("%s; this worker can't go on", reason)
    logging.shutdown()
    os._exit(FORCED_EXIT)
