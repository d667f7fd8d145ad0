"""One step of Moshi's transformers on a CUDA device, a few kernels a layer.

Between two matrix products a step does little work on little data, and what counts is how many
kernels it takes. None of these allocates on the host's account or waits for the device, so all
of them may be captured in a CUDA graph. Shapes are as in :mod:`duologue.models.moshi.paged_kv`.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOWEST = tl.constexpr(-1e30)
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
_SECOND = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _add_norm(x, delta, alpha, out, eps, dim, ADD: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    inside = columns < dim
    value = tl.load(x + row * dim + columns, mask=inside, other=0.0)
    if ADD:
        more = tl.load(delta + row * dim + columns, mask=inside, other=0.0)
        value = (value.to(tl.float32) + more.to(tl.float32)).to(value.dtype)
        tl.store(x + row * dim + columns, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(eps + tl.sum(wide * wide, axis=0) / dim)
    weight = tl.load(alpha + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * dim + columns, (wide * (weight * scale)).to(value.dtype), mask=inside)


def add_norm(x: Tensor, delta: Tensor | None, norm: Any) -> Tensor:
    """``x += delta``, then the root mean square norm of ``x``, both ``[slots, dim]``."""
    out = torch.empty_like(x)
    dim = x.shape[1]
    _add_norm[(x.shape[0],)](
        x,
        x if delta is None else delta,
        norm.alpha,
        out,
        norm.eps,
        dim,
        ADD=delta is not None,
        WIDTH=triton.next_power_of_2(dim),
        num_warps=8 if dim > 2048 else 4,
    )
    return out


@triton.jit
def _gate(x, out, hidden, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < hidden
    gate = tl.load(x + row * 2 * hidden + columns, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + row * 2 * hidden + hidden + columns, mask=inside, other=0.0)
    opened = (gate * tl.sigmoid(gate)).to(value.dtype)
    tl.store(out + row * hidden + columns, opened * value, mask=inside)


def gate(x: Tensor) -> Tensor:
    """SiLU of the first half times the second, ``[slots, 2 * hidden]`` to ``[slots, hidden]``."""
    slots, hidden = x.shape[0], x.shape[1] // 2
    out = x.new_empty(slots, hidden)
    _gate[(slots, triton.cdiv(hidden, 1024))](x, out, hidden, WIDTH=1024, num_warps=4)
    return out


@triton.jit
def _look_back(
    projected,
    kept,
    out,
    step,
    steps,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    STEPS_WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    channels = tl.arange(0, CHANNELS)
    earlier = tl.arange(0, STEPS_WIDTH)
    source = projected + row * (HEADS + 2 * KV_HEADS) * CHANNELS
    query = tl.load(source + head * CHANNELS + channels).to(tl.float32) * scale
    own_key = tl.load(source + (HEADS + kv_head) * CHANNELS + channels)
    own_value = tl.load(source + (HEADS + KV_HEADS + kv_head) * CHANNELS + channels)
    keys = kept + (row * 2 * KV_HEADS + kv_head) * steps * CHANNELS
    values = keys + KV_HEADS * steps * CHANNELS
    if head % (HEADS // KV_HEADS) == 0:
        tl.store(keys + step * CHANNELS + channels, own_key)
        tl.store(values + step * CHANNELS + channels, own_value)
    tile = earlier[:, None] * CHANNELS + channels[None, :]
    before = earlier < step
    key = tl.load(keys + tile, mask=before[:, None], other=0.0).to(tl.float32)
    value = tl.load(values + tile, mask=before[:, None], other=0.0).to(tl.float32)
    scores = tl.where(before, tl.sum(key * query[None, :], axis=1), _LOWEST)
    own = tl.sum(own_key.to(tl.float32) * query, axis=0)
    most = tl.maximum(tl.max(scores, axis=0), own)
    weights = tl.where(before, tl.exp(scores - most), 0.0)
    own_weight = tl.exp(own - most)
    joined = tl.sum(weights[:, None] * value, axis=0) + own_weight * own_value.to(tl.float32)
    joined = joined / (tl.sum(weights, axis=0) + own_weight)
    target = out + (row * HEADS + head) * CHANNELS + channels
    tl.store(target, joined.to(out.dtype.element_ty))


def look_back(projected: Tensor, kept: Tensor, step: int, config: Any) -> Tensor:
    """Attention over the steps of one frame. ``kept``: ``[slots, 2, kv heads, steps, channels]``,
    keys and values of earlier steps, to which this one's are added. ``[slots, d_model]``."""
    slots, _, kv_heads, steps, channels = kept.shape
    out = projected.new_empty(slots, config.d_model)
    _look_back[(slots, config.num_heads)](
        projected,
        kept,
        out,
        step,
        steps,
        channels**-0.5,
        HEADS=config.num_heads,
        KV_HEADS=kv_heads,
        CHANNELS=channels,
        STEPS_WIDTH=triton.next_power_of_2(steps),
        num_warps=1,
    )
    return out


@triton.jit
def _embed(
    base, base_stride, tokens, tokens_stride, tables, out, rows, card, dim, WIDTH: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < dim
    total = tl.load(base + row * base_stride + columns, mask=inside, other=0.0).to(tl.float32)
    for index in range(rows):
        token = tl.load(tokens + row * tokens_stride + index)
        if token >= 0:
            entry = (index * card + token) * dim
            total += tl.load(tables + entry + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * dim + columns, total.to(out.dtype.element_ty), mask=inside)


def embed(base: Tensor, tokens: Tensor, tables: Tensor) -> Tensor:
    """``base``, ``[slots, dim]``, and the embeddings of ``tokens``, int64 ``[slots, rows]``, in
    ``tables``, ``[rows, card, dim]``; negative tokens have none. ``[slots, dim]``."""
    slots, dim = base.shape
    out = base.new_empty(slots, dim)
    _embed[(slots, triton.cdiv(dim, 1024))](
        base,
        base.stride(0),
        tokens,
        tokens.stride(0),
        tables,
        out,
        tokens.shape[1],
        tables.shape[1],
        dim,
        WIDTH=1024,
        num_warps=4,
    )
    return out


@triton.jit
def _mix(x):
    x = x + _GOLDEN
    x = (x ^ (x >> 30)) * _FIRST
    x = (x ^ (x >> 27)) * _SECOND
    return x ^ (x >> 31)


@triton.jit
def _draw(
    logits,
    logits_stride,
    temperature,
    top_k,
    seed,
    frame,
    given,
    given_stride,
    out,
    out_stride,
    stream,
    card,
    not_given,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    forced = tl.load(given + row * given_stride)
    if forced != not_given:
        tl.store(out + row * out_stride, forced)
        return
    tokens = tl.arange(0, WIDTH)
    inside = tokens < card
    value = tl.load(logits + row * logits_stride + tokens, mask=inside, other=-float("inf"))
    value = value.to(tl.float32)
    heat = tl.load(temperature + row)
    if heat <= 0:
        tl.store(out + row * out_stride, tl.argmax(value, axis=0).to(tl.int64))
        return
    count = tl.load(top_k + row)
    if (count > 0) & (count < card):
        # Floats as integers of the same order; the k-th largest, bit by bit.
        bits = value.to(tl.int32, bitcast=True)
        ordered = tl.where(bits < 0, ~bits, bits | -2147483648).to(tl.uint32, bitcast=True)
        least = tl.zeros([1], tl.uint32)
        for index in range(32):
            candidate = least | (tl.full([1], 1, tl.uint32) << (31 - index))
            above = tl.sum(((ordered >= candidate) & inside).to(tl.int32), axis=0)
            least = tl.where(above >= count, candidate, least)
        value = tl.where(ordered >= least, value, -float("inf"))
    key = _mix(tl.load(seed + row).to(tl.uint64))
    key = _mix(key + (tl.load(frame + row) * 64 + stream).to(tl.uint64))
    noise = (_mix(key + tokens.to(tl.uint64)) >> 40) & 0xFFFFFF
    uniform = (noise.to(tl.float32) + 0.5) / 16777216.0
    drawn = value / heat - tl.log(-tl.log(uniform))
    drawn = tl.where(inside, drawn, -float("inf"))
    tl.store(out + row * out_stride, tl.argmax(drawn, axis=0).to(tl.int64))


def draw(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    seed: Tensor,
    frame: Tensor,
    stream: int,
    given: Tensor,
    not_given: int,
    out: Tensor,
) -> None:
    """As :func:`duologue.models.moshi.sampling.choose`, into ``out``, int64 ``[slots]``; where
    ``given``, int64 ``[slots]``, is not ``not_given``, that."""
    slots, card = logits.shape
    _draw[(slots,)](
        logits,
        logits.stride(0),
        temperature,
        top_k,
        seed,
        frame,
        given,
        given.stride(0),
        out,
        out.stride(0),
        stream,
        card,
        not_given,
        WIDTH=triton.next_power_of_2(card),
        num_warps=16 if card > 8192 else 4,
    )
