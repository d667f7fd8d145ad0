"""Spans of a turn across processes: who asks for them, and what is said about an answer.

A span is named by its *traceparent* (W3C Trace Context, section 3.2), which travels with the
request for an answer. Whether anything is recorded is the operator's choice, by the standard
``OTEL_`` variables; without it nothing here costs more than a look.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from duologue.engines.engine import Respond, ResponseEnded, SpeechGenerated, TextGenerated

ANSWERS_KEPT = 1024
"""Answers of one worker whose spans are open; a further one has none."""

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

log = logging.getLogger(__name__)

Attributes = Mapping[str, str | int | float | bool]


class Span(Protocol):
    """Something that takes time."""

    @property
    def traceparent(self) -> str:
        """Its name for spans below it, in other processes too."""

    def event(self, name: str, at_ns: int) -> None:
        """Something happened at a moment (wall clock, nanoseconds)."""

    def end(self, at_ns: int, attributes: Attributes, failure: str = "") -> None:
        """It is over. Idempotent."""


class Tracer(Protocol):
    """Where spans come from."""

    def start(
        self, name: str, at_ns: int, parent: str = "", attributes: Attributes | None = None
    ) -> Span:
        """A span that began at `at_ns`, below the one that `parent` names, if it names one."""

    def close(self) -> None:
        """Send what is left; blocks for some seconds at most."""


def create_tracer(environ: Mapping[str, str], attributes: Attributes) -> Tracer | None:
    """What the environment asks for; ``None`` when it asks for nothing.

    `attributes` say which process it is.
    """
    if not any(environ.get(name) for name in _ENDPOINTS):
        return None
    if (
        environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or environ.get("OTEL_TRACES_EXPORTER") == "none"
    ):
        return None
    try:
        from duologue.engines.otel_impl import OtelTracer
    except ImportError:
        log.warning("traces are asked for, but there is no OpenTelemetry: duologue[otel] has it")
        return None
    return OtelTracer(attributes)


class AnswerSpans:
    """The spans of a worker's answers, each below the turn that asks for it."""

    def __init__(self, tracer: Tracer, wall_ns: Callable[[], int]) -> None:
        """`wall_ns` reads the wall clock, in nanoseconds."""
        self._tracer = tracer
        self._wall_ns = wall_ns
        self._open: dict[tuple[str, int], Span] = {}
        self._heard: set[tuple[str, int]] = set()

    def asked(self, command: Respond) -> None:
        """The worker has taken the request."""
        if command.trace and len(self._open) < ANSWERS_KEPT:
            key = command.session, command.generation
            self._open[key] = self._tracer.start("answer", self._wall_ns(), command.trace)

    def said(self, output: object) -> None:
        """The worker says this."""
        if not isinstance(output, TextGenerated | SpeechGenerated | ResponseEnded):
            return
        key = output.session, output.generation
        span = self._open.get(key)
        if span is None:
            return
        at_ns = self._wall_ns()
        match output:
            case ResponseEnded():
                usage = output.usage
                attributes: dict[str, str | int] = {
                    "duologue.reason": output.reason,
                    "gen_ai.usage.input_tokens": usage.input_tokens,
                    "gen_ai.usage.output_tokens": usage.output_tokens,
                }
                failure = output.failure.code if output.failure else ""
                span.end(at_ns, attributes, failure)
                del self._open[key]
                self._heard.discard(key)
            case TextGenerated() | SpeechGenerated():
                if key not in self._heard:
                    self._heard.add(key)
                    speech = isinstance(output, SpeechGenerated)
                    span.event("first speech" if speech else "first text", at_ns)

    def forget(self, session: str) -> None:
        """The session is closed: nothing more is said in it."""
        for key in [key for key in self._open if key[0] == session]:
            self._open.pop(key).end(self._wall_ns(), {"duologue.reason": "closed"})
            self._heard.discard(key)
