"""What the measurements of ticks share: the sound that is fed, and a line of the table."""

import gc
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import numpy as np
import torch

from load_tests.report import Json, percentile

PERIOD_MS = 80.0
GIB = 2**30
WARM_UP = 10

Row = dict[str, Json]


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


def tick_row(
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


def table_head() -> str:
    return _line(
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
    )


def table_line(row: Row) -> str:
    return _line(
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
    )


def _line(*cells: str) -> str:
    widths = (13, 8, 7, 5, 7, 6, 7, 7, 7, 15, 6, 17)
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
