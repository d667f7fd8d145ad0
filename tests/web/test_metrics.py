"""Figures, derived from what happens in sessions."""

import pytest

from duologue.engines.engine import (
    Respond,
    ResponseEnded,
    ResponseRequest,
    SpeechGenerated,
    TextGenerated,
    TranscriptFinal,
    Usage,
)
from duologue.engines.pulse import Durations, Reading
from duologue.sessions import effects, events
from duologue.sessions.errors import ProtocolError
from duologue.sessions.session_config import AudioFormat
from duologue.web.metrics import Metrics

DELTA = effects.AudioDelta("r", "i", 0, 0, bytes(48_000), AudioFormat.PCM)


def value(metrics: Metrics, name: str) -> float:
    for line in metrics.text().decode().splitlines():
        if line.startswith(name + " "):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"{name} is not among the figures")


def test_events_are_counted_both_ways() -> None:
    metrics = Metrics()
    metrics.event("s", events.CommitAudio(None), 0.0)
    metrics.event("s", events.VoiceProbability(512, 0.5), 0.0)
    metrics.effect("s", effects.InputCleared(), 0.0)
    received = 'duologue_events_received_total{type="input_audio_buffer.commit"}'
    assert value(metrics, received) == 1
    assert value(metrics, 'duologue_events_sent_total{type="input_audio_buffer.cleared"}') == 1


def test_errors_are_counted_by_their_code() -> None:
    metrics = Metrics()
    metrics.effect("s", effects.ErrorReported(ProtocolError("invalid_type", "No.")), 0.0)
    assert value(metrics, 'duologue_errors_total{code="invalid_type"}') == 1


def test_the_time_to_the_first_audio_is_measured_once_a_turn() -> None:
    metrics = Metrics()
    metrics.effect("s", effects.SpeechStopped(0, "i"), 10.0)
    metrics.effect("other", DELTA, 10.2)
    metrics.effect("s", DELTA, 10.5)
    metrics.effect("s", DELTA, 11.0)
    assert value(metrics, "duologue_first_audio_seconds_count") == 1
    assert value(metrics, "duologue_first_audio_seconds_sum") == 0.5
    assert value(metrics, "duologue_audio_sent_seconds_total") == 3


def test_a_turn_that_was_taken_up_again_is_not_measured() -> None:
    metrics = Metrics()
    metrics.effect("s", effects.SpeechStopped(0, "i"), 10.0)
    metrics.effect("s", effects.SpeechStarted(0, "i"), 10.3)
    metrics.effect("s", DELTA, 12.0)
    assert value(metrics, "duologue_first_audio_seconds_count") == 0


def test_nothing_is_kept_of_a_session_that_is_over() -> None:
    metrics = Metrics()
    metrics.effect("s", effects.SpeechStopped(0, "i"), 10.0)
    metrics.event("s", events.CleanedUp(True), 11.0)
    assert (metrics._stopped, metrics._watches) == ({}, {})


def test_a_gauge_is_asked_when_the_figures_are() -> None:
    metrics = Metrics()
    sessions = [1.0]
    metrics.watch("duologue_sessions", "Sessions.", lambda: sessions[0])
    sessions[0] = 5.0
    assert value(metrics, "duologue_sessions") == 5


def test_admissions_and_denials_are_counted() -> None:
    metrics = Metrics()
    metrics.opened()
    metrics.refused("SessionsFull")
    metrics.denied("invalid_api_key")
    assert value(metrics, "duologue_sessions_opened_total") == 1
    assert value(metrics, 'duologue_sessions_refused_total{reason="SessionsFull"}') == 1
    assert value(metrics, 'duologue_requests_denied_total{code="invalid_api_key"}') == 1


REQUEST = ResponseRequest(instructions="", messages=())


def view(status: effects.ResponseStatus, reason: effects.EndReason | None) -> effects.ResponseDone:
    return effects.ResponseDone(
        effects.ResponseView(
            "r", status, None, "audio", "v", AudioFormat.PCM, None, None, reason=reason
        )
    )


def test_a_spoken_turn_is_timed_and_written_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    metrics.effect("s", effects.SpeechStopped(0, "i"), 10.0)
    metrics.effect("s", effects.ToEngine(Respond(1, REQUEST, session="s")), 10.1)
    metrics.event("s", TranscriptFinal("i", "hi", 1.0, session="s"), 10.2)
    metrics.event("s", SpeechGenerated(1, bytes(48_000), session="s"), 10.4)
    metrics.effect("s", DELTA, 10.5)
    metrics.event("s", ResponseEnded(1, "completed", session="s"), 10.6)
    metrics.effect("s", DELTA, 13.5)
    with caplog.at_level("INFO"):
        metrics.effect("s", view("cancelled", "turn_detected"), 14.0)
    assert value(metrics, "duologue_engine_first_speech_seconds_sum") == pytest.approx(0.3)
    assert value(metrics, "duologue_engine_real_time_ratio_sum") == pytest.approx(0.5)
    assert value(metrics, "duologue_audio_gaps_total") == 1
    assert value(metrics, "duologue_audio_gap_seconds_total") == pytest.approx(2.0)
    assert value(metrics, 'duologue_interruptions_total{by="speech"}') == 1
    assert caplog.messages == [
        "session s: r cancelled: transcript 0-200, decision 0-100, engine 100-400, "
        "release 400-500, sending 500-4000 ms, 2.0 s of speech, 1 gaps of 2000 ms"
    ]


def test_an_answer_in_text_is_timed_by_its_tokens() -> None:
    metrics = Metrics()
    metrics.effect("s", effects.ToEngine(Respond(1, REQUEST, session="s")), 10.0)
    for at in (10.1, 10.2, 10.3):
        metrics.event("s", TextGenerated(1, "a ", session="s"), at)
    usage = Usage(output_tokens=5)
    metrics.event("s", ResponseEnded(1, "completed", usage=usage, session="s"), 10.4)
    assert value(metrics, "duologue_engine_first_text_seconds_sum") == pytest.approx(0.1)
    assert value(metrics, "duologue_engine_token_seconds_sum") == pytest.approx(0.05)
    assert value(metrics, "duologue_engine_real_time_ratio_count") == 0


def test_workers_are_told_apart_by_their_names() -> None:
    class Supervised:
        state = "ready"
        restarts = 2
        sessions = 3
        start_s = 1.5
        reading = Reading(
            7,
            gauges={"ticks": 9.0, "made up": 1.0},
            step_times=Durations((0, 0, 4, 0, 0, 0, 0, 0, 1), 5.0),
        )

        def __init__(self, name: str) -> None:
            self.name = name

    metrics = Metrics()
    metrics.watch_workers([Supervised("a-0"), Supervised("a-1")])
    assert value(metrics, 'duologue_worker_restarts_total{worker="a-1"}') == 2
    assert value(metrics, 'duologue_worker_ticks_total{worker="a-0"}') == 9
    assert value(metrics, 'duologue_worker_step_seconds_bucket{le="0.01",worker="a-0"}') == 4
    assert value(metrics, 'duologue_worker_step_seconds_count{worker="a-0"}') == 5
    assert b"made up" not in metrics.text()
