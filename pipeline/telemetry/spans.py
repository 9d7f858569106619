"""OpenTelemetry spans: one for each batch of a stage and for its commit, one for a bisect.

Only OpenTelemetry's variables configure it. If none is set, OpenTelemetry is not imported. Spans contain no key or
value of a record, only counts and offsets of records, and the class of an error.

Attributes follow the semantic conventions for messaging and databases; all further attributes are named `slackwater.…`.
A rejected record is linked by the `traceparent` among its headers (W3C Trace Context).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...common import runtime
from ..kafka.channels import consumer_group
from .logs import is_client_missing, limit_client_log, slackwater_version

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from ...store.versions.manifest import Manifest

TRACEPARENT = "traceparent"
_CONFIGURING_VARIABLES = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_MAX_LINKS = 128
_SHUTDOWN_TIMEOUT_S = 3.0

Headers = Iterable[tuple[str, str | bytes | None]]


def traceparents(records: Iterable[Headers]) -> tuple[str, ...]:
    parents: dict[str, None] = {}
    for headers in records:
        for name, value in headers:
            if name.lower() == TRACEPARENT and value and len(parents) < _MAX_LINKS:
                parents[value.decode("ascii", "replace") if isinstance(value, bytes) else value] = None
    return tuple(parents)


class BatchSpan:
    """Span of one batch, ended when the batch is committed. If a batch commits nothing, no span is sent."""

    def __init__(self, tracer: Tracer, app: str, stage: str) -> None:
        from opentelemetry.trace import SpanKind

        self._tracer = tracer
        self.span = tracer.start_span(
            f"process {app}/{stage}",
            kind=SpanKind.CONSUMER,
            attributes={
                "messaging.system": "kafka",
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.consumer.group.name": consumer_group(app, stage),
                "slackwater.app": app,
                "slackwater.stage": stage,
            },
        )

    @contextmanager
    def end_committed(
        self, previous: Manifest, manifest: Manifest, commit_s: float, windows: Iterable[str], rejected: Iterable[str]
    ) -> Iterator[None]:
        """End the span of a newly committed version. Log lines inside the block belong to the span.

        `commit_s` is the duration of the commit, `windows` the input offsets as text, `rejected` the `traceparents` of
        rejected records.
        """
        from opentelemetry.trace import SpanKind, use_span

        topics = [read.topic for name, read in manifest.inputs.items() if read.offsets != previous.inputs[name].offsets]
        now_ns = runtime.time_ns()
        self.span.set_attributes(
            {
                "messaging.batch.message_count": sum(read.rows for read in manifest.inputs.values()),
                "slackwater.version": manifest.version,
                "slackwater.kind": manifest.kind,
                "slackwater.epoch": manifest.epoch,
                "slackwater.offsets": tuple(windows),
                **({"messaging.destination.name": topics[0]} if len(topics) == 1 else {}),
            }
        )
        _add_links(self.span, rejected, "rejected")
        with use_span(self.span, end_on_exit=False):
            commit = self._tracer.start_span(
                f"commit {manifest.app}/{manifest.stage}",
                kind=SpanKind.CLIENT,
                start_time=now_ns - round(commit_s * 1e9),
                attributes={
                    "db.system.name": "slackwater",
                    "db.operation.name": "commit",
                    "db.namespace": manifest.app,
                    "db.collection.name": manifest.stage,
                    "slackwater.app": manifest.app,
                    "slackwater.stage": manifest.stage,
                    "slackwater.version": manifest.version,
                },
            )
            commit.end(now_ns)
            try:
                yield
            finally:
                self.span.end()

    def end_failed(self, error: BaseException) -> None:
        if self.span.is_recording():
            _set_error(self.span, error)
            self.span.end()


class Tracing:
    """Creates spans with a provider. `close` shuts the provider down if slackwater created it."""

    def __init__(self, provider: TracerProvider, *, owns_provider: bool = False) -> None:
        self._provider, self._owns_provider = provider, owns_provider
        self._tracer = provider.get_tracer("slackwater", slackwater_version())

    @contextmanager
    def batch(self, app: str, stage: str) -> Iterator[BatchSpan]:
        from opentelemetry.trace import use_span

        batch = BatchSpan(self._tracer, app, stage)
        with use_span(batch.span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            try:
                yield batch
            except BaseException as error:
                batch.end_failed(error)
                raise

    @contextmanager
    def bisect(self, app: str) -> Iterator[BisectSpan]:
        with self._tracer.start_as_current_span(
            f"bisect {app}",
            record_exception=False,
            set_status_on_exception=False,
            attributes={"slackwater.app": app, "db.system.name": "slackwater", "db.operation.name": "bisect"},
        ) as span:
            try:
                yield BisectSpan(span)
            except BaseException as error:
                _set_error(span, error)
                raise

    def close(self) -> None:
        if self._owns_provider:
            end: Any = getattr(self._provider, "shutdown", None)
            ending = runtime.thread(end, name="spans-end")
            ending.start()
            ending.join(_SHUTDOWN_TIMEOUT_S)


class BisectSpan:
    """Span of a running bisect."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def set_first_bad(self, stage: str, version: int, record: Headers = (), location: str = "") -> None:
        """Add the first bad commit to the span, with location and headers of the record that caused it, if known."""
        self._span.set_attributes({"slackwater.stage": stage, "slackwater.version": version})
        if location:
            self._span.set_attribute("slackwater.record", location)
        _add_links(self._span, traceparents([record]), "bisect")


def configured_tracing(environ: Mapping[str, str] = os.environ) -> Tracing | None:
    """Return tracing with the process's OpenTelemetry provider, or with a provider from environment variables.

    Returns None if there is neither.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    api = sys.modules.get("opentelemetry.trace")
    if api is not None and not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return Tracing(api.get_tracer_provider())
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if exporter == "none" or not any(environ.get(name) for name in _CONFIGURING_VARIABLES):
        return None
    if is_client_missing("opentelemetry.sdk.trace", "OpenTelemetry", "otel"):
        return None
    limit_client_log("opentelemetry", "OpenTelemetry")
    return _tracing_with_exporter(exporter.split(",")[0].strip(), environ)


def _tracing_with_exporter(name: str, environ: Mapping[str, str]) -> Tracing | None:
    from importlib.metadata import entry_points

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if name == "otlp":
        protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    exporter = next(iter(entry_points(group="opentelemetry_traces_exporter", name=name)), None)
    if exporter is None:
        is_client_missing(f"opentelemetry.{name}", f"OpenTelemetry (with the exporter {name})", "otel")
        return None
    named = "OTEL_SERVICE_NAME" in environ or "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if named else {"service.name": "slackwater"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter.load()()))
    return Tracing(provider, owns_provider=True)


def _add_links(span: Span, parents: Iterable[str], why: str) -> None:
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    for parent in parents:
        context = get_current_span(TraceContextTextMapPropagator().extract({TRACEPARENT: parent})).get_span_context()
        # An invalid header of a record must not fail the batch.
        if context.is_valid:
            span.add_link(context, {"slackwater.link": why})


def _set_error(span: Span, error: BaseException) -> None:
    from opentelemetry.trace import Status, StatusCode

    name = type(error).__qualname__
    span.set_attribute("error.type", name)
    span.set_status(Status(StatusCode.ERROR, name))
