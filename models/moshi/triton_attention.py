"""Attention over pages and rings on a CUDA device; see
:mod:`duologue.models.moshi.triton_kernels`."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from duologue.models.moshi.paged_kv import FP8, FP8_MAX, LEAST_SCALE, PagedState, PagePool

_LOWEST = tl.constexpr(-1e30)
_MOST_SCALE = tl.constexpr(FP8_MAX)
_LEAST_SCALE = tl.constexpr(LEAST_SCALE)


@triton.jit
def _keep(
    projected,
    cos,
    sin,
    queries,
    keys,
    values,
    key_scales,
    value_scales,
    offset,
    ring,
    table,
    table_width,
    active,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PAGE: tl.constexpr,
    NARROW: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HEADS_WIDTH: tl.constexpr,
):
    """A program a slot and part: queries (0), keys (1) or values (2) of all heads."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    if part > 0 and tl.load(active + row) == 0:
        return
    half: tl.constexpr = CHANNELS // 2
    heads = tl.arange(0, HEADS_WIDTH)[:, None]
    channels = tl.arange(0, CHANNELS)[None, :]
    pairs = tl.arange(0, half)[None, :]
    inside = heads < tl.where(part == 0, HEADS, KV_HEADS)
    before = tl.where(part == 0, 0, tl.where(part == 1, HEADS, HEADS + KV_HEADS)) * CHANNELS
    source = projected + row * (HEADS + 2 * KV_HEADS) * CHANNELS + before
    value = tl.load(source + heads * CHANNELS + channels, mask=inside, other=0.0)
    if part < 2:
        c = tl.load(cos + row * half + pairs)
        s = tl.load(sin + row * half + pairs)
        wide = value.to(tl.float32)
        if INTERLEAVED:
            real, imaginary = tl.split(tl.reshape(wide, [HEADS_WIDTH, half, 2]))
        else:
            sides = tl.reshape(wide, [HEADS_WIDTH, 2, half])
            real, imaginary = tl.split(tl.permute(sides, [0, 2, 1]))
        turned = tl.join(real * c - imaginary * s, real * s + imaginary * c)
        if not INTERLEAVED:
            turned = tl.permute(turned, [0, 2, 1])
        value = tl.reshape(turned, [HEADS_WIDTH, CHANNELS]).to(value.dtype)
    if part == 0:
        target = queries + row * HEADS * CHANNELS
        tl.store(target + heads * CHANNELS + channels, value, mask=inside)
        return
    place = tl.load(offset + row) % tl.load(ring + row)
    page = tl.load(table + row * table_width + place // PAGE)
    if part == 1:
        pool = keys
        scales = key_scales
    else:
        pool = values
        scales = value_scales
    # Heads lie a page apart.
    target = ((page * KV_HEADS + heads) * PAGE + place % PAGE) * CHANNELS + channels
    if NARROW:
        most = tl.max(tl.where(inside, tl.abs(value.to(tl.float32)), 0.0))
        scale = tl.maximum(most / _MOST_SCALE, _LEAST_SCALE)
        tl.store(scales + page * PAGE + place % PAGE, scale)
        tl.store(pool + target, (value.to(tl.float32) / scale).to(tl.float8e4nv), mask=inside)
    else:
        tl.store(pool + target, value, mask=inside)


@triton.jit
def _attend_wide(
    queries,
    keys,
    values,
    key_scales,
    value_scales,
    offset,
    ring,
    table,
    table_width,
    active,
    partial,
    maxima,
    sums,
    context,
    scale,
    pages_each,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PAGE: tl.constexpr,
):
    """A program a head, stretch of pages and slot: neighbours read neighbouring memory.

    The query is the first row of a tile, so that its products are the tensor cores' (the other
    rows are zeros); the softmax is a running one (Milakov and Gimelshein 2018, arXiv:1805.02867).
    """
    head = tl.program_id(0)
    stretch = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    if tl.load(active + row) == 0:
        return
    position = tl.load(offset + row)
    around = tl.load(ring + row)
    written = tl.minimum(position + 1, around)
    begin = stretch * pages_each
    end = tl.minimum(begin + pages_each, (written + PAGE - 1) // PAGE)
    if begin >= end:
        return
    rows = tl.arange(0, 16)
    channels = tl.arange(0, CHANNELS)
    lanes = tl.arange(0, PAGE)
    kv_head = head // (HEADS // KV_HEADS)
    number = queries.dtype.element_ty
    source = queries + (row * HEADS + head) * CHANNELS
    query = tl.load(
        source + rows[:, None] * 0 + channels[None, :], mask=rows[:, None] == 0, other=0.0
    )
    most = tl.full([16], _LOWEST, tl.float32)
    total = tl.zeros([16], tl.float32)
    joined = tl.zeros([16, CHANNELS], tl.float32)
    for index in tl.range(begin, end, num_stages=3):
        page = tl.load(table + row * table_width + index)
        start = (page * KV_HEADS + kv_head) * PAGE * CHANNELS
        key = tl.load(keys + start + lanes[None, :] * CHANNELS + channels[:, None])
        value = tl.load(values + start + lanes[:, None] * CHANNELS + channels[None, :])
        places = index * PAGE + lanes
        age = (position - places) % around
        seen = (places < written) & (age < context)
        score = tl.dot(query, key.to(number), input_precision="ieee") * scale
        score = tl.where(seen[None, :], score, _LOWEST)
        higher = tl.maximum(most, tl.max(score, axis=1))
        kept = tl.exp(most - higher)
        weight = tl.where(seen[None, :], tl.exp(score - higher[:, None]), 0.0)
        total = total * kept + tl.sum(weight, axis=1)
        joined = tl.dot(
            weight.to(number), value.to(number), joined * kept[:, None], input_precision="ieee"
        )
        most = higher
    where = (row * HEADS + head) * tl.num_programs(1) + stretch
    first = rows == 0
    result = tl.sum(tl.where(first[:, None], joined, 0.0), axis=0)
    tl.store(partial + where * CHANNELS + channels, result)
    tl.store(maxima + where, tl.max(tl.where(first, most, _LOWEST), axis=0))
    tl.store(sums + where, tl.sum(tl.where(first, total, 0.0), axis=0))


@triton.jit
def _attend_narrow(
    queries,
    keys,
    values,
    key_scales,
    value_scales,
    offset,
    ring,
    table,
    table_width,
    active,
    partial,
    maxima,
    sums,
    context,
    scale,
    pages_each,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PAGE: tl.constexpr,
):
    """As :func:`_attend_wide`, over 8-bit floats, which reach the tensor cores more slowly than
    they are multiplied one by one. Each place of a page keeps a running softmax of its own, and
    they are joined at the end, so that nothing is exchanged between warps meanwhile."""
    head = tl.program_id(0)
    stretch = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    if tl.load(active + row) == 0:
        return
    position = tl.load(offset + row)
    around = tl.load(ring + row)
    written = tl.minimum(position + 1, around)
    begin = stretch * pages_each
    end = tl.minimum(begin + pages_each, (written + PAGE - 1) // PAGE)
    if begin >= end:
        return
    channels = tl.arange(0, CHANNELS)
    lanes = tl.arange(0, PAGE)
    kv_head = head // (HEADS // KV_HEADS)
    query = tl.load(queries + (row * HEADS + head) * CHANNELS + channels).to(tl.float32) * scale
    most = tl.full([PAGE], _LOWEST, tl.float32)
    total = tl.zeros([PAGE], tl.float32)
    joined = tl.zeros([PAGE, CHANNELS], tl.float32)
    for index in range(begin, end):
        page = tl.load(table + row * table_width + index)
        start = (page * KV_HEADS + kv_head) * PAGE * CHANNELS
        tile = start + lanes[:, None] * CHANNELS + channels[None, :]
        key = tl.load(keys + tile)
        value = tl.load(values + tile)
        places = index * PAGE + lanes
        age = (position - places) % around
        seen = (places < written) & (age < context)
        score = tl.sum(key.to(tl.float32) * query[None, :], axis=1)
        score *= tl.load(key_scales + page * PAGE + lanes)
        score = tl.where(seen, score, _LOWEST)
        higher = tl.maximum(most, score)
        kept = tl.exp(most - higher)
        weight = tl.where(seen, tl.exp(score - higher), 0.0)
        total = total * kept + weight
        weight *= tl.load(value_scales + page * PAGE + lanes)
        joined = joined * kept[:, None] + weight[:, None] * value.to(tl.float32)
        most = higher
    highest = tl.max(most, axis=0)
    share = tl.exp(most - highest)
    where = (row * HEADS + head) * tl.num_programs(1) + stretch
    tl.store(partial + where * CHANNELS + channels, tl.sum(joined * share[:, None], axis=0))
    tl.store(maxima + where, highest)
    tl.store(sums + where, tl.sum(total * share, axis=0))


@triton.jit
def _join(
    partial,
    maxima,
    sums,
    offset,
    ring,
    active,
    out,
    stretches,
    pages_each,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PAGE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    channels = tl.arange(0, CHANNELS)
    target = out + (row * HEADS + head) * CHANNELS + channels
    if tl.load(active + row) == 0:
        tl.store(target, tl.zeros([CHANNELS], out.dtype.element_ty))
        return
    written = tl.minimum(tl.load(offset + row) + 1, tl.load(ring + row))
    pages = (written + PAGE - 1) // PAGE
    begin = (row * HEADS + head) * stretches
    most = tl.max(tl.full([1], _LOWEST, tl.float32), axis=0)
    total = tl.sum(tl.zeros([1], tl.float32), axis=0)
    joined = tl.zeros([CHANNELS], tl.float32)
    for index in range((pages + pages_each - 1) // pages_each):
        highest = tl.load(maxima + begin + index)
        higher = tl.maximum(most, highest)
        kept = tl.exp(most - higher)
        share = tl.exp(highest - higher)
        total = total * kept + tl.load(sums + begin + index) * share
        joined = joined * kept + share * tl.load(partial + (begin + index) * CHANNELS + channels)
        most = higher
    tl.store(target, (joined / total).to(out.dtype.element_ty))


def stretch_pages(slots: int, heads: int, pages: int) -> int:
    """Pages that one program looks over: enough programs for a large device, and no more."""
    stretches = min(pages, max(6, -(-2048 // (slots * heads))))
    return -(-pages // stretches)


def attend(
    projected: Tensor,
    cos: Tensor,
    sin: Tensor,
    pool: PagePool,
    state: PagedState,
    active: Tensor,
    config: Any,
) -> Tensor:
    """As :func:`duologue.models.moshi.paged_kv.attend`, from what the layer projected,
    ``[slots, (heads + 2 kv heads) * channels]``, and with the rotation. ``[slots, d_model]``."""
    slots = projected.shape[0]
    heads, kv_heads, channels = config.own_heads, config.own_kv_heads, config.channels
    page, width = pool.keys.shape[2], state.table.shape[1]
    narrow = pool.keys.dtype == FP8
    queries = projected.new_empty(slots, heads, channels)
    shape: dict[str, Any] = {"HEADS": heads, "CHANNELS": channels, "PAGE": page}
    _keep[(slots, 3)](
        projected,
        cos,
        sin,
        queries,
        pool.keys,
        pool.values,
        pool.key_scales,
        pool.value_scales,
        state.offset,
        state.ring,
        state.table,
        state.table.stride(0),
        active,
        **shape,
        KV_HEADS=kv_heads,
        NARROW=narrow,
        INTERLEAVED=config.interleaved,
        HEADS_WIDTH=triton.next_power_of_2(heads),
        num_warps=4,
    )
    each = stretch_pages(slots, heads, width)
    stretches = -(-width // each)
    partial = torch.empty(slots, heads, stretches, channels, device=projected.device)
    maxima = torch.empty(slots, heads, stretches, device=projected.device)
    sums = torch.empty_like(maxima)
    look = _attend_narrow if narrow else _attend_wide
    look[(heads, stretches, slots)](
        queries,
        pool.keys,
        pool.values,
        pool.key_scales,
        pool.value_scales,
        state.offset,
        state.ring,
        state.table,
        state.table.stride(0),
        active,
        partial,
        maxima,
        sums,
        config.context,
        channels**-0.5,
        each,
        **shape,
        KV_HEADS=kv_heads,
        num_warps=2 if narrow else 4,
    )
    out = projected.new_empty(slots, heads * channels)
    _join[(slots, heads)](
        partial,
        maxima,
        sums,
        state.offset,
        state.ring,
        active,
        out,
        stretches,
        each,
        **shape,
        num_warps=1,
    )
    return out


@triton.jit
def _attend_ring(
    queries,
    keys,
    values,
    offset,
    out,
    places,
    context,
    scale,
    STEPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TILE: tl.constexpr,
):
    """A program a head and slot, over a ring of its own; the steps are rows of a tile."""
    head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    heads = tl.num_programs(0)
    first = tl.load(offset + row)
    last = first + STEPS - 1
    rows = tl.arange(0, 16)
    channels = tl.arange(0, CHANNELS)
    lanes = tl.arange(0, TILE)
    own = (row * heads + head) * STEPS * CHANNELS
    tile = own + rows[:, None] * CHANNELS + channels[None, :]
    step = rows[:, None] < STEPS
    query = tl.load(queries + tile, mask=step, other=0.0)
    position = first + rows
    most = tl.full([16], _LOWEST, tl.float32)
    total = tl.zeros([16], tl.float32)
    joined = tl.zeros([16, CHANNELS], tl.float32)
    start = (row * heads + head) * places * CHANNELS
    for begin in tl.range(0, places, TILE, num_stages=2):
        place = begin + lanes
        there = place < places
        # The newest position that a place may hold; negative: nothing was written there.
        held = last - (last - place + places) % places
        age = position[:, None] - held[None, :]
        seen = (there & (held >= 0))[None, :] & (age >= 0) & (age < context)
        across = place[None, :] * CHANNELS + channels[:, None]
        key = tl.load(keys + start + across, mask=there[None, :], other=0.0)
        along = place[:, None] * CHANNELS + channels[None, :]
        value = tl.load(values + start + along, mask=there[:, None], other=0.0)
        score = tl.dot(query, key, input_precision="tf32x3") * scale
        score = tl.where(seen, score, _LOWEST)
        higher = tl.maximum(most, tl.max(score, axis=1))
        kept = tl.exp(most - higher)
        weight = tl.where(seen, tl.exp(score - higher[:, None]), 0.0)
        total = total * kept + tl.sum(weight, axis=1)
        joined = tl.dot(
            weight.to(value.dtype), value, joined * kept[:, None], input_precision="tf32x3"
        )
        most = higher
    result = joined / tl.maximum(total, 1e-30)[:, None]
    tl.store(out + tile, result.to(out.dtype.element_ty), mask=step)


def attend_ring(q: Tensor, keys: Tensor, values: Tensor, offset: Tensor, context: int) -> Tensor:
    """Attention of a few steps over each slot's ring, which has their keys already.

    ``q``: ``[slots, heads, steps, channels]``; ``keys`` and ``values``: ``[slots, heads, places,
    channels]``; ``offset``: int64 ``[slots]``, the first step's position. As ``q``.
    """
    slots, heads, steps, channels = q.shape
    q = q.contiguous()
    out = torch.empty_like(q)
    _attend_ring[(heads, slots)](
        q,
        keys,
        values,
        offset,
        out,
        keys.shape[2],
        context,
        channels**-0.5,
        STEPS=steps,
        CHANNELS=channels,
        TILE=64,
        num_warps=4,
    )
    return out
