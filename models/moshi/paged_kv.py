"""Keys and values of a deep transformer in pages that slots hold as they grow.

A slot's ring is a list of pages (Kwon et al. 2023, arXiv:2309.06180): place ``p % ring`` holds
position ``p``, and place ``q`` lies in page ``table[slot, q // page]``. A young session has few
pages and its attention reads no others. Keys and values may be kept as 8-bit floats (E4M3,
arXiv:2209.05433), scaled step by step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor
from torch.nn import functional

from duologue.models.moshi.host_bricks import HostBricks, KeptPages, fresh_pages
from duologue.models.moshi.streaming_state import SavedPart, StreamingState, update

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
LEAST_SCALE = 1e-12


@dataclass(slots=True, eq=False)
class PagePool:
    """One layer's pages. ``keys`` and ``values``: ``[pages, heads, places, channels]``; their
    scales, float32 ``[pages, places]``, are ones unless the dtype is :data:`FP8`."""

    keys: Tensor
    values: Tensor
    key_scales: Tensor
    value_scales: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        return self.keys, self.values, self.key_scales, self.value_scales


@dataclass(slots=True, eq=False)
class PagedState(StreamingState):
    """``offset``: int64 ``[slots]``, steps seen. ``ring``: int64 ``[slots]``, places in use before
    the oldest is written over. ``table``: int64 ``[slots, pages a slot]``, page numbers.
    ``bricks``: what is saved goes there, if not to memory of its own."""

    offset: Tensor
    ring: Tensor
    table: Tensor
    pools: tuple[PagePool, ...]
    bricks: HostBricks | None = None

    @property
    def page(self) -> int:
        """Places in a page."""
        return int(self.pools[0].keys.shape[2])

    @property
    def places(self) -> int:
        """Places of a whole ring."""
        return int(self.table.shape[1]) * self.page

    def reset(self, slots: Tensor) -> None:
        self.offset.masked_fill_(slots, 0)
        self.ring.masked_fill_(slots, self.places)

    def tensors(self) -> Iterator[Tensor]:
        yield from self.own_tensors()
        for pool in self.pools:
            yield from pool.tensors()

    def give(self, pages: Tensor) -> None:
        """Put pages, int64 ``[slots]``, where each slot's next position will be; -1: none."""
        index = (self.offset % self.ring // self.page)[:, None]
        held = self.table.gather(1, index)
        self.table.scatter_(1, index, torch.where(pages[:, None] >= 0, pages[:, None], held))

    def copy_slot(self, source: int, target: int) -> None:
        """The target's pages are as many as the source's, and its own."""
        pages = self._pages(source)
        self.offset[target].copy_(self.offset[source])
        self.ring[target].copy_(self.ring[source])
        targets = self._pages(target)
        for tensor in self.paged():
            _bytes(tensor)[targets] = _bytes(tensor)[pages]

    def paged(self) -> list[Tensor]:
        """All that pages consist of; the page is the first dimension."""
        return [tensor for pool in self.pools for tensor in pool.tensors()]

    def save(self, slot: int) -> list[SavedPart]:
        pages, paged = self._pages(slot), self.paged()
        if self.bricks is None:
            kept = fresh_pages(paged, len(pages))
        else:
            kept = self.bricks.hold(len(pages))
        for tensor, places in zip(paged, kept.contents, strict=True):
            for place, some in zip(places, _shares(pages, places), strict=True):
                _bytes(place).copy_(_bytes(tensor)[some], non_blocking=True)
        self._settle()
        return [self.offset[slot].to("cpu", copy=True), self.ring[slot].to("cpu", copy=True), kept]

    def take(self, slot: int, saved: Iterator[SavedPart]) -> None:
        offset, ring, kept = (next(saved) for _ in range(3))
        assert isinstance(offset, Tensor) and isinstance(ring, Tensor)
        assert isinstance(kept, KeptPages)
        self.offset[slot].copy_(offset)
        self.ring[slot].copy_(ring)
        pages = self._pages(slot)
        for tensor, places in zip(self.paged(), kept.contents, strict=True):
            for place, some in zip(places, _shares(pages, places), strict=True):
                _bytes(tensor)[some] = _bytes(place).to(tensor.device, non_blocking=True)
        self._settle()

    def _settle(self) -> None:
        """Wait for copies: what the host has is not to be read or written over before."""
        if self.offset.is_cuda:
            torch.cuda.current_stream(self.offset.device).synchronize()

    def first(self, slots: int) -> Self:
        return type(self)(self.offset[:slots], self.ring[:slots], self.table[:slots], self.pools)

    def advance(self, active: Tensor) -> None:
        update(self.offset, self.offset + 1, active)

    def _pages(self, slot: int) -> Tensor:
        written = min(int(self.offset[slot]), int(self.ring[slot]))
        return self.table[slot, : -(-written // self.page)]


def _shares(pages: Tensor, places: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The pages that go to each of the places."""
    return cast(tuple[Tensor, ...], pages.split([len(place) for place in places]))


def _bytes(tensor: Tensor) -> Tensor:
    """8-bit floats as bytes: they can't be indexed everywhere."""
    return tensor.view(torch.uint8) if tensor.dtype == FP8 else tensor


def page_places(context: int) -> int:
    """Places in a page: 64, fewer where a window has few pages of them; a power of two."""
    return min(64, 1 << max(0, (context // 4).bit_length() - 1))


def ring_pages(context: int) -> tuple[int, int]:
    """Pages of a slot's whole ring, and places in a page."""
    page = page_places(context)
    return -(-context // page), page


def new_state(
    *,
    layers: int,
    slots: int,
    context: int,
    heads: int,
    channels: int,
    dtype: torch.dtype,
    device: torch.device,
    pages: int | None = None,
) -> PagedState:
    """Empty slots. With ``pages`` for all of them (``None``) each slot holds its own from the
    beginning; with fewer they have to be given (:meth:`PagedState.give`)."""
    each, page = ring_pages(context)
    if pages is None:
        pages = slots * each
        table = torch.arange(pages, device=device).view(slots, each)
    else:
        table = torch.zeros(slots, each, dtype=torch.int64, device=device)

    def pool() -> PagePool:
        shape = (pages, heads, page, channels)
        return PagePool(
            keys=torch.zeros(shape, dtype=dtype, device=device),
            values=torch.zeros(shape, dtype=dtype, device=device),
            key_scales=torch.ones(pages, page, device=device),
            value_scales=torch.ones(pages, page, device=device),
        )

    return PagedState(
        offset=torch.zeros(slots, dtype=torch.int64, device=device),
        ring=torch.full((slots,), each * page, dtype=torch.int64, device=device),
        table=table,
        pools=tuple(pool() for _ in range(layers)),
    )


def attend(
    q: Tensor, k: Tensor, v: Tensor, pool: PagePool, state: PagedState, active: Tensor, context: int
) -> Tensor:
    """Keep the active slots' keys and values of this step, and look back over ``context`` steps.

    ``q``: ``[slots, heads, channels]``, ``k`` and ``v`` likewise, with fewer heads where several
    queries share them. Returns ``[slots, heads, channels]``; of idle slots, nothing that matters.
    """
    _keep(pool.keys, pool.key_scales, k, state, active)
    _keep(pool.values, pool.value_scales, v, state, active)
    keys = _ring(pool.keys, pool.key_scales, state).to(q.dtype)
    values = _ring(pool.values, pool.value_scales, state).to(q.dtype)
    repeat = q.shape[1] // k.shape[1]
    if repeat > 1:
        keys = keys.repeat_interleave(repeat, dim=1)
        values = values.repeat_interleave(repeat, dim=1)
    places = torch.arange(keys.shape[2], device=q.device)
    position, ring = state.offset[:, None], state.ring[:, None]
    age = (position - places) % ring
    visible = (places < ring) & (age <= position) & (age < context)
    y = functional.scaled_dot_product_attention(q[:, :, None], keys, values, visible[:, None, None])
    return cast(Tensor, y[:, :, 0])


def _keep(pool: Tensor, scales: Tensor, value: Tensor, state: PagedState, active: Tensor) -> None:
    place = state.offset % state.ring
    page = state.table.gather(1, (place // state.page)[:, None])[:, 0]
    rows = active.nonzero()[:, 0]
    where: Any = (page[rows], place[rows] % state.page)
    kept = value[rows]
    if pool.dtype == FP8:
        scale = (kept.float().abs().amax(dim=(1, 2)) / FP8_MAX).clamp(min=LEAST_SCALE)
        scales[where] = scale
        kept = kept.float() / scale[:, None, None]
    kept = kept.to(pool.dtype)
    _bytes(pool)[where[0], :, where[1]] = _bytes(kept)


def _ring(pool: Tensor, scales: Tensor, state: PagedState) -> Tensor:
    """What the slots hold, ``[slots, heads, places, channels]``."""
    held = _bytes(pool)[state.table].view(pool.dtype)
    if pool.dtype == FP8:
        held = held.float() * scales[state.table][:, :, None, :, None]
    return cast(Tensor, held.transpose(1, 2).flatten(2, 3))
