"""Lineage for OpenLineage: inputs and outputs of each stage of a run, with versions and offsets.

In OpenLineage, a stage of a run is a run of a job, like a streaming query in Spark's integration. Its events are START,
then RUNNING at a minimum interval, and at the end COMPLETE, FAIL, or ABORT. ABORT means that a newer runner took over,
or that a different stage failed. A thread sends the events, so that batches do not wait. Rejected events are not sent
again, because the next event supersedes them. Only the client's own file and variables configure it (`openlineage.yml`,
`OPENLINEAGE_…`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...common import instants, runtime
from ...store.sst.schema import visible_columns
from ...store.versions.manifest import Input, Manifest, Table
from ..listener import Listener
from .logs import is_client_missing, limit_client_log, slackwater_version

if TYPE_CHECKING:
    from openlineage.client.event_v2 import InputDataset, OutputDataset, RunEvent

_log = logging.getLogger("openlineage.slackwater")

EVENT_INTERVAL_S = 60.0
_JOIN_TIMEOUT_S = 3.0
_NAMESPACE = "slackwater"
_FACET = "slackwater_version"
_SCHEMA = "urn:slackwater:openlineage:version:1"

Event = Literal["START", "RUNNING", "COMPLETE", "FAIL", "ABORT"]


def is_configured(environ: Mapping[str, str] = os.environ) -> bool:
    if environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    if environ.get("OPENLINEAGE_URL") or any(name.startswith("OPENLINEAGE__TRANSPORT") for name in environ):
        return True
    files = (environ.get("OPENLINEAGE_CONFIG"), "openlineage.yml", Path.home() / ".openlineage" / "openlineage.yml")
    return any(Path(file).is_file() for file in files if file)


@dataclass(frozen=True, slots=True)
class DatasetNames:
    """Names of a run's datasets in OpenLineage, as pairs of namespace and name."""

    store: str
    brokers: str
    engine: str
    published_topics: Callable[[Manifest], Mapping[str, str]] = lambda _head: {}
    """Function that returns the topics of sinks that are not published under their declared names, by sink."""

    def topic(self, topic: str) -> tuple[str, str]:
        return f"kafka://{self.brokers.partition(',')[0].strip()}", topic

    def table(self, app: str, name: str) -> tuple[str, str]:
        scheme, _, path = self.store.partition("://")
        if path:
            bucket, _, prefix = path.partition("/")
            return f"{scheme}://{bucket}", "/".join(filter(None, (prefix.strip("/"), app, name)))
        return "file", f"{self.store.rstrip('/')}/{app}/{name}"


@dataclass(slots=True)
class StageLineage:
    """Creates the events of one stage in a run that began at the stage's version `start`."""

    start: Manifest
    names: DatasetNames
    run: str = field(default_factory=lambda: str(runtime.uuid()))

    def create_event(self, kind: Event, head: Manifest, time_ms: int, failed: str = "") -> RunEvent:
        """Create an event about the version `head`. `failed` is the class of the error that ended the stage."""
        from openlineage.client import event_v2 as ol
        from openlineage.client.facet_v2 import error_message_run, job_type_job, processing_engine_run

        run: dict[str, Any] = {
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
                self.names.engine, "spark", openlineageAdapterVersion=slackwater_version()
            )
        }
        if failed:
            run["errorMessage"] = error_message_run.ErrorMessageRunFacet(failed, "python")
        job_type = job_type_job.JobTypeJobFacet("STREAMING", "SLACKWATER", "STAGE")
        name = f"{head.app}.{head.stage}"
        return ol.RunEvent(
            eventType=ol.RunState[kind],
            eventTime=instants.format_iso(time_ms, "milliseconds"),
            run=ol.Run(self.run, facets=run),
            job=ol.Job(os.environ.get("OPENLINEAGE_NAMESPACE") or _NAMESPACE, name, facets={"jobType": job_type}),
            inputs=[*self._inputs(head)],
            outputs=[*self._outputs(head)],
            producer=f"urn:slackwater:{slackwater_version()}",
        )

    def _inputs(self, head: Manifest) -> Iterator[InputDataset]:
        from openlineage.client import event_v2 as ol

        for name, read in head.inputs.items():
            offsets = _offset_ranges(self.start.inputs.get(name), read)
            facet = self._version_facet(head, offsets=offsets, upstream=read.upstream, upstreamVersion=read.version)
            yield ol.InputDataset(*self.names.topic(read.topic), facets={_FACET: facet})

    def _outputs(self, head: Manifest) -> Iterator[OutputDataset]:
        from openlineage.client import event_v2 as ol
        from openlineage.client.facet_v2 import dataset_version_dataset, schema_dataset

        if head.table is not None:
            facets = {
                _FACET: self._version_facet(head),
                "version": dataset_version_dataset.DatasetVersionDatasetFacet(f"v{head.version}"),
                "schema": schema_dataset.SchemaDatasetFacet(
                    [schema_dataset.SchemaDatasetFacetFields(name, kind) for name, kind in _columns(head.table)]
                ),
            }
            yield ol.OutputDataset(*self.names.table(head.app, head.stage), facets=facets)
        for output in head.outputs.values():
            ends = [{"partition": number, "end": end} for number, end in enumerate(output.ends)]
            yield ol.OutputDataset(
                *self.names.topic(output.topic), facets={_FACET: self._version_facet(head, offsets=ends)}
            )
        topics = self.names.published_topics(head)
        for name, sink in head.sinks.items():
            if sink.kind == "topic":
                where = self.names.topic(topics.get(name, name))
                yield ol.OutputDataset(*where, facets={_FACET: self._version_facet(head, rows=sink.sent)})

    def _version_facet(self, head: Manifest, **more: object) -> Any:
        from openlineage.client.event_v2 import PRODUCER
        from openlineage.client.generated.base import DatasetFacet

        class VersionFacet(DatasetFacet):
            @staticmethod
            def _get_schema() -> str:
                return _SCHEMA

        about = {"app": head.app, "stage": head.stage, "stageVersion": head.version, "epoch": head.epoch}
        details = {name: value for name, value in more.items() if value or isinstance(value, list)}
        return VersionFacet(producer=PRODUCER).with_additional_properties(**about, **details)


def _columns(table: Table) -> list[tuple[str, str]]:
    return [(column.name, column.type) for column in visible_columns(table)]


def _offset_ranges(start: Input | None, read: Input) -> list[dict[str, int]]:
    """Return the offsets of each Kafka partition read since the run's start: `start` to `end` (exclusive)."""
    begins = start.offsets if start is not None else ()
    return [
        {"partition": number, "start": begins[number] if number < len(begins) else 0, "end": end}
        for number, end in enumerate(read.offsets)
    ]


class RunLineage(Listener):
    """Sends the events of a run in a thread. `on_version` only stores the newest version; any thread may call it."""

    def __init__(
        self, claimed: Mapping[str, Manifest], where: DatasetNames, *, every_s: float = EVENT_INTERVAL_S
    ) -> None:
        self._stages = {name: StageLineage(head, where) for name, head in claimed.items()}
        self._heads = dict(claimed)
        self._every_s = every_s
        self._stopping = runtime.event()
        self._last_events: dict[str, tuple[Event, str]] = {}
        self._thread = runtime.thread(self._send_events, name="lineage")
        self._thread.start()

    def on_version(self, head: Manifest, _tip: Manifest | None = None) -> None:
        self._heads[head.stage] = head

    def end(self, ended: Mapping[str, tuple[Event, str]]) -> None:
        """Send the last event of each stage, with the class of the stage's error. Blocks for a few seconds at most."""
        self._last_events = dict(ended)
        self._stopping.set()
        self._thread.join(_JOIN_TIMEOUT_S)

    def _send_events(self) -> None:
        limit_client_log("openlineage", "OpenLineage")
        from openlineage.client.client import OpenLineageClient

        try:
            client = OpenLineageClient()
        except Exception as error:
            _log.warning("events are not sent: %s", type(error).__name__)  # the message may contain settings
            return
        sent_versions = dict.fromkeys(self._stages, 0)
        kind: Event = "START"
        while True:
            for name, head in dict(self._heads).items():
                if head.version != sent_versions[name]:
                    sent_versions[name] = head.version
                    self._send(client, self._stages[name], kind, head)
            if self._stopping.wait(self._every_s):
                break
            kind = "RUNNING"
        for name, (last, failed) in self._last_events.items():
            self._send(client, self._stages[name], last, self._heads[name], failed)
        client.close(_JOIN_TIMEOUT_S)

    def _send(self, client: Any, stage: StageLineage, kind: Event, head: Manifest, failed: str = "") -> None:
        try:
            client.emit(stage.create_event(kind, head, instants.now_ms(), failed))
        except Exception as error:
            _log.warning("an event was not sent: %s", type(error).__name__)


def configured_lineage(claimed: Mapping[str, Manifest], where: DatasetNames) -> RunLineage | None:
    if not is_configured() or is_client_missing("openlineage.client", "OpenLineage", "openlineage"):
        return None
    return RunLineage(claimed, where)


def last_events(
    errors: Mapping[str, BaseException | None], error: BaseException | None
) -> dict[str, tuple[Event, str]]:
    """Return the last event of each stage, with its error class.

    `errors` has the error of each stage, None without one; `error` is the error of the run.
    """
    if error is None:
        return dict.fromkeys(errors, ("COMPLETE", ""))
    failed_stages = {name for name, own in errors.items() if own is not None} or set(errors)
    kind = type(error).__qualname__
    if kind == "Fenced":
        return dict.fromkeys(errors, ("ABORT", kind))
    return {
        name: ("FAIL", type(own or error).__qualname__) if name in failed_stages else ("ABORT", kind)
        for name, own in errors.items()
    }
