"""The same models called one after another, as the shortest script would: what there is to beat.

The script waits until the voice detector is sure, recognises what was said, has the language model
continue the conversation (whose history stays evaluated) up to the end of its first clause, and
speaks that. Nothing overlaps and nothing else runs.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from duologue.codecs.resample import Resampler
from duologue.engines.cores import usable_cores
from duologue.engines.engine import Message, ResponseRequest, TextPart
from duologue.engines.llama_impl import Completion, LlamaServer
from duologue.engines.llama_prompts import LlamaStage, PromptBuilder
from duologue.models.clauses import ClauseSplitter
from duologue.models.kokoro import Kokoro
from duologue.models.piper import Piper
from duologue.models.voice import VoiceCatalogue
from duologue.models.whisper import Whisper
from duologue.web.cascade_setup import cascade_config
from duologue.web.settings import Settings
from load_tests.recordings import RATE, Recording
from load_tests.report import Json, spread

HOLD_MS = 224.0
"""Seven voice-detector frames of silence, as a script waits that has no turn detector."""
INSTRUCTIONS = "You are a helpful voice assistant. Answer in one or two short sentences."
CONTEXT = 2048


class PlainScript:
    """Recogniser, language model and voices, loaded once. All calls block."""

    def __init__(self, lite: bool) -> None:
        config = cascade_config(Settings(lite=lite))
        stage = config.language
        assert isinstance(stage, LlamaStage)
        self._recognizer = Whisper(Path(config.recognizer))
        self._llama = LlamaServer(
            Path(stage.path), slots=1, context=CONTEXT, threads=usable_cores()
        )
        self._prompts = PromptBuilder(stage, self._llama)
        voices: list[Kokoro | Piper] = [Piper(Path(v.path), name=v.name) for v in config.piper]
        if config.kokoro:
            voices.insert(0, Kokoro(Path(config.kokoro)))
        self._voices = VoiceCatalogue(tuple(voices), "")
        self._history: tuple[Message, ...] = ()

    def turn(self, recording: Recording, voice: str) -> dict[str, float]:
        """Milliseconds of each step, and ``first_audio`` from the end of speech."""
        resampler = Resampler(RATE, 16_000, np.float32)
        samples = np.concatenate((resampler.push(recording.samples), resampler.flush()))
        begun = time.perf_counter()
        text = self._recognizer.transcribe(samples).text
        recognised = time.perf_counter()
        clause, answer = self._think(text)
        thought = time.perf_counter()
        found = self._voices.find(voice)
        found.synthesizer.synthesize(clause, voice=found.name, speed=1.0, cancelled=lambda: False)
        spoken = time.perf_counter()
        self._history = (
            *self._history,
            Message("user", (TextPart(text),)),
            Message("assistant", (TextPart(answer),)),
        )
        return {
            "recognised": (recognised - begun) * 1000,
            "thought": (thought - recognised) * 1000,
            "spoken": (spoken - thought) * 1000,
            "first_audio": HOLD_MS + (spoken - begun) * 1000,
        }

    def close(self) -> None:
        self._llama.close()

    def _think(self, text: str) -> tuple[str, str]:
        """The first clause, when it is there, and all that was said by then."""
        said = (*self._history, Message("user", (TextPart(text),)))
        prompt = self._prompts.build(ResponseRequest(instructions=INSTRUCTIONS, messages=said))
        splitter = ClauseSplitter()
        clauses: list[str] = []
        answer = ""

        def step(piece: str, evaluated: int) -> bool:
            nonlocal answer
            answer += piece
            clauses.extend(splitter.push(piece))
            return bool(clauses)

        self._llama.complete(Completion(prompt.tokens, 0, prompt.most, prompt.sampling), step)
        clauses.extend(splitter.flush())
        return clauses[0] if clauses else "Yes.", answer


def run_plain(recordings: Sequence[Recording], lite: bool, voice: str) -> dict[str, Json]:
    """``first_audio_ms`` and its parts, each a spread over the recordings."""
    script = PlainScript(lite)
    try:
        script.turn(recordings[0], voice)
        turns = [script.turn(recording, voice) for recording in recordings]
    finally:
        script.close()
    figures: dict[str, Json] = {"turns": len(turns)}
    for name in ("first_audio", "recognised", "thought", "spoken"):
        figures[f"{name}_ms"] = spread([turn[name] for turn in turns])
    return figures
