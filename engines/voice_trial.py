"""The first call of every synthesizer, which tells whether this machine is quick enough for it."""

import logging
from collections.abc import Callable
from typing import Final, cast

from duologue.engines.engine import EngineError
from duologue.engines.fairness import Rank
from duologue.engines.pipeline.flow import Flow
from duologue.engines.pipeline.pipeline_run import PipelineRun, RunKey
from duologue.engines.pipeline.stage_graph import CASCADE, TTS, Graph, Kind
from duologue.engines.speaking import Voices, VoiceStage, length_ms
from duologue.engines.stage_messages import Clause, Spoken

WORDS = "Hello, how are you?"
QUICK_ENOUGH = 0.5
"""Seconds that a second of speech may take to make. A voice that takes more answers late, and falls
behind what is heard of it as soon as anything else runs."""

ALONE: Final = Graph("voice", (CASCADE.by_name[TTS],))

log = logging.getLogger(__name__)


async def try_voices(
    voices: Voices, session: str, clock: Callable[[], float], choose: bool
) -> bytes:
    """Let each synthesizer speak; what the default voice said.

    `clock` gives seconds. `choose`: the default becomes the first voice that is quick enough on
    this machine, the quickest where none is.
    """
    catalogue = voices.catalogue
    said: dict[int, bytes] = {}
    paces: dict[str, float] = {}
    for name in (catalogue.default, *catalogue.names):
        voice = catalogue.find(name)
        key = id(voice.synthesizer)
        if key not in said:
            begun = clock()
            said[key] = await voices.say(session, Rank.FIRST, WORDS, voice, 1.0, lambda: False)
            paces[name] = (clock() - begun) * 1000 / max(length_ms(said[key]), 1.0)
    if choose:
        catalogue.default = _quick_enough(catalogue.default, paces)
    return next(iter(said.values()))


def _quick_enough(default: str, paces: dict[str, float]) -> str:
    enough = [name for name, pace in paces.items() if pace <= QUICK_ENOUGH]
    chosen = enough[0] if enough else min(paces, key=paces.__getitem__)
    if chosen != default:
        log.warning(
            "the voice %s needs %.1f s for a second of speech here: the default is %s",
            default,
            paces[default],
            chosen,
        )
    return chosen


async def say_alone(voices: VoiceStage, session: str, clock: Callable[[], float]) -> bytes:
    """What the default voice said, wherever it is. Raises EngineError."""
    said: list[bytes] = []

    def deliver(stage: str, kind: Kind, item: object) -> None:
        said.append(cast(Spoken, item).pcm)

    run = PipelineRun(RunKey(session, 0), Flow(ALONE), {TTS: voices}, deliver, clock)
    outcome = await run.run({"": Clause(WORDS)})
    if outcome.failure is not None:
        raise EngineError(f"the voice failed: {outcome.failure.message}")
    return b"".join(said)
