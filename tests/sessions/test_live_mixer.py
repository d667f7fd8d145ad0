"""What a Live session plays."""

import numpy as np

from duologue.sessions.live_mixer import FADE, LiveMixer

FRAME = 960


def tone(samples: int, level: int = 5000) -> bytes:
    return np.full(samples, level, "<i2").tobytes()


def test_silence_is_zeros() -> None:
    frame = LiveMixer(FRAME).next_frame()
    assert len(frame.samples) == FRAME
    assert not frame.samples.any()
    assert frame.heard == ()


def test_speech_is_spent_in_order_and_told_how_far() -> None:
    mixer = LiveMixer(FRAME)
    mixer.play("a", tone(FRAME + 480))
    mixer.play("b", tone(240))
    assert mixer.waiting_ms == 70
    assert mixer.next_frame().heard == (("a", 40.0),)
    last = mixer.next_frame()
    assert last.heard == (("a", 60.0), ("b", 10.0))
    assert last.samples[:720].all()
    assert not last.samples[720:].any()


def test_what_is_flushed_fades_out_in_the_next_frame_and_is_gone() -> None:
    mixer = LiveMixer(FRAME)
    mixer.play("a", tone(10 * FRAME))
    mixer.next_frame()
    mixer.flush()
    ending = mixer.next_frame().samples
    assert ending[0] > 4900
    assert 0 < ending[FADE - 5] < 500
    assert not ending[FADE:].any()
    assert not mixer.next_frame().samples.any()


def test_what_is_held_back_goes_on_where_it_stopped() -> None:
    mixer = LiveMixer(FRAME)
    mixer.play("a", tone(10 * FRAME))
    mixer.next_frame()
    mixer.duck()
    mixer.duck()
    assert mixer.next_frame().samples[FADE:].any() == np.False_
    assert not mixer.next_frame().samples.any()
    mixer.restore()
    frame = mixer.next_frame()
    assert frame.samples[0] == 0
    assert frame.samples[FADE] == 5000
    assert frame.heard == (("a", 80.0 + FADE / 24),)


def test_a_fixture_comes_before_speech_and_is_told_when_it_is_over() -> None:
    mixer = LiveMixer(FRAME)
    mixer.play("a", tone(FRAME, 1000))
    mixer.play_fixture(np.full(FRAME + 10, 7, np.int16))
    first, second = mixer.next_frame(), mixer.next_frame()
    assert (first.samples == 7).all()
    assert not first.fixture_over
    assert second.fixture_over
    assert second.samples[:10].tolist() == [7] * 10
    assert not second.samples[10:].any()
    assert mixer.next_frame().heard == (("a", 40.0),)


def test_a_new_item_begins_to_count_anew() -> None:
    mixer = LiveMixer(FRAME)
    mixer.play("a", tone(FRAME))
    mixer.flush()
    mixer.play("b", tone(FRAME))
    assert mixer.next_frame().heard == (("b", 40.0),)
