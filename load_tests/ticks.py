"""Ticks of a full-size Moshi with random weights: how long they take for how many sessions.

``python -m load_tests.ticks`` needs torch and this package alone, and the ``moshi`` package for the
reference and for ranks. Times are of the whole tick as a worker makes it: sound in from numpy,
tokens and sound out to numpy. A window is full after 240 s; sessions start there, or young, at
20 s.
"""

import argparse
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import torch

from duologue.engines.lockstep import Lockstep
from duologue.engines.moshi_impl import MoshiStepper
from duologue.models.moshi.duplex_network import DuplexNetwork
from duologue.models.moshi.moshi_config import SamplingChoice
from duologue.models.moshi.paged_kv import FP8
from load_tests.report import Json
from load_tests.tick_cases import Case, add_arguments
from load_tests.tick_changes import divergence, exact_beside_others
from load_tests.tick_networks import full_network, kv_bytes, narrowed, small_network, weight_bytes
from load_tests.tick_ranks import first_difference, measure_ranks, write_checkpoint
from load_tests.tick_rows import (
    WARM_UP,
    Row,
    free,
    memory_gib,
    read_bandwidth,
    speech,
    table_head,
    table_line,
    tick_row,
)

YOUNG_S = 20.0


class Aged(MoshiStepper):
    """A stepper whose slots can be made old at once."""

    def age(self, slot: int, position: int) -> None:
        """Let a slot's session have made so many steps, of which it remembers noise."""
        self._book.clear(slot)
        self._hold(slot, self._book.fill(slot, position, self.state.language.temporal.places))
        self.state.language.offset[slot] = position
        self.state.language.temporal.offset[slot] = position

    def fill(self) -> None:
        """Write noise into every page."""
        for pool in self.state.language.temporal.pools:
            for tensor in (pool.keys, pool.values):
                if tensor.dtype == FP8:
                    tensor.view(torch.uint8).random_(0, 0x7E)  # neither negative nor NaN
                else:
                    tensor.normal_()
            pool.key_scales.fill_(1e-3)
            pool.value_scales.fill_(1e-3)


def measure(network: DuplexNetwork, case: Case, device: str, bandwidth: float) -> Row:
    """Run a case; its row."""
    with narrowed(network, case.weights, device):
        return _measure(network, case, device, bandwidth)


def _measure(network: DuplexNetwork, case: Case, device: str, bandwidth: float) -> Row:
    kv_dtype = FP8 if case.kv == "fp8" else None
    stepper = Aged(network, case.sessions, kv_dtype)
    lockstep = Lockstep(stepper)
    stepper.fill()
    context = network.language.config.temporal.context
    rate = network.mimi.config.frame_rate
    age = min(context // 2, int(YOUNG_S * rate)) if case.windows == "young" else context + 100
    for slot in range(case.sessions):
        lockstep.seat(slot, SamplingChoice(seed=slot))
        stepper.age(slot, age)
    sound = speech(case.sessions, network.frame_samples)
    for _ in range(WARM_UP):
        lockstep.step(next(sound))
    first = memory_gib(device)
    rng = random.Random(3)
    times = []
    for tick in range(case.ticks):
        frames = next(sound)
        began = perf_counter()
        if case.windows == "churn" and tick % 25 == 24:
            slot = rng.randrange(case.sessions)
            lockstep.leave(slot)
            lockstep.seat(slot, SamplingChoice(seed=tick))
        lockstep.step(frames)
        times.append(1000 * (perf_counter() - began))
    limit = (weight_bytes(network) + kv_bytes(network, case, age)) / bandwidth * 1000
    row = tick_row("duologue", case.sessions, times, first, memory_gib(device))
    row |= {
        "windows": case.windows,
        "kv": case.kv,
        "weights": case.weights,
        "limit_ms": None if case.windows == "churn" else round(limit, 1),
    }
    del stepper, lockstep
    free()
    return row


def measure_reference(sessions: int, ticks: int, device: str) -> Row:
    """The ``moshi`` package's own loop over its own streaming batch."""
    os.environ.setdefault("NO_TORCH_COMPILE", "1")
    from moshi.models import LMGen
    from moshi.models.loaders import get_mimi, get_moshi_lm

    with torch.no_grad():
        language = get_moshi_lm(None, device=device, dtype=torch.bfloat16).eval()
        mimi = get_mimi(None, device=device)
        generator = LMGen(language)
        sound = speech(sessions, 1920)
        times = []
        with mimi.streaming(sessions), generator.streaming(sessions):
            for tick in range(WARM_UP + ticks):
                frames = np.stack(list(next(sound).values()))[:, None]
                began = perf_counter()
                codes = mimi.encode(torch.from_numpy(frames).to(device))
                tokens = generator.step(codes)
                if tokens is not None:
                    mimi.decode(tokens[:, 1:].clamp(min=0)).cpu().numpy()
                    tokens[:, 0].cpu()
                torch.cuda.synchronize()
                if tick == WARM_UP:
                    first = memory_gib(device)
                if tick >= WARM_UP:
                    times.append(1000 * (perf_counter() - began))
            row = tick_row("moshi 0.2.13", sessions, times, first, memory_gib(device))
    row |= {"windows": "full", "kv": "bf16", "weights": "bf16", "limit_ms": None}
    del language, mimi, generator
    free()
    return row


# -- the command ----------------------------------------------------------------------------


def run(args: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Json]:
    """Everything that was asked for. Raises argparse.ArgumentTypeError."""
    cases = [Case.parse(text, args.ticks, args.long) for text in args.cases]
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    bandwidth = read_bandwidth(device)
    free()
    say(f"{_device_name(device)}, reads {bandwidth / 1e12:.2f} TB/s; torch {torch.__version__}")
    say(table_head())
    rows: list[Json] = []

    def add(row: Row) -> None:
        rows.append(row)
        say(table_line(row))

    changes: list[Row] = []
    exact = None
    if cases or args.compared:
        network = (small_network if args.small else full_network)(device)
        for case in cases:
            add(measure(network, case, device, bandwidth))
        if args.compared:
            changes = divergence(network, device, args.compared)
            for change in changes:
                say(str(change))
            exact = exact_beside_others(network, 8, args.compared)
            say(f"the same alone and beside others, at one size of graph: {exact}")
        del network
        free()
    for sessions in args.reference:
        add(measure_reference(sessions, min(args.ticks, 100), device))
    figures: dict[str, Json] = {}
    if args.ranks:
        with TemporaryDirectory() as made:
            folder = Path(made)
            write_checkpoint(folder, device, args.small)
            free()
            by_ranks = [measure_ranks(folder, ranks, args, device) for ranks in args.ranks]
        for row in (row for rows_of in by_ranks for row in rows_of):
            add(row)
        differs = first_difference([first for first, _ in by_ranks])
        say(f"words of a greedy session differ first at tick: {differs}")
        for first, _ in by_ranks:
            del first["said"]
        figures["ranks_differ_at"] = differs
    return figures | {
        "ticks": rows,
        "divergence": list(changes),
        "exact_beside_others": exact,
    }


def _device_name(device: str) -> str:
    return device if device == "cpu" else torch.cuda.get_device_name()


def main() -> int:
    command = argparse.ArgumentParser(prog="python -m load_tests.ticks", description=__doc__)
    add_arguments(command)
    args = command.parse_args()
    try:
        figures = run(args, lambda text: print(text, flush=True))
    except argparse.ArgumentTypeError as error:
        command.error(str(error))
    if args.json == "-":
        print(json.dumps(figures))
    elif args.json:
        with open(args.json, "w") as file:
            json.dump(figures, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
