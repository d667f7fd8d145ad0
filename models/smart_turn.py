"""Smart Turn version 3: whether what was said sounds finished.

A small Whisper encoder with one logistic output (github.com/pipecat-ai/smart-turn, BSD-2-Clause).
It listens to intonation as much as to words, so it is a hint for the turn policy and no oracle.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from duologue.models.log_mel import HOP, RATE, log_mel
from duologue.models.onnx_session import open_session, require_inputs

SECONDS = 8
"""How far back the model listens."""

_LENGTH = SECONDS * RATE
_FRAMES = _LENGTH // HOP


class SmartTurn:
    """The network, loaded once. Calls from several threads are safe."""

    def __init__(self, path: Path, *, threads: int = 1) -> None:
        """Load the graph; see `open_session` for what it raises.

        One thread is faster than two on this network.
        """
        self._session = open_session(path, threads=threads)
        require_inputs(self._session, ["input_features"], path)

    def probability(self, audio: npt.NDArray[np.float32]) -> float:
        """The probability, 0 to 1, that the speaker has finished.

        `audio` is float32 at 16 kHz within -1 to 1, ending now, with the pause so far; only its
        last 8 s count. The model was trained on a turn with about 0.2 s of silence after it.
        """
        heard = audio[-_LENGTH:]
        padded = np.zeros(_LENGTH, np.float32)
        padded[_LENGTH - heard.size :] = heard
        # The network's own preparation: the whole window, padding included, to zero mean and unit
        # variance.
        padded = (padded - padded.mean()) / np.sqrt(padded.var() + np.float32(1e-7))
        features = log_mel(padded, _FRAMES)[np.newaxis]
        (finished,) = self._session.run(["logits"], {"input_features": features})
        return float(finished[0, 0])
