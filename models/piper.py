"""Piper: one English voice at 22.05 kHz, several times faster than Kokoro.

A VITS network (Kim et al., "Conditional Variational Autoencoder with Adversarial Learning for
End-to-End Text-to-Speech", 2021) in the form of github.com/rhasspy/piper. Its phonemes come from
permissively licensed lexicons, not from espeak.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sanotts.frontend import load_phoneme_table

from duologue.models.onnx_session import Cancelled, open_session, require_inputs, run_cancellable
from duologue.models.pronunciation import piper_ids
from duologue.models.speech_edges import halves, trim
from duologue.models.spoken_text import spoken_text
from duologue.models.voice import check_request, never

_LONGEST = 1200
"""Phonemes a call: with the padding between them some 40 s of speech."""

Samples = npt.NDArray[np.float32]


class Piper:
    """One voice, loaded once; a `Synthesizer`. Calls from several threads are safe."""

    def __init__(self, path: Path, *, name: str = "joe", threads: int = 1) -> None:
        """Load a voice's graph and, beside it, its description (`path` with `.json` added).

        `name` is what the voice is called. Raises FileNotFoundError when a file is missing,
        ValueError for a voice that is not English; see `open_session` for the others.
        """
        description = path.with_name(path.name + ".json")
        settings = json.loads(description.read_text(encoding="utf-8"))
        self.rate: int = settings["audio"]["sample_rate"]
        self.voices = (name,)
        language = settings["espeak"]["voice"]
        if not language.startswith("en"):
            raise ValueError(f"{path}: a voice for {language!r}, and only English can be spelled")
        inference = settings["inference"]
        self._noise = (float(inference["noise_scale"]), float(inference["noise_w"]))
        self._length = float(inference["length_scale"])
        self._table = load_phoneme_table(description)
        self._session = open_session(path, threads=threads)
        require_inputs(self._session, ["input", "input_lengths", "scales"], path)

    def synthesize(
        self,
        text: str,
        *,
        voice: str = "",
        speed: float = 1.0,
        cancelled: Callable[[], bool] = never,
    ) -> Samples:
        """See `Synthesizer.synthesize`; the only voice may be left out."""
        check_request(self, voice or self.voices[0], speed)
        try:
            pieces = self._pieces(spoken_text(text), speed, cancelled)
        except Cancelled:
            pieces = []
        return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)

    def _pieces(self, text: str, speed: float, cancelled: Callable[[], bool]) -> list[Samples]:
        if cancelled():
            raise Cancelled
        ids = piper_ids(text, self._table)
        if ids.size > _LONGEST:
            return [
                piece
                for half in halves(text)
                for piece in self._pieces(half.strip(), speed, cancelled)
            ]
        if not ids.size:
            return []
        noise, noise_width = self._noise
        feeds: dict[str, npt.NDArray[np.generic]] = {
            "input": ids[np.newaxis],
            "input_lengths": np.array([ids.size], np.int64),
            "scales": np.array([noise, self._length / speed, noise_width], np.float32),
        }
        speech = run_cancellable(self._session, "output", feeds, cancelled).ravel()
        return [trim(np.clip(speech, -1.0, 1.0), self.rate, text, speed)]
