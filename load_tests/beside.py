"""Conversations alone and beside requests of the batch lane that take all they can get."""

import json
import subprocess
import sys
from collections.abc import Sequence

import anyio

from load_tests.report import Json, percentile, spread
from load_tests.scenario import Outcome, Plan, converse
from load_tests.server import Server, ServerError

ROUNDS = 3
"""Alone and beside take turns, so that a machine that changes its pace does so to both."""

SETTLE_S = 2.0


async def run_beside(
    server: Server, plan: Plan, sessions: int, clients: int, model: str = ""
) -> tuple[dict[str, Json], list[str]]:
    """`plan.seconds` is how long each of the rounds lasts. Returns figures and problems."""
    alone: list[Outcome] = []
    beside: list[Outcome] = []
    batch = {"completed": 0, "refused": 0, "failed": 0}
    for number in range(ROUNDS):
        alone += await _converse(server, plan, sessions, number, model)
        process = await anyio.open_process(
            [
                *(sys.executable, "-m", "load_tests.saturate"),
                *(server.url, server.key, str(clients), str(plan.seconds + 2 * SETTLE_S)),
            ],
            stdout=subprocess.PIPE,
            stderr=None,
        )
        async with process:
            await anyio.sleep(SETTLE_S)
            beside += await _converse(server, plan, sessions, number, model)
            assert process.stdout is not None
            try:
                counted = json.loads(await process.stdout.receive())
            except anyio.EndOfStream:
                raise ServerError("the clients of the batch lane have failed") from None
            for name in batch:
                batch[name] += counted[name]
        await anyio.sleep(SETTLE_S)
    figures: dict[str, Json] = {"sessions": sessions, "batch_clients": clients}
    for name in ("added_latency", "first_audio", "gaps"):
        for way, outcomes in (("alone", alone), ("beside", beside)):
            figures[f"{name}_{way}_ms"] = spread(_values(outcomes, name))
        figures[f"{name}_p99_ratio"] = _ratio(_values(beside, name), _values(alone, name))
    figures["turns_alone"] = sum(outcome.turns for outcome in alone)
    figures["turns_beside"] = sum(outcome.turns for outcome in beside)
    figures.update({f"batch_{name}": value for name, value in batch.items()})
    return figures, [problem for outcome in alone + beside for problem in outcome.problems]


async def _converse(
    server: Server, plan: Plan, sessions: int, seed: int, model: str
) -> list[Outcome]:
    outcomes: list[Outcome] = []

    async def one(number: int) -> None:
        name = seed * sessions + number
        outcomes.append(await converse(server.url, plan, name, 0.1 * number, server.key, model))

    async with anyio.create_task_group() as group:
        for number in range(sessions):
            group.start_soon(one, number)
    return outcomes


def _values(outcomes: Sequence[Outcome], name: str) -> list[float]:
    return [1000 * value for outcome in outcomes for value in getattr(outcome, name)]


def _ratio(beside: Sequence[float], alone: Sequence[float]) -> float | None:
    if not beside or not alone or not percentile(alone, 0.99):
        return None
    return round(percentile(beside, 0.99) / percentile(alone, 0.99), 3)
