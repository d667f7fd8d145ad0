"""What a worker is told of a Moshi-family checkpoint; no torch."""

from typing import Literal

import msgspec

from duologue.engines.duplex_limits import DuplexLimits

Number = Literal["", "float32", "bfloat16", "float16", "float8"]
"""A type of weights, or of keys and values."""


class MoshiOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the checkpoint is and how it is run.

    ``device`` is torch's name of it, "" for CUDA's first where there is one. ``dtype``: of the
    weights, "" for bfloat16 on CUDA and float32 elsewhere. ``kv_dtype``: of keys and values, "" for
    that of the weights. ``instructions``: the role of sessions that bring none.
    """

    folder: str
    name: str
    device: str = ""
    dtype: Number = ""
    kv_dtype: Number = ""
    default_voice: str = ""
    instructions: str = ""
    limits: DuplexLimits = DuplexLimits()
