"""Slots get pages as they grow, and give back what they held."""

import pytest
from hypothesis import given, strategies as st

from duologue.models.moshi.page_book import PageBook

EACH, PAGE, SLOTS = 3, 4, 4


def test_a_page_comes_with_its_first_step() -> None:
    book = PageBook(1, EACH, PAGE, EACH)
    given_pages = [book.step(0) for _ in range(2 * EACH * PAGE)]
    first = [given_pages[index] for index in range(0, EACH * PAGE, PAGE)]
    assert None not in first
    assert given_pages.count(None) == len(given_pages) - EACH
    assert book.held(0) == tuple(first)
    assert book.ring(0) == EACH * PAGE
    assert book.shortened == 0


def test_who_finds_no_page_goes_round_in_those_it_has() -> None:
    book = PageBook(2, EACH, PAGE, 3)
    for _ in range(2 * PAGE + 1):
        book.step(0)
    assert book.free == 1  # the other one must be able to begin
    assert book.ring(0) == 2 * PAGE
    assert book.shortened == 1
    assert book.step(1) is not None
    for _ in range(5 * PAGE):
        assert book.step(0) is None


def test_a_copy_holds_as_many_pages_of_its_own() -> None:
    book = PageBook(2, EACH, PAGE, 2 * EACH)
    for _ in range(PAGE + 1):
        book.step(0)
    assert book.copy(0, 1)
    assert len(book.held(1)) == len(book.held(0)) == 2
    assert not set(book.held(0)) & set(book.held(1))
    assert book.position(1) == PAGE + 1


def test_what_does_not_fit_is_not_begun() -> None:
    book = PageBook(2, EACH, PAGE, 3)
    for _ in range(PAGE + 1):
        book.step(0)
    assert not book.copy(0, 1)
    assert book.held(1) == ()
    assert book.free == 1


def test_every_slot_can_have_a_page() -> None:
    with pytest.raises(ValueError, match="too few"):
        PageBook(3, EACH, PAGE, 2)


@given(
    st.integers(SLOTS, SLOTS * EACH),
    st.lists(
        st.one_of(
            st.tuples(st.just("step"), st.integers(0, SLOTS - 1), st.just(0)),
            st.tuples(st.just("clear"), st.integers(0, SLOTS - 1), st.just(0)),
            st.tuples(st.just("copy"), st.integers(0, SLOTS - 1), st.integers(0, SLOTS - 1)),
        ),
        max_size=200,
    ),
)
def test_no_page_is_held_twice_or_lost(pages: int, moves: list[tuple[str, int, int]]) -> None:
    book = PageBook(SLOTS, EACH, PAGE, pages)
    for move, slot, other in moves:
        if move == "step":
            book.step(slot)
            assert book.held(slot)
        elif move == "clear":
            book.clear(slot)
        elif slot != other:
            book.clear(other)
            book.copy(slot, other)
        held = [page for each in range(SLOTS) for page in book.held(each)]
        assert len(set(held)) == len(held)
        assert len(held) + book.free == pages
        for each in range(SLOTS):
            assert len(book.held(each)) * PAGE >= min(book.position(each), book.ring(each))
