import numpy as np
import pytest

from duologue.codecs.pcm import int16_from_bytes
from duologue.engines.fairness import Rank
from duologue.engines.pulse import Pulse
from duologue.engines.speaking import (
    DRAFT_WINDOW_MS,
    URGENT_MS,
    WINDOW_MS,
    SpeechWindow,
    Voices,
    length_ms,
    pieces,
)
from duologue.engines.stand_ins import StandInSynthesizer
from duologue.models.voice import VoiceCatalogue

pytestmark = pytest.mark.anyio


def test_the_window_closes_with_too_much_unsent_and_opens_with_an_acknowledgement() -> None:
    window = SpeechWindow(draft=False)
    window.make(WINDOW_MS, 0.0)
    assert not window.open
    window.acknowledge(1, 0.5)
    assert window.open


def test_a_draft_gets_less_until_somebody_listens() -> None:
    window = SpeechWindow(draft=True)
    window.make(DRAFT_WINDOW_MS, 0.0)
    assert not window.open
    window.acknowledge(0, 0.5)
    assert window.open


def test_acknowledgements_never_go_back_nor_beyond_what_was_made() -> None:
    window = SpeechWindow(draft=False)
    window.make(WINDOW_MS, 0.0)
    window.acknowledge(10_000, 0.0)
    window.acknowledge(5_000, 0.0)
    window.make(9_999, 0.0)
    assert window.open
    window.make(1, 0.0)
    assert not window.open
    window.acknowledge(10**9, 0.0)
    window.make(WINDOW_MS - 1, 0.0)
    assert window.open


def test_the_first_sound_is_most_urgent_and_the_next_as_urgent_once_it_has_nearly_played() -> None:
    window = SpeechWindow(draft=False)
    assert window.rank(0.0) is Rank.FIRST
    window.make(4000, now=10.0)
    assert window.rank(10.0) is Rank.LATER
    assert window.rank(10.0 + (4000 - URGENT_MS) / 1000 + 0.01) is Rank.FIRST


def test_a_draft_plays_only_from_when_it_was_wanted() -> None:
    window = SpeechWindow(draft=True)
    assert window.rank(0.0) is Rank.DRAFT_FIRST
    window.make(4000, now=0.0)
    assert window.rank(100.0) is Rank.DRAFT_LATER
    window.acknowledge(20, now=100.0)
    assert window.rank(100.1) is Rank.LATER


def test_what_is_left_to_play_runs_down_from_the_first_sound() -> None:
    window = SpeechWindow(draft=False)
    assert window.left_ms(1.0) is None
    window.make(800.0, 2.0)
    assert window.left_ms(2.0) == 800.0
    assert window.left_ms(2.5) == pytest.approx(300.0)
    assert window.left_ms(3.0) == pytest.approx(-200.0)


def test_pieces_join_to_the_speech_and_are_short() -> None:
    pcm = bytes(range(250)) * 1000
    cut = pieces(pcm)
    assert b"".join(cut) == pcm
    assert max(map(length_ms, cut)) == 1000
    assert pieces(b"") == [b""]


async def test_speech_comes_at_24_khz_whatever_the_voices_rate() -> None:
    for rate in (16_000, 22_050, 24_000):
        voices = Voices(VoiceCatalogue([StandInSynthesizer(rate)]), Pulse())
        voice = voices.catalogue.find("")
        pcm = await voices.say("s", Rank.FIRST, "a" * 100, voice, 1.0, lambda: False)
        assert length_ms(pcm) == pytest.approx(1000, abs=1)
        assert np.abs(int16_from_bytes(pcm)).max() > 10_000


async def test_a_speed_out_of_range_is_brought_into_it() -> None:
    synthesizer = StandInSynthesizer()
    voices = Voices(VoiceCatalogue([synthesizer]), Pulse())
    voice = voices.catalogue.find("")
    pcm = await voices.say("s", Rank.FIRST, "a" * 100, voice, 9.0, lambda: False)
    assert length_ms(pcm) == pytest.approx(1000 / 1.5, abs=1)
    voices.forget("s")
