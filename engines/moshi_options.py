"""What a worker is told of a Moshi-family checkpoint; no torch."""

from typing import Literal

import msgspec

from duologue.engines.duplex_limits import DuplexLimits
from duologue.engines.moshi_orders import Weights

Number = Literal["", "float32", "bfloat16", "float16"]
"""A type to compute in."""

KvNumber = Literal["", "float32", "bfloat16", "float16", "float8"]
"""A type of keys and values."""


class MoshiOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the checkpoint is and how it is run.

    ``device`` is torch's name of it, "" for CUDA's first where there is one. ``dtype``: of the
    weights, "" for bfloat16 on CUDA and float32 elsewhere. ``weights``: in how many bits those of
    the layers are kept. ``kv_dtype``: of keys and values, "" for that of the weights.
    ``tensor_parallel``: devices that share the temporal transformer, the first ones of the kind
    that ``device`` names. ``instructions``: the role of sessions that bring none.
    """

    folder: str
    name: str
    device: str = ""
    dtype: Number = ""
    weights: Weights = ""
    kv_dtype: KvNumber = ""
    tensor_parallel: int = 1
    default_voice: str = ""
    instructions: str = ""
    limits: DuplexLimits = DuplexLimits()
