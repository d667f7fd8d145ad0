"""The sound that comes in to a Live session: as it was sent, to the rates that are needed."""

from collections.abc import Iterator

import numpy as np

from duologue.codecs.g711 import decode_alaw, decode_mulaw
from duologue.codecs.media import Int16Samples
from duologue.codecs.pcm import float_from_int16, int16_from_bytes
from duologue.codecs.resample import Resampler
from duologue.engines.engine import HEARD_RATE
from duologue.models.silero_vad import FRAME, SileroVad
from duologue.sessions.live_config import LiveFormat
from duologue.sessions.live_mixer import RATE
from duologue.sessions.session_config import AudioFormat


class LiveMicrophone:
    """Int16 at 16 kHz for the model, and at 24 kHz for whoever else listens."""

    def __init__(self, audio_format: LiveFormat) -> None:
        self._format = audio_format
        self._narrow = _resampler(audio_format.rate, HEARD_RATE)
        self._wide = _resampler(audio_format.rate, RATE)

    def slices(self, data: bytes) -> Iterator[bytes]:
        """A second or less each, so that others get their turn in between."""
        size = self._format.rate * self._format.sample_bytes
        for offset in range(0, len(data), size):
            yield data[offset : offset + size]

    def decode(self, data: bytes) -> Int16Samples:
        """Whole samples, at the format's rate."""
        match self._format.kind:
            case AudioFormat.PCM:
                return int16_from_bytes(data)
            case AudioFormat.PCMU:
                return decode_mulaw(data)
            case AudioFormat.PCMA:
                return decode_alaw(data)

    def narrow(self, samples: Int16Samples) -> Int16Samples:
        """At 16 kHz."""
        return samples if self._narrow is None else self._narrow.push(samples)

    def wide(self, samples: Int16Samples) -> Int16Samples:
        """At 24 kHz."""
        return samples if self._wide is None else self._wide.push(samples)


def _resampler(given: int, wanted: int) -> "Resampler[np.int16] | None":
    return None if given == wanted else Resampler(given, wanted, np.int16)


class WakeDetector:
    """Whether there is speech in what a session that rests hears."""

    def __init__(self, vad: SileroVad) -> None:
        self._speech = vad.stream()
        self._frame = np.zeros(0, np.int16)

    def __call__(self, samples: Int16Samples) -> float:
        """The highest probability of speech since the last call; 16 kHz."""
        waiting = np.concatenate((self._frame, samples))
        whole = len(waiting) // FRAME
        self._frame = waiting[whole * FRAME :]
        return max(
            (
                self._speech.push(float_from_int16(waiting[i * FRAME : (i + 1) * FRAME]))
                for i in range(whole)
            ),
            default=0.0,
        )
