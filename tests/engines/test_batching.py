import math
import random
from collections import Counter, deque

import pytest
from hypothesis import given, strategies as st

from duologue.engines.batching import Batch, BatchRules, RequestBatches
from duologue.engines.engine import EngineFull
from duologue.engines.fairness import ServiceLane

LIVE, BATCH = ServiceLane.REALTIME, ServiceLane.BATCH
RULES = BatchRules(most=2, wait_s=1.0, waiting=4)


def batches(*requests: tuple[str, str, ServiceLane, float]) -> RequestBatches:
    made = RequestBatches(RULES)
    for name, key, lane, since in requests:
        made.add(name, key, lane, since)
    return made


def test_a_call_waits_for_others_no_longer_than_it_may() -> None:
    made = batches(("a", "small", BATCH, 5.0))
    assert made.take(5.9) is None
    assert made.next_deadline() == 6.0
    assert made.take(6.0) == Batch(BATCH, "small", ("a",))


def test_a_full_call_does_not_wait() -> None:
    made = batches(("a", "small", BATCH, 5.0), ("b", "small", BATCH, 5.1))
    assert made.next_deadline() < 5.1
    assert made.take(5.1) == Batch(BATCH, "small", ("a", "b"))


def test_requests_of_different_keys_never_share_a_call() -> None:
    made = batches(("a", "small", BATCH, 5.0), ("b", "large", BATCH, 5.1))
    assert made.take(5.5) is None
    assert made.take(9.0) == Batch(BATCH, "small", ("a",))
    assert made.take(9.0) is None
    assert made.next_deadline() == math.inf
    assert made.finish() == ("a",)
    assert made.take(9.0) == Batch(BATCH, "large", ("b",))


def test_the_realtime_lane_goes_first_and_shares_no_call() -> None:
    made = batches(("slow", "small", BATCH, 1.0), ("live", "small", LIVE, 5.0))
    assert made.take(6.0) == Batch(LIVE, "small", ("live",))
    made.finish()
    assert made.take(6.0) == Batch(BATCH, "small", ("slow",))


def test_the_batch_lane_uses_the_time_in_which_the_realtime_lane_waits_for_company() -> None:
    made = batches(("slow", "small", BATCH, 1.0), ("live", "small", LIVE, 5.0))
    assert made.take(5.5) == Batch(BATCH, "small", ("slow",))


def test_the_key_that_waits_longest_is_next() -> None:
    made = batches(
        ("a", "rare", BATCH, 1.0), ("b", "often", BATCH, 1.5), ("c", "often", BATCH, 1.6)
    )
    taken = made.take(2.0)
    assert taken is not None
    assert taken.names == ("a",)


def test_a_cancelled_request_is_not_run_or_its_result_not_wanted() -> None:
    made = batches(("a", "k", BATCH, 1.0), ("b", "k", BATCH, 1.0), ("c", "k", BATCH, 1.0))
    made.cancel("a")
    made.cancel("nobody")
    assert made.take(2.0) == Batch(BATCH, "k", ("b", "c"))
    made.cancel("b")
    assert made.finish() == ("c",)
    assert len(made) == 0


def test_a_request_is_told_its_position() -> None:
    made = batches(("a", "k", BATCH, 1.0), ("b", "other", BATCH, 1.0), ("live", "k", LIVE, 1.0))
    assert [made.position(name) for name in ("a", "b", "live", "nobody")] == [1, 2, 1, None]
    made.take(3.0)
    assert [made.position(name) for name in ("a", "b", "live")] == [1, 2, 0]


def test_one_more_than_may_wait_is_refused_in_its_lane_alone() -> None:
    made = batches(*((f"{n}", "k", BATCH, 1.0) for n in range(4)))
    with pytest.raises(EngineFull) as refused:
        made.add("more", "k", BATCH, 1.0)
    assert refused.value.retry_after == RULES.retry_after_s
    made.add("live", "k", LIVE, 1.0)


def test_misuse_is_told() -> None:
    made = batches(("a", "k", BATCH, 1.0))
    with pytest.raises(ValueError, match="here already"):
        made.add("a", "k", BATCH, 1.0)
    with pytest.raises(RuntimeError):
        made.finish()


@pytest.mark.parametrize("values", [{"most": 0}, {"waiting": 0}, {"wait_s": -1.0}])
def test_rules_that_cannot_be_kept_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        BatchRules(**values)  # type: ignore[arg-type]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "cancel", "finish", "wait"]),
            st.integers(0, 8),
            st.sampled_from("xyz"),
            st.sampled_from(ServiceLane),
        ),
        max_size=150,
    )
)
def test_any_history_keeps_the_rules(steps: list[tuple[str, int, str, ServiceLane]]) -> None:
    """Every request ends once; calls are of one key and lane, in order, and start in time."""
    made = RequestBatches(RULES)
    waiting: dict[ServiceLane, deque[tuple[int, str, float]]] = {lane: deque() for lane in LIVE_TOO}
    running: list[int] | None = None
    numbers, now = 0, 0.0
    for what, size, key, lane in steps:
        if what == "add" and len(waiting[lane]) < RULES.waiting:
            made.add(numbers, key, lane, now)
            waiting[lane].append((numbers, key, now))
            numbers += 1
        elif what == "cancel" and waiting[lane]:
            gone = waiting[lane][size % len(waiting[lane])]
            waiting[lane].remove(gone)
            made.cancel(gone[0])
            assert made.position(gone[0]) is None
        elif what == "finish" and running is not None:
            assert list(made.finish()) == running
            running = None
        elif what == "wait":
            now += size / 10
        taken = made.take(now)
        if taken is not None:
            assert running is None
            here = waiting[taken.lane]
            same = [entry for entry in here if entry[1] == taken.key]
            assert list(taken.names) == [entry[0] for entry in same[: RULES.most]]
            # Whoever waits longer in this lane is of a key that is not due.
            for entry in here:
                if entry[0] < same[0][0]:
                    assert now - entry[2] < RULES.wait_s
            for entry in same[: RULES.most]:
                here.remove(entry)
            running = [entry[0] for entry in same[: RULES.most]]
        if running is None:
            assert made.next_deadline() > now
    assert len(made) == sum(map(len, waiting.values())) + len(running or [])


LIVE_TOO = tuple(ServiceLane)


def test_ten_thousand_requests_come_and_go_and_no_key_starves() -> None:
    """One key in a crowd that keeps the device busy, one that is rare, some that are cancelled."""
    chance = random.Random(3)
    rules = BatchRules(most=8, wait_s=0.05, waiting=64)
    made = RequestBatches(rules)
    began: dict[int, float] = {}
    came: dict[int, float] = {}
    ends: Counter[str] = Counter()
    number, now, over = 0, 0.0, math.inf
    next_arrival = 0.0
    while number < 10_000 or len(made):
        now = min(next_arrival if number < 10_000 else math.inf, over, made.next_deadline())
        if now == over:
            over = math.inf
            ends["done"] += len(made.finish())
        elif now == next_arrival and number < 10_000:
            next_arrival += chance.expovariate(120)
            try:
                made.add(number, chance.choice("a" * 20 + "b"), BATCH, now)
                came[number] = now
                if chance.random() < 0.1:
                    made.cancel(number)
                    ends["cancelled"] += 1
            except EngineFull:
                ends["refused"] += 1
            number += 1
        taken = made.take(now)
        if taken is not None:
            over = now + 0.08
            began.update((int(str(name)), now) for name in taken.names)
    assert sum(ends.values()) == 10_000
    assert ends["refused"] > 100
    # The room empties by calls of 8 in 0.08 s, and the rare key takes one call in between.
    longest = max(start - came[name] for name, start in began.items())
    assert longest < 64 / 8 * 0.08 * 2 + rules.wait_s + 0.08
