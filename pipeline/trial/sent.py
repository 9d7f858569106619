"""What two clones gave each sink since they were made, and in which rows they differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from ...moments.cut.graph import Cut
from ...moments.cut.in_flight import InFlight
from ...moments.diff.row_sets import only_in
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ..kafka.channels import KafkaChannels
from ..kafka.protocol import Kafka

_PLACES = ("_partition", "_offset", "_row")


@dataclass(frozen=True, slots=True)
class SinkDiff:
    """Rows of one sink that only one of two programs gave it. Of records: key, value and headers, as bytes."""

    sink: str
    removed: pa.Table
    """That only the first gave."""
    added: pa.Table
    """That only the second gave."""
    rows: tuple[int, int]
    """How many each gave."""

    @property
    def equal(self) -> bool:
        """Whether both gave the same rows, in whatever order."""
        return not self.removed.num_rows and not self.added.num_rows


def sink_diffs(store: ObjectStore, kafka: Kafka, one: Cut, other: Cut) -> tuple[SinkDiff, ...]:
    """How what two apps wrote for their sinks differs, by the sinks' names. Raises `Unavailable`."""
    mine, theirs = (dict(_rows(store, kafka, cut)) for cut in (one, other))
    found = []
    for name in sorted({*mine, *theirs}):
        known = mine.get(name, theirs.get(name))
        assert known is not None  # noqa: S101  it is one of both
        before, after = (rows.get(name, known.slice(0, 0)) for rows in (mine, theirs))
        found.append(SinkDiff(name, only_in(before, after), only_in(after, before), (before.num_rows, after.num_rows)))
    return tuple(found)


def _rows(store: ObjectStore, kafka: Kafka, cut: Cut) -> Iterator[tuple[str, pa.Table]]:
    channels = KafkaChannels(kafka)
    for head in cut.stages.values():
        for name in head.sinks:
            tables = [
                rows.drop_columns([p for p in _PLACES if p in rows.column_names])
                for rows in channels.read(_all(store, head, name))
            ]
            yield name, pa.concat_tables(tables, promote_options="default") if tables else pa.table({})


def _all(store: ObjectStore, head: Manifest, name: str) -> InFlight:
    """All that was written for a sink since it began, as records on the way that nobody has read."""
    sink = head.sinks[name]
    versions = history.after(store, head.app, head.stage, sink.since - 1)
    attempts = tuple(attempt for each in versions if name in each.sinks for attempt in each.sinks[name].attempts)
    ends = (sink.end,)
    return InFlight(name, sink.topic, head.stage, "", (0,), ends, attempts, sink.sent, (), sink.since, head.version, "")
