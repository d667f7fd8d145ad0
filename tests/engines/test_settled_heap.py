"""What is there for ever is left alone by the collector, and what comes later is not."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from duologue.engines.settled_heap import settle_heap


class Node:
    """One end of a cycle."""

    def __init__(self) -> None:
        self.other: Node | None = None


def cycle() -> Node:
    one, other = Node(), Node()
    one.other, other.other = other, one
    return one


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Other tests look for what they leak."""
    yield
    gc.unfreeze()


def test_what_is_there_is_not_looked_at_again() -> None:
    kept = cycle()
    settle_heap()
    frozen = gc.get_freeze_count()
    assert frozen > 1000
    assert not any(one is kept for one in gc.get_objects())
    settle_heap()
    assert gc.get_freeze_count() >= frozen - 100


def test_what_is_rubbish_by_then_goes_before() -> None:
    gone = weakref.ref(cycle())
    settle_heap()
    assert gone() is None


def test_what_comes_later_is_collected() -> None:
    settle_heap()
    gone = weakref.ref(cycle())
    gc.collect()
    assert gone() is None


def test_what_was_frozen_goes_with_its_last_reference() -> None:
    kept = Node()
    settle_heap()
    gone = weakref.ref(kept)
    del kept
    assert gone() is None
