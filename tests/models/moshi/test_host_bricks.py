"""Pages of sessions that rest, in memory that is made ahead of them."""

import mmap
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

from duologue.models.moshi.host_bricks import (
    BRICK_PAGES,
    LOCKED_BYTES,
    HostBricks,
    PageLock,
    shapes_of,
)
from duologue.models.moshi.moshi_config import TransformerConfig
from duologue.models.moshi.paged_kv import FP8
from duologue.models.moshi.transformer import TemporalTransformer
from tests.patience import PATIENCE_S

CONTEXT = 600
"""So that a ring has pages for more than a brick."""


class Locks:
    """Counts what is locked, and lets a test wait until so much was."""

    def __init__(self) -> None:
        self.locked = 0
        self._changed = threading.Condition()

    def pin(self, tensor: Any) -> None:
        with self._changed:
            self.locked += 1
            self._changed.notify_all()

    def wait(self, locked: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.locked >= locked, timeout=PATIENCE_S)


@pytest.fixture
def locks() -> Locks:
    return Locks()


@pytest.fixture
def bricks(torch: ModuleType, locks: Locks) -> Iterator[HostBricks]:
    like = [torch.ones(100, 3), torch.ones(100, 2, 2, dtype=torch.int64)]
    made = HostBricks(shapes_of(like), spare=2 * BRICK_PAGES, pin=locks.pin)
    yield made
    made.close()


def test_there_is_room_for_all_pages_of_each_kind(bricks: HostBricks) -> None:
    kept = bricks.hold(BRICK_PAGES + 3)
    assert [[tuple(part.shape) for part in parts] for parts in kept.contents] == [
        [(BRICK_PAGES, 3), (3, 3)],
        [(BRICK_PAGES, 2, 2), (3, 2, 2)],
    ]


def test_spare_bricks_are_there_before_they_are_asked_for(bricks: HostBricks, locks: Locks) -> None:
    locks.wait(2 * 2)
    held = bricks.hold(BRICK_PAGES)
    locks.wait(3 * 2)
    assert len(held.contents) == 2


def test_more_than_the_spare_ones_are_made_while_one_waits(
    bricks: HostBricks, locks: Locks
) -> None:
    held = [bricks.hold(2 * BRICK_PAGES) for _ in range(4)]
    places = {part.data_ptr() for kept in held for part in kept.contents[0]}
    assert len(places) == 8


def test_what_is_dropped_is_used_again(bricks: HostBricks, locks: Locks) -> None:
    held = bricks.hold(5 * BRICK_PAGES)
    places = {part.data_ptr() for part in held.contents[0]}
    locks.wait(7 * 2)
    del held
    assert bricks.free >= 5
    again = [bricks.hold(BRICK_PAGES) for _ in range(7)]
    assert places <= {part.data_ptr() for kept in again for part in kept.contents[0]}


def test_places_lie_in_memory_pages_of_their_own(bricks: HostBricks) -> None:
    kept = bricks.hold(2 * BRICK_PAGES)
    places = [part for parts in kept.contents for part in parts]
    assert all(part.data_ptr() % mmap.PAGESIZE == 0 for part in places)
    assert all(part.view(-1).any().item() is False for part in places)


def test_where_memory_cannot_be_locked_nothing_fails_and_it_is_not_tried_again(
    torch: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = []

    class Runtime:
        cudaError = SimpleNamespace(success=0)

        def cudaHostRegister(self, begin: int, size: int, flags: int) -> int:
            tried.append(size)
            return 2

    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    lock = PageLock(torch.device("cpu"))
    large = torch.zeros(LOCKED_BYTES, dtype=torch.uint8)
    for tensor in (large[:10], large, large):
        lock(tensor)
    assert tried == [LOCKED_BYTES]
    assert "can't be locked: 2" in caplog.text


@pytest.mark.parametrize("kv", [None, FP8])
@pytest.mark.parametrize("steps", [0, 1, CONTEXT + 9])
def test_a_slot_that_is_put_into_bricks_comes_back_as_from_memory_of_its_own(
    torch: ModuleType, locks: Locks, kv: Any, steps: int
) -> None:
    torch.manual_seed(3)
    config = TransformerConfig(d_model=16, num_heads=4, num_layers=2, hidden=24, context=CONTEXT)
    temporal = TemporalTransformer(config).requires_grad_(False)
    state = temporal.new_state(2, kv)
    ran = torch.tensor([True, False])
    for x in torch.randn(steps, 2, 16):
        temporal(x, state, ran)
    assert steps <= CONTEXT or len(state.table[0]) > BRICK_PAGES
    plain = state.save(0)
    state.bricks = HostBricks(shapes_of(state.paged()), spare=0, pin=locks.pin)
    locked = state.save(0)
    state.bricks.close()
    xs = torch.randn(3, 2, 16)
    said = []
    for saved in (plain, locked):
        other = temporal.new_state(2, kv)
        other.restore(1, saved)
        ran = torch.tensor([False, True])
        said.append(torch.stack([temporal(x.flip(0), other, ran)[1] for x in xs]))
    said.append(torch.stack([temporal(x, state, ran.flip(0))[0] for x in xs]))
    assert torch.equal(said[0], said[1])
    assert torch.equal(said[0], said[2])
