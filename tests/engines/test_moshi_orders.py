"""Orders of ranks as bytes."""

import msgspec
import pytest

from duologue.engines.moshi_orders import (
    ORDER_BYTES,
    ClearSlot,
    CopySlot,
    Follow,
    Forget,
    KeepSlot,
    Meet,
    Order,
    RestoreSlot,
    StepSlots,
)

FOLLOW = Follow(
    folder="/m",
    rank=1,
    ranks=2,
    device="cuda:1",
    dtype="bfloat16",
    kv_dtype="float8_e4m3fn",
    weights="fp8",
    slots=256,
    pages=12032,
)


@pytest.mark.parametrize(
    "order",
    [
        FOLLOW,
        Meet(4711, True),
        StepSlots(2, bytes(48)),
        ClearSlot(3),
        CopySlot(0, 1, (5, 6)),
        KeepSlot(1, 9),
        RestoreSlot(1, 9, ()),
        Forget((9, 10)),
    ],
    ids=lambda order: type(order).__name__,
)
def test_an_order_arrives_as_it_was_sent(order: Order) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=Order) == order


def test_the_largest_step_and_copy_are_well_within_a_frame() -> None:
    step = StepSlots(256, bytes(256 * 3 * 8))
    copy = CopySlot(0, 1, tuple(range(12_000, 12_047)))
    assert max(len(msgspec.msgpack.encode(one)) for one in (step, copy)) < ORDER_BYTES / 100
