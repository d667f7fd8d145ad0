import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from duologue.engines.engine import (
    EngineFailure,
    Respond,
    ResponseEnded,
    ResponseRequest,
    SpeechGenerated,
    Usage,
)
from duologue.engines.otel_impl import OtelTracer
from duologue.engines.tracing import AnswerSpans, create_tracer

REQUEST = ResponseRequest(instructions="", messages=())


def test_the_worker_s_span_is_below_the_turn_of_the_gateway() -> None:
    here, there = InMemorySpanExporter(), InMemorySpanExporter()
    gateway = OtelTracer({"duologue.worker": "gateway"}, here)
    worker = OtelTracer({"duologue.worker": "a-0"}, there)
    turn = gateway.start("turn", 1_000, attributes={"duologue.session": "s"})
    moments = iter([2_000, 3_000, 4_000, 5_000])
    spans = AnswerSpans(worker, lambda: next(moments))
    spans.asked(Respond(1, REQUEST, turn.traceparent, session="s"))
    spans.said(SpeechGenerated(1, b"ab", session="s"))
    spans.said(SpeechGenerated(2, b"ab", session="s"))
    failure = EngineFailure("engine_error", "no")
    usage = Usage(output_tokens=7)
    spans.said(ResponseEnded(1, "failed", usage=usage, failure=failure, session="s"))
    turn.end(9_000, {})
    turn.end(9_999, {})
    for tracer in (gateway, worker):
        tracer.close()
    (answer,), (whole,) = there.get_finished_spans(), here.get_finished_spans()
    assert answer.parent is not None
    assert answer.context is not None and whole.context is not None
    assert answer.parent.span_id == whole.context.span_id
    assert answer.context.trace_id == whole.context.trace_id
    assert [(event.name, event.timestamp) for event in answer.events] == [("first speech", 3_000)]
    assert (answer.start_time, answer.end_time) == (2_000, 4_000)
    assert answer.status.description == "engine_error"
    assert answer.attributes is not None
    assert answer.attributes["gen_ai.usage.output_tokens"] == 7
    assert (whole.start_time, whole.end_time) == (1_000, 9_000)
    assert answer.resource.attributes["duologue.worker"] == "a-0"
    assert answer.resource.attributes["service.name"] == "duologue"


def test_what_is_not_traced_has_no_span() -> None:
    exporter = InMemorySpanExporter()
    tracer = OtelTracer({}, exporter)
    spans = AnswerSpans(tracer, lambda: 1)
    spans.asked(Respond(1, REQUEST, session="s"))
    spans.said(ResponseEnded(1, "completed", session="s"))
    tracer.close()
    assert exporter.get_finished_spans() == ()


def test_a_session_that_is_closed_ends_its_spans() -> None:
    exporter = InMemorySpanExporter()
    tracer = OtelTracer({}, exporter)
    spans = AnswerSpans(tracer, lambda: 1)
    spans.asked(Respond(1, REQUEST, "00-" + "1" * 32 + "-" + "2" * 16 + "-01", session="s"))
    spans.forget("other")
    spans.forget("s")
    spans.said(ResponseEnded(1, "completed", session="s"))
    tracer.close()
    assert len(exporter.get_finished_spans()) == 1


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_SERVICE_NAME": "x"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_nothing_is_traced_unless_it_is_asked_for(environ: dict[str, str]) -> None:
    assert create_tracer(environ, {}) is None
