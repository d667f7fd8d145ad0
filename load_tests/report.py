"""Figures of a run: percentiles, the JSON they become and the table they are printed as."""

import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

Number = int | float
Json = None | bool | Number | str | list["Json"] | dict[str, "Json"]

PACKAGES = ("duologue", "websockets", "numpy")


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` (0 to 1) of all values do not exceed.

    The nearest-rank definition: always a value that was measured, never one in between.
    Raises ValueError when there are no values.
    """
    if not values:
        raise ValueError("no values")
    rank = max(1, math.ceil(share * len(values) - 1e-9))
    return sorted(values)[rank - 1]


def spread(values: Sequence[float]) -> dict[str, Json]:
    """``p50, p95, p99, max``, each ``None`` when there are no values."""
    if not values:
        return {"p50": None, "p95": None, "p99": None, "max": None}
    return {
        "p50": round(percentile(values, 0.50), 1),
        "p95": round(percentile(values, 0.95), 1),
        "p99": round(percentile(values, 0.99), 1),
        "max": round(max(values), 1),
    }


def conditions() -> dict[str, Json]:
    """What the figures depend on: the command, the machine and the versions."""
    versions: dict[str, Json] = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "command": "python -m load_tests " + shlex.join(sys.argv[1:]),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "cores": cores(),
        "packages": versions,
    }


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_name() -> str:
    """The processor as the kernel names it, or an empty text."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else ""


@dataclass(slots=True)
class Report:
    """Figures by name, in the order in which they are to be read."""

    figures: dict[str, Json]
    conditions: dict[str, Json] = field(default_factory=conditions)
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        problems: list[Json] = [*self.problems]
        return json.dumps({**self.figures, "conditions": self.conditions, "problems": problems})

    def as_table(self) -> str:
        """One line a figure; spreads as ``p50 / p95 / p99 / max``."""
        lines = [f"{self.conditions['command']}", f"{machine_line(self.conditions)}", ""]
        width = max((len(name) for name in self.figures), default=0)
        for name, value in self.figures.items():
            lines.append(f"  {name:<{width}}  {shown(value)}")
        if self.problems:
            lines += ["", f"{len(self.problems)} problems:"]
            lines += [f"  {problem}" for problem in self.problems[:20]]
        return "\n".join(lines)

    def write(self, target: str | None) -> None:
        """Print the table; write JSON to a file, or as the last line for ``-``."""
        print(self.as_table())
        if target == "-":
            print(self.as_json())
        elif target:
            Path(target).write_text(self.as_json() + "\n")


def machine_line(facts: dict[str, Json]) -> str:
    return f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}"


def shown(value: Json) -> str:
    if isinstance(value, dict) and "p50" in value:
        if value["p50"] is None:
            return "not measured"
        marks = " / ".join(f"{value[mark]}" for mark in ("p50", "p95", "p99", "max"))
        return f"{marks}   (p50 / p95 / p99 / max)"
    if isinstance(value, dict):
        return ", ".join(f"{name} {entry}" for name, entry in value.items())
    return "not measured" if value is None else f"{value}"
