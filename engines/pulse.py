"""Whether the models still move: which of their steps are running, and since when."""

import bisect
import itertools
import math
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from duologue.engines.live_calls import LiveCalls

BOUNDS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Upper bounds of the classes that durations are counted in, in seconds; one more has the rest."""


class Durations(msgspec.Struct, frozen=True):
    """How long things took: ``counts`` by the classes of :data:`BOUNDS_S`, and all together."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    sum_s: float = 0.0

    def cumulative(self) -> list[tuple[float, int]]:
        """Upper bounds, the last of them infinite, and how many were no longer."""
        bounds = (*BOUNDS_S, math.inf)
        return list(zip(bounds, itertools.accumulate(self.counts), strict=True))


class Stopwatch:
    """Gathers :class:`Durations`, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        place = bisect.bisect_left(BOUNDS_S, seconds)
        with self._lock:
            self._counts[place] += 1
            self._sum_s += seconds

    def reading(self) -> Durations:
        """All so far."""
        with self._lock:
            return Durations(tuple(self._counts), self._sum_s)


class Reading(msgspec.Struct, frozen=True):
    """``steps``: steps done so far. ``running_s``: age of the oldest unfinished one, in seconds.

    ``gauges``: what the backend measures of itself, by name. ``step_times``: of the steps that are
    done; ``waits``: what calls into models waited for their turn. ``cpu_s``: processor time of the
    process; ``peak_bytes``: the most memory that it has had resident.
    """

    steps: int = 0
    running_s: float = 0.0
    gauges: Mapping[str, float] = {}
    step_times: Durations = Durations()
    waits: Durations = Durations()
    cpu_s: float = 0.0
    peak_bytes: int = 0


class Pulse:
    """Counts model steps. An event loop can be well while a kernel hangs: this tells them apart.

    A backend wraps each call into a model in :meth:`step`, from any thread. One step is what
    can't be interrupted, so it should take no longer than a few hundred milliseconds.

    ``live``: the calls that conversations wait for, for the batch lane to stand aside. ``gauges``
    is asked for each reading's; the backend may set it.
    """

    def __init__(self) -> None:
        self.live = LiveCalls()
        self.waits = Stopwatch()
        """What calls waited for their turn: whoever makes them wait adds to it."""
        self._step_times = Stopwatch()
        self.gauges: Callable[[], Mapping[str, float]] = dict
        self._tickets = itertools.count()
        self._running: dict[int, int] = {}
        self._done = itertools.count()
        self._steps = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """A step is running as long as the context is open."""
        ticket = self.begin()
        try:
            yield
        finally:
            self.end(ticket)

    def begin(self) -> int:
        """A step begins; :meth:`end` takes its ticket. For steps that are no block of code."""
        ticket = next(self._tickets)
        self._running[ticket] = time.monotonic_ns()
        return ticket

    def end(self, ticket: int) -> None:
        """The step is done."""
        # Single operations that threads can't interleave.
        began_ns = self._running.pop(ticket)
        self._step_times.add((time.monotonic_ns() - began_ns) / 1e9)
        self._steps = next(self._done) + 1

    def reading(self, now_ns: int) -> Reading:
        """What is so at `now_ns` (CLOCK_MONOTONIC, nanoseconds)."""
        began = list(self._running.values())
        running_s = max(0, now_ns - min(began)) / 1e9 if began else 0.0
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return Reading(
            self._steps,
            running_s,
            self.gauges(),
            self._step_times.reading(),
            self.waits.reading(),
            usage.ru_utime + usage.ru_stime,
            usage.ru_maxrss * 1024,
        )
