"""Which part of a checkpoint's tensors a rank reads, by the names that the tensors have there.

Of the temporal transformer a rank has the rows of what makes its heads and its part of the
feed-forward layers, and the columns of what takes them up. The first rank has everything else.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from duologue.models.moshi.moshi_config import TransformerConfig

_LAYER = re.compile(r"^(?:decoder\.model|transformer)\.layers\.\d+\.")
_ATTENTION = re.compile(r"self_attn\.in_proj(?:_weight|s\.0\.weight)$")
_ROWS = re.compile(r"(?:self_attn\.[qkv]_proj(?:\.linear)?|linear1)\.weight$")
_HALVES = re.compile(r"(?:gating\.linear_in|mlp\.fc1)\.weight$")
_COLUMNS = re.compile(
    r"(?:self_attn\.(?:out_proj|out_projs\.0|o_proj(?:\.linear)?)|gating\.linear_out|mlp\.fc2|linear2)"
    r"\.weight$"
)


@dataclass(frozen=True, slots=True)
class Shard:
    """``rank``: from 0. ``ranks``: how many there are."""

    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank {self.rank} of {self.ranks}")

    def of(self, start: int, size: int) -> slice:
        """This rank's part of ``size`` rows or columns from ``start`` on."""
        own = size // self.ranks
        return slice(start + self.rank * own, start + (self.rank + 1) * own)


WHOLE = Shard()


def read_shard(
    files: tuple[Path, ...], config: TransformerConfig, shard: Shard, device: str
) -> dict[str, Tensor]:
    """The tensors of one rank, under their names in the files; nothing else is read.

    ``config.shards`` is how many ranks there are. ``ValueError`` for a tensor that has not the
    size that the configuration says, so that its part would be somebody else's.
    """
    tensors: dict[str, Tensor] = {}
    for file in files:
        with safe_open(file, framework="pt", device=device) as opened:
            for name in opened.keys():
                layer = _LAYER.match(name)
                if layer is None and shard.rank:
                    continue
                groups = _groups(name, config) if layer else None
                if groups is None:
                    tensors[name] = opened.get_tensor(name)
                else:
                    tensors[name] = _part(name, opened.get_slice(name), groups, shard)
    return tensors


@dataclass(frozen=True, slots=True)
class _Groups:
    """Rows (or columns) of these sizes follow each other, and each rank has some of each."""

    sizes: tuple[int, ...]
    columns: bool = False


def _groups(name: str, config: TransformerConfig) -> _Groups | None:
    """``None``: every rank has the whole tensor."""
    dim, narrow = config.d_model, config.d_model // config.kv_repeat
    if _ATTENTION.search(name):
        return _Groups((dim, narrow, narrow))
    if _ROWS.search(name):
        if "linear1" in name:
            return _Groups((config.hidden,))
        return _Groups((dim if ".q_proj" in name else narrow,))
    if _HALVES.search(name):
        return _Groups((config.hidden, config.hidden))
    if _COLUMNS.search(name):
        return _Groups((dim if "self_attn" in name else config.hidden,), columns=True)
    return None


def _part(name: str, tensor: Any, groups: _Groups, shard: Shard) -> Tensor:
    shape = tensor.get_shape()
    if len(shape) != 2 or shape[groups.columns] != sum(groups.sizes):
        raise ValueError(f"{name} is of the shape {shape}, which can't be shared out")
    parts = [
        tensor[:, own] if groups.columns else tensor[own] for own in _slices(groups.sizes, shard)
    ]
    return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)


def _slices(sizes: tuple[int, ...], shard: Shard) -> Iterator[slice]:
    start = 0
    for size in sizes:
        yield shard.of(start, size)
        start += size
