"""Ticks of one Moshi on several devices, from a checkpoint with random weights made for it."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
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
from load_tests.small_moshi import SMALL, SMALL_CODEC
from load_tests.tick_rows import WARM_UP, Row, memory_gib, speech, tick_row

BEYOND = 10
"""Steps after a window is full."""


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
