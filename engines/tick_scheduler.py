"""When a frame-locked model steps, and for whom; pure.

Such a model takes a frame of each session and gives one back, for ever, and one call steps any
number of its slots. So frames that come at about the same time share a *tick*:

- A tick starts when every session's frame is there, or when one session can't wait any longer:
  its frame is ``gather_s`` old, or it has no frame and its deadline has come.
- It takes along whoever has a frame, and whoever is past his deadline; the latter is fed silence,
  which is counted. A frame that comes after that is used for the next tick.
- Sessions join and leave between ticks. Who joins during one is in the next, with ``fresh`` set:
  the slot's state is to be cleared first. A slot is not given away again before its tick is over.

A session's frame *k* is due at its first frame's arrival and *k* periods; a session that was fed
silence waits for the same frame a period later. No session runs ahead of its time by more than a
period, and one that fell behind, because a tick took too long, does not catch up: the periods that
went by are counted as missed.

The driver calls :meth:`TickScheduler.take` after each :meth:`~TickScheduler.offer` and at
:meth:`~TickScheduler.next_deadline`, runs the tick, and calls :meth:`~TickScheduler.finish`, then
:meth:`~TickScheduler.take` again. All times are seconds on one monotonic clock.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from duologue.engines.engine import EngineFull
from duologue.engines.tick_times import TickTimes

Frame = TypeVar("Frame")


@dataclass(frozen=True, slots=True, kw_only=True)
class TickRules:
    """A pool of slots and its patience.

    ``period_s``: one frame. ``lateness_s``: how long after it was due a frame is waited for.
    ``gather_s``: how long a frame waits for others to share its tick. ``queued``: frames that may
    wait for one session; one more, and the oldest is dropped. ``load``: the share of the period
    that a tick may take. ``retry_after_s``: what is told to who does not fit.

    Raises ValueError for values that can't be kept to.
    """

    period_s: float = 0.08
    slots: int = 32
    lateness_s: float = 0.04
    gather_s: float = 0.01
    queued: int = 3
    load: float = 0.8
    retry_after_s: float = 5.0

    def __post_init__(self) -> None:
        if self.period_s <= 0 or not 0 < self.load <= 1:
            raise ValueError("period_s must be positive, and load in (0, 1]")
        if self.slots < 1 or self.queued < 1:
            raise ValueError("slots and queued must be at least 1")
        if self.lateness_s < 0 or not 0 <= self.gather_s <= self.period_s:
            raise ValueError("lateness_s must not be negative, gather_s be at most a period")

    @property
    def longest_tick_s(self) -> float:
        """The longest tick with which nobody whose frames are in time misses.

        A frame that comes just after a tick has started waits for it, then for its own; one that
        comes while none runs waits for others, then for its own. Both have to end within the
        frame's period and lateness.
        """
        most = self.period_s + self.lateness_s
        return min(self.load * self.period_s, most / 2, most - self.gather_s)


@dataclass(slots=True)
class Counts:
    """What happened to one session, or to all that ever joined, in frames.

    ``silent``: silence was fed as no frame was there in time. ``dropped``: frames that found the
    queue full. ``missed``: steps that ended more than a period after the frame's deadline, or
    were left out.
    """

    steps: int = 0
    silent: int = 0
    dropped: int = 0
    missed: int = 0


@dataclass(frozen=True, slots=True)
class Step(Generic[Frame]):
    """One session's part in a tick. ``frame`` is ``None`` for silence; ``fresh``: the slot's state
    is another session's, or nobody's."""

    session: Hashable
    slot: int
    frame: Frame | None
    fresh: bool


class _Seat(Generic[Frame]):
    def __init__(self, session: Hashable, slot: int) -> None:
        self.session = session
        self.slot = slot
        self.frames: deque[Frame] = deque()
        self.came = 0.0
        """When the frame that is next came to be the next."""
        self.due = math.inf
        """When the next frame is expected; infinite before the first one came."""
        self.fresh = True
        self.entry = 0
        self.counts = Counts()


class TickScheduler(Generic[Frame]):
    """See the module. ``times`` are told of warm-up ticks before the first session joins."""

    def __init__(self, rules: TickRules, times: TickTimes | None = None) -> None:
        self.rules = rules
        self.times = times or TickTimes()
        self.totals = Counts()
        self._seats: dict[Hashable, _Seat[Frame]] = {}
        self._free = list(range(rules.slots))  # a heap: low slots first, so that few are stepped
        self._with_frames = 0
        self._due: list[tuple[float, int, _Seat[Frame]]] = []
        self._entries = itertools.count(1)
        self._running: list[_Seat[Frame]] | None = None
        self._deadlines: list[float] = []
        self._began = 0.0

    def __len__(self) -> int:
        return len(self._seats)

    @property
    def busy(self) -> bool:
        """A tick is running."""
        return self._running is not None

    def counts(self, session: Hashable) -> Counts:
        """Of a session that is in. Raises KeyError."""
        return self._seats[session].counts

    # -- coming and going -------------------------------------------------------------------

    def fits(self) -> bool:
        """Whether one more session would leave everybody's ticks in time, as measured so far."""
        return bool(self._free) and self.times.of(len(self) + 1) <= self.rules.longest_tick_s

    def join(self, session: Hashable) -> int:
        """Take a session in and return its slot. It is in no tick before its first frame.

        Raises EngineFull when one more does not fit, ValueError when the session is in already.
        """
        if session in self._seats:
            raise ValueError(f"{session!r} has joined already")
        if not self.fits():
            raise EngineFull(self.rules.retry_after_s)
        seat = self._seats[session] = _Seat(session, heapq.heappop(self._free))
        return seat.slot

    def leave(self, session: Hashable) -> None:
        """Let a session go; what a running tick makes for it is nobody's. Raises KeyError."""
        seat = self._seats.pop(session)
        self._with_frames -= bool(seat.frames)
        seat.entry = 0
        if self._running is None or seat not in self._running:
            heapq.heappush(self._free, seat.slot)

    def offer(self, session: Hashable, frame: Frame, now: float) -> None:
        """A frame of the session's is there. Raises KeyError."""
        seat = self._seats[session]
        if len(seat.frames) == self.rules.queued:
            seat.frames.popleft()
            seat.counts.dropped += 1
            self.totals.dropped += 1
        seat.frames.append(frame)
        if len(seat.frames) > 1:
            return
        seat.came = now
        self._with_frames += 1
        if seat.due == math.inf:
            seat.due = now
        self._set_timer(seat)

    # -- ticks ------------------------------------------------------------------------------

    def next_deadline(self) -> float:
        """When :meth:`take` is to be called again; infinite while a tick runs."""
        if self._running is not None:
            return math.inf
        starts = self._first_deadline()
        if self._with_frames and self._with_frames == len(self._seats):
            starts = min(starts, max(self._ready_at(seat) for seat in self._seats.values()))
        return starts

    def take(self, now: float) -> tuple[Step[Frame], ...]:
        """The tick that starts now, which :meth:`finish` must follow; empty when none does."""
        if self.next_deadline() > now:
            return ()
        running = [seat for seat in self._seats.values() if self._takes_part(seat, now)]
        self._running = running
        self._deadlines = [self._deadline(seat) + self.rules.period_s for seat in running]
        self._began = now
        return tuple(self._step(seat, now) for seat in running)

    def finish(self, now: float) -> None:
        """The tick is over."""
        if self._running is None:
            raise RuntimeError("no tick is running")
        seats, self._running = self._running, None
        self.times.add(len(seats), now - self._began)
        for seat, deadline in zip(seats, self._deadlines, strict=True):
            if self._seats.get(seat.session) is not seat:
                heapq.heappush(self._free, seat.slot)
            elif now > deadline:
                self._miss(seat, 1)

    def _takes_part(self, seat: _Seat[Frame], now: float) -> bool:
        if seat.frames:
            return self._ready_at(seat) <= now
        return self._deadline(seat) <= now

    def _step(self, seat: _Seat[Frame], now: float) -> Step[Frame]:
        frame = seat.frames.popleft() if seat.frames else None
        if frame is None:
            seat.counts.silent += 1
            self.totals.silent += 1
        else:
            seat.came = now
            self._with_frames -= not seat.frames
        step = Step(seat.session, seat.slot, frame, seat.fresh)
        seat.fresh = False
        seat.counts.steps += 1
        self.totals.steps += 1
        behind = math.floor((now - self._deadline(seat)) / self.rules.period_s)
        if behind > 0:
            # Else it would step again at once for each period that went by.
            self._miss(seat, behind)
            seat.due += behind * self.rules.period_s
        seat.due += self.rules.period_s
        self._set_timer(seat)
        return step

    def _miss(self, seat: _Seat[Frame], steps: int) -> None:
        seat.counts.missed += steps
        self.totals.missed += steps

    # -- whose time has come ----------------------------------------------------------------

    def _deadline(self, seat: _Seat[Frame]) -> float:
        return seat.due + self.rules.lateness_s

    def _ready_at(self, seat: _Seat[Frame]) -> float:
        """From when on the frame that is there may be used: a period ahead at most."""
        return max(seat.came, seat.due - self.rules.period_s)

    def _set_timer(self, seat: _Seat[Frame]) -> None:
        starts = self._deadline(seat)
        if seat.frames:
            starts = min(starts, self._ready_at(seat) + self.rules.gather_s)
        seat.entry = next(self._entries)
        heapq.heappush(self._due, (starts, seat.entry, seat))

    def _first_deadline(self) -> float:
        while self._due and self._due[0][2].entry != self._due[0][1]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else math.inf
