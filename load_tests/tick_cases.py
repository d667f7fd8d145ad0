"""What to measure of a frame-locked model's ticks, as the command line says it."""

import argparse
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """``windows``: ``full``, ``young``, or ``churn``: full, and one leaves and another joins now
    and then. ``kv``: ``bf16`` or ``fp8``. ``weights``: ``bf16``, or how those of the layers are
    kept."""

    sessions: int
    windows: str
    kv: str
    ticks: int
    weights: str = "bf16"

    @staticmethod
    def parse(text: str, ticks: int, long: int) -> "Case":
        """``64:full:bf16`` or ``64:full:bf16:int8``. Raises argparse.ArgumentTypeError."""
        try:
            sessions, windows, kv, weights = (*text.split(":"), "bf16")[:4]
            known = windows in ("full", "young", "churn") and kv in ("bf16", "fp8")
            if not known or weights not in ("bf16", "int8", "fp8") or text.count(":") > 3:
                raise ValueError
            lasting = long if windows == "churn" else ticks
            return Case(int(sessions), windows, kv, lasting, weights)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text} is not SESSIONS:full|young|churn:bf16|fp8[:int8|fp8]"
            ) from None


DEFAULT_CASES = (
    "1:full:bf16",
    "1:young:bf16",
    "32:full:bf16",
    "64:full:bf16",
    "64:young:bf16",
    "160:full:fp8",
    "160:churn:fp8",
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--cases", nargs="*", default=DEFAULT_CASES, metavar="N:WINDOWS:KV[:WEIGHTS]"
    )
    command.add_argument("--ticks", type=int, default=300, help="ticks of a case")
    command.add_argument(
        "--long", type=int, default=7500, help="ticks of a case with joins and leaves"
    )
    command.add_argument("--reference", type=int, nargs="*", default=[1, 32, 64])
    command.add_argument(
        "--ranks",
        type=int,
        nargs="*",
        default=[],
        metavar="N",
        help="one model on so many devices, for each N, from a checkpoint of 16 GB made for it",
    )
    command.add_argument(
        "--rank-sessions", type=int, default=64, help="sessions of one model on several devices"
    )
    command.add_argument("--compared", type=int, default=200, help="ticks of what is compared")
    command.add_argument("--small", action="store_true", help="a tiny network, to try this out")
    command.add_argument("--device", help="of torch: cuda where there is one, else cpu")
    command.add_argument("--json", metavar="FILE", help="figures as JSON; - for the last line")
