"""The settings of frame-locked models."""

from dataclasses import dataclass
from typing import Final, Literal

from duologue.web.setting import declare

Number = Literal["auto", "float32", "bfloat16", "float16"]
KvNumber = Literal["auto", "float32", "bfloat16", "float16", "float8"]

_GROUP: Final = "Frame-locked model"


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplexSettings:
    """What decides how a model of the Moshi family is run."""

    moshi: str | None = declare(
        None,
        "the checkpoint of --engine moshi: a folder in Kyutai's, NVIDIA's (PersonaPlex) or "
        "transformers' layout, or owner/name on a model hub",
        _GROUP,
    )
    moshi_device: str | None = declare(
        None, "torch device, as cuda:0 or cpu; CUDA where there is one if not set", _GROUP
    )
    moshi_dtype: Number = declare(
        "auto", "type of the weights; auto is bfloat16 on CUDA and float32 elsewhere", _GROUP
    )
    moshi_weights: Literal["auto", "int8", "fp8"] = declare(
        "auto",
        "keep the layers' weights in 8 bits, with a scale for each output channel; auto keeps them "
        "in moshi_dtype",
        _GROUP,
    )
    moshi_tensor_parallel: int = declare(
        1,
        "devices that share the temporal transformer: CUDA's first ones, or processes on the CPU",
        _GROUP,
        low=1,
    )
    moshi_kv_dtype: KvNumber = declare(
        "auto", "type of the keys and values; auto is that of the weights", _GROUP
    )
    duplex_transcripts: Literal["auto", "on", "off"] = declare(
        "auto",
        "write down what users say, by the embedded recogniser in a process beside the model; auto "
        "is on where its files are there",
        _GROUP,
    )
    duplex_slow: bool = declare(
        False,
        "let in as many conversations as there are slots, though a tick takes longer than there is "
        "time for; they stutter",
        _GROUP,
    )
    duplex_parked: int = declare(
        16, "idle conversations that are kept in the worker's memory beyond those", _GROUP, low=0
    )
    duplex_idle: float = declare(
        60.0, "seconds without audio after which a conversation gives its slot back", _GROUP, low=1
    )
