"""The beat of all media that a process sends: one clock, one task, a tick every 20 ms.

Members are spread over SLOTS phases of the period, so that their encoding does not come all at once
and nobody's packets wait for it: a tick is on time for each, and short for everybody else. One that
was silent and has something to say may have a phase that comes soon, and one whose sound is made as
time passes a phase that follows it.
"""

import logging
import math
import time
from typing import Protocol

import anyio

from duologue.sessions.clock import MonotonicClock
from duologue.sessions.ports import Clock

logger = logging.getLogger(__name__)

PERIOD = 0.02
SLOTS = 10
STEP = PERIOD / SLOTS
MAX_LAG = 0.1
"""Seconds. Ticks that were missed are made up for up to here; more would be a burst that helps no
listener, so the clock skips (a stopped process, a suspended machine)."""
LEAD = 2
"""Steps from when a member asks to be ticked soon to the first phase that it may get: where sound
comes in packets of 20 ms, the next ones may be a little late and still be in time."""
NEAR = 3
"""Phases of which it gets the emptiest."""
ABOVE = 2
"""Members that a phase may have more than phases have on average, after another moved there."""
LOAD_SECONDS = 0.25
_RISE, _FALL = 0.7, 0.1
"""Weights of a look at the load that is above what was thought, and of one below."""

_COMPLEXITIES = ((0.30, 5), (0.40, 3), (0.60, 1))
"""Up to this load, this complexity. One packet's encoding took 200, 150 and 80 us and, with the
cheapest, which goes without what is above 8 kHz, 60 (libopus 1.6 at 28 kb/s)."""
_CHEAPEST = 0
_EASE = 0.05


class Paced(Protocol):
    """What is ticked. Must be quick."""

    def tick(self, now: float) -> None: ...


class Pacer:
    """One per process. `run` ticks for ever; members come and go at any time."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._slots: list[list[Paced]] = [[] for _ in range(SLOTS)]
        self._phases: dict[Paced, int] = {}
        self._passing: set[Paced] = set()
        """Members whose next phase is too soon: it passes without a tick."""
        self._origin = self._clock.now()
        self._next = 0
        self.step = 0
        """Which step is being ticked, on one count for all: `SLOTS` more at each of a member's
        ticks, more where ticks were skipped, and less or more where it was hastened."""
        self.period = 0
        """Which period that step is in."""
        self._nap: anyio.CancelScope | None = None
        self._awake = anyio.Event()
        self._measured = (self._origin, time.thread_time())
        self.load = 0.0
        """The share of one core that the loop's thread used, lately: 0 to 1."""
        self.complexity = _COMPLEXITIES[0][1]
        """How hard an Opus encoder may try at this load: 0 to 10."""
        self.skipped = 0
        """Ticks that nobody got, since the process was stopped for longer than MAX_LAG."""
        self.worst_lag = 0.0
        """Seconds that the latest tick of all came late, since `forget_lag`."""

    def __len__(self) -> int:
        return len(self._phases)

    def join(self, member: Paced) -> None:
        """Tick it from now on, in the phase with the fewest members. Idempotent."""
        if member in self._phases:
            return
        self._put(member, min(range(SLOTS), key=self._crowd))
        self._awake.set()

    def hasten(self, member: Paced) -> None:
        """Tick it soon, and from then on: in the emptiest of NEAR phases that come next.

        That may be less than a period after its last tick. On a busy loop nothing changes: packets
        come late there, and what comes soon after them misses some.
        """
        if self.busy or member not in self._phases:
            return
        passed = math.floor((self._clock.now() - self._origin) / STEP + 1e-6)
        self._remove(member)
        near = ((passed + LEAD + more) % SLOTS for more in range(NEAR))
        phase = min(near, key=self._crowd)
        self._put(member, phase)
        if self._next + (phase - self._next) % SLOTS <= passed:
            # Steps in which nobody was due are still to be counted.
            self._passing.add(member)
        if self._nap is not None:
            self._nap.cancel()

    def shift(self, member: Paced, steps: int) -> int:
        """Tick it by so many steps later from now on, or, below 0, sooner: 1 - SLOTS to SLOTS - 1.
        For a member to call from within its tick; it gets its next tick that much after, or in
        less than, a period.

        Returns by how many steps it is. It is moved less far sooner, or further later, where the
        phase would be fuller than ABOVE allows, and not at all on a busy loop.
        """
        phase = self._phases.get(member)
        if phase is None or self.busy or not steps:
            return 0
        full = len(self._phases) // SLOTS + ABOVE
        for far in range(steps, 0) if steps < 0 else range(steps, SLOTS):
            if len(self._slots[(phase + far) % SLOTS]) < full:
                self._remove(member)
                self._put(member, (phase + far) % SLOTS)
                if far > 0:
                    self._passing.add(member)
                return far
        return 0

    def next_tick(self, member: Paced) -> float:
        """When a member's next tick is due; infinite for who is none."""
        phase = self._phases.get(member)
        if phase is None:
            return math.inf
        step = self._next + (phase - self._next) % SLOTS
        if member in self._passing:
            step += SLOTS
        return self._origin + step * STEP

    def leave(self, member: Paced) -> None:
        """Tick it no longer. Idempotent; may be called from within a tick."""
        if member in self._phases:
            self._remove(member)

    @property
    def busy(self) -> bool:
        """Whether the loop has so much to do that its members had better stay spread."""
        return self.load >= _COMPLEXITIES[0][0]

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            if not self._phases:
                self._awake = anyio.Event()
                await self._awake.wait()
                self._start_anew()
            now = self._clock.now()
            if self.advance(now):
                self._measure(now)
            # Not longer than a period: who joins meanwhile may be due before all others.
            with anyio.CancelScope() as self._nap:
                await anyio.sleep(max(0.0, min(PERIOD, self.next_deadline() - self._clock.now())))
            self._nap = None

    def next_deadline(self) -> float:
        """When the next phase that has members is due; infinite without any."""
        for step in range(self._next, self._next + SLOTS):
            if self._slots[step % SLOTS]:
                return self._origin + step * STEP
        return math.inf

    def advance(self, now: float) -> int:
        """Give each tick that is due; returns how many phases were served.

        Phases are served in the order of their times, and a member gets every tick once, except
        for those that are skipped.
        """
        due = math.floor((now - self._origin) / STEP + 1e-6)
        if (due - self._next) * STEP > MAX_LAG:
            periods = (due - self._next) // SLOTS
            self._next += periods * SLOTS
            self.skipped += periods
            if periods:
                self._passing.clear()
        served = 0
        while self._next <= due:
            step, self._next = self._next, self._next + 1
            members = self._slots[step % SLOTS]
            if members:
                served += 1
                self.step = step
                self.period = step // SLOTS
                self.worst_lag = max(self.worst_lag, now - self._origin - step * STEP)
                for member in tuple(members):
                    if member in self._passing:
                        self._passing.remove(member)
                    else:
                        self._tick(member, now)
        return served

    def forget_lag(self) -> None:
        self.worst_lag = 0.0

    def _tick(self, member: Paced, now: float) -> None:
        try:
            member.tick(now)
        except Exception:
            # One session's media; raised on, it would end the media of all.
            logger.exception("a paced stream failed")
            self.leave(member)

    def _put(self, member: Paced, phase: int) -> None:
        self._slots[phase].append(member)
        self._phases[member] = phase

    def _remove(self, member: Paced) -> None:
        self._slots[self._phases.pop(member)].remove(member)
        self._passing.discard(member)

    def _crowd(self, phase: int) -> int:
        return len(self._slots[phase])

    def _start_anew(self) -> None:
        now = self._clock.now()
        self._next = math.ceil((now - self._origin) / STEP)

    def _measure(self, now: float) -> None:
        since, used = self._measured
        if now - since < LOAD_SECONDS:
            return
        spent = time.thread_time()
        self._measured = (now, spent)
        change = (spent - used) / (now - since) - self.load
        self.load += change * (_RISE if change > 0 else _FALL)
        self.complexity = complexity_for(self.load, self.complexity)


def complexity_for(load: float, before: int) -> int:
    """An encoder's complexity at a loop's load. Rises again only when there is some room."""
    for limit, complexity in _COMPLEXITIES:
        margin = _EASE if complexity > before else 0.0
        if load < limit - margin:
            return complexity
    return _CHEAPEST
