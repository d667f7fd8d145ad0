"""The user's side: the buffer, utterances, changes in the middle, transcripts, silence."""

import math

import pytest

from duologue.engines import engine
from duologue.sessions import effects, events
from duologue.sessions.endpointing import RATE, REACH
from duologue.sessions.items import InputAudio, InputText, MessageItem
from duologue.sessions.session_config import (
    LOGPROBS,
    SemanticVad,
    ServerVad,
    SessionLimits,
    SessionPatch,
    Transcription,
    TurnDetectionPatch,
    TurnPolicy,
)
from duologue.sessions.turns import Assistant

ANY = Transcription("any")
MANUAL = SessionPatch(turn_detection=None)
SERVER_VAD = SessionPatch(turn_detection=TurnDetectionPatch(ServerVad, {}))


def update(t, patch):
    t.receive(events.UpdateSession(None, patch))


def ask(t, **params):
    return t.receive(events.CreateResponse(None, events.ResponseParams(**params)))


def answered(t, *clauses, ends=True):
    t.receive(events.CreateItem(None, MessageItem("", "user", (InputText("Tell me."),))))
    ask(t)
    for text, ms in clauses:
        t.says(text, ms)
    if ends:
        t.ends()


def partial(t, utterance, delta):
    t.receive(engine.TranscriptDelta(session="s", utterance=utterance, delta=delta))


def committed(t):
    return [item.item_id for item in t.all(effects.InputCommitted)]


def opened(t):
    return t.all(effects.OpenUtterance)


def starts(t):
    return [started.audio_start_ms for started in t.all(effects.SpeechStarted)]


# -- where utterances begin and end ---------------------------------------------------------


def test_an_utterance_begins_its_padding_before_the_voice(talk):
    t = talk(turn_detection=ServerVad(prefix_padding_ms=100))
    t.pause(1.024)
    t.speak(0.1)
    assert starts(t) == [924]
    assert opened(t)[0].start == 924 * 16


def test_semantic_turns_have_a_padding_of_their_own(talk):
    t = talk(turn_detection=SemanticVad())
    t.pause(1.024)
    t.speak(0.1)
    assert starts(t) == [724]


def test_padding_never_reaches_into_the_utterance_before(talk):
    t = talk(turn_detection=ServerVad(prefix_padding_ms=5000, create_response=False))
    t.speak(0.5)
    t.pause(0.6)
    t.speak(0.5)
    first_end = t.all(effects.CloseUtterance)[0].audio_end
    assert opened(t)[1].start == first_end


def test_nothing_reaches_back_further_than_what_is_still_there(talk):
    t = talk(turn_detection=ServerVad(prefix_padding_ms=60_000))
    t.pause(30.0)
    t.speak(0.1)
    at = opened(t)[0].start
    assert abs(t.position - REACH - at) <= RATE // 10


# -- the buffer -----------------------------------------------------------------------------


def test_where_turns_end_by_themselves_there_is_always_room(talk):
    t = talk(SessionLimits(max_buffer_seconds=2.0))
    for _ in range(100):
        t.speak(0.096)
        assert t.session.room() == 2 * RATE
    assert len(committed(t)) >= 4
    assert t.errors == []


def test_a_long_silence_fills_no_buffer(talk):
    t = talk(SessionLimits(max_buffer_seconds=20.0, idle_timeout=1e9))
    t.pause(60.0)
    update(t, MANUAL)
    assert t.session.room() > 19 * RATE
    t.speak(0.5)
    t.receive(events.CommitAudio(None))
    assert t.errors == []


def test_a_commit_without_speech_commits_what_is_still_there(talk):
    t = talk()
    t.pause(30.0)
    t.receive(events.CommitAudio(None))
    assert len(committed(t)) == 1
    assert t.position - opened(t)[0].start <= REACH
    t.receive(events.CommitAudio(None))
    assert t.errors == ["input_audio_buffer_commit_empty"]


def test_a_commit_throws_the_draft_away(talk):
    t = talk()
    t.speak(1.0)
    t.pause(0.3)
    t.receive(events.CommitAudio(None))
    assert t.commands(engine.CancelResponse)
    t.pause(1.0)
    assert len(committed(t)) == 1
    assert not t.all(effects.ResponseCreated)


# -- from hand to voice and back ------------------------------------------------------------


def test_turning_manual_in_the_middle_of_speech_keeps_the_utterance_open(talk):
    t = talk()
    t.speak(0.5)
    item = t.all(effects.SpeechStarted)[0].item_id
    update(t, MANUAL)
    t.pause(2.0)
    assert committed(t) == []
    t.receive(events.CommitAudio(None))
    assert committed(t) == [item]
    assert len(opened(t)) == 1
    assert not t.all(effects.SpeechStopped)


def test_turning_manual_in_a_pause_throws_the_draft_away(talk):
    t = talk()
    t.speak(0.5)
    t.pause(0.3)
    update(t, MANUAL)
    assert t.commands(engine.CancelResponse)
    t.pause(2.0)
    assert not t.all(effects.ResponseCreated)


def test_turning_manual_in_silence_starts_close_to_now(talk):
    t = talk()
    t.pause(5.0)
    update(t, MANUAL)
    t.hear(0.32, 0.0)
    before = t.position - opened(t)[0].start
    assert before <= (0.32 + 0.3) * RATE
    t.receive(events.CommitAudio(None))
    assert t.errors == []


def test_turning_to_voice_detection_forgets_what_was_not_committed(talk):
    t = talk(turn_detection=None)
    t.speak(1.0)
    update(t, SERVER_VAD)
    assert t.all(effects.DropUtterance)[0].utterance == opened(t)[0].utterance
    t.speak(0.5)
    t.pause(0.6)
    assert committed(t) == [opened(t)[1].utterance]


def test_turning_to_voice_detection_before_anything_was_said_drops_nothing(talk):
    t = talk(turn_detection=None)
    update(t, SERVER_VAD)
    assert not t.all(effects.DropUtterance)


def test_an_overlap_that_nobody_judges_any_more_is_not_announced(talk):
    t = talk(turn_policy=TurnPolicy.BACKCHANNEL_AWARE)
    answered(t, ("Long.", 9000))
    t.speak(0.2)
    update(t, MANUAL)
    t.speak(1.0)
    assert t.all(effects.SpeechStarted) == []
    assert t.session.next_deadline() > t.now


def test_an_overlap_of_an_answer_that_ends_meanwhile_is_a_turn(talk):
    t = talk(turn_policy=TurnPolicy.BACKCHANNEL_AWARE)
    answered(t, ("Short.", 300))
    t.wait(0.2)
    t.speak(0.2)
    t.pause(0.7)
    assert len(t.all(effects.SpeechStarted)) == len(committed(t)) == 1
    assert len(t.all(effects.ResponseCreated)) == 2


# -- transcripts ----------------------------------------------------------------------------


def test_words_of_an_overlap_are_told_once_it_has_proved_to_be_a_turn(talk):
    t = talk(turn_policy=TurnPolicy.BACKCHANNEL_AWARE, transcription=ANY)
    answered(t, ("Long.", 9000))
    t.speak(0.2)
    name = opened(t)[0].utterance
    partial(t, name, "wait ")
    assert not t.all(effects.TranscriptionDelta)
    t.speak(0.4)
    partial(t, name, "please")
    assert [d.delta for d in t.all(effects.TranscriptionDelta)] == ["wait ", "please"]


def test_words_of_an_overlap_stay_untold_where_nobody_asked_for_words(talk):
    t = talk(turn_policy=TurnPolicy.BACKCHANNEL_AWARE)
    answered(t, ("Long.", 9000))
    t.speak(0.2)
    partial(t, opened(t)[0].utterance, "wait ")
    t.speak(0.4)
    assert t.all(effects.SpeechStarted) and not t.all(effects.TranscriptionDelta)


def test_partial_words_are_told_in_push_to_talk_too(talk):
    t = talk(turn_detection=None, transcription=ANY)
    t.speak(0.5)
    partial(t, opened(t)[0].utterance, "hel")
    t.receive(events.CommitAudio(None))
    partial(t, opened(t)[0].utterance, "lo")
    assert [d.delta for d in t.all(effects.TranscriptionDelta)] == ["hel", "lo"]


def test_partial_words_are_not_told_to_who_asked_for_none(talk):
    t = talk()
    t.speak(0.5)
    partial(t, opened(t)[0].utterance, "hel")
    assert not t.all(effects.TranscriptionDelta)


def test_words_of_an_utterance_that_was_dropped_are_not_told(talk):
    t = talk(transcription=ANY)
    t.speak(0.5)
    t.receive(events.ClearAudio(None))
    partial(t, opened(t)[0].utterance, "hel")
    t.receive(
        engine.TranscriptFinal(
            session="s", utterance=opened(t)[0].utterance, text="hello", seconds=1.0
        )
    )
    assert not t.all(effects.TranscriptionDelta) and not t.all(effects.TranscriptionCompleted)


def test_probabilities_of_words_are_shown_to_who_asked_for_them(talk):
    token = engine.TokenLogprob("hi", -0.1)
    for include, shown in (((), None), ((LOGPROBS,), (token,))):
        t = talk(transcription=ANY, include=include)
        t.speak(0.5)
        t.pause(0.6)
        t.receive(
            engine.TranscriptFinal(
                session="s",
                utterance=committed(t)[0],
                text="hi",
                seconds=0.5,
                logprobs=(token,),
            )
        )
        assert t.all(effects.TranscriptionCompleted)[0].logprobs == shown


def test_a_transcript_that_fails_is_told_and_leaves_silence(talk):
    t = talk(transcription=ANY)
    t.speak(0.5)
    t.pause(0.6)
    failed = engine.TranscriptFailed(session="s", utterance=committed(t)[0], message="no")
    t.receive(failed)
    t.receive(failed)
    (told,) = t.all(effects.TranscriptionFailed)
    assert (told.error.code, told.error.message) == ("engine_error", "no")
    assert t.session.history.get(committed(t)[0]).content == (InputAudio(""),)


def test_a_transcript_that_fails_is_not_told_to_who_asked_for_none(talk):
    t = talk()
    t.speak(0.5)
    t.pause(0.6)
    t.receive(engine.TranscriptFailed(session="s", utterance=committed(t)[0], message="no"))
    assert not t.all(effects.TranscriptionFailed)


def test_what_is_committed_without_an_engine_has_no_transcript_and_says_so(talk):
    t = talk(turn_detection=None, transcription=ANY)
    t.speak(0.5)
    t.receive(events.EngineLost())
    t.receive(events.CommitAudio(None))
    (told,) = t.all(effects.TranscriptionFailed)
    assert told.item_id == committed(t)[0]
    item = MessageItem("a", "user", (InputAudio(None),))
    t.receive(events.CreateItem(None, item, audio=bytes(100)))
    assert [failed.item_id for failed in t.all(effects.TranscriptionFailed)][1:] == ["a"]


def test_a_deleted_item_is_not_transcribed(talk):
    t = talk(transcription=ANY)
    t.speak(0.5)
    t.pause(0.6)
    t.receive(events.DeleteItem(None, committed(t)[0]))
    t.transcribes("hello")
    assert not t.all(effects.TranscriptionCompleted)


def test_a_judgement_of_another_utterance_is_ignored(talk):
    t = talk(turn_detection=SemanticVad())
    t.speak(1.0)
    t.pause(0.256)
    at = t.commands(engine.JudgeTurn)[0].at
    t.receive(engine.TurnJudged(session="s", utterance="other", at=at, probability=1.0))
    t.pause(0.256)
    assert not committed(t)


def test_without_an_engine_nobody_is_asked_for_a_judgement(talk):
    t = talk(turn_detection=SemanticVad("high"))
    t.speak(1.0)
    t.receive(events.EngineLost())
    t.pause(0.7)
    assert not t.commands(engine.JudgeTurn)
    assert committed(t)


# -- silence --------------------------------------------------------------------------------

PROMPTING = ServerVad(idle_timeout_ms=5000)


def test_the_silence_that_is_told_is_the_one_after_the_answer(talk):
    t = talk(turn_detection=PROMPTING)
    answered(t, ("One.", 1000))
    t.pause(20.0)
    timed_out = t.all(effects.InputTimedOut)[0]
    assert timed_out.audio_end_ms - timed_out.audio_start_ms == pytest.approx(5000, abs=40)
    assert timed_out.audio_start_ms == pytest.approx(1000, abs=80)


def test_the_silence_that_is_told_never_reaches_into_what_was_said(talk):
    t = talk(turn_detection=PROMPTING)
    t.speak(1.0)
    t.pause(0.6)
    t.says("One.", 100)
    t.ends()
    t.wait(6.0)
    end = t.all(effects.SpeechStopped)[0].audio_end_ms
    timed_out = t.all(effects.InputTimedOut)[0]
    assert timed_out.audio_start_ms == end <= timed_out.audio_end_ms


def test_a_user_who_spoke_is_not_silent(talk):
    t = talk(turn_detection=ServerVad(idle_timeout_ms=3000, create_response=False))
    answered(t, ("One.", 500))
    t.pause(2.0)
    t.speak(3.0)
    t.pause(10.0)
    assert committed(t) and not t.all(effects.InputTimedOut)


def test_the_silence_counts_from_the_last_answer_not_from_an_earlier_one(talk):
    t = talk(turn_detection=PROMPTING)
    answered(t, ("One.", 500))
    t.pause(4.0)
    answered(t, ("Two.", 500), ends=False)
    t.receive(events.CancelResponse(None))
    t.ends("cancelled")
    t.pause(4.0)
    assert not t.all(effects.InputTimedOut)
    t.pause(2.0)
    assert len(t.all(effects.InputTimedOut)) == 1


def test_a_user_who_was_prompted_is_prompted_again_after_the_answer(talk):
    t = talk(turn_detection=PROMPTING)
    answered(t, ("One.", 500))
    t.pause(6.0)
    t.says("Are you there?", 500)
    t.ends()
    t.pause(6.0)
    assert len(t.all(effects.InputTimedOut)) == 2


def test_nobody_is_prompted_before_the_first_answer(talk):
    t = talk(turn_detection=PROMPTING)
    t.pause(20.0)
    assert not t.all(effects.InputTimedOut)


def test_nobody_is_prompted_while_there_is_no_engine(talk):
    t = talk(turn_detection=PROMPTING)
    answered(t, ("One.", 500))
    t.wait(1.0)
    t.receive(events.EngineLost())
    t.wait(20.0)
    assert t.errors == []
    t.receive(events.EngineReady())
    t.wait(0.0)
    assert len(t.all(effects.InputTimedOut)) == 1


@pytest.mark.parametrize(
    "config",
    [
        {"turn_detection": ServerVad()},
        {"turn_detection": SemanticVad()},
        {"turn_detection": None},
        {"turn_detection": PROMPTING, "kind": "transcription"},
    ],
    ids=["no timeout", "semantic", "manual", "transcription"],
)
def test_who_did_not_ask_for_it_is_not_prompted(talk, config):
    t = talk(**config)
    t.session.answering.quiet_since = 0.0
    t.wait(100.0)
    assert not t.all(effects.InputTimedOut)
    assert t.session.listening.next_deadline() == math.inf


def test_a_barge_in_makes_the_silence_count_anew(talk):
    t = talk(turn_detection=PROMPTING)
    answered(t, ("Long.", 9000))
    t.wait(1.0)
    t.speak(0.5)
    assert t.session.answering.state is Assistant.QUIET
    t.receive(events.ClearAudio(None))
    t.pause(4.0)
    assert not t.all(effects.InputTimedOut)
    t.pause(2.0)
    assert t.all(effects.InputTimedOut)


# -- the first sign of a voice --------------------------------------------------------------


def hushed(talk, **more):
    """An answer that is heard, and a frame that may be speech."""
    t = talk(plays_out=True, **more)
    answered(t, ("Long.", 5000))
    t.wait(0.5)
    t.hear(0.032, 0.2)
    return t


def test_the_assistant_is_hushed_by_what_may_be_speech_and_goes_on_when_it_is_not(talk):
    t = hushed(talk)
    assert t.all(effects.DuckPlayout)
    assert t.all(effects.RestorePlayout) == []
    t.hear(0.25, 0.2)
    assert len(t.all(effects.DuckPlayout)) == len(t.all(effects.RestorePlayout)) == 1
    assert t.all(effects.SpeechStarted) == t.all(effects.FlushPlayout) == []
    assert t.session.answering.state is Assistant.SPEAKING


def test_without_more_sound_it_goes_on_too(talk):
    t = hushed(talk)
    t.wait(0.25)
    assert t.all(effects.RestorePlayout)


def test_a_confirmed_suspicion_is_an_interruption(talk, named):
    t = hushed(talk)
    t.speak(0.1)
    assert t.all(effects.SpeechStarted)
    steered = [name for name in named(t.done) if name.endswith("Playout")]
    assert steered == ["DuckPlayout", "FlushPlayout"]
    t.wait(0.5)
    assert t.all(effects.RestorePlayout) == []


def test_noise_does_not_chop_up_an_answer(talk):
    t = hushed(talk)
    t.hear(1.0, 0.2)
    assert len(t.all(effects.DuckPlayout)) == 1


def test_a_suspicion_that_is_confirmed_may_still_be_judged(talk, named):
    t = hushed(talk, turn_policy=TurnPolicy.BACKCHANNEL_AWARE)
    t.speak(0.1)
    t.pause(0.7)
    steered = [name for name in named(t.done) if name.endswith("Playout")]
    assert steered == ["DuckPlayout", "RestorePlayout"]
    assert t.session.answering.state is Assistant.SPEAKING


def test_nobody_is_hushed_who_would_not_be_interrupted(talk):
    t = hushed(talk, turn_detection=ServerVad(interrupt_response=False))
    assert t.all(effects.DuckPlayout) == []
    t = hushed(talk, turn_policy=TurnPolicy.OVERLAP)
    assert t.all(effects.DuckPlayout) == []


def test_where_the_client_plays_out_nobody_is_hushed(talk):
    t = talk()
    answered(t, ("Long.", 5000))
    t.wait(0.5)
    t.hear(0.032, 0.2)
    t.wait(0.5)
    assert t.all(effects.DuckPlayout) == t.all(effects.RestorePlayout) == []
