"""The sound that comes in to a Live session."""

from typing import Any, cast

import numpy as np
import pytest

from duologue.models.silero_vad import SileroVad
from duologue.sessions.live_config import LiveFormat
from duologue.sessions.live_microphone import LiveMicrophone, WakeDetector
from duologue.sessions.session_config import AudioFormat


@pytest.mark.parametrize(
    ("kind", "rate"),
    [
        (AudioFormat.PCM, 24_000),
        (AudioFormat.PCM, 16_000),
        (AudioFormat.PCMU, 8_000),
        (AudioFormat.PCMA, 8_000),
    ],
)
def test_a_second_is_a_second_at_each_rate(kind: AudioFormat, rate: int) -> None:
    audio_format = LiveFormat(kind, rate)
    microphone = LiveMicrophone(audio_format)
    data = bytes(rate * audio_format.sample_bytes * 3)
    slices = list(microphone.slices(data))
    assert [len(part) for part in slices] == [rate * audio_format.sample_bytes] * 3
    narrow = sum(len(microphone.narrow(microphone.decode(part))) for part in slices)
    wide = sum(len(microphone.wide(microphone.decode(part))) for part in slices)
    assert narrow == pytest.approx(48_000, abs=800)
    assert wide == pytest.approx(72_000, abs=1200)


class Ears:
    def __init__(self) -> None:
        self.heard = 0

    def stream(self) -> "Ears":
        return self

    def push(self, frame: Any) -> float:
        self.heard += len(frame)
        return float(frame.max())


def test_waking_judges_whole_frames_however_they_arrive() -> None:
    ears = Ears()
    wakes = WakeDetector(cast(SileroVad, ears))
    loud = np.full(300, 16_384, np.int16)
    assert wakes(loud) == 0.0
    assert wakes(loud) == pytest.approx(0.5)
    assert ears.heard == 512
