"""The voices as a stage in a worker of their own."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio.to_thread
import msgspec

from duologue.engines.backend import Backend
from duologue.engines.cores import usable_cores
from duologue.engines.engine import EngineSpec
from duologue.engines.pipeline.stage_graph import TTS
from duologue.engines.pulse import Pulse
from duologue.engines.speaking import Voices
from duologue.engines.stage_backend import HostedStage, StageBackend
from duologue.engines.stand_ins import StandInSynthesizer
from duologue.engines.voice_trial import try_voices
from duologue.models.kokoro import Kokoro
from duologue.models.piper import Piper
from duologue.models.voice import Synthesizer, VoiceCatalogue

MOST_VOICE_THREADS = 4
USUAL_CAPACITY = 16
REHEARSAL = "rehearsal"


class PiperVoice(msgspec.Struct, frozen=True, kw_only=True):
    """A Piper voice: its graph, with the description beside it, and what it is called."""

    path: str
    name: str


class VoicesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where the voices are; one at least must be there.

    ``kokoro`` is Kokoro's folder or "". ``default_voice`` "" is the first one that this machine is
    fast enough for. ``threads`` of one call; 0 is one for Piper, which is quick, and for Kokoro as
    many as there are cores, at most 4. ``tone``: a voice that needs no files, 10 ms of a tone for
    each letter. ``capacity``: sessions at a time, 0 for 16.
    """

    kokoro: str = ""
    piper: tuple[PiperVoice, ...] = ()
    tone: bool = False
    default_voice: str = ""
    threads: int = 0
    capacity: int = 0


def load_voices(config: VoicesConfig) -> tuple[Synthesizer, ...]:
    """Load the voices side by side; blocks.

    Raises what the models raise, and ValueError where there is no voice.
    """
    if not config.kokoro and not config.piper and not config.tone:
        raise ValueError("no voice: give a folder for kokoro, or a voice for piper")
    most = config.threads or min(usable_cores(), MOST_VOICE_THREADS)
    with ThreadPoolExecutor() as pool:
        piper = [
            pool.submit(Piper, Path(voice.path), name=voice.name, threads=config.threads or 1)
            for voice in config.piper
        ]
        kokoro = pool.submit(Kokoro, Path(config.kokoro), threads=most) if config.kokoro else None
        synthesizers: list[Synthesizer] = [kokoro.result()] if kokoro is not None else []
        synthesizers += [voice.result() for voice in piper]
    if config.tone:
        synthesizers.append(StandInSynthesizer())
    return tuple(synthesizers)


def create_backend(options: bytes, pulse: Pulse) -> Backend:
    """The voices from the msgpack of :class:`VoicesConfig`."""
    config = msgspec.msgpack.decode(options, type=VoicesConfig)

    async def load() -> tuple[HostedStage, EngineSpec]:
        synthesizers = await anyio.to_thread.run_sync(load_voices, config)
        voices = Voices(VoiceCatalogue(synthesizers, config.default_voice), pulse)
        await try_voices(voices, REHEARSAL, time.perf_counter, not config.default_voice)
        voices.forget(REHEARSAL)
        spec = EngineSpec(
            model="voices",
            voices=voices.names,
            default_voice=voices.default,
            context_tokens=0,
            stage=TTS,
        )
        return voices, spec

    return StageBackend(load, config.capacity or USUAL_CAPACITY)
