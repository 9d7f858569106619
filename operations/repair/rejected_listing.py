"""List of the records that the stages of an app rejected, newest first."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from ...errors import NotFound
from ...snapshot.cut.graph import Cut, topological_order
from ...snapshot.query.sql import connect, run_query
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.duckdb_view import quote_identifier
from ...store.versions.side_tables import REJECTED, rejected_counts, table_name

_COLUMNS = (
    'topic, partition, "offset", "row", input, epoch_ms(time) AS time_ms, key, value, error, message, stack, version, '
    "epoch_ms(rejected_at) AS rejected_ms, attempts, retried"
)


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A record that made a batch fail and was left out of it."""

    stage: str
    address: str
    """Kafka position: `topic[partition]@offset`, followed by `+row` for a row of a message in a repartition topic.

    A row that a sink's topic refused has the address `topic vN+row`: version N, and the index among the version's rows
    for the sink.
    """
    input: str
    time_ms: int
    key: bytes | None
    value: bytes | None
    """Bytes of the record as stored in Kafka; for a row of a repartition topic, an Arrow stream of that row."""
    error: str
    message: str
    stack: str
    version: int
    rejected_ms: int
    attempts: int
    retried: int | None
    """Version in which a retry of the record succeeded; None while the record waits."""


@dataclass(frozen=True, slots=True)
class RejectedRecords:
    """Newest rejected records of an app, and numbers of rejected records by stage."""

    app: str
    records: tuple[RejectedRecord, ...]
    total: Mapping[str, int]
    """Number of records ever rejected, by stage."""
    waiting: Mapping[str, int]


def list_rejected(
    store: ObjectStore, cache: SstCache, cut: Cut, *, stage: str = "", limit: int = 50, every: bool = False
) -> RejectedRecords:
    """Return the newest `limit` rejected records of a cut; all if `limit` is 0.

    Retried records are left out, unless `every` is set. Raises `NotFound` if the cut has no such stage.
    """
    if stage and stage not in cut.stages:
        raise NotFound(f"stage at {cut.ref}", stage, cut.stages)
    stages = [
        name
        for name in topological_order(cut.stages)
        if stage in ("", name) and REJECTED in cut.stages[name].side_tables
    ]
    where = "" if every else "WHERE retried IS NULL"
    newest = f'ORDER BY rejected_at DESC, topic, partition, "offset", "row" {f"LIMIT {limit}" if limit else ""}'
    records = []
    for name in stages:
        table = table_name(name, REJECTED)
        with closing(connect(store, cache, cut, only={table})) as con:
            rows = run_query(con, f"SELECT {_COLUMNS} FROM {quote_identifier(table)} {where} {newest}").to_pylist()
        for row in rows:
            source = cut.stages[name].inputs.get(row["input"])
            topic, partition, offset, number = (row.pop(column) for column in ("topic", "partition", "offset", "row"))
            position = f"{topic}[{partition}]@{offset}"
            address = f"{position}+{number}" if source is not None and source.upstream else position
            if row["input"] in cut.stages[name].sinks:
                address = f"{topic} v{offset}+{number}"
            records.append(RejectedRecord(stage=name, address=address, **row))
    records.sort(key=lambda record: -record.rejected_ms)
    numbers = {name: rejected_counts(cut.stages[name]) for name in stages}
    total = {name: counts.total for name, counts in numbers.items()}
    waiting = {name: counts.waiting for name, counts in numbers.items()}
    return RejectedRecords(cut.app, tuple(records[: limit or None]), total, waiting)
