import heapq
import math
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st

from duologue.engines.engine import EngineFull
from duologue.engines.tick_scheduler import Step, TickRules, TickScheduler
from duologue.engines.tick_times import TickTimes

RULES = TickRules(period_s=0.08, slots=4, lateness_s=0.04, gather_s=0.01)


def times(seconds: float, sessions: int = 1) -> TickTimes:
    measured = TickTimes()
    measured.add(sessions, seconds)
    return measured


def scheduler(
    *sessions: str, rules: TickRules = RULES, seconds: float = 0.01, full: int = 100
) -> TickScheduler[str]:
    """`seconds`: what a tick of `full` sessions or fewer was measured to take."""
    ticks = TickScheduler[str](rules, times(seconds, full))
    for session in sessions:
        ticks.join(session)
    return ticks


def fed(steps: tuple[Step[str], ...]) -> dict[object, str | None]:
    return {step.session: step.frame for step in steps}


# -- when a tick starts -----------------------------------------------------------------------


def test_a_tick_starts_at_once_when_every_frame_is_there() -> None:
    ticks = scheduler("a", "b")
    ticks.offer("a", "a0", 1.0)
    assert ticks.take(1.0) == ()
    ticks.offer("b", "b0", 1.005)
    assert fed(ticks.take(1.005)) == {"a": "a0", "b": "b0"}


def test_a_frame_waits_for_others_no_longer_than_it_may() -> None:
    ticks = scheduler("a", "b")
    ticks.offer("a", "a0", 1.0)
    assert ticks.next_deadline() == 1.01
    assert fed(ticks.take(1.01)) == {"a": "a0"}


def test_nothing_starts_while_a_tick_runs() -> None:
    ticks = scheduler("a", "b")
    ticks.offer("a", "a0", 1.0)
    ticks.take(1.01)
    ticks.offer("b", "b0", 1.011)
    assert ticks.busy
    assert ticks.next_deadline() == math.inf
    assert ticks.take(1.05) == ()
    ticks.finish(1.06)
    assert fed(ticks.take(1.06)) == {"b": "b0"}


def test_a_late_frame_becomes_counted_silence_and_is_used_next() -> None:
    ticks = scheduler("a")
    ticks.offer("a", "a0", 1.0)
    ticks.take(1.0)
    ticks.finish(1.01)
    assert math.isclose(ticks.next_deadline(), 1.12)
    assert fed(ticks.take(1.12)) == {"a": None}
    ticks.finish(1.13)
    assert ticks.counts("a").silent == ticks.totals.silent == 1
    ticks.offer("a", "a1", 1.14)
    assert fed(ticks.take(1.14)) == {"a": "a1"}
    ticks.finish(1.15)
    assert math.isclose(ticks.next_deadline(), 1.28)


def test_who_is_late_is_taken_along_only_after_the_deadline() -> None:
    ticks = scheduler("a", "late")
    for session in ("a", "late"):
        ticks.offer(session, "0", 1.0)
    ticks.take(1.0)
    ticks.finish(1.01)
    ticks.offer("a", "1", 1.08)
    assert fed(ticks.take(1.09)) == {"a": "1"}
    ticks.finish(1.1)
    assert fed(ticks.take(1.12)) == {"late": None}


def test_a_client_that_sends_too_fast_is_a_period_ahead_at_most() -> None:
    ticks = scheduler("a")
    for number in range(3):
        ticks.offer("a", str(number), 1.0)
    assert fed(ticks.take(1.0)) == {"a": "0"}
    ticks.finish(1.0)
    assert fed(ticks.take(1.0)) == {"a": "1"}
    ticks.finish(1.0)
    assert ticks.take(1.07) == ()
    assert math.isclose(ticks.next_deadline(), 1.08)
    assert fed(ticks.take(ticks.next_deadline())) == {"a": "2"}


def test_the_oldest_frame_is_dropped_and_counted_when_too_many_wait() -> None:
    ticks = scheduler("a", "b")
    for number in range(5):
        ticks.offer("a", str(number), 1.0)
    assert fed(ticks.take(1.01)) == {"a": "2"}
    assert ticks.counts("a").dropped == 2


def test_a_tick_that_took_too_long_is_counted_and_not_caught_up() -> None:
    ticks = scheduler("a")
    ticks.offer("a", "0", 1.0)
    ticks.take(1.0)
    ticks.offer("a", "1", 1.08)
    ticks.finish(1.5)
    assert ticks.counts("a").missed == 1
    assert fed(ticks.take(1.5)) == {"a": "1"}
    ticks.finish(1.51)
    # Frames 2 to 5 were due meanwhile: 1.12 + 4 * 0.08 was the last deadline before 1.5.
    assert ticks.counts("a").missed == ticks.totals.missed == 1 + 4 + 1
    assert ticks.next_deadline() > 1.51


# -- coming and going -------------------------------------------------------------------------


def test_who_joins_during_a_tick_is_in_the_next_with_a_fresh_slot() -> None:
    ticks = scheduler("a")
    ticks.offer("a", "0", 1.0)
    (step,) = ticks.take(1.0)
    assert step.fresh
    ticks.join("b")
    ticks.offer("b", "0", 1.01)
    ticks.finish(1.02)
    ticks.offer("a", "1", 1.02)
    steps = ticks.take(1.02)
    assert {step.session: step.fresh for step in steps} == {"a": False, "b": True}


def test_a_slot_is_not_given_away_before_its_tick_is_over() -> None:
    ticks = scheduler("a", rules=TickRules(slots=1))
    ticks.offer("a", "0", 1.0)
    ticks.take(1.0)
    ticks.leave("a")
    with pytest.raises(EngineFull):
        ticks.join("b")
    ticks.finish(1.01)
    assert ticks.join("b") == 0


def test_the_lowest_free_slot_is_given_away_first() -> None:
    ticks = scheduler("a", "b", "c", "d")
    for name in ("d", "b", "a"):
        ticks.leave(name)
    assert [ticks.join(name) for name in ("e", "f", "g")] == [0, 1, 3]


def test_a_session_without_frames_is_in_no_tick_and_holds_none_up_for_long() -> None:
    ticks = scheduler("a", "silent from the start")
    ticks.offer("a", "0", 1.0)
    assert fed(ticks.take(1.01)) == {"a": "0"}


def test_nothing_is_left_of_who_has_left() -> None:
    ticks = scheduler("a", "b")
    ticks.offer("a", "0", 1.0)
    ticks.leave("a")
    assert ticks.next_deadline() == math.inf
    ticks.offer("b", "0", 1.0)
    assert fed(ticks.take(1.0)) == {"b": "0"}
    with pytest.raises(KeyError):
        ticks.offer("a", "1", 1.1)


def test_misuse_is_told() -> None:
    ticks = scheduler("a")
    with pytest.raises(ValueError, match="joined already"):
        ticks.join("a")
    with pytest.raises(RuntimeError):
        ticks.finish(1.0)


@pytest.mark.parametrize(
    "values",
    [
        {"period_s": 0.0},
        {"load": 0.0},
        {"load": 1.1},
        {"slots": 0},
        {"queued": 0},
        {"lateness_s": -0.01},
        {"gather_s": 0.1},
    ],
)
def test_rules_that_cannot_be_kept_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        TickRules(**values)  # type: ignore[arg-type]


# -- admission --------------------------------------------------------------------------------


def test_nobody_joins_before_a_tick_was_measured() -> None:
    with pytest.raises(EngineFull):
        TickScheduler[str](RULES).join("a")


def test_one_more_joins_only_while_the_measured_tick_has_room_for_it() -> None:
    # Three take 0.045 s; a fourth would make that 0.06, and longest_tick_s is just that.
    ticks = TickScheduler[str](RULES, times(0.045, 3))
    for session in "abcd":
        ticks.join(session)
    slow = TickScheduler[str](RULES, times(0.046, 3))
    for session in "abc":
        slow.join(session)
    with pytest.raises(EngineFull) as refused:
        slow.join("d")
    assert refused.value.retry_after == RULES.retry_after_s


def test_a_device_that_slows_down_takes_no_more() -> None:
    ticks = scheduler("a")
    now = 1.0
    for _ in range(40):
        ticks.offer("a", "", now)
        ticks.take(now)
        ticks.finish(now + 0.055)
        now += 0.08
    assert not ticks.fits()


# -- a simulated device -----------------------------------------------------------------------


@dataclass
class World:
    """A device, and clients whose frames come with jitter; time is what its events say."""

    ticks: TickScheduler[int]
    seconds: float
    marginal: float = 0.0
    events: list[tuple[float, int, str, int]] = field(default_factory=list)
    numbers: int = 0
    ended: float = math.inf
    now: float = 0.0
    fed: dict[int, list[int | None]] = field(default_factory=dict)
    offered: dict[int, int] = field(default_factory=dict)

    def at(self, when: float, what: str, session: int) -> None:
        self.numbers += 1
        heapq.heappush(self.events, (when, self.numbers, what, session))

    def run(self, end: float = math.inf) -> None:
        """Until `end`, or until no event is left."""
        while self.events:
            now = min(self.events[0][0], self.ended, self.ticks.next_deadline())
            if now > end:
                return
            assert now >= self.now
            self.now = now
            if now == self.ended:
                self.ended = math.inf
                self.ticks.finish(now)
            elif now == self.events[0][0]:
                _, _, what, session = heapq.heappop(self.events)
                self.happen(what, session, now)
            self.start(now)

    def start(self, now: float) -> None:
        steps = self.ticks.take(now)
        if not steps:
            return
        assert self.ended == math.inf, "a tick within a tick"
        assert len({step.slot for step in steps}) == len(steps)
        self.ended = now + self.seconds + self.marginal * len(steps)
        for step in steps:
            assert isinstance(step.session, int)
            assert step.fresh == (step.session not in self.fed)
            self.fed.setdefault(step.session, []).append(step.frame)

    def happen(self, what: str, session: int, now: float) -> None:
        if what == "leave":
            self.ticks.leave(session)
            return
        number = self.offered.get(session, 0)
        self.offered[session] = number + 1
        self.ticks.offer(session, number, now)


def world(rules: TickRules, seconds: float, marginal: float = 0.0) -> World:
    ticks = TickScheduler[int](rules, times(seconds + marginal * rules.slots, rules.slots))
    return World(ticks, seconds, marginal)


@given(
    st.lists(st.floats(0, 0.08), min_size=1, max_size=12),
    st.floats(0.001, 1),
    st.floats(0, 0.08),
    st.floats(0, 0.06),
)
def test_who_sends_in_time_never_hears_silence_nor_a_miss(
    phases: list[float], share: float, gather: float, lateness: float
) -> None:
    rules = TickRules(slots=12, gather_s=gather, lateness_s=lateness)
    made = world(rules, share * rules.longest_tick_s * 0.999)
    for session, phase in enumerate(phases):
        made.ticks.join(session)
        for number in range(20):
            made.at(phase + number * rules.period_s, "frame", session)
    made.run()
    assert made.ticks.totals.missed == made.ticks.totals.dropped == 0
    if lateness > 1e-6:
        assert made.ticks.totals.silent == 0


@given(
    st.lists(
        st.tuples(st.sampled_from(["join", "leave", "offer", "wait"]), st.integers(0, 5)),
        max_size=150,
    ),
    st.floats(0.0, 0.3),
)
def test_any_history_keeps_the_rules(steps: list[tuple[str, int]], seconds: float) -> None:
    """Slots are used by one at a time, frames in order and once, and every step is counted."""
    ticks = TickScheduler[int](RULES, times(0.001, 100))
    inside: dict[int, list[int]] = {}
    offered: dict[int, int] = {}
    now, ended, frames, all_steps = 0.0, math.inf, 0, 0
    for what, session in steps:
        if what == "join" and session not in inside and len(inside) < 3 and ticks.fits():
            ticks.join(session)
            inside[session], offered[session] = [], 0
        elif what == "leave" and session in inside:
            ticks.leave(session)
            del inside[session]
        elif what == "offer" and session in inside:
            ticks.offer(session, frames, now)
            frames += 1
            offered[session] += 1
        elif what == "wait":
            now += 0.02 * (session + 1)
        if ended <= now:
            ticks.finish(now)
            ended = math.inf
        taken = ticks.take(now)
        if taken:
            ended = now + seconds
            all_steps += len(taken)
        for step in taken:
            heard = inside[int(str(step.session))]
            if step.frame is not None:
                assert not heard or heard[-1] < step.frame
                heard.append(step.frame)
        if ended == math.inf and not taken:
            assert ticks.next_deadline() > now
    assert ticks.totals.steps == all_steps
    for session, heard in inside.items():
        counts = ticks.counts(session)
        assert counts.steps == len(heard) + counts.silent
        assert len(heard) + counts.dropped <= offered[session] <= len(heard) + counts.dropped + 3


def test_ten_thousand_sessions_come_and_go_and_nobody_starves() -> None:
    """Clients with jitter, some of whom fall silent, on a device that is full all the time."""
    chance = random.Random(4)
    rules = TickRules(slots=200, queued=3)
    made = world(rules, 0.02, 0.0001)
    waiting, refusals, now = 10_000, 0, 0.0
    lengths: dict[int, int] = {}
    expected = 0
    while waiting:
        # A crowd knocks all the time; who is refused comes again with the next frame.
        while waiting and made.ticks.fits():
            session = 10_000 - waiting
            waiting -= 1
            made.ticks.join(session)
            lengths[session] = frames = chance.randint(2, 8)
            start = now + chance.uniform(0, 0.08)
            for number in range(frames):
                made.at(start + number * 0.08 + chance.uniform(0, 0.03), "frame", session)
            made.at(start + frames * 0.08 + 0.1, "leave", session)
            expected += frames
        refusals += waiting > 0
        now += 0.08
        made.run(now)
    made.run()
    totals = made.ticks.totals
    assert refusals > 20
    assert len(made.fed) == 10_000
    heard = {s: [f for f in frames if f is not None] for s, frames in made.fed.items()}
    assert all(heard[session] == list(range(frames)) for session, frames in lengths.items())
    assert totals.steps == expected + totals.silent
    assert totals.missed == totals.dropped == 0


def test_misses_are_counted_when_the_device_is_slower_than_it_was_measured() -> None:
    rules = TickRules(slots=8)
    made = world(rules, 0.01)
    made.seconds = 0.2
    for session in range(8):
        made.ticks.join(session)
        for number in range(25):
            made.at(number * 0.08 + session * 0.01, "frame", session)
    made.run()
    counts = made.ticks.totals
    # In the two seconds a device that needs 0.2 s for a tick makes ten of them.
    assert 8 * 9 <= counts.steps <= 8 * 11
    assert all(made.ticks.counts(session).missed >= 10 for session in range(8))
    assert counts.missed == sum(made.ticks.counts(session).missed for session in range(8))
    assert counts.dropped > 0
