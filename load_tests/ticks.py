"""Ticks of a full-size Moshi with random weights: how long they take for how many sessions.

``python -m load_tests.ticks`` needs torch and this package alone, and the ``moshi`` package for the
reference. Times are of the whole tick as a worker makes it: sound in from numpy, tokens and sound
out to numpy. A window is full after 240 s; sessions start there, or young, at 20 s.
"""

import argparse
import gc
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from duologue.engines.lockstep import Lockstep
from duologue.engines.moshi_impl import MoshiStepper
from duologue.models.moshi.duplex_network import DuplexNetwork
from duologue.models.moshi.kyutai_layout import language_config, settings_7b
from duologue.models.moshi.language_model import NOT_GIVEN, LanguageModel
from duologue.models.moshi.mimi import Mimi
from duologue.models.moshi.moshi_config import (
    GREEDY,
    DepthConfig,
    MimiConfig,
    MoshiConfig,
    QuantizerConfig,
    SamplingChoice,
    SeanetConfig,
    TransformerConfig,
)
from duologue.models.moshi.narrow_weights import Narrow, NarrowLinear, narrow_layers
from duologue.models.moshi.paged_kv import FP8
from duologue.models.moshi.sampling import Sampling
from load_tests.report import Json, percentile
from load_tests.tick_cases import Case, add_arguments

PERIOD_MS = 80.0
YOUNG_S = 20.0
GIB = 2**30
WARM_UP = 10
_NARROW: Mapping[str, Narrow] = {"int8": "int8", "fp8": "fp8"}

Row = dict[str, Json]


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


def full_network(device: str) -> DuplexNetwork:
    """The 7B geometry and Mimi with random weights; bfloat16, the codec float32."""
    return _network(language_config(settings_7b()), MimiConfig(), device, torch.bfloat16)


def small_network(device: str) -> DuplexNetwork:
    """A few thousand weights, to see that all of this runs."""
    acoustic = (1,) * 3
    language = MoshiConfig(
        n_q=8,
        agent_codebooks=4,
        card=32,
        text_card=40,
        text_card_out=40,
        delays=(0, 0, *acoustic, 0, *acoustic),
        temporal=TransformerConfig(d_model=64, num_heads=4, num_layers=2, hidden=64, context=64),
        depth=DepthConfig(
            d_model=32,
            num_heads=2,
            num_layers=2,
            hidden=(32,) * 4,
            schedule=tuple(range(4)),
        ),
    )
    mimi = MimiConfig(
        sample_rate=600,
        seanet=SeanetConfig(dimension=32, n_filters=4, ratios=(4, 3, 2)),
        quantizer=QuantizerConfig(dimension=16, outer_dimension=32, n_q=4, bins=32),
        transformer=TransformerConfig(
            d_model=32,
            num_heads=4,
            num_layers=2,
            hidden=48,
            context=10,
            norm="layer_norm",
            gating=False,
            layer_scale=True,
        ),
    )
    return _network(language, mimi, device, torch.float32)


def _network(
    language: MoshiConfig, mimi: MimiConfig, device: str, dtype: torch.dtype
) -> DuplexNetwork:
    usual = torch.get_default_dtype()
    torch.manual_seed(1)
    try:
        torch.set_default_dtype(dtype)
        with torch.device(device):
            model = LanguageModel(language)
    finally:
        torch.set_default_dtype(usual)
    with torch.device(device):
        codec = Mimi(mimi)
    for name, buffer in codec.named_buffers():
        if name.endswith("codebooks"):
            buffer.normal_()
    return DuplexNetwork(model, codec)


def weight_bytes(network: DuplexNetwork) -> int:
    """What a tick reads of weights: all but the tables, of which it reads a few rows."""
    modules = [*network.language.modules(), *network.mimi.modules()]
    return sum(
        weight.nbytes
        for module in modules
        if not isinstance(module, nn.Embedding)
        for weight in _weights(module)
    )


def _weights(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters(recurse=False)
    if isinstance(module, NarrowLinear):
        yield from module.buffers(recurse=False)


@contextmanager
def narrowed(network: DuplexNetwork, weights: str, device: str) -> Iterator[None]:
    """Keep the layers' weights so meanwhile: ``bf16`` leaves them, as ``int8`` and ``fp8`` do not.
    The wide ones stay beside them, so memory is no less."""
    kind = _NARROW.get(weights)
    layers = list(network.language.transformer.layers)
    modules = [module for layer in layers for module in layer.modules()]
    wide = [
        (module, name, child)
        for module in modules
        for name, child in module.named_children()
        if isinstance(child, nn.Linear)
    ]
    if kind is not None:
        narrow_layers(layers, kind, device)
    try:
        yield
    finally:
        for module, name, child in wide:
            setattr(module, name, child)


def kv_bytes(network: DuplexNetwork, case: Case, steps: int) -> int:
    """What a tick reads of keys and values, for all sessions, each ``steps`` old."""
    temporal = network.language.config.temporal
    width = 1 if case.kv == "fp8" else 2
    values = 2 * temporal.d_model // temporal.kv_repeat * temporal.num_layers
    return case.sessions * min(steps, temporal.context) * values * width


def read_bandwidth(device: str) -> float:
    """Bytes a second that the device reads, measured on a large tensor."""
    if device == "cpu":
        return float("nan")
    data = torch.zeros(2**30, dtype=torch.int64, device=device)
    data.sum()
    best = 0.0
    for _ in range(5):
        torch.cuda.synchronize()
        began = perf_counter()
        data.sum()
        torch.cuda.synchronize()
        best = max(best, data.nbytes / (perf_counter() - began))
    return best


def memory_gib(device: str) -> float | None:
    """What is taken of the device's memory, by anyone."""
    if device == "cpu":
        return None
    free, total = torch.cuda.mem_get_info()
    return round((total - free) / GIB, 2)


def speech(sessions: int, samples: int) -> Iterator[dict[int, Any]]:
    """Frames of noise that swells and falls, for each session another stretch of it."""
    rng = np.random.default_rng(7)
    loud = np.abs(np.sin(np.arange(200 * samples) / (9.7 * samples)))
    noise = (0.2 * loud * rng.standard_normal(200 * samples)).astype(np.float32)
    for tick in range(2**31):
        yield {
            slot: noise[(begin := (tick + 37 * slot) % 200 * samples) : begin + samples]
            for slot in range(sessions)
        }


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
    row = _row("duologue", case.sessions, times, first, memory_gib(device))
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
            row = _row("moshi 0.2.13", sessions, times, first, memory_gib(device))
    row |= {"windows": "full", "kv": "bf16", "weights": "bf16", "limit_ms": None}
    del language, mimi, generator
    free()
    return row


def _row(
    who: str, sessions: int, times: list[float], first: float | None, last: float | None
) -> Row:
    return {
        "who": who,
        "sessions": sessions,
        "p50_ms": round(percentile(times, 0.5), 2),
        "p95_ms": round(percentile(times, 0.95), 2),
        "p99_ms": round(percentile(times, 0.99), 2),
        "max_ms": round(max(times), 2),
        "slowest_tick": times.index(max(times)),
        "ticks": len(times),
        "missed": sum(time > PERIOD_MS for time in times),
        "memory_gib_first": first,
        "memory_gib_last": last,
    }


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# -- what changes and what does not ---------------------------------------------------------


def divergence(network: DuplexNetwork, device: str, ticks: int) -> list[Row]:
    """How far the text's distribution moves: in a larger batch, and with keys and values, or the
    layers' weights, in 8 bits.

    Both runs are told the same tokens. Weights are random, so that many tokens are about equally
    likely: agreement on the likeliest is worse than a trained model's.
    """
    baseline, tokens = _logits(network, device, ticks, slots=2)
    rows: list[Row] = []
    for what, slots, kv, weights in (
        ("again", 2, None, "bf16"),
        ("batch of 64", 64, None, "bf16"),
        ("fp8 kv", 2, FP8, "bf16"),
        ("int8 weights", 2, None, "int8"),
        ("fp8 weights", 2, None, "fp8"),
    ):
        with narrowed(network, weights, device):
            other, _ = _logits(network, device, ticks, slots=slots, kv=kv, told=tokens)
        p = torch.log_softmax(baseline.float(), -1)
        q = torch.log_softmax(other.float(), -1)
        kl = (p.exp() * (p - q)).sum(-1)
        same = (baseline.argmax(-1) == other.argmax(-1)).float().mean()
        rows.append(
            {
                "changed": what,
                "kl_mean": float(f"{kl.mean().item():.3g}"),
                "kl_max": float(f"{kl.max().item():.3g}"),
                "logit_std": round(baseline.float().std().item(), 3),
                "likeliest_agrees": round(same.item(), 4),
            }
        )
    return rows


def _logits(
    network: DuplexNetwork,
    device: str,
    ticks: int,
    slots: int,
    kv: torch.dtype | None = None,
    told: list[Tensor] | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """The text's logits of slot 0, ``[ticks, tokens]``, and the columns it made or was told."""
    model = network.language
    config = model.config
    seen: list[Tensor] = []
    handle = model.text_linear.register_forward_hook(
        lambda module, args, output: seen.append(output[0].clone())
    )
    state = model.new_state(slots, kv)
    sampling = Sampling.new(slots, torch.device(device))
    generator = torch.Generator(device).manual_seed(5)
    active = torch.ones(slots, dtype=torch.bool, device=device)
    free_choice = torch.full((slots, 1 + config.agent_codebooks), NOT_GIVEN, device=device)
    made = []
    try:
        for tick in range(ticks):
            shape = (2, config.user_codebooks)
            heard = torch.randint(0, config.card, shape, generator=generator, device=device)
            forced = free_choice.clone()
            if told is not None and tick < len(told):
                forced[:] = told[tick]
            frame = model.step(heard.repeat(slots // 2, 1), forced, sampling, state, active)
            if frame is not None and tick >= config.max_delay:
                made.append(torch.cat([frame.text[:1], frame.codes[0]]))
    finally:
        handle.remove()
    return torch.stack(seen), made


def exact_beside_others(network: DuplexNetwork, slots: int, ticks: int) -> bool:
    """Whether a greedy session says the same alone and beside others, at one size of graph."""
    said = []
    for others in (False, True):
        stepper = MoshiStepper(network, slots)
        lockstep = Lockstep(stepper)
        lockstep.seat(slots - 1, GREEDY)
        mine = speech(slots, network.frame_samples)
        if others:
            for slot in range(slots - 1):
                lockstep.seat(slot, SamplingChoice(seed=slot))
        mouth = []
        for _ in range(ticks):
            frames = next(mine)
            if not others:
                frames = {slots - 1: frames[slots - 1]}
            spoken = lockstep.step(frames)[slots - 1]
            mouth.append((spoken.text, spoken.pcm.tobytes()))
        said.append(mouth)
        del stepper, lockstep
        free()
    return said[0] == said[1]


# -- the command ----------------------------------------------------------------------------


def run(args: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Json]:
    """Everything that was asked for. Raises argparse.ArgumentTypeError."""
    cases = [Case.parse(text, args.ticks, args.long) for text in args.cases]
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    network = (small_network if args.small else full_network)(device)
    bandwidth = read_bandwidth(device)
    free()
    say(f"{_device_name(device)}, reads {bandwidth / 1e12:.2f} TB/s; torch {torch.__version__}")
    say(
        _line(
            [
                "who",
                "sessions",
                "windows",
                "kv",
                "weights",
                "limit",
                "p50",
                "p95",
                "p99",
                "max (tick)",
                "missed",
                "GiB first, last",
            ]
        )
    )
    rows: list[Json] = []

    def add(row: Row) -> None:
        rows.append(row)
        say(_table_line(row))

    for case in cases:
        add(measure(network, case, device, bandwidth))
    changes: list[Row] = []
    exact = None
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
    return {"ticks": rows, "divergence": list(changes), "exact_beside_others": exact}


def _device_name(device: str) -> str:
    return device if device == "cpu" else torch.cuda.get_device_name()


def _line(cells: list[str]) -> str:
    widths = (13, 8, 7, 5, 7, 6, 7, 7, 7, 15, 6, 17)
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def _table_line(row: Row) -> str:
    return _line(
        [
            str(row["who"]),
            str(row["sessions"]),
            str(row["windows"]),
            str(row["kv"]),
            str(row["weights"]),
            str(row["limit_ms"] or ""),
            str(row["p50_ms"]),
            str(row["p95_ms"]),
            str(row["p99_ms"]),
            f"{row['max_ms']} ({row['slowest_tick']})",
            str(row["missed"]),
            f"{row['memory_gib_first']}, {row['memory_gib_last']}",
        ]
    )


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
