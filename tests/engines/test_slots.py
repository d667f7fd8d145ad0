import pytest

from duologue.engines.slots import Slot, SlotTable, common_prefix


def used(table: SlotTable, session: str, tokens: list[int]) -> Slot:
    slot = table.take(session, tokens)
    assert slot is not None
    slot.tokens = tokens
    table.give(slot)
    return slot


def test_a_session_comes_back_to_its_own_slot() -> None:
    table = SlotTable(3)
    first = used(table, "a", [1, 2])
    used(table, "b", [1, 2, 3])
    assert table.take("a", [1, 2, 3]) is first


def test_a_new_session_takes_the_free_slot_that_knows_most_of_its_prompt() -> None:
    table = SlotTable(3)
    used(table, "a", [1, 2, 9])
    better = used(table, "b", [1, 2, 3, 4])
    table.forget("a")
    table.forget("b")
    assert table.take("c", [1, 2, 3, 5]) is better


def test_a_slot_that_nobody_owns_goes_before_another_sessions() -> None:
    table = SlotTable(2)
    used(table, "a", [1, 2, 3])
    slot = table.take("b", [1, 2, 3])
    assert slot is not None
    assert slot.index == 1


def test_with_more_sessions_than_slots_the_least_recently_used_goes() -> None:
    table = SlotTable(2)
    oldest = used(table, "a", [1])
    used(table, "b", [1, 2])
    assert table.take("c", [1, 2]) is oldest
    assert oldest.owner == "c"


def test_a_cancelled_answers_slot_is_waited_for() -> None:
    table = SlotTable(2)
    slot = table.take("a", [1])
    assert slot is not None
    table.leave(slot)
    assert table.take("a", [1, 2]) is None
    table.give(slot)
    assert table.take("a", [1, 2]) is slot


def test_a_second_answer_takes_a_slot_of_nobodys_but_never_another_sessions() -> None:
    table = SlotTable(3)
    first = table.take("a", [1])
    second = table.take("a", [1])
    assert first is not second
    used(table, "b", [1])
    assert table.take("a", [1]) is None


def test_all_busy_means_wait() -> None:
    table = SlotTable(1)
    assert table.take("a", [1]) is not None
    assert table.take("b", [1]) is None


def test_what_was_generated_counts_as_cached_only_behind_the_whole_prompt() -> None:
    slot = Slot(0)
    slot.tokens, slot.generated = [1, 2, 3], 2
    assert slot.cached([1, 2, 3, 4, 5, 6]) == 5
    assert slot.cached([1, 2, 3, 4]) == 4
    assert slot.cached([1, 2, 9, 4, 5]) == 2


def test_a_table_needs_a_slot() -> None:
    with pytest.raises(ValueError, match="0 slots"):
        SlotTable(0)


@pytest.mark.parametrize(
    ("first", "second", "length"),
    [([], [], 0), ([1], [], 0), ([1, 2], [1, 2, 3], 2), ([1, 3], [1, 2], 1)],
)
def test_common_prefix(first: list[int], second: list[int], length: int) -> None:
    assert common_prefix(first, second) == length


def test_the_batch_lane_has_slots_of_its_own() -> None:
    table = SlotTable(1, batch=1)
    live = table.take("a", [1, 2])
    assert live is not None
    live.tokens = [1, 2]
    assert table.take("other", [1, 2]) is None
    batch = table.take("request", [1, 2], batch=True)
    assert batch is not None
    assert (live.index, batch.index) == (0, 1)
    assert table.take("another request", [1, 2], batch=True) is None
    table.give(live)
    assert table.take("another request", [1, 2], batch=True) is None
    table.give(batch)
    table.forget("request")
    assert table.take("other", [1, 2]) is live
    assert table.take("another request", [1, 2], batch=True) is batch
