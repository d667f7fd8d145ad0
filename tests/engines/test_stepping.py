import random
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from duologue.engines.batching import BatchRules
from duologue.engines.engine import EngineFull
from duologue.engines.fairness import ServiceLane
from duologue.engines.stepping import StepBatches, StepPlan

LIVE, BATCH = ServiceLane.REALTIME, ServiceLane.BATCH
RULES = BatchRules(most=2, wait_s=1.0, waiting=4)


def stepped(made: StepBatches, now: float) -> StepPlan:
    """One step; the plan must be there."""
    plan = made.plan(now)
    assert plan is not None
    made.finish()
    return plan


def names(made: StepBatches, now: float, steps: int) -> list[tuple[object, ...]]:
    return [stepped(made, now).names for _ in range(steps)]


def test_a_request_joins_those_of_its_key_between_two_steps() -> None:
    made = StepBatches(RULES)
    made.add("a", "small", BATCH, 3, 0.0)
    assert stepped(made, 0.0).joined == ("a",)
    made.add("b", "small", BATCH, 3, 0.1)
    second = stepped(made, 0.2)
    assert (second.names, second.joined) == (("a", "b"), ("b",))
    assert made.plan(0.3) == StepPlan(BATCH, "small", ("a", "b"), (), preempts=False)
    assert made.finish() == ("a",)
    assert names(made, 0.4, 1) == [("b",)]
    assert made.plan(0.5) is None
    assert len(made) == 0


def test_no_more_run_together_than_may() -> None:
    made = StepBatches(RULES)
    for name in "abc":
        made.add(name, "k", BATCH, 2, 0.0)
    assert names(made, 0.0, 3) == [("a", "b"), ("a", "b"), ("c",)]


def test_the_realtime_lane_takes_the_device_at_a_step_and_the_batch_lane_goes_on_later() -> None:
    made = StepBatches(RULES)
    made.add("slow", "k", BATCH, 3, 0.0)
    assert made.plan(0.0) is not None
    made.add("live", "k", LIVE, 2, 0.1)
    assert made.plan(0.1) is None, "a step that runs is not interrupted"
    made.finish()
    first = stepped(made, 0.2)
    assert first == StepPlan(LIVE, "k", ("live",), ("live",), preempts=True)
    assert names(made, 0.3, 1) == [("live",)]
    resumed = stepped(made, 0.4)
    assert (resumed.names, resumed.joined) == (("slow",), ())
    assert made.plan(0.5) is not None
    assert made.finish() == ("slow",)


def test_the_batch_lane_never_preempts() -> None:
    made = StepBatches(RULES)
    made.add("live", "k", LIVE, 2, 0.0)
    stepped(made, 0.0)
    made.add("slow", "k", BATCH, 1, 0.0)
    assert names(made, 50.0, 2) == [("live",), ("slow",)]


def test_a_key_in_a_crowd_lets_another_key_in_after_its_steps() -> None:
    made = StepBatches(RULES)
    made.add("a0", "crowd", BATCH, 4, 0.0)
    stepped(made, 0.0)
    made.add("b", "rare", BATCH, 1, 0.1)
    made.add("a1", "crowd", BATCH, 4, 0.2)
    assert stepped(made, 0.3).names == ("a0", "a1"), "there is time yet"
    made.add("a2", "crowd", BATCH, 4, 0.4)
    seen = names(made, 1.1, 5)
    assert seen == [("a0", "a1"), ("a0", "a1"), ("a1",), ("b",), ("a2",)]


def test_a_request_that_is_cancelled_before_it_begins_never_runs() -> None:
    made = StepBatches(RULES)
    made.add("a", "k", BATCH, 1, 0.0)
    made.add("b", "k", BATCH, 1, 0.0)
    made.cancel("a")
    made.cancel("nobody")
    assert made.take_cancelled() == ()
    assert names(made, 0.0, 1) == [("b",)]


def test_a_request_that_is_cancelled_in_a_step_goes_when_that_is_over() -> None:
    made = StepBatches(RULES)
    made.add("a", "k", BATCH, 5, 0.0)
    made.add("b", "k", BATCH, 5, 0.0)
    assert made.plan(0.0) is not None
    made.cancel("a")
    assert made.take_cancelled() == ()
    assert made.finish() == ()
    assert made.take_cancelled() == ("a",)
    assert made.take_cancelled() == ()
    assert made.position("a") is None
    assert names(made, 0.1, 1) == [("b",)]


def test_one_cancelled_in_its_last_step_is_not_done() -> None:
    made = StepBatches(RULES)
    made.add("a", "k", BATCH, 1, 0.0)
    made.plan(0.0)
    made.cancel("a")
    assert made.finish() == ()
    assert made.plan(0.1) is None
    assert made.take_cancelled() == ("a",)


def test_a_preempted_request_that_is_cancelled_gives_its_state_back() -> None:
    made = StepBatches(RULES)
    made.add("slow", "k", BATCH, 9, 0.0)
    stepped(made, 0.0)
    made.add("live", "k", LIVE, 9, 0.0)
    stepped(made, 0.0)
    made.cancel("slow")
    assert made.take_cancelled() == ("slow",)
    assert not stepped(made, 0.0).preempts


def test_a_request_is_told_its_position() -> None:
    made = StepBatches(RULES)
    for name in "abc":
        made.add(name, "k", BATCH, 2, 0.0)
    assert [made.position(name) for name in "abc"] == [1, 2, 3]
    made.plan(0.0)
    assert [made.position(name) for name in "abcd"] == [0, 0, 1, None]


def test_misuse_is_told() -> None:
    made = StepBatches(RULES)
    made.add("a", "k", BATCH, 1, 0.0)
    with pytest.raises(ValueError, match="here already"):
        made.add("a", "k", LIVE, 1, 0.0)
    with pytest.raises(ValueError, match="0 steps"):
        made.add("b", "k", LIVE, 0, 0.0)
    with pytest.raises(RuntimeError):
        made.finish()
    for name in "bcd":
        made.add(name, "k", BATCH, 1, 0.0)
    with pytest.raises(EngineFull):
        made.add("e", "k", BATCH, 1, 0.0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "cancel", "step", "step", "wait"]),
            st.integers(0, 8),
            st.sampled_from("xyz"),
            st.sampled_from(ServiceLane),
        ),
        max_size=200,
    )
)
def test_any_history_keeps_the_rules(history: list[tuple[str, int, str, ServiceLane]]) -> None:
    """Every request ends once, after its steps or cancelled; the realtime lane always goes first;
    a call is of one key and lane and no larger than it may be."""
    made = StepBatches(RULES)
    asked: dict[int, tuple[str, ServiceLane, int]] = {}
    ran: Counter[object] = Counter()
    here: set[object] = set()
    unwanted: set[object] = set()
    ended: Counter[object] = Counter()
    now = 0.0
    for what, size, key, lane in history:
        if what == "add":
            number = len(asked)
            try:
                made.add(number, key, lane, size + 1, now)
            except EngineFull:
                continue
            asked[number] = (key, lane, size + 1)
            here.add(number)
        elif what == "cancel" and here:
            name = sorted(here, key=str)[size % len(here)]
            begun = made.position(name) == 0
            made.cancel(name)
            here.discard(name)
            if begun:
                unwanted.add(name)
            else:
                ended[name] += 1
        elif what == "wait":
            now += size / 4
        elif what == "step":
            gone = made.take_cancelled()
            assert set(gone) == unwanted
            ended.update(gone)
            unwanted.clear()
            plan = made.plan(now)
            if plan is None:
                assert not here
                continue
            assert 1 <= len(plan.names) <= RULES.most
            assert set(plan.joined) <= set(plan.names)
            keys = {asked[int(str(name))][:2] for name in plan.names}
            assert keys == {(plan.key, plan.lane)}
            live = {name for name in here if asked[int(str(name))][1] is LIVE}
            assert not live or plan.lane is LIVE
            ran.update(plan.names)
            for name in made.finish():
                assert ran[name] == asked[int(str(name))][2]
                ended[name] += 1
                here.discard(name)
    assert len(made) == len(here) + len(unwanted)
    assert all(count == 1 for count in ended.values())
    assert set(ended) | here | unwanted == set(asked)


def test_ten_thousand_requests_come_and_go_and_nobody_starves() -> None:
    """A device that steps without a pause, a crowded key and a rare one, and live bursts."""
    chance = random.Random(5)
    rules = BatchRules(most=8, wait_s=0.5, waiting=256)
    made = StepBatches(rules)
    came: dict[object, float] = {}
    waits: dict[ServiceLane, list[float]] = {lane: [] for lane in ServiceLane}
    ends: Counter[str] = Counter()
    number, now, arrival = 0, 0.0, 0.0
    while number < 10_000 or len(made):
        while number < 10_000 and arrival <= now:
            lane = LIVE if chance.random() < 0.2 else BATCH
            key = chance.choice("a" * 30 + "b")
            try:
                made.add(number, key, lane, chance.randint(4, 20), arrival)
                came[number] = arrival
            except EngineFull:
                ends["refused"] += 1
            if chance.random() < 0.1:
                victim = chance.randint(max(0, number - 50), number)
                if made.position(victim) is not None:
                    waiting = made.position(victim) != 0
                    made.cancel(victim)
                    ends["cancelled"] += waiting
            number += 1
            arrival += chance.expovariate(30)
        ends["cancelled"] += len(made.take_cancelled())
        plan = made.plan(now)
        if plan is None:
            now = max(now, arrival)
            continue
        for name in plan.joined:
            waits[plan.lane].append(now - came[name])
        now += 0.01
        ends["done"] += len(made.finish())
    assert sum(ends.values()) == 10_000
    assert ends["done"] > 7_000
    # A lane's wait is bounded by what it waits for: 256 requests, by 8, of 20 steps at most.
    assert max(waits[BATCH]) < 256 / 8 * 20 * 0.01 * 2
    assert max(waits[LIVE]) < 2.0
