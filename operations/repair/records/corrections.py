"""Corrections of sinks: records that inform the consumers of a keyed sink about each row that a repair changes.

A sink can be corrected if its records have the key of the stage's table, and the stage emits the rows of this table. A
consumer that keeps the newest record of each key then has the same rows as the table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from ....pipeline.api.sink import TopicSink
from ....pipeline.api.stage import Stage
from ....pipeline.batch.task import output_topic_of, separate_too_large
from ....pipeline.messages import outgoing
from ....snapshot.diff.key_changes import KeyChanges
from ....state.kinds.kind import kind_of
from ....state.kinds.upsert import Upsert
from ....store.versions import apps
from ....store.versions.manifest import Manifest
from ...debugging.replay.program import LoadedProgram


def corrected_sinks(stage: Stage, head: Manifest) -> Iterator[TopicSink]:
    """Yield the sinks of a stage that a repair can correct."""
    if head.table is None or kind_of(head.table.state).emission != "table":
        return
    if isinstance(head.table.state, Upsert) and head.table.state.delete_when is not None:
        return  # it emits nothing for a deleted key, so consumers do not have the rows of the table
    key = {column.name for column in head.table.key}
    for output in stage.emits_to:
        if isinstance(output, TopicSink) and output.name in head.sinks and {*output.encoding.key} == key:
            yield output


def records_for_sinks(program: LoadedProgram, head: Manifest, changes: KeyChanges) -> dict[str, pa.Table]:
    """Return the encoded corrections by sink: for each changed key, the new row or a tombstone.

    Raises `BadRecord` for a record that the sink's topic would refuse, and the errors of the schema registry.
    """
    stage, bound = program.app.stages[head.stage], program.shapes[head.stage].bound
    topics = apps.published_sinks(program.store, apps.find_app(program.store, head.app), head.promotion) or {}
    result = {}
    for sink in corrected_sinks(stage, head):
        assert bound is not None  # noqa: S101  the stage has a table
        target = dataclasses.replace(output_topic_of(sink, head, topics), rejects_too_large=False)
        (emitted,) = bound.emitted_schemas
        columns = dict(zip(changes.keys.column_names, changes.keys.columns, strict=True))
        columns |= dict(zip(changes.after.column_names, changes.after.columns, strict=True))
        nullable = pa.schema([column.with_nullable(True) for column in emitted])
        rows = pa.table({name: columns[name] for name in emitted.names}).cast(nullable)
        records = outgoing.encode_records(rows, sink.encoding, program.patience_s)
        result[sink.name], _ = separate_too_large(
            program.kafka, target, _with_tombstones(records, changes), head.version + 1
        )
    return result


def _with_tombstones(records: pa.Table, changes: KeyChanges) -> pa.Table:
    for index, field in enumerate(records.schema):
        if field.name != "key":
            values = pc.if_else(
                pa.array(changes.has_row), records[field.name].combine_chunks(), pa.scalar(None, field.type)
            )
            records = records.set_column(index, field, values)
    return records
