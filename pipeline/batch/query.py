"""The streaming query of one stage: its inputs as Spark sources, and its function applied to them once."""

import os
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ...state.records import Position
from ...store.objects.s3_settings import aws_variables
from ...store.versions.manifest import Manifest
from ..source.data_source import open_stream
from ..source.options import Private, SourceOptions
from ..spark.plans import first_column, needed_columns, optimised_paths, plan_of
from ..spark.session import with_settings
from ..spark.shares import needed_shares
from .job import StageConfig
from .transform import apply, tag

PLANNED_AT_ONCE = {
    # Adaptive execution runs the part before a shuffle as a job of its own: a bad record would fail there, before it
    # could be rejected, and a small batch would take longer.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    # Number of keys in Spark's hash table, for aggregates whose values cannot be updated in place, before it sorts.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "50000",
}
"""Spark settings of a stage's query. A query and its batches' jobs keep the settings of the query's start."""


def start(
    spark: SparkSession,
    config: StageConfig,
    head: Manifest,
    on_batch: Callable[[DataFrame, int], None],
    *,
    counts: Path,
) -> StreamingQuery:
    """Start a stage's query at the positions of its `head`. Raises `Refused` as `transform.apply` does.

    `on_batch` gets each batch's rows and number. Sources count their requests to the store in the folder `counts`.
    """
    stage, places = config.stage, config.places
    private = Private(places.kafka, places.s3_settings, aws_variables(os.environ))
    streams: dict[str, DataFrame] = {}
    for name in stage.inputs:
        at, is_first = head.inputs[name], not streams
        # Snapshot requests come by the first topic; a stage that reads channels gets them by markers.
        asks = is_first and not stage.channels
        options = SourceOptions(
            input=name,
            topic=at.topic,
            topic_id="" if at.upstream else at.topic_id,
            upstream=at.upstream,
            patience_s=places.patience_s,
            max_records=config.limits.max_records,
            trigger_ms=config.limits.trigger_ms,
            app=head.app,
            stage=stage.name,
            store=places.store,
            spool=config.input_spools.get(at.topic, ""),
            counts=str(counts) if at.upstream else "",
            told=str(config.planners.folder),
            wakes=is_first and config.shape.due_by is not None,
            asks=asks,
            handled=tuple(head.recorded) if asks else (),
            until=config.limits.until.get(at.topic),
        )
        streams[name] = open_stream(spark, options, private, config.shape.inputs[name])
    applied = apply(stage, streams)
    ends = ((name, head.inputs[name]) for name in applied.sources)  # an input that is read twice occurs twice
    positions = [Position(name, at.offsets, at.version, at.passed, (), at.watermark_ms) for name, at in ends]
    config.checkpoint.write(head.version, positions)
    rows = tag(applied.frames, config.shape.key)
    used = optimised_paths(rows)
    columns, shares = needed_columns(used), needed_shares(used) if len(used) == len(streams) else {}
    ids = {name: first_column(plan_of(stream)) for name, stream in streams.items()}
    config.planners.need(stage.name, {name: columns[id_] for name, id_ in ids.items() if id_ in columns})
    config.planners.choose(stage.name, {name: shares[id_] for name, id_ in ids.items() if id_ in shares})
    with with_settings(spark, PLANNED_AT_ONCE):
        return (
            # A session may run several apps, and query names have to be unique.
            rows.writeStream.queryName(f"{places.app}/{stage.name}")
            .foreachBatch(without_interrupts(on_batch))
            .option("checkpointLocation", str(config.checkpoint.folder))
            .start()
        )


def without_interrupts(on_batch: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """Return a callback whose tasks are cancelled without an interrupt when another task of the batch fails.

    A task that is interrupted while it waits for a Python worker assumes that the worker daemon is dead, and Spark then
    kills the daemon with the workers of all other stages: one stage's poison record would fail the batches of all
    (Spark 4.3, `PythonWorkerFactory`). A task cancelled without an interrupt ends at its next row, or with its worker
    after four seconds.
    """

    def called(rows: DataFrame, batch: int) -> None:
        rows.sparkSession.sparkContext.setLocalProperty("spark.job.interruptOnCancel", "false")
        on_batch(rows, batch)

    return called
