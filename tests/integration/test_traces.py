"""A turn is one trace across gateway and worker, exported to a collector."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from load_tests.server import serving

pytestmark = [pytest.mark.anyio, pytest.mark.weights]


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """The address of an OTLP collector, and what it has been sent."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", bodies
    server.shutdown()
    thread.join()
    server.server_close()


async def test_gateway_and_worker_export_one_trace_for_a_turn(
    collector: tuple[str, list[bytes]], open_session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, bodies = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    with serving(["--engine", "scripted"]) as server:
        async with open_session(server) as wire:
            await wire.say("Hello.")
            assert (await wire.answer())["status"] == "completed"
    # The server has ended, and sent the rest before.
    spans: dict[str, Any] = {}
    workers = {}
    for body in bodies:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            told = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    spans[span.name] = span
                    workers[span.name] = told["duologue.worker"]
    assert {"turn", "engine", "sending", "answer"} <= spans.keys()
    assert spans["answer"].trace_id == spans["turn"].trace_id
    assert spans["answer"].parent_span_id == spans["turn"].span_id
    assert workers["turn"] == "gateway"
    assert workers["answer"].startswith("scripted")
