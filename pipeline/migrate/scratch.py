"""The program that computes a backfill: one stage, that reads users' topics itself and keeps the columns in question.

The functions of stateless stages before it are part of its own, so it writes nothing to Kafka: nobody sees what it
does. What stages with state sent it reads from their repartition topics; there are stages for these that do nothing.

It leaves out the records that the stage, or one before it, had rejected when the app was migrated. Their rows are not
in the table. If one is retried later, that adds it to all columns, the new ones too; with the past, it would be there
twice. One that was retried before the migration is part of the past like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from ...keep.backfill.targets import Target
from ...keep.backfill.windows import read_through
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions.aside import rejected_of
from ...store.versions.manifest import Manifest
from ..api.app import App
from ..api.event_time import DEFAULT_EVENT_TIME
from ..api.stage import Stage
from ..api.starting_offsets import EARLIEST
from ..api.table import table
from ..api.topic import Topic
from ..api.update import parse_ddl
from ..batch.applied import over
from ..reject.table import RejectedTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MAX_RECORDS = 1_000_000
"""A batch, where the program names no bound: what is computed is kept after each."""


def scratch_program(
    app: App, target: Target, topics: Mapping[str, str], skipped: Offsets, sent: Mapping[str, str]
) -> App:
    """An app of the target's name with its stage, which alone is run.

    `topics` are users' topics that the program `app` reads under another name, by the declared one, and `skipped`
    records of users' topics that it does not see; `sent` has the columns of repartition topics, as Spark DDL.
    """
    stage = app.stages[target.stage]
    assert stage.state is not None  # noqa: S101  only tables are backfilled
    read = {
        name: replace(one, name=topics.get(name, name)) if isinstance(one, Topic) else one
        for name, one in _sources(app, stage)
    }

    def transform(*frames: DataFrame) -> DataFrame:
        given = {name: without(one, skipped.get(name, {})) for name, one in zip(read, frames, strict=True)}
        return _made(app, stage, given)  # type: ignore[return-value]

    alone = replace(
        stage,
        transform=transform,
        reads=tuple(read.values()),
        writes=(),
        key=app.key_of(stage),
        state=stage.state.narrowed(target.columns),
        table=table(partitions=stage.table.partitions, compaction=stage.table.compaction),
        max_records=stage.max_records or _MAX_RECORDS,
        trigger=None,
        max_unflushed=None,
        # What it leaves out is what the app did: a record more, and its columns would not be of the same ones.
        on_error="stop",
        rejects="",
        event_time=DEFAULT_EVENT_TIME,
    )
    writers = {name: _writer(app, channel, name, sent[channel]) for channel, name in target.writers.items()}
    return App(target.scratch, {**writers, stage.name: alone}, app.file)


def _writer(app: App, channel: str, name: str, columns: str) -> Stage:
    """A stage of this name that only says which columns a channel has: nobody runs it."""

    def typed(rows: DataFrame) -> DataFrame:
        return rows.select(*(F.lit(None).cast(each.dataType).alias(each.name) for each in parse_ddl(columns)))

    writes = (app.channel(channel),)
    return Stage(name, typed, (Topic(channel, EARLIEST),), writes, None, (), table())


def _sources(app: App, stage: Stage) -> Iterator[tuple[str, Topic | str]]:
    """What is read, by its declared name: users' topics, and the channels that stages with state write."""
    for name, one in stage.inputs.items():
        if (writer := _stateless(app, one)) is None:
            yield name, one
        else:
            yield from _sources(app, writer)


def _stateless(app: App, one: Topic | str) -> Stage | None:
    """The stage without state whose functions give an input; None for one that is read."""
    if isinstance(one, Topic):
        return None
    writer = app.writer_of(one)
    return writer if writer.state is None else None


def _made(app: App, stage: Stage, given: Mapping[str, DataFrame]) -> tuple[DataFrame, ...]:
    """What a stage's function gives, of what is read."""
    found = []
    for name, one in stage.inputs.items():
        if (writer := _stateless(app, one)) is None:
            found.append(given[name])
        else:
            frames = _made(app, writer, given)
            # One for each of its outputs, or one for all of them.
            found.append(frames[[each.name for each in writer.writes].index(name) if len(frames) > 1 else 0])
    return over(stage, found)


Offsets = Mapping[str, Mapping[int, tuple[int, ...]]]
"""Of each topic as declared, by partition."""


def left_out(store: ObjectStore, cache: SstCache, migrated: Manifest) -> Offsets:
    """The records that waited to be retried at the version of a migration, of what had come to the stage by then.

    Raises `Refused` where a version on the way was collected, and as `RejectedTable.rows`.
    """
    found: dict[str, dict[int, tuple[int, ...]]] = {}
    for each in read_through(store, migrated):
        if not rejected_of(each).waiting:
            continue
        rows = RejectedTable(store, cache, each.app, each.stage).rows(each)
        waiting = rows.filter(pc.is_null(rows["retried"])).select(["input", "partition", "offset"])
        grouped = pa.TableGroupBy(waiting, ["input", "partition"]).aggregate([("offset", "list")])
        for row in grouped.to_pylist():
            found.setdefault(row["input"], {})[row["partition"]] = tuple(sorted(row["offset_list"]))
    return found


def without(records: DataFrame, offsets: Mapping[int, tuple[int, ...]]) -> DataFrame:
    """A user's topic without these records, by partition: no function or expression after it sees them."""
    for partition, some in offsets.items():
        # As text: a column made of each number is a call to the JVM.
        numbers = ", ".join(map(str, some))
        records = records.where(F.expr(f"NOT (partition = {partition} AND offset IN ({numbers}))"))
    return records
