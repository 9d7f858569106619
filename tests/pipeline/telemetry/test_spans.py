"""Spans of batches and commits: content and links, and no cost if tracing is off."""

import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from slackwater.pipeline.telemetry import logs
from slackwater.pipeline.telemetry.spans import Tracing, configured_tracing, traceparents
from slackwater.store.versions.manifest import Input, Manifest

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-1af7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01"


def manifest(version: int, offset: int) -> Manifest:
    return Manifest("a", "s", version, 4, "w", 1_000 * version, "batch", {"t": Input("t", (offset,), rows=5)})


class Traced:
    def __init__(self) -> None:
        self._exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(provider)

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._exporter.get_finished_spans()}


def test_a_batch_has_a_span_with_its_commit_as_child(monkeypatch: pytest.MonkeyPatch) -> None:
    # A runner of another test may not have ended yet in this process.
    monkeypatch.setattr(logs, "_APPS", [])
    traced = Traced()
    with traced.tracing.batch("a", "s") as batch, logs.committing_version("a", "s", 2):
        trace = logs.log_fields()
        with batch.end_committed(manifest(1, 0), manifest(2, 5), 0.25, ["t[0] 0..5"], [PARENT, "nonsense", OTHER]):
            told = logs.log_fields()
    found = traced.spans
    assert found.keys() == {"process a/s", "commit a/s"}
    process, commit = found["process a/s"], found["commit a/s"]
    assert (process.kind, commit.kind) == (SpanKind.CONSUMER, SpanKind.CLIENT)
    assert dict(process.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "slackwater-a-s",
        "messaging.destination.name": "t",
        "messaging.batch.message_count": 5,
        "slackwater.app": "a",
        "slackwater.stage": "s",
        "slackwater.version": 2,
        "slackwater.kind": "batch",
        "slackwater.epoch": 4,
        "slackwater.offsets": ("t[0] 0..5",),
    }
    attributes = dict(commit.attributes or {})
    assert attributes["db.system.name"] == "slackwater"
    assert attributes["slackwater.version"] == 2
    assert commit.parent == process.context
    assert commit.start_time is not None
    assert commit.end_time is not None
    assert commit.end_time - commit.start_time == 250_000_000
    assert [f"{link.context.trace_id:032x}" for link in process.links] == [
        each.split("-")[1] for each in (PARENT, OTHER)
    ]
    ids = {"trace_id": f"{process.context.trace_id:032x}", "span_id": f"{process.context.span_id:016x}"}
    assert trace == told == {"app": "a", "stage": "s", "version": 2, **ids}
    assert logs.log_fields() == {}
    with logs.running_app("a"):
        assert logs.log_fields() == {"app": "a"}
        with logs.running_app("b"), logs.committing_version("b", "s", 3):
            assert logs.log_fields() == {"app": "b", "stage": "s", "version": 3}
        with logs.running_app("b"):
            assert logs.log_fields() == {}


def test_the_span_of_a_failed_batch_has_the_class_of_its_error_and_no_value() -> None:
    traced = Traced()
    with pytest.raises(ValueError, match="hunter2"), traced.tracing.batch("a", "s"):
        raise ValueError("no number: hunter2")
    (span,) = traced.spans.values()
    assert (span.status.status_code, (span.attributes or {})["error.type"]) == (StatusCode.ERROR, "ValueError")
    assert "hunter2" not in span.to_json()
    assert span.events == ()


def test_an_empty_batch_has_no_span() -> None:
    traced = Traced()
    with traced.tracing.batch("a", "s"):
        pass
    assert traced.spans == {}


def test_a_batch_of_several_topics_has_no_destination_name() -> None:
    traced, inputs = Traced(), {name: Input(name, (0,)) for name in "tu"}
    before = replace(manifest(1, 0), inputs=inputs)
    after = replace(before, version=2, inputs={name: replace(each, offsets=(1,)) for name, each in inputs.items()})
    with traced.tracing.batch("a", "s") as batch, batch.end_committed(before, after, 0.0, [], []):
        pass
    assert "messaging.destination.name" not in (traced.spans["process a/s"].attributes or {})


def test_a_bisect_links_to_the_trace_of_the_record_that_it_names() -> None:
    traced = Traced()
    with traced.tracing.bisect("a") as bisect:
        bisect.set_first_bad("s", 7, [("from", b"till"), ("traceparent", PARENT.encode())], "t[0]@3")
    (span,) = traced.spans.values()
    assert [f"{link.context.span_id:016x}" for link in span.links] == [PARENT.split("-")[2]]
    assert (span.attributes or {})["slackwater.record"] == "t[0]@3"


def test_a_batch_links_to_at_most_128_traces() -> None:
    records = [[("Traceparent", PARENT)], [("traceparent", None)], [], [("traceparent", f"{PARENT}x".encode())] * 2]
    assert traceparents(records) == (PARENT, f"{PARENT}x")
    assert len(traceparents([("traceparent", str(number))] for number in range(1_000))) == 128


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1"},
        {"OTEL_SERVICE_NAME": "shop"},
    ],
)
def test_tracing_is_off_unless_configured(environ: dict[str, str]) -> None:
    assert configured_tracing(environ) is None


def test_nothing_is_imported_unless_configured() -> None:
    program = (
        "import sys, os\n"
        "for name in [each for each in os.environ if each.startswith(('OTEL_', 'OPENLINEAGE'))]: del os.environ[name]\n"
        "from slackwater.pipeline.run import monitoring, runner\n"
        "from slackwater.pipeline.telemetry import lineage, spans\n"
        "assert spans.configured_tracing() is None and not lineage.is_configured()\n"
        "assert not [each for each in sys.modules if each.startswith(('opentelemetry', 'openlineage'))]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """Return the address of an OTLP server, and its requests."""
    got: list[ExportTraceServiceRequest] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()
        thread.join()


def test_spans_are_sent_where_the_standard_variables_say(
    collector: tuple[str, list[ExportTraceServiceRequest]], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, got = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    tracing = configured_tracing()
    assert tracing is not None
    with tracing.batch("a", "s") as batch, batch.end_committed(manifest(1, 0), manifest(2, 5), 0.1, [], []):
        pass
    tracing.close()
    (resource,) = (each for request in got for each in request.resource_spans)
    assert {each.key: each.value.string_value for each in resource.resource.attributes}["service.name"] == "slackwater"
    assert {span.name for scope in resource.scope_spans for span in scope.spans} == {"process a/s", "commit a/s"}


def test_an_unreachable_collector_delays_nothing_and_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    tracing = configured_tracing()
    assert tracing is not None
    for _ in range(3):
        with tracing.batch("a", "s") as batch, batch.end_committed(manifest(1, 0), manifest(2, 5), 0.1, [], []):
            pass
    tracing.close()
    told = [record.message for record in caplog.records if record.name == "slackwater"]
    assert len(told) <= 1
    assert all(each.startswith("OpenTelemetry: ") for each in told)
