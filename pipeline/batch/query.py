"""The streaming query of one stage: its inputs as sources of Spark, and its function applied to them once."""

import os
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ...state.records import Position
from ...store.objects.s3.settings import aws_variables
from ...store.versions.manifest import Manifest
from ..source.data_source import open_stream
from ..source.options import Private, SourceOptions
from ..spark.plans import first_column, needed_columns, optimised_paths, plan_of
from ..spark.session import with_settings
from ..spark.shares import needed_shares
from .job import StageConfig
from .transform import apply, tag

PLANNED_AT_ONCE = {
    # Planned adaptively, what is before a shuffle is a job of its own, that the rest may be planned by what it gave:
    # a record that fails there would fail before anybody could leave it out, and a small batch would take longer.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    # Of how many keys Spark's hash table has room before it sorts, where an aggregate keeps what it cannot replace.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "50000",
}
"""Settings of queries whose function is computed by jobs of their batches. A query, and its batches' jobs, keep those
that it is started with."""


def start(
    spark: SparkSession,
    config: StageConfig,
    head: Manifest,
    on_batch: Callable[[DataFrame, int], None],
    *,
    counts: Path,
) -> StreamingQuery:
    """Start a stage's query where its newest version, the `head`, stands. Raises `Refused` as `applied.apply`.

    `on_batch` gets each batch's rows and its number; `counts` is where sources count what they ask of the store.
    """
    stage, places = config.stage, config.places
    private = Private(places.kafka, places.s3_settings, aws_variables(os.environ))
    streams: dict[str, DataFrame] = {}
    for name in stage.inputs:
        at, is_first = head.inputs[name], not streams
        # The first of several topics is told of requests; where there are channels, markers bring them.
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
    ends = ((name, head.inputs[name]) for name in applied.sources)  # an input that is read twice is there twice
    positions = [Position(name, at.offsets, at.version, at.passed, (), at.watermark_ms) for name, at in ends]
    config.checkpoint.write(head.version, positions)
    rows = tag(applied.frames, config.shape.key)
    used = optimised_paths(rows)
    known, shares = needed_columns(used), needed_shares(used) if len(used) == len(streams) else {}
    ids = {name: first_column(plan_of(stream)) for name, stream in streams.items()}
    config.planners.need(stage.name, {name: known[one] for name, one in ids.items() if one in known})
    config.planners.choose(stage.name, {name: shares[one] for name, one in ids.items() if one in shares})
    with with_settings(spark, PLANNED_AT_ONCE):
        return (
            # A session may run several apps, and no two queries of one name.
            rows.writeStream.queryName(f"{places.app}/{stage.name}")
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
        rows.sparkSession.sparkContext.setLocalProperty("spark.job.interruptOnCancel", "false")
        on_batch(rows, batch)

    return called
