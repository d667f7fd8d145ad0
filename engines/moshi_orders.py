"""What the first rank of a Moshi tells the others, over their standard input; no torch.

A follower gets one :class:`Follow`, answers with :class:`Ready` or :class:`Failed` on its standard
output, gets :class:`Meet`, and then whatever changes its slots, in the order in which it happens
to the first rank's. The end of its standard input is its end. Frames are those of
:mod:`duologue.engines.frames`.
"""

from typing import Literal

import msgspec

Weights = Literal["", "int8", "fp8"]
"""How the layers' weights are kept; "" as they are computed with."""

ORDER_BYTES = 2**20
"""A frame's limit."""


class Follow(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What to load, and how to run it. ``pages``: of keys and values, for all slots. ``dtype`` and
    ``kv_dtype``: torch's names of them."""

    folder: str
    rank: int
    ranks: int
    device: str
    dtype: str
    kv_dtype: str
    weights: Weights
    slots: int
    pages: int


class Meet(msgspec.Struct, frozen=True, tag=True):
    """All ranks are loaded: meet at this port of the machine's own address. ``graphs``: steps are
    captured, by all of them or none, as capturing makes steps too."""

    port: int
    graphs: bool


class StepSlots(msgspec.Struct, frozen=True, tag=True):
    """Move the first ``size`` slots. ``told``: int64 ``[size, 3]``, whether a slot is active, the
    page it is given or -1, the length of its ring."""

    size: int
    told: bytes


class ClearSlot(msgspec.Struct, frozen=True, tag=True):
    slot: int


class CopySlot(msgspec.Struct, frozen=True, tag=True):
    """``pages``: those that the target holds now."""

    source: int
    target: int
    pages: tuple[int, ...]


class KeepSlot(msgspec.Struct, frozen=True, tag=True):
    """Save a slot under a number."""

    slot: int
    number: int


class RestoreSlot(msgspec.Struct, frozen=True, tag=True):
    """Put back what is saved under a number, which stays. ``pages``: those that the slot holds."""

    slot: int
    number: int
    pages: tuple[int, ...]


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Nobody will ask for these numbers again."""

    numbers: tuple[int, ...]


Change = StepSlots | ClearSlot | CopySlot | KeepSlot | RestoreSlot | Forget
Order = Follow | Meet | Change


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Loaded."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It ends. ``reason`` is for the operator."""

    reason: str


FollowerReport = Ready | Failed
