"""Records of an app's history for learned tests, from the input archive or Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from ...client.app import StoredApp
from ...errors import Refused
from ...operations.debugging.reconcile.key_records import SourceTopic, read_records, source_topics
from ...snapshot.bisect.verdict import RecordLocation
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...store.archive.extents import Extent, intersect
from .. import Record
from .runs import TopicRecord

_PARTS = 4
"""Number of parts of a topic's history from which records are taken, from its beginning to its end."""


def sample_records(app: StoredApp, count: int) -> list[TopicRecord]:
    """Return up to `count` records of each topic that the app reads, from several parts of its history, by time.

    The newest `count` rejected records are added, if they can still be read. Raises `Refused` if no record can be read.
    """
    client, heads = app._client, app.at().current_cut().stages
    topics, sources = client.channels(), dict[str, SourceTopic]()
    for stage in heads:
        sources |= {source.source.topic: source for source in source_topics(client.store, heads, stage, topics)}
    rejected = _rejected(app, count)
    records = [
        record
        for source in sources.values()
        for record in _sample(source, topics, count, rejected.get(source.source.topic, ()))
    ]
    if not records:
        raise Refused(
            f"no record that {app.called} has read can be read any more",
            hint=f"an input archive keeps them; slackwater archive {app.called} shows what it has",
        )
    return sorted(records, key=lambda record: record.record.time_ms or 0)


def _rejected(app: StoredApp, count: int) -> dict[str, list[Extent]]:
    found = dict[str, list[Extent]]()
    for row in app.rejected(limit=count, every=True).records:
        if "+" not in row.address and "[" in row.address:  # a record of a topic, and no row of a message or a sink
            at = RecordLocation.parse(row.address)
            found.setdefault(at.topic, []).append(Extent(at.partition, at.offset, at.offset + 1))
    return found


def _sample(
    source: SourceTopic, topics: KafkaTopics | None, count: int, rejected: Sequence[Extent]
) -> Iterator[TopicRecord]:
    read = [Extent(partition, 0, end) for partition, end in enumerate(source.source.offsets) if end]
    readable = intersect(source.readable(), read)
    some = -(-count // (_PARTS * max(len(source.source.offsets), 1)))
    wanted = [*intersect(readable, rejected)] if rejected else []
    for extent in readable:
        size = extent.end - extent.first
        starts = {extent.first + (size - min(some, size)) * part // max(_PARTS - 1, 1) for part in range(_PARTS)}
        wanted += (Extent(extent.partition, start, min(start + some, extent.end)) for start in starts)
    rows = {
        (row["partition"], row["offset"]): row
        for extent in wanted
        for table in read_records(source, topics, (extent,))
        for row in _rows(table, extent)
    }
    for _, row in sorted(rows.items()):
        headers = [(header["key"], header["value"]) for header in row.get("headers") or ()]
        yield TopicRecord(source.name, Record(row["value"], None, row["key"], headers, _time_ms(row)))


def _rows(table: pa.Table, extent: Extent) -> Iterator[dict[str, Any]]:
    for row in table.to_pylist():
        if extent.first <= row["offset"] < extent.end:
            yield row


def _time_ms(row: dict[str, Any]) -> int:
    time = row["timestamp"]
    return time if isinstance(time, int) else round(time.timestamp() * 1_000)
