"""The media path: formats, slices, frames, and an engine that hears all of it, once."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from duologue.codecs.g711 import encode_alaw, encode_mulaw
from duologue.codecs.media import CodecError
from duologue.codecs.pcm import bytes_from_int16, int16_from_bytes, to_int16
from duologue.codecs.resample import Resampler
from duologue.codecs.wav import read_wav
from duologue.engines.engine import HEARD_RATE, DropUtterance, EndUtterance, Hear
from duologue.models.silero_vad import FRAME
from duologue.sessions import effects
from duologue.sessions.endpointing import REACH
from duologue.sessions.events import AudioReceived, VoiceProbability
from duologue.sessions.hearing import FORWARD_SAMPLES, KEPT_SECONDS, Hearing
from duologue.sessions.session_config import AudioFormat

QUESTION = Path(__file__).parent.parent / "data" / "question.wav"
PCM, PCMU, PCMA = AudioFormat.PCM, AudioFormat.PCMU, AudioFormat.PCMA


class Ears:
    """One session's hearing, and all that the engine was told."""

    def __init__(self, vad) -> None:
        self.told = []
        self.hearing = Hearing("s", vad, self.told.append)

    def accept(self, data, judge=True):
        return list(self.hearing.accept(data, judge))

    def hear(self, seconds, judge=True, level=1000):
        """So much of a tone at 24 kHz, in packets of 20 ms."""
        events = []
        for _ in range(round(seconds * 50)):
            events += self.accept(tone(0.02, level), judge)
        return events

    def open(self, name, start):
        self.hearing.perform(effects.OpenUtterance(name, start))

    def close(self, name, end, audio_end=None):
        self.hearing.perform(effects.CloseUtterance(name, end, audio_end or end))

    def drop(self, name):
        self.hearing.perform(effects.DropUtterance(name))

    def heard(self, name):
        return [told for told in self.told if isinstance(told, Hear) and told.utterance == name]

    def spans(self, name):
        """What the engine heard of an utterance: (start, end) of each piece."""
        return [(h.start, h.start + len(h.pcm) // 2) for h in self.heard(name)]


def tone(seconds, level=1000, rate=24_000):
    at = np.arange(round(seconds * rate))
    return bytes_from_int16((level * np.sin(at * 0.05)).astype(np.int16))


def joins(spans):
    return all(one[1] == two[0] for one, two in zip(spans, spans[1:], strict=False))


@pytest.fixture
def ears(listening_vad):
    return Ears(listening_vad)


# -- formats --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "encode"),
    [(PCMU, encode_mulaw), (PCMA, encode_alaw), (PCM, bytes_from_int16)],
    ids=["pcmu", "pcma", "pcm"],
)
def test_every_format_is_heard_at_the_same_pace_and_loudness(ears, form, encode):
    ears.hearing.configure(form)
    samples = int16_from_bytes(tone(1.0, 8000, form.rate))
    ears.open("u", 0)
    for offset in range(0, len(samples), form.rate // 50):
        ears.accept(encode(samples[offset : offset + form.rate // 50]))
    ears.hearing.forward()
    assert HEARD_RATE - 64 <= ears.hearing.position <= HEARD_RATE
    heard = np.concatenate([int16_from_bytes(h.pcm) for h in ears.heard("u")])
    assert 7000 < np.abs(heard).max() < 9000


def test_half_a_sample_is_refused(ears):
    with pytest.raises(CodecError):
        list(ears.hearing.slices(b"\x00" * 3))
    ears.hearing.configure(PCMU)
    assert list(ears.hearing.slices(b"\x00" * 3)) == [b"\x00" * 3]


def test_input_is_cut_into_slices_of_a_second(ears):
    assert [len(data) for data in ears.hearing.slices(bytes(48_000 * 2 + 10))] == [
        48_000,
        48_000,
        10,
    ]
    assert list(ears.hearing.slices(b"")) == []


def test_positions_go_on_when_the_format_changes(ears):
    ears.hear(1.0)
    before = ears.hearing.position
    ears.hearing.configure(PCM)
    ears.hear(0.1)
    ears.hearing.configure(PCMU)
    ears.accept(bytes(8000))
    assert ears.hearing.position - before == pytest.approx(1.1 * HEARD_RATE, abs=128)


# -- frames ---------------------------------------------------------------------------------


def test_every_frame_is_judged_once_and_in_order(ears):
    events = ears.hear(1.0)
    ends = [event.end for event in events if isinstance(event, VoiceProbability)]
    assert ends == [FRAME * n for n in range(1, len(ends) + 1)]
    assert ears.hearing.position - ends[-1] < FRAME


def test_a_position_is_told_before_the_frames_that_it_completes(ears):
    told = 0
    for event in ears.hear(1.0):
        if isinstance(event, AudioReceived):
            told = event.end
        else:
            assert event.end <= told


def test_who_wants_no_judgement_pays_for_none(ears, listening_vad):
    events = ears.hear(1.0, judge=False)
    assert {type(event) for event in events} == {AudioReceived}
    assert listening_vad.frames == 0


def test_judging_begins_where_it_is_asked_for(ears):
    ears.hear(0.5, judge=False)
    before = ears.hearing.position
    events = ears.hear(0.5)
    first = next(event.end for event in events if isinstance(event, VoiceProbability))
    assert before <= first - FRAME <= before + FRAME
    assert first - FRAME == pytest.approx(before, abs=HEARD_RATE // 50)


def test_the_detector_hears_what_was_said_at_full_scale(ears, listening_vad):
    ears.hear(0.5, level=16_000)
    assert 0.4 < listening_vad.loudest < 0.6


# -- what the engine hears ------------------------------------------------------------------


def test_an_utterance_reaches_back_to_its_start(ears):
    ears.hear(1.0)
    ears.open("u", 8000)
    assert ears.spans("u") == [(8000, ears.hearing.position)]


def test_an_utterance_grows_in_stretches_without_gaps_or_overlaps(ears):
    ears.hear(1.0)
    ears.open("u", 8000)
    ears.hear(1.0)
    spans = ears.spans("u")
    assert joins(spans)
    assert all(end - start >= FORWARD_SAMPLES for start, end in spans[1:])
    assert ears.hearing.position - spans[-1][1] < FORWARD_SAMPLES


def test_a_command_of_the_session_never_passes_the_audio_it_is_about(ears):
    ears.open("u", 0)
    ears.hear(0.06)
    ears.hearing.forward()
    assert ears.spans("u")[-1][1] == ears.hearing.position
    told = len(ears.told)
    ears.hearing.forward()
    assert len(ears.told) == told


def test_an_utterance_is_closed_with_all_of_its_audio(ears):
    ears.open("u", 0)
    ears.hear(0.55)
    ears.close("u", 7000, 8200)
    assert joins(ears.spans("u"))
    assert ears.spans("u")[-1][1] >= 8200
    assert ears.told[-1] == EndUtterance(session="s", utterance="u", end=7000)
    told = len(ears.told)
    ears.hear(0.5)
    assert len(ears.told) == told


def test_the_next_utterance_may_begin_where_the_last_one_ended(ears):
    ears.open("u", 0)
    ears.hear(0.5)
    ears.close("u", 6000, 6500)
    ears.open("v", 6500)
    ears.hear(0.3)
    assert ears.spans("v")[0][0] == 6500
    assert joins(ears.spans("v"))


def test_an_utterance_can_not_reach_back_further_than_the_ring(ears):
    ears.hear(12.0)
    ears.open("u", 0)
    assert ears.spans("u") == [(ears.hearing.position - REACH, ears.hearing.position)]


def test_an_utterance_of_which_nothing_is_there_yet_is_only_closed(ears):
    ears.open("u", 500)
    ears.close("u", 500)
    assert ears.told == [EndUtterance(session="s", utterance="u", end=500)]
    assert ears.hearing.recorded("u") is None


def test_no_audio_at_all_is_an_utterance_too(ears):
    assert supply(ears, "u", b"") == 0
    assert ears.told == [EndUtterance(session="s", utterance="u", end=0)]


def test_a_dropped_utterance_is_forgotten(ears):
    ears.open("u", 0)
    ears.hear(0.5)
    ears.drop("u")
    assert ears.told[-1] == DropUtterance(session="s", utterance="u")
    told = len(ears.told)
    ears.hear(0.5)
    assert len(ears.told) == told
    assert ears.hearing.recorded("u") is None


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("audio"), st.integers(1, 3000)),
            st.tuples(st.just("open"), st.integers(0, 20_000)),
            st.tuples(st.just("close"), st.integers(0, 2000)),
            st.tuples(st.just("drop"), st.just(0)),
            st.tuples(st.just("forward"), st.just(0)),
        ),
        max_size=30,
    )
)
def test_in_any_order_the_engine_hears_each_utterance_once_and_whole(make_vad, steps):
    ears, current, starts = Ears(make_vad()), None, {}
    for number, (kind, amount) in enumerate(steps):
        if kind == "audio":
            ears.accept(bytes(2 * amount))
        elif kind == "forward":
            ears.hearing.forward()
        elif kind == "open" and current is None:
            current = f"u{number}"
            starts[current] = max(0, ears.hearing.position - amount)
            ears.open(current, starts[current])
        elif current is not None and kind == "close":
            end = max(starts[current], ears.hearing.position - amount)
            ears.close(current, end)
            spans = ears.spans(current)
            assert (spans[-1][1] if spans else starts[current]) >= end
            current = None
        elif current is not None and kind == "drop":
            ears.drop(current)
            current = None
    for name, start in starts.items():
        spans = ears.spans(name)
        assert joins(spans)
        assert not spans or spans[0][0] == start


# -- what can be retrieved ------------------------------------------------------------------


def test_what_was_said_can_be_retrieved_at_24_khz(ears):
    ears.open("u", 0)
    ears.hear(1.0)
    ears.close("u", 12_000, 16_000 - 64)
    audio = ears.hearing.recorded("u")
    assert len(audio) == pytest.approx(48_000, abs=400)
    assert ears.hearing.recorded("other") is None


def test_what_is_retrieved_ends_with_the_utterance(ears):
    ears.open("u", 0)
    ears.hear(2.0)
    ears.hearing.forward()
    ears.close("u", 7000, 8000)
    assert len(ears.hearing.recorded("u")) == pytest.approx(8000 * 3, abs=100)


def test_the_oldest_audio_makes_room(ears):
    for number in range(5):
        ears.open(f"u{number}", ears.hearing.position)
        ears.hear(6.0, judge=False)
        ears.close(f"u{number}", ears.hearing.position)
    kept = [n for n in range(5) if ears.hearing.recorded(f"u{n}") is not None]
    assert kept == [2, 3, 4]


def test_an_utterance_that_is_too_long_is_not_kept_and_takes_no_memory(ears):
    ears.open("u", 0)
    ears.hear(1.0, judge=False)
    for _ in range(KEPT_SECONDS + 10):
        ears.accept(bytes(48_000), judge=False)
    assert sum(map(len, ears.hearing._recording)) == 0
    ears.close("u", ears.hearing.position)
    assert ears.hearing.recorded("u") is None
    assert joins(ears.spans("u"))
    ears.open("v", ears.hearing.position)
    ears.hear(0.5)
    ears.close("v", ears.hearing.position)
    assert ears.hearing.recorded("v")


# -- audio that comes with an item ----------------------------------------------------------


def supply(ears, name, audio):
    return sum(1 for _ in ears.hearing.supply(name, audio))


def test_a_whole_utterance_is_given_in_slices(ears):
    assert supply(ears, "u", tone(3.5)) == 4
    spans = ears.spans("u")
    assert spans[0][0] == 0 and joins(spans)
    assert spans[-1][1] == 3.5 * HEARD_RATE
    assert ears.told[-1] == EndUtterance(session="s", utterance="u", end=spans[-1][1])
    assert all(len(heard.pcm) <= 2.1 * HEARD_RATE for heard in ears.heard("u"))


def test_a_whole_utterance_is_read_in_the_format_of_the_session(ears):
    ears.hearing.configure(PCMU)
    supply(ears, "u", encode_mulaw(int16_from_bytes(tone(1.0, 8000, 8000))))
    assert ears.spans("u")[-1][1] == HEARD_RATE


def test_a_whole_utterance_beside_an_open_one_disturbs_it_not(ears):
    ears.open("v", 0)
    ears.hear(0.3)
    supply(ears, "u", tone(0.5))
    ears.hear(0.3)
    assert joins(ears.spans("v"))
    assert ears.spans("u")[-1][1] == HEARD_RATE // 2


# -- the real detector ----------------------------------------------------------------------


@pytest.mark.weights
def test_the_real_detector_hears_where_somebody_speaks(silero):
    ears = Ears(silero)
    question = read_wav(QUESTION.read_bytes()).mono()
    speech = Resampler(question.rate, 24_000, np.int16)
    samples = np.concatenate((speech.push(to_int16(question.samples)), speech.flush()))
    silence = np.zeros(24_000, np.int16)
    sound = bytes_from_int16(np.concatenate((silence, samples, silence)))
    judged = []
    for data in ears.hearing.slices(sound):
        judged += [e for e in ears.accept(data) if isinstance(e, VoiceProbability)]
    voiced = [event.end / HEARD_RATE for event in judged if event.probability >= 0.5]
    assert 1.0 < voiced[0] < 1.5
    assert len(voiced) * FRAME > 0.5 * len(question)
    assert all(event.probability < 0.5 for event in judged if event.end < HEARD_RATE)
    assert voiced[-1] < 1.0 + len(question) / question.rate + 0.2
