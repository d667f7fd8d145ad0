"""Whether the models still move: which of their steps are running, and since when."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from duologue.engines.live_calls import LiveCalls


class Reading(msgspec.Struct, frozen=True):
    """``steps``: steps done so far. ``running_s``: age of the oldest unfinished one, in seconds.

    ``gauges``: what the backend measures of itself, by name.
    """

    steps: int = 0
    running_s: float = 0.0
    gauges: Mapping[str, float] = {}


class Pulse:
    """Counts model steps. An event loop can be well while a kernel hangs: this tells them apart.

    A backend wraps each call into a model in :meth:`step`, from any thread. One step is what
    can't be interrupted, so it should take no longer than a few hundred milliseconds.

    ``live``: the calls that conversations wait for, for the batch lane to stand aside. ``gauges``
    is asked for each reading's; the backend may set it.
    """

    def __init__(self) -> None:
        self.live = LiveCalls()
        self.gauges: Callable[[], Mapping[str, float]] = dict
        self._tickets = itertools.count()
        self._running: dict[int, int] = {}
        self._done = itertools.count()
        self._steps = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """A step is running as long as the context is open."""
        ticket = next(self._tickets)
        self._running[ticket] = time.monotonic_ns()
        try:
            yield
        finally:
            # Single operations that threads can't interleave: no lock on the path of a step.
            self._running.pop(ticket)
            self._steps = next(self._done) + 1

    def reading(self, now_ns: int) -> Reading:
        """What is so at `now_ns` (CLOCK_MONOTONIC, nanoseconds)."""
        began = list(self._running.values())
        running_s = max(0, now_ns - min(began)) / 1e9 if began else 0.0
        return Reading(self._steps, running_s, self.gauges())
