import wave
from pathlib import Path

import numpy as np
import pytest

from load_tests.recordings import (
    FOLDER,
    RATE,
    RecordingError,
    Samples,
    decode,
    find,
    load_speech,
    load_transcribed,
    voiced_edges,
)


def tone(seconds: float, amplitude: float = 8_000, rate: int = RATE) -> Samples:
    wave_form = amplitude * np.sin(2 * np.pi * 300 * np.arange(int(seconds * rate)) / rate)
    return wave_form.astype(np.int16)


def silence(seconds: float) -> Samples:
    return np.zeros(int(seconds * RATE), np.int16)


def write_wav(path: Path, samples: Samples, rate: int = RATE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())


def test_voice_begins_with_the_first_loud_window_and_ends_with_the_last() -> None:
    samples = np.concatenate([silence(0.5), tone(1.0), silence(0.25), tone(0.5), silence(0.3)])
    assert voiced_edges(samples) == (RATE // 2, int(2.25 * RATE) - 1)


def test_what_is_far_below_the_loudest_window_is_not_voiced() -> None:
    breath = tone(0.5, amplitude=8_000 / 10 ** (40 / 20))
    whisper = tone(0.5, amplitude=8_000 / 10 ** (30 / 20))
    assert voiced_edges(np.concatenate([breath, tone(1.0)]))[0] == RATE // 2
    assert voiced_edges(np.concatenate([whisper, tone(1.0)]))[0] == 0


def test_edges_do_not_depend_on_the_level_of_the_recording() -> None:
    samples = np.concatenate([silence(0.2), tone(1.0), silence(0.2)])
    assert voiced_edges(samples) == voiced_edges((samples // 16).astype(np.int16))


def test_a_recording_that_ends_within_a_window_ends_at_its_last_sample() -> None:
    samples = tone(0.1037)
    assert voiced_edges(samples) == (0, len(samples) - 1)


@pytest.mark.parametrize("samples", [silence(1.0), silence(0.0)])
def test_silence_has_no_voice_in_it(samples: Samples) -> None:
    with pytest.raises(RecordingError, match="silence"):
        voiced_edges(samples)


def test_a_wav_of_another_rate_is_resampled(tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", tone(1.0, rate=16_000), rate=16_000)
    samples = decode(tmp_path / "a.wav")
    assert len(samples) == pytest.approx(RATE, abs=RATE // 100)
    assert np.abs(samples).max() == pytest.approx(8_000, rel=0.02)


def test_a_file_without_sound_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_text("no sound")
    with pytest.raises(RecordingError, match=r"a\.wav"):
        decode(tmp_path / "a.wav")


def test_a_folder_without_recordings_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="asterisk-core-sounds-en-g722"):
        load_speech(tmp_path)


def test_a_folder_of_ones_own_serves_for_questions_and_interruptions(tmp_path: Path) -> None:
    write_wav(tmp_path / "b.wav", tone(0.5))
    write_wav(tmp_path / "a.wav", tone(0.5))
    questions, interruptions = load_speech(tmp_path)
    assert [recording.name for recording in questions] == ["a", "b"]
    assert interruptions == questions


def test_recordings_of_a_table_come_with_their_words_and_missing_ones_are_left_out(
    tmp_path: Path,
) -> None:
    write_wav(tmp_path / "deep" / "one.wav", tone(0.5))
    table = tmp_path / "table.tsv"
    table.write_text("deep/one\tHello there.\nmissing\tNobody says this.\n")
    [recording] = load_transcribed(tmp_path, table)
    assert (recording.name, recording.text) == ("deep/one", "Hello there.")


@pytest.mark.skipif(not FOLDER.is_dir(), reason="needs the recordings of Debian's package")
def test_g722_is_decoded_at_its_own_speed() -> None:
    path = find(FOLDER, "tt-weasels")
    assert path is not None
    samples = decode(path)
    # 8,000 bytes are one second of G.722.
    assert len(samples) / RATE == pytest.approx(path.stat().st_size / 8_000, abs=0.02)
    first, last = voiced_edges(samples)
    assert 0.05 < first / RATE < 0.3
    assert last / RATE > 2.5
