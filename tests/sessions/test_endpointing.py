"""Turns from probabilities: when they begin, pause and end, to the frame."""

import math

import pytest
from hypothesis import given, settings, strategies as st

from duologue.sessions.endpointing import (
    FRAME,
    JUDGEMENTS,
    PATIENCE,
    RATE,
    STALL,
    TAIL,
    Ended,
    Endpointer,
    JudgementDue,
    Paused,
    Resumed,
    Started,
)
from duologue.sessions.session_config import SemanticVad, ServerVad, SessionLimits
from duologue.sessions.turns import User

SECONDS = FRAME / RATE
VOICE, SILENCE = 0.9, 0.01


class Ear:
    """An endpointer, its clock and its position."""

    def __init__(self, detection, limits=None) -> None:
        self.endpointer = Endpointer(detection, limits or SessionLimits())
        self.now = 0.0
        self.position = 0

    def frames(self, count, probability, pace=1.0):
        """So many frames, `pace` times as fast as real time."""
        edges = []
        for _ in range(count):
            self.now += SECONDS / pace
            self.position += FRAME
            self.endpointer.received(self.now)
            edges += self.endpointer.frame(self.position, probability, self.now)
        return edges

    def wait(self, seconds):
        """No samples for a while; every deadline is kept."""
        edges, until = [], self.now + seconds
        while (deadline := self.endpointer.next_deadline()) <= until:
            self.now = max(deadline, self.now)
            edges += self.endpointer.handle_timer(self.now)
            assert self.endpointer.next_deadline() > self.now
        self.now = until
        return edges

    def judged(self, at, probability):
        return self.endpointer.judged(at, probability, self.now)


def kinds(edges):
    return [type(edge) for edge in edges]


def frames_of(seconds):
    """The fewest frames that last so long."""
    return math.ceil(round(seconds / SECONDS, 6))


# -- beginning ------------------------------------------------------------------------------


def test_speech_begins_with_its_first_voiced_frame():
    ear = Ear(ServerVad())
    assert ear.frames(10, SILENCE) == []
    assert ear.frames(1, VOICE) == [Started(10 * FRAME)]
    assert ear.frames(10, VOICE) == []


def test_the_threshold_itself_is_voice():
    assert kinds(Ear(ServerVad(threshold=0.7)).frames(1, 0.7)) == [Started]
    assert Ear(ServerVad(threshold=0.7)).frames(1, 0.69) == []


def test_a_voiced_stretch_goes_on_a_little_below_the_threshold():
    ear = Ear(ServerVad(threshold=0.5))
    ear.frames(3, VOICE)
    assert ear.frames(40, 0.36) == []
    assert Ended in kinds(ear.frames(40, 0.34))


def test_what_does_not_reach_the_threshold_does_not_end_a_pause():
    ear = Ear(ServerVad(threshold=0.5))
    ear.frames(3, VOICE)
    ear.frames(2, SILENCE)
    assert Ended in kinds(ear.frames(40, 0.4))


def test_without_turn_detection_nothing_is_found():
    ear = Ear(None)
    assert ear.frames(50, VOICE) == []
    assert ear.endpointer.state is User.SILENT
    assert ear.endpointer.next_deadline() == math.inf


# -- pausing and ending ---------------------------------------------------------------------


def test_a_turn_pauses_after_the_time_for_speculation_and_ends_after_the_silence():
    ear = Ear(ServerVad(silence_duration_ms=500))
    ear.frames(10, VOICE)
    spoken = ear.position + TAIL
    assert ear.frames(frames_of(0.2) - 1, SILENCE) == []
    assert ear.frames(1, SILENCE) == [Paused(spoken)]
    assert ear.frames(frames_of(0.5) - frames_of(0.2) - 1, SILENCE) == []
    assert ear.frames(1, SILENCE) == [Ended(spoken, ear.position)]


@pytest.mark.parametrize("silence_ms", [32, 64, 200, 320, 500, 2000])
def test_server_vad_never_ends_a_turn_before_its_silence(silence_ms):
    ear = Ear(ServerVad(silence_duration_ms=silence_ms))
    ear.frames(5, VOICE)
    needed = frames_of(silence_ms / 1000)
    assert Ended not in kinds(ear.frames(needed - 1, SILENCE))
    assert Ended in kinds(ear.frames(1, SILENCE))


def test_a_short_silence_pauses_and_ends_at_once():
    ear = Ear(ServerVad(silence_duration_ms=100))
    ear.frames(5, VOICE)
    assert kinds(ear.frames(4, SILENCE)) == [Paused, Ended]


def test_no_silence_at_all_ends_a_turn_with_its_first_silent_frame():
    ear = Ear(ServerVad(silence_duration_ms=0))
    ear.frames(5, VOICE)
    assert ear.endpointer.handle_timer(ear.now + 0.01) == []
    assert kinds(ear.frames(1, SILENCE)) == [Paused, Ended]


def test_who_goes_on_after_a_pause_resumes():
    ear = Ear(ServerVad())
    ear.frames(5, VOICE)
    ear.frames(8, SILENCE)
    assert ear.endpointer.paused
    assert ear.frames(1, VOICE) == [Resumed()]
    assert not ear.endpointer.paused


def test_who_goes_on_before_the_pause_was_noticed_has_not_resumed():
    ear = Ear(ServerVad())
    ear.frames(5, VOICE)
    ear.frames(3, SILENCE)
    assert ear.frames(1, VOICE) == []


def test_after_a_pause_the_silence_counts_from_the_start():
    ear = Ear(ServerVad())
    ear.frames(5, VOICE)
    ear.frames(14, SILENCE)
    ear.frames(1, VOICE)
    assert Ended not in kinds(ear.frames(frames_of(0.5) - 1, SILENCE))


def test_a_turn_that_the_client_ended_is_forgotten():
    ear = Ear(ServerVad())
    ear.frames(5, VOICE)
    ear.frames(8, SILENCE)
    ear.endpointer.reset()
    assert ear.frames(40, SILENCE) == []
    assert ear.endpointer.next_deadline() == math.inf
    assert kinds(ear.frames(1, VOICE)) == [Started]


# -- media time -----------------------------------------------------------------------------


@pytest.mark.parametrize("pace", [0.5, 1.0, 4.0, 1000.0])
def test_silence_is_counted_in_media_time_however_fast_it_is_sent(pace):
    ear = Ear(ServerVad())
    ear.frames(10, VOICE, pace)
    edges = ear.frames(30, SILENCE, pace)
    voiced = 10 * FRAME
    assert edges == [
        Paused(voiced + TAIL),
        Ended(voiced + TAIL, voiced + frames_of(0.5) * FRAME),
    ]


def test_when_no_samples_come_time_itself_is_silence():
    ear = Ear(ServerVad())
    ear.frames(10, VOICE)
    heard = ear.position
    assert ear.wait(0.19) == []
    assert ear.wait(0.02) == [Paused(heard)]
    assert ear.wait(0.28) == []
    assert ear.wait(0.02) == [Ended(heard, heard)]


def test_a_stall_goes_on_from_the_silence_that_was_heard():
    ear = Ear(ServerVad())
    ear.frames(10, VOICE)
    ear.frames(10, SILENCE)
    left = 0.5 - 10 * SECONDS
    assert ear.wait(left - 0.01) == []
    assert kinds(ear.wait(0.02)) == [Ended]


def test_a_gap_between_packets_that_is_shorter_than_a_stall_counts_for_nothing():
    ear = Ear(ServerVad(silence_duration_ms=200))
    ear.frames(10, VOICE)
    for _ in range(20):
        assert ear.wait(STALL - SECONDS - 0.001) == []
        assert ear.frames(1, VOICE) == []


def test_samples_too_few_for_a_frame_still_end_a_stall():
    ear = Ear(ServerVad())
    ear.frames(10, VOICE)
    for _ in range(10):
        assert ear.wait(0.09) == []
        ear.endpointer.received(ear.now)


def test_voice_after_a_stall_resumes_the_turn():
    ear = Ear(ServerVad())
    ear.frames(10, VOICE)
    assert kinds(ear.wait(0.3)) == [Paused]
    assert ear.frames(1, VOICE) == [Resumed()]


def test_a_silent_user_needs_no_timer():
    ear = Ear(ServerVad())
    ear.frames(10, SILENCE)
    assert ear.endpointer.next_deadline() == math.inf
    assert ear.endpointer.handle_timer(1e9) == []


# -- judgements -----------------------------------------------------------------------------


def test_the_detector_is_asked_at_fixed_silences_about_what_was_heard_so_far():
    ear = Ear(SemanticVad("low"))
    ear.frames(10, VOICE)
    due = []
    for _ in range(40):
        for edge in ear.frames(1, SILENCE):
            if isinstance(edge, JudgementDue):
                due.append(edge.at)
                assert ear.judged(edge.at, 0.1) == []
    assert due == [(10 + frames_of(silence)) * FRAME for silence in JUDGEMENTS]


def test_the_detector_is_not_asked_again_while_its_answer_is_due():
    ear = Ear(SemanticVad("low"))
    ear.frames(10, VOICE)
    first, *more = [e for e in ear.frames(20, SILENCE) if isinstance(e, JudgementDue)]
    assert more == []
    late = ear.judged(first.at, 0.1)
    assert late == [JudgementDue(30 * FRAME)]
    assert ear.judged(late[0].at, 0.1) == []


def test_a_pause_that_ends_before_its_judgement_does_not_keep_the_next_from_being_asked_about():
    ear = Ear(SemanticVad("low"))
    ear.frames(10, VOICE)
    assert JudgementDue in kinds(ear.frames(8, SILENCE))
    ear.frames(5, VOICE)
    assert JudgementDue in kinds(ear.frames(8, SILENCE))


def test_judgements_that_were_missed_in_a_stall_are_asked_for_once():
    ear = Ear(SemanticVad("low"))
    ear.frames(10, VOICE)
    edges = ear.endpointer.handle_timer(ear.now + 1.0)
    assert kinds(edges) == [Paused, JudgementDue]


@pytest.mark.parametrize("eagerness", list(PATIENCE))
def test_a_doubtful_turn_ends_with_the_patience(eagerness):
    ear = Ear(SemanticVad(eagerness))
    ear.frames(10, VOICE)
    needed = frames_of(PATIENCE[eagerness])
    for _ in range(needed - 1):
        early = ear.frames(1, SILENCE)
        assert Ended not in kinds(early)
        for edge in early:
            if isinstance(edge, JudgementDue):
                assert ear.judged(edge.at, 0.1) == []
    assert kinds(ear.frames(1, SILENCE)) == [Ended]


def test_a_sure_judgement_releases_the_turn_after_the_least_silence():
    ear = Ear(SemanticVad())
    ear.frames(10, VOICE)
    due = ear.frames(7, SILENCE)[-1]
    assert ear.judged(due.at, 0.5) == []
    assert ear.frames(frames_of(0.45) - 8, SILENCE) == []
    assert kinds(ear.frames(1, SILENCE)) == [Ended]


def test_a_judgement_that_comes_late_releases_the_turn_at_once():
    ear = Ear(SemanticVad())
    ear.frames(10, VOICE)
    due = ear.frames(7, SILENCE)[-1]
    ear.frames(13, SILENCE)
    assert kinds(ear.judged(due.at, 0.9)) == [Ended]


def test_once_it_is_sure_the_detector_is_not_asked_again():
    ear = Ear(SemanticVad("low"), SessionLimits(release_after=2.0))
    ear.frames(10, VOICE)
    due = ear.frames(7, SILENCE)[-1]
    ear.judged(due.at, 0.9)
    assert JudgementDue not in kinds(ear.frames(50, SILENCE))


def test_a_judgement_of_an_earlier_pause_is_ignored():
    ear = Ear(SemanticVad())
    ear.frames(10, VOICE)
    due = ear.frames(7, SILENCE)[-1]
    ear.frames(5, VOICE)
    assert ear.judged(due.at, 0.99) == []
    ear.frames(7, SILENCE)
    assert ear.judged(due.at, 0.99) == []
    assert Ended not in kinds(ear.frames(frames_of(0.45) - 6, SILENCE))


def test_a_judgement_that_comes_when_the_turn_is_over_is_ignored():
    ear = Ear(SemanticVad("high"))
    ear.frames(10, VOICE)
    due = ear.frames(7, SILENCE)[-1]
    ear.frames(20, SILENCE)
    assert ear.judged(due.at, 0.99) == []


# -- changing the rules in the middle -------------------------------------------------------


def test_a_turn_under_way_goes_on_under_new_rules():
    ear = Ear(ServerVad(silence_duration_ms=2000))
    ear.frames(10, VOICE)
    ear.frames(20, SILENCE)
    ear.endpointer.configure(ServerVad(silence_duration_ms=500))
    assert kinds(ear.frames(1, SILENCE)) == [Ended]


def test_a_new_threshold_holds_from_the_next_frame():
    ear = Ear(ServerVad(threshold=0.3))
    assert kinds(ear.frames(1, 0.4)) == [Started]
    ear.endpointer.configure(ServerVad(threshold=0.8))
    assert Ended in kinds(ear.frames(20, 0.4))


def test_a_sure_judgement_means_nothing_to_a_fixed_silence():
    ear = Ear(SemanticVad("low"))
    ear.frames(10, VOICE)
    due = ear.frames(7, SILENCE)[-1]
    ear.judged(due.at, 0.9)
    ear.endpointer.configure(ServerVad(silence_duration_ms=1000))
    assert ear.judged(due.at, 0.9) == []
    assert Ended not in kinds(ear.frames(frames_of(1.0) - 8, SILENCE))
    assert kinds(ear.frames(1, SILENCE)) == [Ended]


def test_turning_detection_off_forgets_the_turn():
    ear = Ear(ServerVad())
    ear.frames(10, VOICE)
    ear.endpointer.configure(None)
    assert ear.endpointer.state is User.SILENT
    assert ear.wait(5.0) == []


# -- always ---------------------------------------------------------------------------------

DETECTIONS = st.one_of(
    st.none(),
    st.builds(
        ServerVad,
        threshold=st.floats(0.05, 1),
        silence_duration_ms=st.integers(0, 3000),
    ),
    st.sampled_from([SemanticVad(eagerness) for eagerness in PATIENCE]),
)
STEPS = st.one_of(
    st.tuples(st.just("frames"), st.integers(1, 20), st.floats(0, 1)),
    st.tuples(st.just("wait"), st.floats(0, 2)),
    st.tuples(st.just("judge"), st.integers(0, 30), st.floats(0, 1)),
    st.tuples(st.just("configure"), DETECTIONS),
    st.tuples(st.just("reset")),
)


@settings(max_examples=300, deadline=None)
@given(detection=DETECTIONS, steps=st.lists(STEPS, max_size=25))
def test_edges_come_in_an_order_that_makes_sense(detection, steps):
    ear = Ear(detection)
    speaking = paused = False
    last = 0
    for kind, *what in steps:
        match kind:
            case "frames":
                edges = ear.frames(*what)
            case "wait":
                edges = ear.wait(*what)
            case "judge":
                edges = ear.judged(max(0, ear.position - what[0] * FRAME), what[1])
            case "configure":
                ear.endpointer.configure(what[0])
                edges = []
                if what[0] is None:
                    speaking = paused = False
            case _:
                ear.endpointer.reset()
                speaking = paused = False
                edges = []
        for edge in edges:
            match edge:
                case Started(at):
                    assert not speaking and at >= last - FRAME
                    speaking = True
                case Paused(until):
                    assert speaking and not paused and until <= ear.position
                    paused = True
                case Resumed():
                    assert speaking and paused
                    paused = False
                case JudgementDue(at):
                    assert speaking and paused and at <= ear.position
                case Ended(until, end):
                    assert speaking and paused and until <= end <= ear.position
                    speaking = paused = False
                    last = end
        assert ear.endpointer.paused is paused
        assert (ear.endpointer.state is not User.SILENT) is speaking


@settings(max_examples=200, deadline=None)
@given(
    probabilities=st.lists(st.floats(0, 1), max_size=120),
    gaps=st.lists(st.floats(0, 0.4), max_size=20),
)
def test_silence_always_ends_a_turn(probabilities, gaps):
    ear = Ear(ServerVad())
    edges = []
    for index, probability in enumerate(probabilities):
        edges += ear.wait(gaps[index % len(gaps)] if gaps else 0.0)
        edges += ear.frames(1, probability)
    edges += ear.wait(60.0)
    turns = [type(edge) for edge in edges if isinstance(edge, Started | Ended)]
    assert turns == [Started, Ended] * (len(turns) // 2)
    assert ear.endpointer.state is User.SILENT
