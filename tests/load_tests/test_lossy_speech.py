"""What the receiving side makes of speech that a bad network has had."""

from pathlib import Path

import numpy as np
import pytest

from load_tests.history import embedded_recognizer
from load_tests.impairment import Impairment
from load_tests.lossy_speech import LossySpeech, hear_at_once, hear_steadily, packets_of
from load_tests.microphone import Clip
from load_tests.recordings import FOLDER, QUESTIONS, Recording, load, load_named, voiced_edges
from load_tests.words import WordErrors, word_errors

RATE = 48_000
QUESTION = Path(__file__).parent.parent / "data" / "question.wav"
WAYS = [hear_at_once, hear_steadily]


def packets(recording: Recording) -> list:
    return packets_of(np.concatenate(Clip.of(recording, RATE).frames))


@pytest.fixture(scope="module")
def question() -> list:
    recording = load(QUESTION)
    several = np.tile(recording.samples, 4)
    return packets(Recording("question", several, voiced_edges(several)))


@pytest.mark.parametrize("way", WAYS)
def test_a_clean_path_changes_nothing(way, question) -> None:
    heard: LossySpeech = way(question, Impairment(), 1)
    assert (heard.concealed, heard.recovered) == (0, 0)
    assert heard.delay_ms < 45
    assert np.abs(heard.samples).max() > 3_000


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("jitter", [0, 30, 80])
def test_at_five_percent_of_loss_hardly_anything_is_guessed(way, jitter: float, question) -> None:
    heard: LossySpeech = way(question, Impairment(loss=5, jitter=jitter), 3)
    assert heard.concealed < 2
    assert heard.recovered > 2
    assert heard.delay_ms < 180


@pytest.mark.parametrize("way", WAYS)
def test_bursts_are_guessed_and_then_silent(way, question) -> None:
    heard: LossySpeech = way(question, Impairment(loss=10, burst=4), 3)
    assert 2 < heard.concealed < 10


@pytest.mark.weights
def test_the_recogniser_understands_as_well_at_five_percent_of_loss() -> None:
    recordings = load_named(FOLDER, QUESTIONS)
    if not recordings:
        pytest.skip("no recorded speech")
    whisper = embedded_recognizer()

    def understood(recording: Recording, network: Impairment, seed: int) -> str:
        heard = hear_at_once(packets(recording), network, seed)
        return whisper.transcribe(heard.samples.astype(np.float32) / 32_768).text

    errors = WordErrors(0, 0)
    for seed, recording in enumerate(recordings):
        clean = understood(recording, Impairment(), seed)
        errors += word_errors(clean, understood(recording, Impairment(loss=5, jitter=30), seed))
    assert errors.words > 40
    assert errors.rate <= 0.04
