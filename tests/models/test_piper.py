import json
from pathlib import Path
from threading import Event, Timer

import numpy as np
import pytest
import soxr

from duologue.models import piper as module
from duologue.models.piper import Piper
from duologue.models.whisper import Whisper

SAID = [
    "Good morning, how are you today?",
    "The quick brown fox jumps over the lazy dog.",
    "I would like a loaf of bread, two apples and a bottle of milk.",
    "Could you please tell me the way to the station?",
    "My favorite book is about a small boat on a very large ocean.",
]


def words(text: str) -> list[str]:
    return "".join(c for c in text.lower() if c.isalnum() or c == " ").split()


def test_a_folder_without_a_voice_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"voice\.onnx\.json"):
        Piper(tmp_path / "voice.onnx")


def test_a_voice_of_another_language_is_refused(tmp_path: Path) -> None:
    settings = {"audio": {"sample_rate": 22050}, "espeak": {"voice": "de"}}
    (tmp_path / "voice.onnx.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="'de'"):
        Piper(tmp_path / "voice.onnx")


@pytest.mark.weights
def test_what_is_said_is_understood(whisper: Whisper, piper: Piper) -> None:
    wrong = total = 0
    for text in SAID:
        sound = soxr.resample(piper.synthesize(text), piper.rate, 16_000).astype(np.float32)
        heard = words(whisper.transcribe(sound).text)
        wrong += len(set(words(text)) ^ set(heard))
        total += len(words(text))
    assert wrong / total <= 0.05


@pytest.mark.weights
def test_speech_is_within_range_and_starts_at_once(piper: Piper) -> None:
    speech = piper.synthesize("Good morning,")
    assert piper.voices == ("joe",)
    assert speech.dtype == np.float32
    assert np.abs(speech).max() <= 1.0
    assert np.flatnonzero(np.abs(speech) > 0.01)[0] / piper.rate < 0.06


@pytest.mark.weights
def test_speed_changes_the_length(piper: Piper) -> None:
    sizes = [piper.synthesize(SAID[0], speed=speed).size for speed in (0.25, 1.0, 1.5)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 2.5 * sizes[1]


@pytest.mark.weights
@pytest.mark.parametrize("text", ["", "...", "😀"])
def test_nothing_to_say_is_empty(piper: Piper, text: str) -> None:
    assert piper.synthesize(text).size == 0


@pytest.mark.weights
def test_a_long_text_is_said_to_its_end(piper: Piper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST", 100)
    text = "the way to the sea is long and dark,"
    assert piper.synthesize(" ".join([text] * 6)).size > 5 * piper.synthesize(text).size


@pytest.mark.weights
def test_a_cancelled_call_is_empty(piper: Piper) -> None:
    assert piper.synthesize("Good morning.", cancelled=lambda: True).size == 0
    cancelled = Event()
    timer = Timer(0.05, cancelled.set)
    timer.start()
    assert piper.synthesize("the sea is dark, " * 200, cancelled=cancelled.is_set).size == 0
    timer.join()


@pytest.mark.weights
def test_another_voice_is_refused(piper: Piper) -> None:
    with pytest.raises(ValueError, match="'af_heart'"):
        piper.synthesize("Hello.", voice="af_heart")
