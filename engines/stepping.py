"""Requests that share single steps of a model, as diffusion's denoising does; pure.

A step is a call, and between two steps everything may change: requests join and leave, one that is
cancelled gives its state back, and the realtime lane takes the device from the batch lane, whose
requests keep their state and go on when the realtime lane has nothing left to do.

In a lane one key runs at a time. Others of that key join it while there is room, unless a request
of another key has waited for ``wait_s``: then nobody joins any more, what runs ends within its
steps, and the key that has waited longest is next.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from duologue.engines.batching import BatchRules, WaitingRoom
from duologue.engines.fairness import ServiceLane


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. ``joined`` are those of ``names`` whose state has to be made before; ``names`` are
    in order of arrival. ``preempts``: another lane's requests are in the middle of theirs."""

    lane: ServiceLane
    key: Hashable
    names: tuple[Hashable, ...]
    joined: tuple[Hashable, ...]
    preempts: bool


class _Group:
    """What runs in a lane: requests of one key, and the steps that each has left."""

    def __init__(self) -> None:
        self.key: Hashable = None
        self.left: dict[Hashable, int] = {}


class StepBatches:
    """Steps of requests. The driver releases the state of those that :meth:`take_cancelled` tells
    of, calls :meth:`plan`, runs the step, calls :meth:`finish`, and so on until there is no plan.
    """

    def __init__(self, rules: BatchRules) -> None:
        self._rules = rules
        self._waiting = WaitingRoom(rules)
        self._groups = {lane: _Group() for lane in ServiceLane}
        self._running: StepPlan | None = None
        self._unwanted: dict[Hashable, None] = {}

    def __len__(self) -> int:
        return len(self._waiting) + sum(len(group.left) for group in self._groups.values())

    def add(self, name: Hashable, key: Hashable, lane: ServiceLane, steps: int, now: float) -> None:
        """A request of so many steps.

        Raises EngineFull when too many wait in the lane, ValueError for less than one step or a
        name that is here.
        """
        if steps < 1:
            raise ValueError(f"{steps} steps")
        if self.position(name) is not None:
            raise ValueError(f"{name!r} is here already")
        self._waiting.add(name, key, lane, now, steps)

    def cancel(self, name: Hashable) -> None:
        """It is not wanted: one that waits is gone, one that runs goes at the end of this step.

        Nothing happens when it is not here.
        """
        if self._waiting.discard(name):
            return
        if any(name in group.left for group in self._groups.values()):
            self._unwanted[name] = None

    def position(self, name: Hashable) -> int | None:
        """0: it has begun; else its place in its lane, from 1; ``None``: it is not here."""
        if any(name in group.left for group in self._groups.values()):
            return 0
        ahead = self._waiting.ahead(name)
        return None if ahead is None else ahead + 1

    def take_cancelled(self) -> tuple[Hashable, ...]:
        """Those that had begun and are not wanted: they have gone, and their state can go.

        Nobody goes while a step runs.
        """
        if self._running is not None:
            return ()
        gone, self._unwanted = tuple(self._unwanted), {}
        for group in self._groups.values():
            for name in gone:
                group.left.pop(name, None)
        return gone

    def plan(self, now: float) -> StepPlan | None:
        """The step that starts now, which :meth:`finish` must follow; ``None``: nothing to do.

        Who was cancelled is not in it, but stays until :meth:`take_cancelled` has told of it.
        """
        if self._running is not None:
            return None
        for lane in ServiceLane:
            joined = self._join(lane, now)
            group = self._groups[lane]
            names = tuple(name for name in group.left if name not in self._unwanted)
            if names:
                others = (self._groups[other] for other in ServiceLane if other is not lane)
                preempts = any(other.left for other in others)
                self._running = StepPlan(lane, group.key, names, joined, preempts)
                return self._running
        return None

    def finish(self) -> tuple[Hashable, ...]:
        """The step is over; who is done with all of them, and has gone.

        One that was cancelled in its last step is not done: :meth:`take_cancelled` tells of it.
        """
        if self._running is None:
            raise RuntimeError("no step is running")
        plan, self._running = self._running, None
        left = self._groups[plan.lane].left
        for name in plan.names:
            left[name] -= 1
        done = tuple(name for name in plan.names if not left[name] and name not in self._unwanted)
        for name in done:
            del left[name]
        return done

    def _join(self, lane: ServiceLane, now: float) -> tuple[Hashable, ...]:
        """Let requests into the lane's group, which is another key's when it is empty."""
        heads = self._waiting.heads(lane)
        group = self._groups[lane]
        if not heads:
            return ()
        if not group.left:
            group.key = heads[0].key
        elif any(
            head.key != group.key and now - head.since >= self._rules.wait_s for head in heads
        ):
            return ()
        taken = self._waiting.take(lane, group.key, self._rules.most - len(group.left))
        group.left.update((waiting.name, waiting.steps) for waiting in taken)
        return tuple(waiting.name for waiting in taken)
