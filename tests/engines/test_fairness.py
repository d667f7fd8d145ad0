from hypothesis import given, strategies as st

from duologue.engines.fairness import PATIENCE, FairQueue, Rank, ServiceLane, Ticket

SESSIONS = st.sampled_from(["a", "b", "c", "d"])
RANKS = st.sampled_from(list(Rank))
OF_THE_REALTIME_LANE = st.sampled_from([rank for rank in Rank if rank is not Rank.BATCH])


def drained(queue: FairQueue) -> list[Ticket]:
    tickets = []
    while (ticket := queue.take()) is not None:
        tickets.append(ticket)
    return tickets


def test_the_more_urgent_goes_first() -> None:
    queue = FairQueue()
    for rank in reversed(Rank):
        queue.add("a", rank)
    assert [ticket.rank for ticket in drained(queue)] == list(Rank)


def test_sessions_take_turns_within_a_rank() -> None:
    queue = FairQueue()
    for key in "aaabbc":
        queue.add(key, Rank.LATER)
    assert [ticket.key for ticket in drained(queue)] == ["a", "b", "c", "a", "b", "a"]


def test_one_session_is_served_in_order() -> None:
    queue = FairQueue()
    tickets = [queue.add("a", Rank.LATER) for _ in range(4)]
    assert drained(queue) == tickets


def test_a_discarded_ticket_is_never_taken() -> None:
    queue = FairQueue()
    first, second = queue.add("a", Rank.FIRST), queue.add("b", Rank.FIRST)
    queue.discard(first)
    queue.discard(first)
    assert drained(queue) == [second]
    assert queue.best_rank() is None


def test_an_idle_call_goes_through_a_crowd_that_never_ends() -> None:
    queue = FairQueue()
    idle = queue.add("patient", Rank.IDLE)
    for turn in range(PATIENCE + 1):
        queue.add(f"urgent {turn}", Rank.FIRST)
        if queue.take() is idle:
            return
    raise AssertionError("starved")


def test_the_batch_lane_never_goes_before_a_conversation() -> None:
    queue = FairQueue()
    batch = queue.add("patient", Rank.BATCH)
    for turn in range(5 * PATIENCE):
        queue.add(f"live {turn}", Rank.IDLE)
        assert queue.best_rank() is Rank.IDLE
        assert queue.take() is not batch
    assert queue.best_rank() is Rank.BATCH
    assert queue.take() is batch


def test_the_batch_lane_is_fair_to_its_own() -> None:
    queue = FairQueue()
    for key in "aaabbc":
        queue.add(key, Rank.BATCH)
    assert [ticket.key for ticket in drained(queue)] == ["a", "b", "c", "a", "b", "a"]


def test_only_the_last_rank_is_of_the_batch_lane() -> None:
    assert [rank for rank in Rank if rank.lane is ServiceLane.BATCH] == [max(Rank)]


@given(st.lists(st.tuples(SESSIONS, RANKS, st.integers(0, 2)), max_size=120))
def test_a_batch_ticket_is_taken_only_when_no_other_waits(
    steps: list[tuple[str, Rank, int]],
) -> None:
    queue = FairQueue()
    waiting: set[Ticket] = set()
    for key, rank, takes in steps:
        waiting.add(queue.add(key, rank))
        for _ in range(takes):
            best = queue.best_rank()
            chosen = queue.take()
            if chosen is None:
                continue
            lanes = {ticket.rank.lane for ticket in waiting}
            assert chosen.rank.lane is min(lanes)
            assert best is not None and best.lane is min(lanes)
            waiting.discard(chosen)


@given(st.lists(st.tuples(SESSIONS, OF_THE_REALTIME_LANE, st.integers(0, 2)), max_size=120))
def test_nobody_starves_and_nothing_is_lost(steps: list[tuple[str, Rank, int]]) -> None:
    queue = FairQueue()
    waiting: dict[Ticket, int] = {}
    taken = 0
    for key, rank, takes in steps:
        ticket = queue.add(key, rank)
        waiting[ticket] = taken + len(waiting) + PATIENCE + 1
        for _ in range(takes):
            chosen = queue.take()
            if chosen is not None:
                taken += 1
                # Those who came before, and PATIENCE of those who came after: no more.
                assert taken <= waiting.pop(chosen)
    assert set(drained(queue)) == set(waiting)


@given(st.lists(st.tuples(SESSIONS, RANKS), min_size=1, max_size=11))
def test_without_a_crowd_ranks_are_kept(entries: list[tuple[str, Rank]]) -> None:
    queue = FairQueue()
    for key, rank in entries:
        queue.add(key, rank)
    ranks = [ticket.rank for ticket in drained(queue)]
    assert ranks == sorted(ranks)
