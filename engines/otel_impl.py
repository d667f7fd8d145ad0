"""Spans by OpenTelemetry's SDK, exported over OTLP (HTTP, protobuf).

The SDK reads the standard ``OTEL_`` variables itself: endpoint, headers, sampler, service name,
sizes of its queues. It exports on a thread of its own and drops what its queue has no room for.
"""

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Span as SdkSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from duologue.engines.tracing import Attributes

_PROPAGATOR = TraceContextTextMapPropagator()


class OtelSpan:
    """See :class:`duologue.engines.tracing.Span`."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(self._span))
        return carrier.get("traceparent", "")

    def event(self, name: str, at_ns: int) -> None:
        self._span.add_event(name, timestamp=at_ns)

    def end(self, at_ns: int, attributes: Attributes, failure: str = "") -> None:
        if isinstance(self._span, SdkSpan) and self._span.end_time is not None:
            return
        self._span.set_attributes(dict(attributes))
        if failure:
            self._span.set_status(trace.Status(trace.StatusCode.ERROR, failure))
        self._span.end(at_ns)


class OtelTracer:
    """See :class:`duologue.engines.tracing.Tracer`."""

    def __init__(self, attributes: Attributes, exporter: SpanExporter | None = None) -> None:
        """`attributes` are the resource's, besides those of the environment."""
        resource = Resource.create({"service.name": "duologue", **attributes})
        named = Resource.create()  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
        if not str(named.attributes.get("service.name", "")).startswith("unknown_service"):
            resource = resource.merge(named)
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("duologue")

    def start(
        self, name: str, at_ns: int, parent: str = "", attributes: Attributes | None = None
    ) -> OtelSpan:
        context = _PROPAGATOR.extract({"traceparent": parent}) if parent else Context()
        span = self._tracer.start_span(
            name, context=context, start_time=at_ns, attributes=dict(attributes or {})
        )
        return OtelSpan(span)

    def close(self) -> None:
        self._provider.shutdown()
