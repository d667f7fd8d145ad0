"""Kokoro-82M: English speech at 24 kHz in eight voices.

A StyleTTS 2 network (huggingface.co/hexgrad/Kokoro-82M, Apache-2.0) that turns up to 510 phonemes
and a style vector into a waveform in one call. The style depends on how many phonemes there are.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from duologue.models.onnx_session import Cancelled, open_session, require_inputs, run_cancellable
from duologue.models.pronunciation import phonemes
from duologue.models.speech_edges import halves, trim
from duologue.models.spoken_text import spoken_text
from duologue.models.voice import check_request, never

RATE = 24_000

VOICES = (
    "af_heart", "af_bella", "am_michael", "am_fenrir",
    "bf_emma", "bf_isabella", "bm_george", "bm_fable",
)  # fmt: skip
"""American and British, female and male, best first."""

_STYLES = Path(__file__).parent / "kokoro_voices"
_LONGEST = 510

Samples = npt.NDArray[np.float32]


class Kokoro:
    """The network, loaded once; a `Synthesizer`. Calls from several threads are safe."""

    rate = RATE
    voices = VOICES

    def __init__(self, folder: Path, *, threads: int = 1) -> None:
        """Load `kokoro-82m-int8.onnx` and `vocab.json`.

        Raises FileNotFoundError when one is missing; see `open_session` for the others.
        """
        path = folder / "kokoro-82m-int8.onnx"
        self._session = open_session(path, threads=threads)
        require_inputs(self._session, ["tokens", "style", "speed"], path)
        vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))["vocab"]
        self._ids: dict[str, int] = {symbol: int(index) for symbol, index in vocabulary.items()}
        self._styles = {voice: np.load(_STYLES / f"{voice}.npy") for voice in VOICES}

    def synthesize(
        self,
        text: str,
        *,
        voice: str = VOICES[0],
        speed: float = 1.0,
        cancelled: Callable[[], bool] = never,
    ) -> Samples:
        """See `Synthesizer.synthesize`. A text of over 510 phonemes is said in several pieces."""
        check_request(self, voice, speed)
        try:
            pieces = self._pieces(spoken_text(text), voice, speed, cancelled)
        except Cancelled:
            pieces = []
        return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)

    def _pieces(
        self, text: str, voice: str, speed: float, cancelled: Callable[[], bool]
    ) -> list[Samples]:
        if cancelled():
            raise Cancelled
        ids = [self._ids[symbol] for symbol in phonemes(text) if symbol in self._ids]
        if len(ids) > _LONGEST:
            return [
                piece
                for half in halves(text)
                for piece in self._pieces(half.strip(), voice, speed, cancelled)
            ]
        if not ids:
            return []
        style = self._styles[voice][len(ids) - 1].astype(np.float32)
        feeds: dict[str, npt.NDArray[np.generic]] = {
            "tokens": np.array([[0, *ids, 0]], np.int64),
            "style": style[np.newaxis],
            "speed": np.array([speed], np.float32),
        }
        speech = run_cancellable(self._session, "audio", feeds, cancelled).ravel()
        return [trim(np.clip(speech, -1.0, 1.0), RATE, text, speed)]
