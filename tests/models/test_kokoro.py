import hashlib
from pathlib import Path
from threading import Event, Timer

import numpy as np
import numpy.typing as npt
import pytest
import soxr

from duologue.models import kokoro as module
from duologue.models.kokoro import VOICES, Kokoro
from duologue.models.whisper import Whisper

STYLES = Path(module.__file__).parent / "kokoro_voices"


def heard(whisper: Whisper, kokoro: Kokoro, speech: npt.NDArray[np.float32]) -> str:
    sound = soxr.resample(speech, kokoro.rate, 16_000).astype(np.float32)
    return "".join(c for c in whisper.transcribe(sound).text.lower() if c.isalnum() or c == " ")


def test_the_voices_are_as_they_were_stored() -> None:
    sums = dict(
        reversed(line.split("  ")) for line in (STYLES / "SHA256SUMS").read_text().splitlines()
    )
    assert sorted(sums) == sorted(f"{voice}.npy" for voice in VOICES)
    for name, checksum in sums.items():
        assert hashlib.sha256((STYLES / name).read_bytes()).hexdigest() == checksum


def test_each_voice_has_a_style_for_every_length() -> None:
    for voice in VOICES:
        style = np.load(STYLES / f"{voice}.npy")
        assert style.shape == (510, 256)
        assert np.isfinite(style).all()


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="kokoro-82m-int8"):
        Kokoro(tmp_path)


@pytest.mark.weights
@pytest.mark.parametrize("voice", VOICES)
def test_every_voice_is_understood(whisper: Whisper, kokoro: Kokoro, voice: str) -> None:
    speech = kokoro.synthesize("The train leaves in an hour.", voice=voice)
    assert speech.dtype == np.float32
    assert np.abs(speech).max() <= 1.0
    assert heard(whisper, kokoro, speech) == "the train leaves in an hour"


@pytest.mark.weights
def test_numbers_are_said(whisper: Whisper, kokoro: Kokoro) -> None:
    assert "1250" in heard(whisper, kokoro, kokoro.synthesize("It costs $12.50 in the shop."))


@pytest.mark.weights
def test_the_first_sound_comes_at_once(kokoro: Kokoro) -> None:
    speech = kokoro.synthesize("Good morning,")
    assert np.flatnonzero(np.abs(speech) > 0.01)[0] / kokoro.rate < 0.06


@pytest.mark.weights
def test_speed_changes_the_length(kokoro: Kokoro) -> None:
    sizes = [kokoro.synthesize("Good morning.", speed=speed).size for speed in (0.5, 1.0, 1.5)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 1.6 * sizes[1]


@pytest.mark.weights
@pytest.mark.parametrize("text", ["", " ", "...", "😀", "你好"])
def test_nothing_to_say_is_empty(kokoro: Kokoro, text: str) -> None:
    assert kokoro.synthesize(text).size == 0


@pytest.mark.weights
def test_more_than_the_model_takes_is_said_in_pieces(
    whisper: Whisper, kokoro: Kokoro, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LONGEST", 30)
    said = kokoro.synthesize("The way to the sea is long, and the road to the hills is dark.")
    assert heard(whisper, kokoro, said).replace("too", "to") == (
        "the way to the sea is long and the road to the hills is dark"
    )


@pytest.mark.weights
def test_a_cancelled_call_is_empty(kokoro: Kokoro) -> None:
    assert kokoro.synthesize("Good morning.", cancelled=lambda: True).size == 0
    cancelled = Event()
    timer = Timer(0.1, cancelled.set)
    timer.start()
    assert (
        kokoro.synthesize("the sea is dark and long, " * 15, cancelled=cancelled.is_set).size == 0
    )
    timer.join()


@pytest.mark.weights
def test_an_unknown_voice_or_speed_is_refused(kokoro: Kokoro) -> None:
    with pytest.raises(ValueError, match="'joe'"):
        kokoro.synthesize("Hello.", voice="joe")
    with pytest.raises(ValueError, match="speed"):
        kokoro.synthesize("Hello.", speed=2.0)
