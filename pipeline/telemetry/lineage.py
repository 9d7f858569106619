"""Lineage for OpenLineage: what each stage of a run reads and writes, and at which versions and offsets.

A stage of one run is a run of a job there, as a streaming query is of Spark's integration: START, then RUNNING at most
once in so many seconds, and at the end COMPLETE, FAIL, or ABORT where another runner took it over or another stage
failed. A thread sends them: no batch waits, and what a server does not take is not sent again, as the next event says
more. Configured by the client's own file and variables (`OPENLINEAGE_…`, `openlineage.yml`), and by nothing else.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from ...common import instants
from ...store.sst.types import visible_columns
from ...store.versions.manifest import Input, Manifest, Table
from ..listener import Listener
from .optional import is_missing, own_version, tell_once

if TYPE_CHECKING:
    from openlineage.client.event_v2 import InputDataset, OutputDataset, RunEvent

_log = logging.getLogger("openlineage.slackwater")

EVERY_S = 60.0
_END_S = 3.0
_NAMESPACE = "slackwater"
_FACET = "slackwater_version"
_SCHEMA = "urn:slackwater:openlineage:version:1"
"""What `docs/openlineage-version.json` is called in itself."""

Event = Literal["START", "RUNNING", "COMPLETE", "FAIL", "ABORT"]


def is_configured(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the client would find where to send events."""
    if environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    if environ.get("OPENLINEAGE_URL") or any(name.startswith("OPENLINEAGE__TRANSPORT") for name in environ):
        return True
    files = (environ.get("OPENLINEAGE_CONFIG"), "openlineage.yml", Path.home() / ".openlineage" / "openlineage.yml")
    return any(Path(each).is_file() for each in files if each)


@dataclass(frozen=True, slots=True)
class Datasets:
    """Where the datasets of a run are, and what they are called."""

    store: str
    """The store root."""
    brokers: str
    """`bootstrap.servers`."""
    engine: str
    """Spark's version."""
    published: Callable[[Manifest], Mapping[str, str]] = lambda _head: {}
    """The topics of sinks, by their names, where they are others."""

    def kafka(self, topic: str) -> tuple[str, str]:
        """Namespace and name of a topic."""
        return f"kafka://{self.brokers.partition(',')[0].strip()}", topic

    def table(self, app: str, name: str) -> tuple[str, str]:
        """Namespace and name of a table: as those of a folder in an object store or a file system."""
        scheme, _, path = self.store.partition("://")
        if path:
            bucket, _, prefix = path.partition("/")
            return f"{scheme}://{bucket}", "/".join(filter(None, (prefix.strip("/"), app, name)))
        return "file", f"{self.store.rstrip('/')}/{app}/{name}"


@dataclass(slots=True)
class StageLineage:
    """Makes the events of one stage of a run, which began at the version `start`."""

    start: Manifest
    where: Datasets
    run: str = field(default_factory=lambda: str(uuid4()))

    def event(self, kind: Event, head: Manifest, time_ms: int, failed: str = "") -> RunEvent:
        """An event at the stage's newest version. `failed` is the class of what ended it."""
        from openlineage.client import event_v2 as ol
        from openlineage.client.facet_v2 import error_message_run, job_type_job, processing_engine_run

        run: dict[str, Any] = {
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
                self.where.engine, "spark", openlineageAdapterVersion=own_version()
            )
        }
        if failed:
            run["errorMessage"] = error_message_run.ErrorMessageRunFacet(failed, "python")
        job_type = job_type_job.JobTypeJobFacet("STREAMING", "SLACKWATER", "STAGE")
        name = f"{head.app}.{head.stage}"
        return ol.RunEvent(
            eventType=ol.RunState[kind],
            eventTime=instants.iso(time_ms, "milliseconds"),
            run=ol.Run(self.run, facets=run),
            job=ol.Job(os.environ.get("OPENLINEAGE_NAMESPACE") or _NAMESPACE, name, facets={"jobType": job_type}),
            inputs=[*self._inputs(head)],
            outputs=[*self._outputs(head)],
            producer=f"urn:slackwater:{own_version()}",
        )

    def _inputs(self, head: Manifest) -> Iterator[InputDataset]:
        from openlineage.client import event_v2 as ol

        for name, read in head.inputs.items():
            offsets = _offsets(self.start.inputs.get(name), read)
            facet = self._version(head, offsets=offsets, upstream=read.upstream, upstreamVersion=read.version)
            yield ol.InputDataset(*self.where.kafka(read.topic), facets={_FACET: facet})

    def _outputs(self, head: Manifest) -> Iterator[OutputDataset]:
        from openlineage.client import event_v2 as ol
        from openlineage.client.facet_v2 import dataset_version_dataset, schema_dataset

        if head.table is not None:
            facets = {
                _FACET: self._version(head),
                "version": dataset_version_dataset.DatasetVersionDatasetFacet(f"v{head.version}"),
                "schema": schema_dataset.SchemaDatasetFacet(
                    [schema_dataset.SchemaDatasetFacetFields(each, kind) for each, kind in _columns(head.table)]
                ),
            }
            yield ol.OutputDataset(*self.where.table(head.app, head.stage), facets=facets)
        for output in head.outputs.values():
            ends = [{"partition": number, "end": end} for number, end in enumerate(output.ends)]
            yield ol.OutputDataset(*self.where.kafka(output.topic), facets={_FACET: self._version(head, offsets=ends)})
        topics = self.where.published(head)
        for name, sink in head.sinks.items():
            if sink.kind == "topic":
                where = self.where.kafka(topics.get(name, name))
                yield ol.OutputDataset(*where, facets={_FACET: self._version(head, rows=sink.sent)})

    def _version(self, head: Manifest, **more: object) -> Any:
        from openlineage.client.event_v2 import PRODUCER
        from openlineage.client.generated.base import DatasetFacet

        class VersionFacet(DatasetFacet):
            @staticmethod
            def _get_schema() -> str:
                return _SCHEMA

        about = {"app": head.app, "stage": head.stage, "stageVersion": head.version, "epoch": head.epoch}
        said = {name: value for name, value in more.items() if value or isinstance(value, list)}
        return VersionFacet(producer=PRODUCER).with_additional_properties(**about, **said)


def _columns(table: Table) -> list[tuple[str, str]]:
    return [(each.name, each.type) for each in visible_columns(table)]


def _offsets(start: Input | None, read: Input) -> list[dict[str, int]]:
    """What was read of each Kafka partition since the start: from there to before the end."""
    begins = start.offsets if start is not None else ()
    return [
        {"partition": number, "start": begins[number] if number < len(begins) else 0, "end": end}
        for number, end in enumerate(read.offsets)
    ]


class RunLineage(Listener):
    """Sends the events of a run. `move` may be called from any thread, and only notes what is newest."""

    def __init__(self, claimed: Mapping[str, Manifest], where: Datasets, *, every_s: float = EVERY_S) -> None:
        self._stages = {name: StageLineage(head, where) for name, head in claimed.items()}
        self._heads = dict(claimed)
        self._every_s = every_s
        self._over = threading.Event()
        self._ended: dict[str, tuple[Event, str]] = {}
        self._sending = threading.Thread(target=self._work, name="lineage", daemon=True)
        self._sending.start()

    @property
    def stages(self) -> tuple[str, ...]:
        """Those of the run."""
        return tuple(self._stages)

    def move(self, head: Manifest, _tip: Manifest | None = None) -> None:
        """A version was committed."""
        self._heads[head.stage] = head

    def end(self, ended: Mapping[str, tuple[Event, str]]) -> None:
        """The run is over: say so of each stage, with the class of its error, for some seconds at most."""
        self._ended = dict(ended)
        self._over.set()
        self._sending.join(_END_S)

    def _work(self) -> None:
        tell_once("openlineage", "OpenLineage")
        from openlineage.client.client import OpenLineageClient

        try:
            client = OpenLineageClient()
        except Exception as error:
            _log.warning("events are not sent: %s", type(error).__name__)  # its settings may be in its words
            return
        told = dict.fromkeys(self._stages, 0)
        kind: Event = "START"
        while True:
            for name, head in dict(self._heads).items():
                if head.version != told[name]:
                    told[name] = head.version
                    self._send(client, self._stages[name], kind, head)
            if self._over.wait(self._every_s):
                break
            kind = "RUNNING"
        for name, (last, failed) in self._ended.items():
            self._send(client, self._stages[name], last, self._heads[name], failed)
        client.close(_END_S)

    def _send(self, client: Any, stage: StageLineage, kind: Event, head: Manifest, failed: str = "") -> None:
        try:
            client.emit(stage.event(kind, head, instants.now_ms(), failed))
        except Exception as error:
            _log.warning("an event was not sent: %s", type(error).__name__)


def lineage_of(claimed: Mapping[str, Manifest], where: Datasets) -> RunLineage | None:
    """What tells of this run; None where nobody asked for it, or the client is not installed."""
    if not is_configured() or is_missing("openlineage.client", "OpenLineage", "openlineage"):
        return None
    return RunLineage(claimed, where)


def ended(errors: Mapping[str, BaseException | None], error: BaseException | None) -> dict[str, tuple[Event, str]]:
    """How each stage of a run ended, by its own error, if it has one, and that of the run, if it failed."""
    if error is None:
        return dict.fromkeys(errors, ("COMPLETE", ""))
    whose = {name for name, own in errors.items() if own is not None} or set(errors)
    kind = type(error).__qualname__
    if kind == "Fenced":
        return dict.fromkeys(errors, ("ABORT", kind))
    return {
        name: ("FAIL", type(own or error).__qualname__) if name in whose else ("ABORT", kind)
        for name, own in errors.items()
    }
