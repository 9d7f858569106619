"""Records behind a bad commit of an attached topic: each row stores the location of the record that wrote it."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import SlackwaterError
from ...state.records import topic_id_in
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions.manifest import Manifest
from ..cut.kafka_topics import KafkaTopics
from ..cut.lineage import Window
from ..diff.key_changes import KeyChanges
from ..diff.stored_rows import KeyReader
from .causes import Cause, CauseKind, TracedCause
from .verdict import RecordLocation, RecordPath, SourceRecord, Verdict

_MAX_KEYS = 100
"""Maximum number of keys whose records are looked up."""


def find_written_records(
    store: ObjectStore, cache: SstCache, kafka: KafkaTopics | None, verdict: Verdict
) -> TracedCause | None:
    """Return the records that wrote, or deleted, the rows that turned bad; None if the rows store no records.

    With `kafka`, the record is read, if it still exists there. Costs a look-up for each key.
    """
    commit, keys = verdict.bad.stages[verdict.stage], verdict.keys
    if commit.attached is None or not commit.attached.follows_topic or verdict.candidates or keys is None:
        return None
    changed = keys.changed()
    records = sorted(set(_records(store, cache, commit, changed.head(_MAX_KEYS))), key=lambda at: at.offset)
    if not records:
        return None
    first, count = records[0], len(changed)
    window = next((part for part in verdict.lineage.direct if part.partition == first.partition), None)
    found = _read(kafka, commit, first, window) if kafka is not None else None
    message, of_key = found or (None, 0)
    text = "wrote the row that turned bad" if count == 1 else f"wrote one of {count:,} rows that turned bad"
    if of_key > 1:
        text += f"; {of_key - 1:,} of the commit's earlier records have the same key"
    elif not of_key:
        text += "; whether an earlier record of the commit has the key is not known without Kafka"
    kind: CauseKind = "record" if count == 1 else "records"
    evidence = {"alone": True if count == 1 else count}
    cause = Cause(kind, of_key == 1, f"{first} {text}", first, records=tuple(records), evidence=evidence)
    if message is None:
        return TracedCause(cause)
    span = (Window(first.topic, first.partition, first.offset, first.offset + 1),)
    path = RecordPath((), message, "", span, None, others=count - 1, of_key=of_key, proved=of_key == 1)
    return TracedCause(cause, path)


def _records(store: ObjectStore, cache: SstCache, commit: Manifest, changed: KeyChanges) -> Iterator[RecordLocation]:
    (source,) = commit.inputs.values()
    if commit.table is None or changed.keys.column_names != [column.name for column in commit.table.key]:
        return
    for number in range(len(changed)):
        row = KeyReader(store, cache, changed.keys.slice(number, 1)).read_newest(commit)
        if row is not None and row.seq == commit.row_seq and row.record is not None:
            yield RecordLocation(source.topic, *row.record)


def _read(
    kafka: KafkaTopics, commit: Manifest, at: RecordLocation, window: Window | None
) -> tuple[SourceRecord, int] | None:
    """Return the record, and the number of the commit's records, up to this record, with its key and partition."""
    try:
        if kafka.topic_id(at.topic) != topic_id_in(commit, at.topic):
            return None
        start = window.start if window is not None else at.offset
        parts = [*kafka.records(at.topic, at.partition, start, at.offset + 1)]
    except SlackwaterError:
        return None
    if not parts or (read := pa.concat_tables(parts))["offset"][-1].as_py() != at.offset:
        return None
    row = read.slice(read.num_rows - 1).to_pylist()[0]
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    (time_ms,) = read["timestamp"].cast(pa.int64())[-1:].to_pylist()
    of_key = int(np.asarray(pc.equal(read["key"], row["key"])).sum())
    return SourceRecord(at, time_ms, row["key"], row["value"], headers), of_key
