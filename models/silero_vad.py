"""Silero voice activity detection, version 6: how likely a frame holds speech.

The graph (github.com/snakers4/silero-vad, MIT) sees 64 samples of context and 512 new ones at
16 kHz and carries the two state vectors of an LSTM from frame to frame.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime

from duologue.models.onnx_session import open_session, require_inputs

RATE = 16_000
FRAME = 512
"""Samples in a frame: 32 ms."""

CERTAIN = 0.02
"""Below this the network is sure that it hears nothing, and goes on so while nothing comes."""

_CONTEXT = 64
_STATE = 128


class SileroVad:
    """The network, loaded once and shared by any number of streams.

    A stream belongs to one thread at a time; different streams may run in different threads.
    """

    def __init__(self, path: Path) -> None:
        """Load the graph; see `open_session` for what it raises."""
        self._session = open_session(path)
        require_inputs(self._session, ["input", "h", "c"], path)

    def stream(self) -> "SpeechProbability":
        """A new stream that has heard nothing."""
        return SpeechProbability(self._session)


class SpeechProbability:
    """One listener: frames in, probabilities out, in order. Made by `SileroVad.stream`."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session
        self._input = np.zeros((1, _CONTEXT + FRAME), np.float32)
        self._probability = np.ones(1, np.float32)
        # The network reads one pair of states and writes the other; the two change places after
        # every frame. Bound buffers save a fifth of the time that feeding arrays by name takes.
        self._states = np.zeros((2, 2, 1, 1, _STATE), np.float32)
        self._bindings = [self._bind(read, 1 - read) for read in (0, 1)]
        self._turn = 0

    def _bind(self, read: int, write: int) -> onnxruntime.IOBinding:
        binding = self._session.io_binding()
        binding.bind_cpu_input("input", self._input)
        for index, (name, output) in enumerate((("h", "hn"), ("c", "cn"))):
            binding.bind_cpu_input(name, self._states[read, index])
            target = self._states[write, index]
            binding.bind_output(output, "cpu", 0, np.float32, target.shape, target.ctypes.data)
        binding.bind_output(
            "speech_probs", "cpu", 0, np.float32, (1,), self._probability.ctypes.data
        )
        return binding

    def push(self, frame: npt.NDArray[np.float32]) -> float:
        """The probability, 0 to 1, that this frame holds speech.

        `frame` is 512 float32 samples at 16 kHz, nominally within -1 to 1. Once the network is
        certain of silence it is not asked again while the samples are zero. Samples that are not
        finite count as silence, since one would otherwise poison the state for good. Raises
        ValueError for any other length.
        """
        if frame.shape != (FRAME,):
            raise ValueError(f"a frame is {FRAME} samples, not an array of shape {frame.shape}")
        energy = np.dot(frame, frame)
        if energy == 0.0 and self._probability[0] < CERTAIN:
            # A muted microphone: zeros, for as long as it is.
            return float(self._probability[0])
        if not np.isfinite(energy):
            frame = np.nan_to_num(frame, nan=0.0, posinf=0.0, neginf=0.0).clip(-1.0, 1.0)
        self._input[0, :_CONTEXT] = self._input[0, FRAME:]
        self._input[0, _CONTEXT:] = frame
        self._session.run_with_iobinding(self._bindings[self._turn])
        self._turn = 1 - self._turn
        return float(self._probability[0])

    def reset(self) -> None:
        """Forget all that was heard, as a new stream."""
        self._input.fill(0.0)
        self._states.fill(0.0)
        self._probability.fill(1.0)
