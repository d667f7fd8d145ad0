"""Ticks of one Moshi on several devices, from a checkpoint with random weights made for it."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import torch
from torch import Tensor

from duologue.engines.duplex_limits import DuplexLimits
from duologue.engines.lockstep import Lockstep
from duologue.engines.moshi_impl import SavedSlot
from duologue.engines.moshi_loading import load_stepper
from duologue.engines.moshi_options import MoshiOptions
from duologue.models.moshi.checkpoint import read_checkpoint
from duologue.models.moshi.moshi_config import GREEDY, SamplingChoice
from load_tests.report import Json
from load_tests.tick_rows import WARM_UP, Row, memory_gib, speech, tick_row

BEYOND = 10
"""Steps after a window is full."""

SMALL: Mapping[str, Any] = {
    "dim": 64,
    "text_card": 40,
    "n_q": 8,
    "dep_q": 4,
    "card": 24,
    "num_heads": 4,
    "num_layers": 2,
    "hidden_scale": 4.125,
    "causal": True,
    "layer_scale": None,
    "context": 16,
    "max_period": 10000,
    "gating": "silu",
    "norm": "rms_norm_f32",
    "positional_embedding": "rope",
    "depformer_dim": 32,
    "depformer_dim_feedforward": 132,
    "depformer_num_heads": 2,
    "depformer_num_layers": 2,
    "depformer_layer_scale": None,
    "depformer_multi_linear": True,
    "depformer_context": 4,
    "depformer_max_period": 10000,
    "depformer_gating": "silu",
    "depformer_pos_emb": "none",
    "depformer_weights_per_step": True,
    "delays": [0, 0, 1, 1, 1, 0, 1, 1, 1],
}
"""A language model to try this out with."""

SMALL_CODEC: Mapping[str, Any] = {
    "channels": 1,
    "sample_rate": 24000,
    "frame_rate": 12.5,
    "seanet": {
        "channels": 1,
        "dimension": 32,
        "causal": True,
        "n_filters": 2,
        "n_residual_layers": 1,
        "activation": "ELU",
        "compress": 2,
        "dilation_base": 2,
        "disable_norm_outer_blocks": 0,
        "kernel_size": 7,
        "residual_kernel_size": 3,
        "last_kernel_size": 3,
        "norm": "none",
        "pad_mode": "constant",
        "ratios": [8, 6, 5, 4],
        "true_skip": True,
    },
    "quantizer": {
        "dimension": 16,
        "n_q": 6,
        "bins": 24,
        "input_dimension": 32,
        "output_dimension": 32,
    },
    "transformer": {
        "d_model": 32,
        "num_heads": 4,
        "num_layers": 2,
        "causal": True,
        "layer_scale": 0.01,
        "context": 10,
        "conv_layout": True,
        "max_period": 10000,
        "gating": "none",
        "norm": "layer_norm",
        "positional_embedding": "rope",
        "dim_feedforward": 48,
        "input_dimension": 32,
        "output_dimensions": [32],
    },
}


def write_checkpoint(folder: Path, device: str, small: bool = False) -> None:
    """A folder in Kyutai's layout, but for the text's pieces, by the ``moshi`` package; bfloat16,
    float32 if small."""
    os.environ.setdefault("NO_TORCH_COMPILE", "1")
    from moshi.models import loaders
    from moshi.models.lm import LMModel
    from safetensors.torch import save_file

    def save(name: str, network: Any) -> None:
        tensors = {key: tensor.contiguous() for key, tensor in network.state_dict().items()}
        save_file(tensors, folder / name)

    settings: dict[str, Any] = {}
    with torch.no_grad():
        if small:
            settings = {**SMALL, "mimi_config_name": "codec.json"}
            (folder / "codec.json").write_text(json.dumps(SMALL_CODEC))
            language = LMModel(**SMALL, device=device, dtype=torch.float32)
            mimi = loaders.get_mimi(None, dict(SMALL_CODEC), device=device, num_codebooks=4)
        else:
            language = loaders.get_moshi_lm(None, device=device)
            mimi = loaders.get_mimi(None, device=device)
        for name, tensor in mimi.named_buffers():
            _let_codes_differ(name, tensor)
        save(loaders.MOSHI_NAME, language)
        save(loaders.MIMI_NAME, mimi)
    (folder / loaders.TEXT_TOKENIZER_NAME).touch()
    (folder / "config.json").write_text(json.dumps(settings))


def _let_codes_differ(name: str, tensor: Tensor) -> None:
    if name.endswith("embedding_sum"):
        tensor.normal_()
    elif name.endswith("cluster_usage"):
        tensor.fill_(1)


def measure_ranks(folder: Path, ranks: int, args: argparse.Namespace, device: str) -> list[Row]:
    """Rows for one session and for ``args.rank_sessions``, with full windows, in a process of
    its own: the ranks' group is one for a process. Raises subprocess.CalledProcessError."""
    told = {
        "folder": str(folder),
        "ranks": ranks,
        "sessions": args.rank_sessions,
        "ticks": args.ticks,
        "device": device,
    }
    done = subprocess.run(
        [sys.executable, "-m", "load_tests.tick_ranks", json.dumps(told)],
        stdout=subprocess.PIPE,
        check=True,
    )
    rows: list[Row] = json.loads(done.stdout)
    return rows


def first_difference(rows: Sequence[Row]) -> Json:
    """The first tick at which the greedy sessions said different words; None if at none."""
    one, *others = (cast(list[int | None], row["said"]) for row in rows)
    ticks = [
        tick
        for other in others
        for tick, pair in enumerate(zip(one, other, strict=True))
        if pair[0] != pair[1]
    ]
    return min(ticks, default=None)


def _measure(folder: str, ranks: int, sessions: int, ticks: int, device: str) -> list[Row]:
    """Sessions become so old by steps of the first, of which the others are forks."""
    options = MoshiOptions(
        folder=folder,
        name="measured",
        device=device,
        tensor_parallel=ranks,
        limits=DuplexLimits(slots=sessions),
    )
    network, stepper = load_stepper(options, read_checkpoint(Path(folder)))
    lockstep = Lockstep(stepper)
    sound = speech(sessions, network.frame_samples)
    lockstep.seat(0, GREEDY)
    age = network.language.config.temporal.context + BEYOND
    said: list[Json] = [lockstep.step({0: next(sound)[0]})[0].text for _ in range(age)]
    rows = [_timed(lockstep, sound, 1, ranks, ticks, device) | {"said": said}]
    for slot in range(1, sessions):
        lockstep.fork(0, slot, SamplingChoice(seed=slot))
    rows.append(_timed(lockstep, sound, sessions, ranks, ticks, device))
    return rows


def _timed(
    lockstep: Lockstep[SavedSlot],
    sound: Iterator[dict[int, Any]],
    sessions: int,
    ranks: int,
    ticks: int,
    device: str,
) -> Row:
    times = []
    first = None
    for tick in range(WARM_UP + ticks):
        frames = {slot: pcm for slot, pcm in next(sound).items() if slot < sessions}
        began = perf_counter()
        lockstep.step(frames)
        if tick >= WARM_UP:
            times.append(1000 * (perf_counter() - began))
        else:
            first = memory_gib(device)
    row = tick_row(f"{ranks} device{'s'[: ranks - 1]}", sessions, times, first, memory_gib(device))
    return row | {"windows": "full", "kv": "bf16", "weights": "bf16", "limit_ms": None}


if __name__ == "__main__":
    print(json.dumps(_measure(**json.loads(sys.argv[1]))), flush=True)
    # What the other ranks are in ends with them.
    os._exit(0)
