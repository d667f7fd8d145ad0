from duologue.engines.engine import (
    Respond,
    ResponseEnded,
    ResponseRequest,
    SpeechGenerated,
)
from duologue.sessions import effects
from duologue.sessions.session_config import AudioFormat
from duologue.sessions.turn_times import ANSWERS_KEPT, TurnTimes, TurnWatch

REQUEST = ResponseRequest(instructions="", messages=())


def ask(generation: int) -> effects.ToEngine:
    return effects.ToEngine(Respond(generation, REQUEST, session="s"))


def delta(ms: int) -> effects.AudioDelta:
    return effects.AudioDelta("r", "i", 0, 0, bytes(48 * ms), AudioFormat.PCM)


def done(status: effects.ResponseStatus = "completed") -> effects.ResponseDone:
    return effects.ResponseDone(
        effects.ResponseView("r", status, None, "audio", "v", AudioFormat.PCM, None, None)
    )


def turn_of(watch: TurnWatch, end: effects.ResponseDone, now: float) -> TurnTimes:
    turn = watch.effect(end, now)
    assert turn is not None
    return turn


def test_speech_that_runs_ahead_leaves_no_gap() -> None:
    watch = TurnWatch()
    for number in range(20):
        watch.effect(delta(100), 0.05 * number)
    turn = turn_of(watch, done(), 2.0)
    assert (turn.gaps, round(turn.sent_s, 3)) == (0, 2.0)


def test_a_listener_who_runs_dry_hears_a_gap_and_is_behind_from_then_on() -> None:
    watch = TurnWatch()
    for now in (0.0, 0.1, 0.5, 0.6):
        watch.effect(delta(100), now)
    turn = turn_of(watch, done(), 0.7)
    assert turn.gaps == 1
    assert round(turn.gap_s, 3) == 0.3


def test_a_draft_that_was_made_before_is_released_at_once() -> None:
    watch = TurnWatch()
    watch.effect(ask(1), 10.0)
    watch.event(SpeechGenerated(1, bytes(4800), session="s"), 10.2)
    watch.effect(effects.SpeechStopped(0, "i"), 10.5)
    watch.effect(delta(100), 10.6)
    turn = turn_of(watch, done(), 11.0)
    assert turn.begin == 10.0
    stages = {name: (round(start, 3), round(end, 3)) for name, start, end in turn.waterfall()}
    assert stages["engine"] == (0.0, 0.2)
    assert stages["release"] == (0.2, 0.6)


def test_a_turn_that_was_taken_up_again_begins_anew() -> None:
    watch = TurnWatch()
    watch.effect(effects.SpeechStopped(0, "i"), 1.0)
    watch.effect(effects.SpeechStarted(0, "i"), 2.0)
    watch.effect(effects.SpeechStopped(0, "i"), 3.0)
    watch.effect(ask(1), 3.1)
    assert turn_of(watch, done(), 4.0).begin == 3.0


def test_who_cut_an_answer_short_is_told_apart() -> None:
    watch = TurnWatch()
    assert turn_of(watch, done(), 1.0).interrupted == ""
    assert turn_of(watch, done("cancelled"), 1.0).interrupted == "client"


def test_answers_that_never_end_are_forgotten() -> None:
    watch = TurnWatch()
    for generation in range(ANSWERS_KEPT + 10):
        watch.effect(ask(generation), 1.0)
    assert watch.event(ResponseEnded(3, "completed", session="s"), 2.0) is None
    assert watch.event(ResponseEnded(60, "completed", session="s"), 2.0) is not None
