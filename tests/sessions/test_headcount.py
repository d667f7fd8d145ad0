"""Sessions of several processes, counted on one board."""

import pytest

from duologue.sessions.headcount import ROW_BYTES, Headcount


def test_processes_see_each_others_sessions() -> None:
    board = bytearray(3 * ROW_BYTES)
    one, two, three = (Headcount(board, place) for place in range(3))
    one.enter()
    two.enter()
    two.enter()
    two.leave()
    assert [(each.own, each.others) for each in (one, two, three)] == [(1, 1), (1, 1), (0, 2)]


def test_one_that_starts_again_has_none() -> None:
    board = bytearray(2 * ROW_BYTES)
    one, other = Headcount(board, 0), Headcount(board, 1)
    other.enter()
    again = Headcount(board, 1)
    assert (again.own, one.others) == (0, 0)


def test_a_process_that_is_gone_is_struck_out() -> None:
    board = bytearray(2 * ROW_BYTES)
    one, other = Headcount(board, 0), Headcount(board, 1)
    other.enter()
    one.clear(1)
    assert one.others == 0


def test_alone_there_are_no_others() -> None:
    count = Headcount()
    count.enter()
    assert (count.own, count.others) == (1, 0)


def test_a_place_that_the_board_does_not_have_is_refused() -> None:
    with pytest.raises(IndexError):
        Headcount(bytearray(ROW_BYTES), 1)
