"""What a rank does that is told of another one's slots, with nobody beside it."""

import os
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")
pytest.importorskip("safetensors", reason="safetensors comes with duologue[moshi]")

import torch

from duologue.engines.frames import FrameReader, FrameWriter
from duologue.engines.moshi_follower import Follower, Orders, follow
from duologue.engines.moshi_orders import (
    ORDER_BYTES,
    ClearSlot,
    CopySlot,
    Failed,
    Forget,
    KeepSlot,
    Order,
    Ready,
    RestoreSlot,
    StepSlots,
)
from duologue.models.moshi.moshi_config import TransformerConfig
from duologue.models.moshi.transformer import TemporalTransformer
from tests.engines.follow_order import small_follow

SLOTS = 3
TOLD = small_follow(slots=SLOTS, pages=6)


class Given:
    """The first rank's input, which comes from elsewhere."""

    def share(self, x: Any) -> None:
        x.copy_(torch.arange(x.numel()).view_as(x) / 10)

    def add(self, x: Any) -> None:
        return None


@pytest.fixture
def follower() -> Follower:
    torch.manual_seed(4)
    part = TemporalTransformer(
        TransformerConfig(d_model=8, num_heads=2, num_layers=1, hidden=8, context=4)
    ).requires_grad_(False)
    part.join(Given())
    return Follower(part, TOLD, None, graphs=False)


def step(follower: Follower, active: list[int], pages: list[int]) -> None:
    ring = follower.state.places
    told = [[is_active, page, ring] for is_active, page in zip(active, pages, strict=True)]
    follower.obey(StepSlots(SLOTS, np.array(told, np.int64).tobytes()))


def page(follower: Follower, number: int) -> Any:
    return follower.state.pools[0].keys[number].clone()


def test_a_step_moves_those_that_are_active_and_fills_the_pages_they_are_given(
    follower: Follower,
) -> None:
    step(follower, [1, 0, 1], [4, -1, 2])
    step(follower, [1, 0, 0], [1, -1, -1])
    assert follower.state.offset.tolist() == [2, 0, 1]
    filled = [bool(page(follower, number).any()) for number in range(6)]
    assert filled == [False, True, True, False, True, False]


def test_a_copy_has_pages_of_its_own(follower: Follower) -> None:
    step(follower, [1, 0, 0], [4, -1, -1])
    follower.obey(CopySlot(0, 1, (3,)))
    assert torch.equal(page(follower, 3), page(follower, 4))
    assert follower.state.offset.tolist() == [1, 1, 0]


def test_what_is_kept_comes_back_in_another_slot_until_it_is_forgotten(follower: Follower) -> None:
    step(follower, [1, 0, 0], [4, -1, -1])
    before = page(follower, 4)
    follower.obey(KeepSlot(0, 7))
    follower.obey(ClearSlot(0))
    assert follower.state.offset.tolist() == [0, 0, 0]
    step(follower, [0, 1, 0], [-1, 4, -1])
    follower.obey(RestoreSlot(2, 7, (5,)))
    assert torch.equal(page(follower, 5), before)
    assert follower.state.offset.tolist() == [0, 1, 1]
    follower.obey(Forget((7,)))
    with pytest.raises(KeyError):
        follower.obey(RestoreSlot(2, 7, (5,)))


# -- orders ---------------------------------------------------------------------------------


class Pipes:
    def __init__(self) -> None:
        self.source, self.tell = os.pipe()
        self.heard, self.sink = os.pipe()

    def put(self, order: Order) -> None:
        writer = FrameWriter(ORDER_BYTES)
        writer.put(order)
        os.write(self.tell, writer.take())

    def close(self) -> None:
        for descriptor in (self.source, self.heard, self.sink):
            os.close(descriptor)


@pytest.fixture
def pipes() -> Any:
    made = Pipes()
    yield made
    made.close()


def test_orders_are_read_to_the_parents_end(pipes: Pipes) -> None:
    orders: list[Order] = [TOLD, ClearSlot(1), CopySlot(0, 2, (4, 5))]
    for order in orders:
        pipes.put(order)
    os.close(pipes.tell)
    assert list(Orders(pipes.source, pipes.sink).read()) == orders


def test_a_parent_that_goes_at_once_is_no_fault(pipes: Pipes) -> None:
    os.close(pipes.tell)
    follow(Orders(pipes.source, pipes.sink))


@pytest.mark.parametrize("report", [Ready(), Failed("no such folder")])
def test_reports_are_frames(pipes: Pipes, report: Ready | Failed) -> None:
    import msgspec

    Orders(pipes.source, pipes.sink).report(report)
    os.close(pipes.tell)
    (payload,) = FrameReader(ORDER_BYTES).feed(os.read(pipes.heard, 4096))
    assert msgspec.msgpack.decode(payload, type=list[Ready | Failed]) == [report]
