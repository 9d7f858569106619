"""The streaming query of one stage: its inputs as sources of Spark, and its function applied to them once."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from ...fold.records import Position
from ...store.objects.s3.settings import aws_variables
from ...store.versions.manifest import Manifest
from ..source.data_source import open_stream
from ..source.options import Private, SourceOptions
from ..spark.plans import first_column, needed_columns, plan_of
from ..spark.session import with_settings
from .applied import apply
from .stage_job import StageConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_SETTINGS = {
    # Planned adaptively, what is before a shuffle is a job of its own, that the rest may be planned by what it gave:
    # a record that fails there would fail before anybody could leave it out, and a small batch would take longer.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    # Of how many keys Spark's hash table has room before it sorts, where an aggregate keeps what it cannot replace.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "50000",
}
_INTERRUPT = "spark.job.interruptOnCancel"


def start(
    spark: SparkSession,
    config: StageConfig,
    head: Manifest,
    on_batch: Callable[[DataFrame, int], None],
    *,
    counts: Path,
) -> StreamingQuery:
    """Start a stage's query where its newest version stands.

    Args:
        spark: The session.
        config: The stage.
        head: Its newest version.
        on_batch: Gets each batch's rows and its number.
        counts: Where they count what they ask of the store.

    Raises:
        Refused: as `applied.apply`.
    """
    stage = config.stage
    private = Private(config.places.kafka, config.places.s3_settings, aws_variables(os.environ))
    streams = {}
    for name in stage.inputs:
        options = _options(config, head, name, counts)
        schema = config.shape.inputs[name] if options.upstream else None
        streams[name] = open_stream(spark, options, private, schema)
    applied = apply(stage, streams)
    at = head.inputs
    positions = [
        Position(name, at[name].offsets, at[name].version, at[name].passed, (), at[name].watermark_ms)
        for name in applied.sources  # an input that is read twice is there twice
    ]
    config.checkpoint.write(head.version, positions)
    rows = applied.rows(config.shape.key)
    known = needed_columns(rows)
    ids = {name: first_column(plan_of(stream)) for name, stream in streams.items()}
    config.told.need(stage.name, {name: known[one] for name, one in ids.items() if one in known})
    with planned_at_once(spark):
        return (
            rows.writeStream.queryName(stage.name)
            .foreachBatch(without_interrupts(on_batch))
            .option("checkpointLocation", str(config.checkpoint.folder))
            .start()
        )


def without_interrupts(on_batch: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """Where a task of a batch fails, those beside it are told to end, and not interrupted, as a query's tasks are.

    A task that is interrupted while it waits for a Python worker takes their daemon for dead, and Spark ends that with
    the workers of every other stage: one stage's poison record would fail the batches of all (Spark 4.3,
    `PythonWorkerFactory`). A task that is told ends at its next row, or after four seconds with its worker.
    """

    def called(rows: DataFrame, batch: int) -> None:
        rows.sparkSession.sparkContext.setLocalProperty(_INTERRUPT, "false")
        on_batch(rows, batch)

    return called


def planned_at_once(spark: SparkSession) -> AbstractContextManager[None]:
    """While queries are started whose function is computed by jobs of their batches, and never before these.

    A query keeps the settings that it is started with, and its batches' jobs have them.
    """
    return with_settings(spark, _SETTINGS)


def _options(config: StageConfig, head: Manifest, name: str, counts: Path) -> SourceOptions:
    """How the source of an input is opened."""
    at, is_first = head.inputs[name], name == next(iter(config.stage.inputs))
    # The first of several topics is told of requests; where there are channels, markers bring them.
    asks = is_first and not config.stage.channels
    looks = bool(at.upstream)
    return SourceOptions(
        input=name,
        topic=at.topic,
        upstream=at.upstream,
        patience_s=config.places.patience_s,
        max_records=config.limits.max_records,
        trigger_ms=config.limits.trigger_ms,
        app=head.app,
        stage=config.stage.name,
        store=config.places.store if looks else "",
        counts=str(counts) if looks else "",
        told=str(config.told.folder),
        wakes=is_first and config.shape.due_by is not None,
        asks=asks,
        handled=tuple(head.recorded) if asks else (),
        until=config.limits.until.get(at.topic),
    )
