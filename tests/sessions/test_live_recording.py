"""A Live session as a recording."""

import io
import wave

import numpy as np

from duologue.sessions.live_recording import BLOCK, LiveRecording


def read(recording: LiveRecording) -> np.ndarray:
    size, pieces = recording.wav()
    content = b"".join(pieces)
    assert len(content) == size
    with wave.open(io.BytesIO(content)) as file:
        assert (file.getnchannels(), file.getframerate(), file.getsampwidth()) == (2, 24_000, 2)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, 2)


def test_the_user_is_on_the_left_and_what_they_heard_on_the_right() -> None:
    recording = LiveRecording(10.0)
    recording.heard(np.full(2400, 5, np.int16), 200)
    recording.said(np.full(960, 7, np.int16), 40)
    sound = read(recording)
    assert len(sound) == 4800
    assert np.flatnonzero(sound[:, 0] == 5).tolist() == list(range(2400, 4800))
    assert np.flatnonzero(sound[:, 1] == 7).tolist() == list(range(960, 1920))


def test_input_lies_without_gaps_even_where_it_comes_early() -> None:
    recording = LiveRecording(10.0)
    for _ in range(3):
        recording.heard(np.full(2400, 5, np.int16), 100)
    assert (read(recording)[:, 0] == 5).all()
    assert recording.seconds == 0.3


def test_it_grows_by_blocks_and_ends_at_its_bound() -> None:
    recording = LiveRecording(25.0)
    long = np.full(BLOCK + 100, 3, np.int16)
    recording.heard(long, 0)
    recording.heard(long, 0)
    recording.heard(long, 0)
    recording.said(np.ones(960, np.int16), 60_000)
    assert recording.seconds == 25.0
    assert (read(recording)[:, 0] == 3).all()


def test_a_file_has_what_there_was_when_it_was_asked_for_and_comes_in_small_pieces() -> None:
    recording = LiveRecording(60.0)
    recording.heard(np.full(BLOCK + 100, 3, np.int16), 0)
    size, pieces = recording.wav()
    recording.heard(np.full(BLOCK, 3, np.int16), 0)
    content = list(pieces)
    assert sum(map(len, content)) == size == 44 + 4 * (BLOCK + 100)
    assert max(map(len, content)) <= 100_000
