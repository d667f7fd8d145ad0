"""Products with weights in 8 bits on a CUDA device.

Sessions are few beside a layer's channels, so what counts is how fast weights come from memory, of
which these read half as much as wide ones. Each program takes some channels of the output; where
these are too few programs for the device, several share the input's channels, and their sums are
made in one order, so a row depends on no other one, and for one number of rows comes out the same
each time.
"""

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from duologue.models.moshi.paged_kv import FP8, FP8_MAX, LEAST_SCALE

PROGRAMS: Final = 264
"""Two for each multiprocessor of an H100 or H200."""
LEAST_SHARE: Final = 2048
"""Input channels that are worth a program."""
_MOST = tl.constexpr(FP8_MAX)
_LEAST = tl.constexpr(LEAST_SCALE)


@triton.jit
def _product(
    x,
    x_scale,
    weight,
    scale,
    out,
    rows,
    channels,
    width,
    share,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
    NARROW: tl.constexpr,
):
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = channel < channels
    there = row < rows
    place = tl.program_id(2) * share + tl.arange(0, WIDTH)
    weights = weight + channel.to(tl.int64)[:, None] * width + place[None, :]
    inputs = x + row.to(tl.int64)[None, :] * width + place[:, None]
    total = tl.zeros((CHANNELS, ROWS), dtype=tl.float32)
    for _ in range(0, share, WIDTH):
        read = place < width
        narrow = tl.load(weights, mask=inside[:, None] & read[None, :], other=0.0)
        value = tl.load(inputs, mask=read[:, None] & there[None, :], other=0.0)
        if not NARROW:
            narrow = narrow.to(value.dtype)
        total = tl.dot(narrow, value, total)
        weights += WIDTH
        inputs += WIDTH
        place += WIDTH
    places = out + row.to(tl.int64)[None, :] * channels + channel[:, None]
    if WHOLE:
        total *= tl.load(scale + channel, mask=inside, other=0.0)[:, None]
        if NARROW:
            total *= tl.load(x_scale + row, mask=there, other=0.0)[None, :]
    else:
        places += tl.program_id(2).to(tl.int64) * rows * channels
    tl.store(places, total.to(out.dtype.element_ty), mask=inside[:, None] & there[None, :])


@triton.jit
def _sum(
    parts,
    x_scale,
    scale,
    out,
    channels,
    size,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    NARROW: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    inside = place < size
    total = tl.zeros((WIDTH,), dtype=tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(parts + part * size + place, mask=inside, other=0.0)
    total *= tl.load(scale + place % channels, mask=inside, other=0.0)
    if NARROW:
        total *= tl.load(x_scale + place // channels, mask=inside, other=0.0)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _round_rows(x, out, scales, width, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    inside = columns < width
    value = tl.load(x + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), axis=0) / _MOST, _LEAST)
    tl.store(scales + row, scale)
    tl.store(out + row * width + columns, (value / scale).to(out.dtype.element_ty), mask=inside)


def multiplies_fp8(device: torch.device) -> bool:
    """Whether it has E4M3 products: from Ada and Hopper on."""
    return torch.cuda.get_device_capability(device) >= (8, 9)


def round_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """``[rows, in]`` to E4M3, and a float32 scale for each row, ``[rows]``."""
    rows, width = x.shape
    narrow = torch.empty(rows, width, dtype=FP8, device=x.device)
    scales = torch.empty(rows, device=x.device)
    _round_rows[(rows,)](x, narrow, scales, width, WIDTH=triton.next_power_of_2(width), num_warps=8)
    return narrow, scales


def narrow_product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Wide ``[rows, in]``, whose rows lie one after the other, times int8 or E4M3 ``[out, in]``
    with float32 ``[out]`` scales; ``[rows, out]``. For E4M3 the input is rounded to it as well.
    """
    rows, width = x.shape
    channels = weight.shape[0]
    out = x.new_empty(rows, channels)
    narrow = weight.dtype == FP8
    value, x_scale = round_rows(x) if narrow else (x, scale)
    sizes = _sizes(rows, narrow)
    programs = triton.cdiv(channels, sizes["CHANNELS"]) * triton.cdiv(rows, sizes["ROWS"])
    parts = max(1, min(width // LEAST_SHARE, PROGRAMS // programs))
    share = triton.cdiv(triton.cdiv(width, parts), sizes["WIDTH"]) * sizes["WIDTH"]
    parts = triton.cdiv(width, share)
    made = out if parts == 1 else torch.empty(parts, rows, channels, device=x.device)
    grid = (triton.cdiv(channels, sizes["CHANNELS"]), triton.cdiv(rows, sizes["ROWS"]), parts)
    _product[grid](
        value,
        x_scale,
        weight,
        scale,
        made,
        rows,
        channels,
        width,
        share,
        WHOLE=parts == 1,
        NARROW=narrow,
        num_warps=4,
        num_stages=4,
        **sizes,
    )
    if parts > 1:
        size = rows * channels
        _sum[(triton.cdiv(size, 1024),)](
            made,
            x_scale,
            scale,
            out,
            channels,
            size,
            PARTS=parts,
            WIDTH=1024,
            NARROW=narrow,
            num_warps=4,
        )
    return out


def _sizes(rows: int, narrow: bool) -> dict[str, Any]:
    """The quickest of some that were tried on an H200, with the sizes of a 7B model."""
    few = rows <= 16
    if narrow:
        return {"CHANNELS": 64, "ROWS": 16 if few else 64, "WIDTH": 256}
    return (
        {"CHANNELS": 32, "ROWS": 16, "WIDTH": 256}
        if few
        else {
            "CHANNELS": 64,
            "ROWS": 64,
            "WIDTH": 128,
        }
    )
