"""A trace of each turn: its stages at the gateway, and below them what the worker adds."""

from collections.abc import Callable
from dataclasses import dataclass, field

from duologue.engines.engine import Respond, ResponseEnded
from duologue.engines.tracing import Span, Tracer
from duologue.sessions import effects
from duologue.sessions.effects import Effect
from duologue.sessions.events import Event
from duologue.sessions.ports import Observer
from duologue.sessions.turn_times import TurnTimes, TurnWatch


@dataclass(slots=True)
class _Traced:
    """One session: the spans of its turns by the generation that answers, the newest last."""

    watch: TurnWatch = field(default_factory=TurnWatch)
    turns: dict[int, Span] = field(default_factory=dict)
    stopped: float | None = None


class TurnTraces:
    """See :class:`duologue.sessions.ports.Observer`; another one sees everything as well."""

    def __init__(self, inner: Observer, tracer: Tracer, wall_ns: Callable[[float], int]) -> None:
        """`wall_ns` turns session time into the wall clock's nanoseconds."""
        self._inner = inner
        self._tracer = tracer
        self._wall_ns = wall_ns
        self._sessions: dict[str, _Traced] = {}

    def event(self, session_id: str, event: Event, now: float) -> None:
        self._inner.event(session_id, event, now)
        traced = self._sessions.get(session_id)
        if traced is None:
            return
        traced.watch.event(event, now)
        if isinstance(event, ResponseEnded):
            # A draft that was given up: no response will tell its end.
            newest = next(reversed(traced.turns), event.generation)
            span = traced.turns.get(event.generation)
            if span is not None and event.generation != newest:
                span.end(self._wall_ns(now), {"duologue.status": "dropped"})
                del traced.turns[event.generation]

    def effect(self, session_id: str, effect: Effect, now: float) -> None:
        self._inner.effect(session_id, effect, now)
        if isinstance(effect, effects.CleanUp):
            self._forget(session_id, now)
            return
        traced = self._sessions.get(session_id)
        if traced is None:
            if not isinstance(effect, effects.SpeechStopped | effects.ToEngine):
                return
            traced = self._sessions[session_id] = _Traced()
        match effect:
            case effects.SpeechStopped():
                traced.stopped = now
            case effects.SpeechStarted():
                traced.stopped = None
            case effects.ToEngine(command=Respond(generation=generation)):
                begin = now if traced.stopped is None else traced.stopped
                about: dict[str, str | int] = {
                    "duologue.session": session_id,
                    "duologue.generation": generation,
                }
                traced.turns[generation] = self._tracer.start(
                    "turn", self._wall_ns(begin), attributes=about
                )
            case _:
                pass
        turn = traced.watch.effect(effect, now)
        if turn is not None:
            self._end(traced, turn)

    def trace(self, session_id: str, generation: int) -> str:
        traced = self._sessions.get(session_id)
        span = traced.turns.get(generation) if traced else None
        return span.traceparent if span else ""

    def _end(self, traced: _Traced, turn: TurnTimes) -> None:
        traced.stopped = None
        span = traced.turns.pop(turn.answer.generation, None) if turn.answer else None
        if span is None:
            return
        for name, start, end in turn.waterfall():
            part = self._tracer.start(name, self._wall_ns(turn.begin + start), span.traceparent)
            part.end(self._wall_ns(turn.begin + end), {})
        attributes: dict[str, str | int | float] = {
            "duologue.response": turn.response_id,
            "duologue.status": turn.status,
            "duologue.speech_seconds": turn.sent_s,
            "duologue.gaps": turn.gaps,
        }
        failure = turn.status if turn.status == "failed" else ""
        span.end(self._wall_ns(turn.done), attributes, failure)

    def _forget(self, session_id: str, now: float) -> None:
        traced = self._sessions.pop(session_id, None)
        for span in traced.turns.values() if traced else ():
            span.end(self._wall_ns(now), {"duologue.status": "closed"})
