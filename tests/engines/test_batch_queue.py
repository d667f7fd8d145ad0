from collections import deque

import pytest
from hypothesis import given, strategies as st

from duologue.engines.batch_queue import MOST_RETRY_S, BatchQueue


def queue(*names: str, width: int = 1) -> BatchQueue:
    made = BatchQueue(width, 4.0)
    for name in names:
        made.add(name)
    return made


def test_so_many_run_and_the_others_wait_in_order() -> None:
    made = queue("a", "b", "c", "d", width=2)
    assert [made.begin(0.0) for _ in range(3)] == ["a", "b", None]
    assert made.positions() == {"c": 1, "d": 2}
    made.end("b", 1.0)
    assert made.begin(1.0) == "c"
    assert (made.runs("c"), made.runs("b"), "d" in made, "b" in made) == (True, False, True, False)


def test_who_is_not_wanted_makes_room() -> None:
    made = queue("a", "b", "c")
    made.begin(0.0)
    made.discard("b")
    made.discard("a")
    assert made.begin(0.0) == "c"
    assert len(made) == 1


def test_a_name_is_here_once() -> None:
    made = queue("a")
    with pytest.raises(ValueError, match="here already"):
        made.add("a")
    made.begin(0.0)
    with pytest.raises(ValueError, match="here already"):
        made.add("a")


def test_when_to_come_again_follows_from_what_answers_take() -> None:
    made = queue(width=2)
    assert made.retry_after() == 2.0
    for number in range(20):
        made.add(number)
        made.begin(0.0)
        made.end(number, 20.0)
    assert 9.5 < made.retry_after() <= 10.0
    for number in range(20):
        made.add(number)
        made.begin(0.0)
        made.end(number, 1000.0)
    assert made.retry_after() == MOST_RETRY_S
    made.end("nobody", 5.0)
    made.discard("nobody")


def test_it_is_never_told_to_come_again_at_once() -> None:
    assert BatchQueue(8, 0.1).retry_after() == 1.0
    assert BatchQueue(0, 3.0).retry_after() == 3.0


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from(["add", "end", "discard"]), st.integers(0, 6))),
)
def test_it_is_first_come_first_served_and_nobody_is_lost(
    width: int, steps: list[tuple[str, int]]
) -> None:
    made = queue(width=width)
    waiting: deque[int] = deque()
    running: list[int] = []
    for what, name in steps:
        if what == "add" and name not in waiting and name not in running:
            made.add(name)
            waiting.append(name)
        elif what == "end" and running:
            made.end(running.pop(name % len(running)), 1.0)
        elif what == "discard":
            made.discard(name)
            for held in (waiting, running):
                if name in held:
                    held.remove(name)
        while (begun := made.begin(0.0)) is not None:
            assert begun == waiting.popleft()
            running.append(begun)
        assert len(running) <= width
        assert not waiting or len(running) == width
        assert list(made.positions()) == list(waiting)
    assert len(made) == len(waiting) + len(running)
