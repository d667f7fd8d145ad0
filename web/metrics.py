"""Figures for Prometheus, derived from what happens in sessions."""

import logging
from collections.abc import Callable, Sequence
from typing import Final, Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from duologue.realtime.reception_totals import ReceptionTotals
from duologue.realtime.server_wire import EVENT_TYPES
from duologue.sessions import effects, events
from duologue.sessions.effects import Effect
from duologue.sessions.events import Event
from duologue.sessions.turn_times import AnswerTimes, TurnTimes, TurnWatch
from duologue.web.worker_figures import Watched, WorkerFigures

log = logging.getLogger(__name__)

_SECONDS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.1, 1.4, 2.0, 3.0, 5.0, 10.0)
_SECONDS_OF_STEPS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)
_CLIENT_EVENTS: Final[dict[type[Event], str]] = {
    events.UpdateSession: "session.update",
    events.CommitAudio: "input_audio_buffer.commit",
    events.ClearAudio: "input_audio_buffer.clear",
    events.ClearOutput: "output_audio_buffer.clear",
    events.CreateItem: "conversation.item.create",
    events.DeleteItem: "conversation.item.delete",
    events.RetrieveItem: "conversation.item.retrieve",
    events.TruncateItem: "conversation.item.truncate",
    events.CreateResponse: "response.create",
    events.CancelResponse: "response.cancel",
    events.Rejected: "rejected",
}


class Metrics:
    """``ports.Observer``; the text of ``GET /metrics``.

    Labels come from fixed sets, never from clients: their number is bounded.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        received = self._counter("duologue_events_received", "Events of clients.", ("type",))
        sent = self._counter("duologue_events_sent", "Events sent to clients.", ("type",))
        self._received = {kind: received.labels(name) for kind, name in _CLIENT_EVENTS.items()}
        self._sent: dict[type[Effect], Counter] = {
            kind: sent.labels(name) for kind, name in EVENT_TYPES.items()
        }
        self._errors = self._counter("duologue_errors", "Errors told to clients.", ("code",))
        self._responses = self._counter("duologue_responses", "Responses done.", ("status",))
        self._audio = self._counter("duologue_audio_sent_seconds", "Speech sent to clients.", ())
        self._opened = self._counter("duologue_sessions_opened", "Sessions opened.", ())
        self._refused = self._counter(
            "duologue_sessions_refused", "Sessions refused for want of room.", ("reason",)
        )
        self._denied = self._counter(
            "duologue_requests_denied", "Requests without the right to come in.", ("code",)
        )
        self._completions = self._counter(
            "duologue_completions", "Requests for chat completions, ended.", ("outcome",)
        )
        self._first_audio = self._histogram(
            "duologue_first_audio_seconds",
            "From the end of the user's speech, as it was noticed, to the first audio sent.",
            _SECONDS,
        )
        self._interruptions = self._counter(
            "duologue_interruptions", "Responses cut short, by speech or by the client.", ("by",)
        )
        self._gaps = self._counter(
            "duologue_audio_gaps", "Pauses in which a listener had nothing left to play.", ()
        )
        self._gap_seconds = self._counter(
            "duologue_audio_gap_seconds", "How long those pauses were.", ()
        )
        self._first_text = self._histogram(
            "duologue_engine_first_text_seconds",
            "From the request for an answer in text to its first piece (TTFT).",
            _SECONDS_OF_STEPS,
        )
        self._token = self._histogram(
            "duologue_engine_token_seconds",
            "Of an answer in text: seconds a token after the first (TPOT).",
            _SECONDS_OF_STEPS,
        )
        self._first_speech = self._histogram(
            "duologue_engine_first_speech_seconds",
            "From the request for a spoken answer to its first speech (TTFP).",
            _SECONDS_OF_STEPS,
        )
        self._real_time = self._histogram(
            "duologue_engine_real_time_ratio",
            "Seconds that a spoken answer took the engine, over seconds of speech (RTF).",
            (0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0, 1.1, 1.5, 2.0, 5.0),
        )
        self._batch_queue = self._histogram(
            "duologue_batch_queue_seconds",
            "What requests of the batch lane waited for their turn.",
            (0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0),
        )
        self._stopped: dict[str, float] = {}
        self._watches: dict[str, TurnWatch] = {}

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(name, text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self._registry)

    def watch_workers(self, workers: Sequence[Watched]) -> None:
        """What the workers report of themselves."""
        self._registry.register(WorkerFigures(workers))

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that is asked when the figures are."""
        Gauge(name, text, registry=self._registry).set_function(value)

    def watch_reception(self, totals: ReceptionTotals) -> None:
        """What calls have heard, and what of it the network took."""
        for name, text, value in (
            ("packets_received", "Audio packets of callers.", lambda: totals.received),
            ("packets_lost", "Audio packets of callers that never came.", lambda: totals.lost),
            ("audio_seconds", "Sound of callers, of all kinds.", lambda: totals.decoded),
            ("concealed_seconds", "Sound of callers that was guessed.", lambda: totals.concealed),
            (
                "recovered_seconds",
                "Sound of callers that came out of the redundancy of later packets.",
                lambda: totals.recovered,
            ),
            (
                "waited_seconds",
                "What packets of callers waited for others before them.",
                lambda: totals.waited,
            ),
        ):
            self.watch(f"duologue_rtc_{name}", text, value)

    def opened(self) -> None:
        self._opened.inc()

    def refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def denied(self, code: str) -> None:
        self._denied.labels(code).inc()

    def completed(self, outcome: Literal["completed", "cancelled", "failed", "refused"]) -> None:
        """``refused``: before the engine was asked, or for want of room there."""
        self._completions.labels(outcome).inc()

    def queued(self, seconds: float) -> None:
        """A request of the batch lane has had to wait for its turn, which has come."""
        self._batch_queue.observe(seconds)

    def event(self, session_id: str, event: Event, now: float) -> None:
        counter = self._received.get(type(event))
        if counter is not None:
            counter.inc()
        elif isinstance(event, events.CleanedUp):
            self._forget(session_id)
        elif (watch := self._watches.get(session_id)) is not None:
            answer = watch.event(event, now)
            if answer is not None:
                self.answered(answer)

    def effect(self, session_id: str, effect: Effect, now: float) -> None:
        counter = self._sent.get(type(effect))
        if counter is not None:
            counter.inc()
        match effect:
            case effects.AudioDelta():
                self._audio.inc(len(effect.pcm) / 48_000)
                stopped = self._stopped.pop(session_id, None)
                if stopped is not None:
                    self._first_audio.observe(now - stopped)
            case effects.SpeechStopped():
                self._stopped[session_id] = now
            case effects.SpeechStarted():
                self._stopped.pop(session_id, None)
            case effects.CleanUp():
                self._forget(session_id)
                return
            case effects.ErrorReported():
                self._errors.labels(effect.error.code).inc()
            case effects.ResponseDone():
                self._responses.labels(effect.response.status).inc()
            case _:
                pass
        watch = self._watches.get(session_id)
        if watch is None and isinstance(effect, effects.SpeechStopped | effects.ToEngine):
            watch = self._watches[session_id] = TurnWatch()
        turn = watch.effect(effect, now) if watch is not None else None
        if turn is not None:
            self._turned(session_id, turn)

    def trace(self, session_id: str, generation: int) -> str:
        return ""

    def _forget(self, session_id: str) -> None:
        self._stopped.pop(session_id, None)
        self._watches.pop(session_id, None)

    def answered(self, answer: AnswerTimes) -> None:
        """The engine has ended an answer, of either lane."""
        if answer.first_text is not None:
            self._first_text.observe(answer.first_text - answer.asked)
        if answer.token_s is not None:
            self._token.observe(answer.token_s)
        if answer.first_speech is not None:
            self._first_speech.observe(answer.first_speech - answer.asked)
        if answer.real_time_factor is not None and answer.reason == "completed":
            self._real_time.observe(answer.real_time_factor)

    def _turned(self, session_id: str, turn: TurnTimes) -> None:
        if turn.interrupted:
            self._interruptions.labels(turn.interrupted).inc()
        self._gaps.inc(turn.gaps)
        self._gap_seconds.inc(turn.gap_s)
        log.info("session %s: %s", session_id, turn.line())

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self._registry)
