"""Many conversations at once, and what they measured."""

import random
from collections.abc import Iterable, Sequence

import anyio
import anyio.to_thread

from load_tests.clock import now
from load_tests.history import embedded_recognizer, recognise, words_off
from load_tests.report import Json, spread
from load_tests.scenario import Outcome, Plan, converse
from load_tests.server import MEBIBYTE, Server, Usage

GAP_SECONDS = 0.04
WARM_UP = 3.0
"""Processor time is counted from this many seconds after the start, when all have connected."""


async def run_voice(
    server: Server, plan: Plan, sessions: int, model: str = "", seed: int = 1
) -> tuple[dict[str, Json], list[str]]:
    """Run the sessions side by side. Returns the figures and what went wrong, in words."""
    outcomes: list[Outcome] = []
    chance = random.Random(seed)
    usages: list[tuple[float, Usage | None]] = []

    async def one(number: int, delay: float) -> None:
        outcomes.append(await converse(server.url, plan, number, delay, server.key, model))

    async def watch() -> None:
        await anyio.sleep(min(WARM_UP, plan.seconds / 3))
        usages.append((now(), server.usage()))
        await anyio.sleep(max(0.0, plan.seconds - WARM_UP - 0.5))
        usages.append((now(), server.usage()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        for number in range(sessions):
            tasks.start_soon(one, number, chance.uniform(0.0, min(2.0, plan.seconds / 5)))
    figures = summary(outcomes)
    figures["server_cpu_percent_per_session"] = cpu_percent(usages, sessions)
    cuts = [cut for outcome in outcomes for cut in outcome.cuts]
    if cuts:
        recognizer = await anyio.to_thread.run_sync(embedded_recognizer)
        sounds = [cut.sound for cut in cuts]
        recognised = await anyio.to_thread.run_sync(recognise, sounds, recognizer)
        figures["history_words_off"] = [
            words_off(cut.text, heard, cut.history, cut.sound)
            for cut, heard in zip(cuts, recognised, strict=True)
        ]
        figures["history"] = [
            {"heard": heard, "kept": cut.history}
            for cut, heard in zip(cuts, recognised, strict=True)
        ]
    last = usages[-1][1]
    figures["rss_mb"] = round(last.resident / MEBIBYTE, 1) if last else None
    figures["private_mb"] = round(last.private / MEBIBYTE, 1) if last else None
    figures["ready_seconds"] = round(server.ready_seconds, 2) if server.ready_seconds else None
    return figures, [problem for outcome in outcomes for problem in outcome.problems]


def cpu_percent(usages: Sequence[tuple[float, Usage | None]], sessions: int) -> float | None:
    """Processor time between the first and the last look, as a share of one core a session."""
    (begin, first), (end, last) = usages[0], usages[-1]
    if first is None or last is None or end <= begin:
        return None
    share = (last.cpu_seconds - first.cpu_seconds) / (end - begin)
    return round(100 * share / sessions, 2)


def summary(outcomes: Sequence[Outcome]) -> dict[str, Json]:
    """The figures that the outcomes of all sessions give together."""

    def ms(values: Iterable[float]) -> list[float]:
        return [1000 * value for value in values]

    def joined(name: str) -> list[float]:
        return ms(value for outcome in outcomes for value in getattr(outcome, name))

    ok = sum(outcome.ok for outcome in outcomes)
    return {
        "sessions_ok": ok,
        "sessions_failed": len(outcomes) - ok,
        "connect_ms": spread(ms(o.connect for o in outcomes if o.connect is not None)),
        "added_latency_ms": spread(joined("added_latency")),
        "first_audio_ms": spread(joined("first_audio")),
        "barge_in_stop_ms": spread(joined("barge_in_stop")),
        "gaps_over_40ms": sum(gap > GAP_SECONDS for o in outcomes for gap in o.gaps),
        "longest_gap_ms": round(max(joined("gaps"), default=0.0), 1),
        "client_late_ms": spread(joined("late_frames")),
        "turns": sum(outcome.turns for outcome in outcomes),
        "interruptions": sum(outcome.interruptions for outcome in outcomes),
        "premature_answers": sum(outcome.premature for outcome in outcomes),
        "pieces_timed": sum(len(outcome.added_latency) for outcome in outcomes),
        "pieces_drafted": sum(outcome.drafted for outcome in outcomes),
        "pieces_after_stop": sum(outcome.late_audio for outcome in outcomes),
        "server_stop_ms": spread(joined("server_stop")),
        "fade_ms": spread(joined("fades")),
    }
