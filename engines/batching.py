"""Requests that share calls of a model: whole calls, or single steps; pure.

Requests whose *key* is the same have a compatible shape and may run together; a key is whatever
the model says it is (height, width, frames, guidance, adapter). Both schedulers keep two lanes,
:class:`~duologue.engines.fairness.ServiceLane`, that never share a call: the realtime lane goes
first whenever it has something to do. Within a lane and key it is first come, first served; between
keys the one whose oldest request waits longest goes first, so no key starves another. What waits in
a lane is bounded: one more is refused.

Every request leaves a scheduler exactly once: done, or cancelled. All times are seconds on one
monotonic clock.
"""

import itertools
import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from duologue.engines.engine import EngineFull
from duologue.engines.fairness import ServiceLane


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """``most``: requests in one call. ``wait_s``: how long a request waits for others to share its
    call, or in steps, how long it waits for others to stop joining a call that it can't share.
    ``waiting``: requests that may wait in each lane. ``retry_after_s``: what one more is told.

    Raises ValueError.
    """

    most: int = 4
    wait_s: float = 0.05
    waiting: int = 64
    retry_after_s: float = 5.0

    def __post_init__(self) -> None:
        if self.most < 1 or self.waiting < 1 or self.wait_s < 0:
            raise ValueError("most and waiting must be at least 1, wait_s not negative")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that has not begun. ``number`` is its place in the order of arrival."""

    name: Hashable
    key: Hashable
    lane: ServiceLane
    since: float
    number: int
    steps: int = 1


class WaitingRoom:
    """What waits, by lane and key, in order of arrival."""

    def __init__(self, rules: BatchRules) -> None:
        self._rules = rules
        self._numbers = itertools.count()
        self._lanes: dict[ServiceLane, OrderedDict[Hashable, Waiting]] = {
            lane: OrderedDict() for lane in ServiceLane
        }

    def __len__(self) -> int:
        return sum(len(lane) for lane in self._lanes.values())

    def of(self, lane: ServiceLane) -> int:
        return len(self._lanes[lane])

    def add(
        self, name: Hashable, key: Hashable, lane: ServiceLane, now: float, steps: int = 1
    ) -> None:
        """Raises EngineFull when the lane's room is full."""
        if len(self._lanes[lane]) >= self._rules.waiting:
            raise EngineFull(self._rules.retry_after_s)
        self._lanes[lane][name] = Waiting(name, key, lane, now, next(self._numbers), steps)

    def discard(self, name: Hashable) -> bool:
        """Whether it waited."""
        return any(lane.pop(name, None) is not None for lane in self._lanes.values())

    def heads(self, lane: ServiceLane) -> list[Waiting]:
        """The oldest of each key, the oldest of all first."""
        heads: dict[Hashable, Waiting] = {}
        for waiting in self._lanes[lane].values():
            heads.setdefault(waiting.key, waiting)
        return list(heads.values())

    def count(self, lane: ServiceLane, key: Hashable) -> int:
        return sum(waiting.key == key for waiting in self._lanes[lane].values())

    def take(self, lane: ServiceLane, key: Hashable, most: int) -> list[Waiting]:
        """The oldest `most` of a key, which wait no more."""
        same = (waiting for waiting in self._lanes[lane].values() if waiting.key == key)
        taken = list(itertools.islice(same, most))
        for waiting in taken:
            del self._lanes[lane][waiting.name]
        return taken

    def ahead(self, name: Hashable) -> int | None:
        """How many of its lane came before it; ``None`` when it does not wait."""
        for lane in self._lanes.values():
            if name in lane:
                return next(index for index, other in enumerate(lane) if other == name)
        return None


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests for one call."""

    lane: ServiceLane
    key: Hashable
    names: tuple[Hashable, ...]


class RequestBatches:
    """Whole calls. The driver calls :meth:`take` after each :meth:`add`, at
    :meth:`next_deadline` and after :meth:`finish`.

    A call starts when the device is free and a key has as many requests as a call may have, or its
    oldest has waited for others long enough. A call can't be stopped: who is cancelled in it is
    left out of what :meth:`finish` returns, and the realtime lane waits for the end of a call of
    the batch lane. Calls that are too long for that belong into steps.
    """

    def __init__(self, rules: BatchRules) -> None:
        self._rules = rules
        self._waiting = WaitingRoom(rules)
        self._running: dict[Hashable, None] | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running or ())

    def add(self, name: Hashable, key: Hashable, lane: ServiceLane, now: float) -> None:
        """Raises EngineFull when too many wait in the lane, ValueError for a name that is here."""
        if self.position(name) is not None:
            raise ValueError(f"{name!r} is here already")
        self._waiting.add(name, key, lane, now)

    def cancel(self, name: Hashable) -> None:
        """It is not wanted any more; nothing happens when it is not here."""
        if not self._waiting.discard(name) and self._running is not None:
            self._running.pop(name, None)

    def position(self, name: Hashable) -> int | None:
        """0: it runs; else its place in its lane, from 1; ``None``: it is not here."""
        if self._running is not None and name in self._running:
            return 0
        ahead = self._waiting.ahead(name)
        return None if ahead is None else ahead + 1

    def next_deadline(self) -> float:
        """When :meth:`take` is to be called; infinite while a call runs or when nothing waits."""
        if self._running is not None:
            return math.inf
        return min(
            (self._due(head) for lane in ServiceLane for head in self._heads(lane)),
            default=math.inf,
        )

    def take(self, now: float) -> Batch | None:
        """The call that starts now, which :meth:`finish` must follow."""
        if self._running is not None:
            return None
        for lane in ServiceLane:
            for head in self._heads(lane):
                if self._due(head) <= now:
                    taken = self._waiting.take(lane, head.key, self._rules.most)
                    names = tuple(waiting.name for waiting in taken)
                    self._running = dict.fromkeys(names)
                    return Batch(lane, head.key, names)
        return None

    def finish(self) -> tuple[Hashable, ...]:
        """The call is over; whose results are still wanted."""
        if self._running is None:
            raise RuntimeError("no call is running")
        wanted, self._running = tuple(self._running), None
        return wanted

    def _heads(self, lane: ServiceLane) -> list[Waiting]:
        return self._waiting.heads(lane)

    def _due(self, head: Waiting) -> float:
        if self._waiting.count(head.lane, head.key) >= self._rules.most:
            return -math.inf
        return head.since + self._rules.wait_s
