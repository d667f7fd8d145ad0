"""What is heard, and when."""

import numpy as np
import pytest

from load_tests.loudspeaker import BUFFER_SECONDS, RATE, Loudspeaker, fade_seconds

FRAME = RATE // 50
HUM = (8_000 * np.sin(np.arange(FRAME) * 2 * np.pi * 300 / RATE)).astype(np.int16)
SILENCE = np.zeros(FRAME, np.int16)


def test_a_frame_is_heard_a_buffer_after_it_was_decoded_and_the_next_behind_it() -> None:
    loudspeaker = Loudspeaker()
    loudspeaker.play(HUM, 10.0)
    loudspeaker.play(HUM, 10.001)
    assert [start for start, _ in loudspeaker.pieces] == pytest.approx(
        [10 + BUFFER_SECONDS, 10.02 + BUFFER_SECONDS]
    )
    assert loudspeaker.last_sound == pytest.approx(10.04 + BUFFER_SECONDS, abs=0.001)


def test_the_first_sound_is_told_to_the_sample() -> None:
    half = np.concatenate((SILENCE[: FRAME // 2], HUM[: FRAME // 2]))
    loudspeaker = Loudspeaker()
    assert loudspeaker.play(SILENCE, 1.0) is None
    assert loudspeaker.play(half, 1.02) == pytest.approx(1.03 + BUFFER_SECONDS, abs=0.001)


def test_silence_takes_back_what_a_burst_has_delayed() -> None:
    loudspeaker = Loudspeaker()
    for _ in range(10):
        loudspeaker.play(HUM, 5.0)
    for n in range(20):
        loudspeaker.play(SILENCE, 5.02 + n * 0.02)
    loudspeaker.play(HUM, 5.42)
    assert loudspeaker.pieces[-1][0] <= 5.42 + 2 * BUFFER_SECONDS + 0.02


def test_a_stretch_of_time_has_silence_where_nothing_was_heard() -> None:
    loudspeaker = Loudspeaker()
    loudspeaker.play(HUM, 1.0)
    loudspeaker.play(HUM, 2.0)
    heard = loudspeaker.between(1.0, 2.03)
    assert len(heard) == round(1.03 * RATE)
    assert not heard[: round(0.019 * RATE)].any()
    assert heard[round(0.02 * RATE) :][:FRAME].tolist() == HUM.tolist()
    assert heard[-480:].tolist() == HUM[:480].tolist()


def test_a_fade_is_measured_from_half_to_a_twentieth() -> None:
    hum = np.tile(HUM, 15)
    ramp = np.concatenate((np.ones(len(hum) - 480), np.linspace(1, 0, 480)))
    faded = np.concatenate(((hum * ramp).astype(np.int16), SILENCE))
    assert fade_seconds(faded) == pytest.approx(0.0045, abs=0.0016)
    # A voice that was louder before, and the noise of a codec behind it, do not count.
    spoken = np.concatenate((4 * hum[: FRAME * 10], hum[FRAME * 10 :] * ramp[FRAME * 10 :]))
    noisy = np.concatenate((spoken, np.tile(np.array([120, -120]), 240), SILENCE))
    assert fade_seconds(noisy.astype(np.int16)) == pytest.approx(0.0045, abs=0.0016)
    assert fade_seconds(np.concatenate((hum, SILENCE))) == pytest.approx(0.0, abs=0.002)
    assert fade_seconds(SILENCE) is None
    assert fade_seconds(HUM) is None
