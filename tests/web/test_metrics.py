"""Figures, derived from what happens in sessions."""

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
    assert metrics._stopped == {}


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
