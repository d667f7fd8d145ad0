from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soxr

from duologue.models.kokoro import Kokoro
from duologue.models.piper import Piper
from duologue.models.whisper import RATE, Whisper, split_at_quiet

Samples = npt.NDArray[np.float32]


def plain(text: str) -> list[str]:
    return "".join(c for c in text.lower() if c.isalpha() or c == " ").split()


def silence(seconds: float) -> Samples:
    return np.zeros(int(seconds * RATE), np.float32)


def test_short_sound_is_not_cut() -> None:
    sound = silence(3)
    assert split_at_quiet(sound) == [sound]


def test_long_sound_is_cut_at_its_pauses_and_nothing_is_lost() -> None:
    sound = np.random.default_rng(0).standard_normal(50 * RATE).astype(np.float32)
    pauses = [(15.0, 15.4), (28.0, 28.4), (44.0, 44.4)]
    for start, end in pauses:
        sound[int(start * RATE) : int(end * RATE)] = 0.0
    pieces = split_at_quiet(sound, 20.0)
    assert np.array_equal(np.concatenate(pieces), sound)
    assert max(piece.size for piece in pieces) <= 20 * RATE
    cuts = np.cumsum([piece.size for piece in pieces])[:-1] / RATE
    assert all(any(start <= cut <= end for start, end in pauses) for cut in cuts)


def test_sound_without_a_pause_is_cut_all_the_same() -> None:
    sound = np.ones(45 * RATE, np.float32)
    pieces = split_at_quiet(sound, 20.0)
    assert sum(piece.size for piece in pieces) == sound.size
    assert all(piece.size for piece in pieces)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"model\.bin"):
        Whisper(tmp_path)


@pytest.mark.weights
def test_a_sentence_is_heard(whisper: Whisper, sentence: Samples) -> None:
    heard = whisper.transcribe(sentence)
    assert plain(heard.text) == plain("Could you please tell me the way to the station?")
    assert heard.seconds == sentence.size / RATE
    assert -0.7 < heard.average_log_probability < 0.0
    assert heard.no_speech_probability < 0.5
    assert heard.tokens == ()


@pytest.mark.weights
def test_tokens_come_with_their_probabilities_on_request(
    whisper: Whisper, sentence: Samples
) -> None:
    heard = whisper.transcribe(sentence, token_probabilities=True)
    assert "".join(token.text for token in heard.tokens).strip() == heard.text
    assert all(token.log_probability <= 0.0 for token in heard.tokens)


@pytest.mark.weights
@pytest.mark.parametrize("seconds", [0.0, 0.05, 1.0, 5.0])
def test_silence_has_no_words(whisper: Whisper, seconds: float) -> None:
    heard = whisper.transcribe(silence(seconds))
    assert heard.text == ""
    assert heard.no_speech_probability == 1.0


@pytest.mark.weights
@pytest.mark.parametrize("level", [0.003, 0.03, 0.3])
@pytest.mark.parametrize("seconds", [0.4, 3.0])
def test_noise_has_no_words(whisper: Whisper, level: float, seconds: float) -> None:
    noise = np.random.default_rng(0).standard_normal(int(seconds * RATE)).astype(np.float32)
    tone = np.sin(np.arange(int(seconds * RATE)) * 0.4).astype(np.float32)
    assert whisper.transcribe(noise * level).text == ""
    assert whisper.transcribe(tone * level).text == ""


@pytest.mark.weights
def test_more_than_a_window_is_heard_to_its_end(whisper: Whisper, piper: Piper) -> None:
    said = [
        "The first train leaves at seven in the morning.",
        "You can buy a ticket at the window or on the train.",
        "The journey takes about two hours, with one stop on the way.",
        "There is a small restaurant next to the station.",
        "It opens at six and closes late at night.",
        "Please take all your bags with you when you leave.",
        "We hope to see you again very soon.",
        "The last train comes back at ten in the evening.",
    ]
    sound = np.concatenate([piper.synthesize(sentence) for sentence in said])
    sound = soxr.resample(sound, piper.rate, RATE).astype(np.float32)
    assert sound.size > 20 * RATE
    heard = plain(whisper.transcribe(sound).text)
    expected = [word for sentence in said for word in plain(sentence)]
    missed = set(expected) - set(heard)
    assert len(missed) <= 0.15 * len(set(expected))
    assert {"first", "restaurant", "evening"} <= set(heard)
    assert len(heard) <= 1.3 * len(expected)


@pytest.mark.weights
def test_a_draft_is_the_same_where_the_first_attempt_is_good(
    whisper: Whisper, sentence: Samples
) -> None:
    assert whisper.transcribe(sentence, draft=True) == whisper.transcribe(sentence)


@pytest.mark.weights
def test_a_prompt_teaches_spellings(whisper: Whisper, kokoro: Kokoro) -> None:
    names = {
        "Please call Jon Smyth tomorrow.": "Jon Smyth",
        "The Duologue server is down.": "Duologue",
    }
    taught = alone = 0
    for text, name in names.items():
        sound = soxr.resample(kokoro.synthesize(text), kokoro.rate, RATE).astype(np.float32)
        alone += sum(word in whisper.transcribe(sound).text for word in name.split())
        prompted = whisper.transcribe(sound, prompt=f"{name}.").text
        taught += sum(word in prompted for word in name.split())
    assert taught > alone


@pytest.mark.weights
def test_a_cancelled_call_has_no_text(whisper: Whisper, sentence: Samples) -> None:
    assert whisper.transcribe(sentence, cancelled=lambda: True).text == ""


@pytest.mark.weights
def test_a_language_without_weights_is_refused(whisper: Whisper, sentence: Samples) -> None:
    assert whisper.supports("en")
    assert not whisper.supports("de")
    with pytest.raises(ValueError, match="'de'"):
        whisper.transcribe(sentence, language="de")


@pytest.mark.weights
def test_words_are_found_where_they_sound(whisper: Whisper, piper: Piper) -> None:
    said = ["Hello there, my friend.", "The weather is lovely today."]
    parts = [
        soxr.resample(piper.synthesize(text), piper.rate, RATE).astype(np.float32) for text in said
    ]
    gap = silence(1.0)
    timings = whisper.align(np.concatenate([parts[0], gap, parts[1]]), " ".join(said))
    assert [timing.word for timing in timings] == " ".join(said).split()
    assert all(timing.start <= timing.end for timing in timings)
    assert [t.start for t in timings] == sorted(t.start for t in timings)
    second = (parts[0].size + gap.size) / RATE
    assert timings[3].start < parts[0].size / RATE
    assert timings[5].end > second
    assert timings[8].end <= second + parts[1].size / RATE


@pytest.mark.weights
def test_nothing_to_align_has_no_timings(whisper: Whisper, sentence: Samples) -> None:
    assert whisper.align(sentence, "  ") == ()
    assert whisper.align(silence(0), "Hello.") == ()


@pytest.mark.weights
def test_more_than_thirty_seconds_are_not_aligned(whisper: Whisper) -> None:
    with pytest.raises(ValueError, match="30 s"):
        whisper.align(silence(31), "Hello.")
