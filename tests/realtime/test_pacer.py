"""The beat: everybody's ticks, in time, once."""

import math

import anyio
import numpy as np
import pytest
from hypothesis import given, strategies as st

from duologue.realtime.pacer import ABOVE, LEAD, NEAR, PERIOD, SLOTS, STEP, Pacer, complexity_for
from duologue.sessions.clock import ManualClock
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


class Member:
    def __init__(self) -> None:
        self.ticks: list[float] = []

    def tick(self, now: float) -> None:
        self.ticks.append(now)


@given(st.lists(st.floats(0.0001, 0.09), min_size=1, max_size=60), st.integers(1, 30))
def test_each_member_is_ticked_once_a_period_however_late_the_loop_is(
    naps: list[float], members: int
) -> None:
    clock = ManualClock()
    pacer = Pacer(clock)
    joined = [Member() for _ in range(members)]
    for member in joined:
        pacer.join(member)
    for nap in naps:
        pacer.advance(clock.advance(nap))
    for member in joined:
        assert abs(len(member.ticks) - clock.now() / PERIOD) < 1.001
    assert pacer.skipped == 0


def test_members_are_spread_over_the_period() -> None:
    clock = ManualClock()
    pacer = Pacer(clock)
    joined = [Member() for _ in range(2 * SLOTS)]
    for member in joined:
        pacer.join(member)
        pacer.join(member)
    for step in range(SLOTS):
        pacer.advance(clock.advance(STEP if step else 0.0))
        assert len({len(member.ticks) for member in joined}) <= 2
    assert {len(member.ticks) for member in joined} == {1}
    times = [member.ticks[0] for member in joined]
    assert len(set(times)) == SLOTS


def test_a_stopped_process_skips_instead_of_bursting() -> None:
    clock = ManualClock()
    pacer = Pacer(clock)
    member = Member()
    pacer.join(member)
    pacer.advance(clock.advance(60.0))
    assert len(member.ticks) <= 2
    assert pacer.skipped > 2900
    pacer.advance(clock.advance(PERIOD))
    assert len(member.ticks) <= 3


def test_the_next_tick_is_never_in_the_past() -> None:
    clock = ManualClock(5.0)
    pacer = Pacer(clock)
    assert pacer.next_deadline() == math.inf
    pacer.join(Member())
    for _ in range(100):
        pacer.advance(clock.now())
        assert clock.now() < pacer.next_deadline() + 1e-9 <= clock.now() + PERIOD + 1e-6
        clock.advance(0.0031)
    assert pacer.worst_lag > 0
    pacer.forget_lag()
    assert pacer.worst_lag == 0


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(1, 25)), max_size=30))
def test_one_that_is_hastened_is_ticked_soon_and_from_then_on(
    moves: list[tuple[int, int]],
) -> None:
    clock = ManualClock()
    pacer = Pacer(clock)
    joined = [Member() for _ in range(20)]
    for member in joined:
        pacer.join(member)
    pacer.advance(clock.now())
    for number, steps in moves:
        member = joined[number]
        pacer.hasten(member)
        before, asked = len(member.ticks), clock.now()
        for _ in range(steps):
            pacer.advance(clock.advance(STEP))
        gaps = np.diff([asked, *member.ticks[before:]]) / STEP
        assert all(round(gap) == SLOTS for gap in gaps[1:])
        assert all(LEAD <= round(gap) < LEAD + NEAR for gap in gaps[:1])
        assert len(gaps) or steps < LEAD + NEAR
    assert len(pacer) == 20


def test_one_that_is_hastened_comes_into_the_emptiest_phase_near() -> None:
    clock = ManualClock()
    pacer = Pacer(clock)
    joined = [Member() for _ in range(SLOTS)]
    for member in joined:
        pacer.join(member)
    pacer.advance(clock.now())
    pacer.leave(joined[LEAD + 1])
    pacer.hasten(joined[0])
    for step in range(1, SLOTS):
        pacer.advance(clock.advance(STEP))
        assert len(joined[0].ticks) == (2 if step >= LEAD + 1 else 1)
    pacer.hasten(Member())
    assert len(pacer) == SLOTS - 1


def test_one_that_is_hastened_while_nobody_was_due_is_not_ticked_at_once() -> None:
    clock = ManualClock()
    pacer = Pacer(clock)
    member = Member()
    pacer.join(member)
    pacer.advance(clock.now())
    # The beat slept for nine steps: none of them is made up for.
    asked = clock.advance(9 * STEP)
    pacer.hasten(member)
    for _ in range(2 * SLOTS):
        pacer.advance(clock.now())
        clock.advance(STEP)
    gaps = [round((tick - asked) / STEP) for tick in member.ticks[1:]]
    assert gaps == [LEAD, LEAD + SLOTS]


@given(st.lists(st.tuples(st.integers(1 - SLOTS, SLOTS - 1), st.integers(1, 3)), max_size=20))
def test_one_that_is_shifted_has_its_next_tick_a_period_and_the_shift_later(
    moves: list[tuple[int, int]],
) -> None:
    clock = ManualClock()
    pacer = Pacer(clock)
    wanted = [steps for first, still in moves for steps in (first, *[0] * still)]

    class Mover(Member):
        def tick(self, now: float) -> None:
            super().tick(now)
            if len(self.ticks) <= len(wanted):
                steps = wanted[len(self.ticks) - 1]
                assert pacer.shift(self, steps) == steps
                assert pacer.next_tick(self) == pytest.approx(now + PERIOD + steps * STEP)

    mover = Mover()
    pacer.join(mover)
    for _ in range((2 * len(wanted) + 2) * SLOTS):
        pacer.advance(clock.now())
        clock.advance(STEP)
    gaps = [round(gap / STEP) for gap in np.diff(mover.ticks)]
    assert gaps[: len(wanted)] == [SLOTS + steps for steps in wanted]
    assert set(gaps[len(wanted) :]) <= {SLOTS}


def test_those_that_all_want_one_phase_stay_spread() -> None:
    clock = ManualClock()
    pacer = Pacer(clock)

    class Eager(Member):
        def tick(self, now: float) -> None:
            super().tick(now)
            # All follow sound that comes just before phase 3.
            pacer.shift(self, -((pacer.step - 3) % SLOTS))

    joined = [Eager() for _ in range(5 * SLOTS)]
    for member in joined:
        pacer.join(member)
    for _ in range(20 * SLOTS):
        pacer.advance(clock.now())
        clock.advance(STEP)
    before = [len(member.ticks) for member in joined]
    crowd = []
    for _ in range(SLOTS):
        ticked = sum(len(member.ticks) for member in joined)
        pacer.advance(clock.now())
        crowd.append(sum(len(member.ticks) for member in joined) - ticked)
        clock.advance(STEP)
    assert max(crowd) <= 5 + ABOVE
    assert all(len(m.ticks) <= count + 2 for m, count in zip(joined, before, strict=True))


def test_nobody_is_shifted_on_a_busy_loop() -> None:
    clock = ManualClock()
    pacer = Pacer(clock)
    member = Member()
    pacer.join(member)
    pacer.advance(clock.now())
    pacer.load = 0.5
    assert pacer.shift(member, -3) == 0
    assert pacer.next_tick(member) == pytest.approx(PERIOD)
    pacer.load = 0.1
    assert pacer.shift(Member(), -3) == 0
    assert pacer.next_tick(Member()) == math.inf
    assert pacer.shift(member, -3) == -3
    assert pacer.next_tick(member) == pytest.approx(PERIOD - 3 * STEP)


def test_nobody_is_hastened_on_a_busy_loop() -> None:
    clock = ManualClock()
    pacer = Pacer(clock)
    member = Member()
    pacer.join(member)
    pacer.advance(clock.now())
    pacer.load = 0.5
    pacer.hasten(member)
    assert pacer.next_deadline() == pytest.approx(PERIOD)


async def test_who_is_hastened_while_the_beat_sleeps_is_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def oversleep(delay: float) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(anyio, "sleep", oversleep)
    clock = ManualClock()
    pacer = Pacer(clock)
    ticked = anyio.Event()

    class Once:
        def tick(self, now: float) -> None:
            if clock.now() > 0.001:
                ticked.set()

    member = Once()
    pacer.join(member)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pacer.run)
        await anyio.wait_all_tasks_blocked()
        pacer.hasten(member)
        clock.advance((LEAD + NEAR) * STEP)
        with anyio.fail_after(PATIENCE_S):
            await ticked.wait()
        tasks.cancel_scope.cancel()


def test_one_that_fails_is_left_out_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def tick(self, now: float) -> None:
            raise RuntimeError("broken")

    clock = ManualClock()
    pacer = Pacer(clock)
    member = Member()
    pacer.join(Broken())
    pacer.join(member)
    for _ in range(2 * SLOTS):
        pacer.advance(clock.advance(STEP))
    assert len(member.ticks) == 2
    assert len(pacer) == 1
    assert "a paced stream failed" in caplog.text
    pacer.leave(member)
    pacer.leave(member)
    assert len(pacer) == 0


def test_encoders_try_less_the_busier_the_loop_is() -> None:
    values = [complexity_for(load, 5) for load in (0.2, 0.35, 0.5, 0.7, 1.0)]
    assert values == sorted(values, reverse=True)
    assert values[0] == 5 and values[-1] == 0
    # Between the limits it stays as it is.
    assert complexity_for(0.27, 3) == 3
    assert complexity_for(0.27, 5) == 5


async def test_it_runs_while_there_are_members_and_sleeps_without() -> None:
    pacer = Pacer()
    done = anyio.Event()

    class Countdown:
        left = 3

        def tick(self, now: float) -> None:
            self.left -= 1
            if not self.left:
                pacer.leave(self)
                done.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pacer.run)
        await anyio.lowlevel.checkpoint()
        for _ in range(2):
            done = anyio.Event()
            pacer.join(Countdown())
            with anyio.fail_after(PATIENCE_S):
                await done.wait()
        tasks.cancel_scope.cancel()
