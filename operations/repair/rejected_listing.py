"""The records that the stages of an app rejected, newest first."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from ...errors import NotFound
from ...snapshot.cut.graph import Cut, order
from ...snapshot.query.sql import connect, run_query
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.duckdb_view import quoted
from ...store.versions.side_tables import REJECTED, rejected_of, table_name

_COLUMNS = (
    'topic, partition, "offset", "row", input, epoch_ms(time) AS time_ms, key, value, error, message, stack, version, '
    "epoch_ms(rejected_at) AS rejected_ms, attempts, retried"
)


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A record that a stage left out."""

    stage: str
    address: str
    """Where it is in Kafka: `topic[partition]@offset`, and of a repartition topic the row in the message.

    Of one that a sink's topic did not take, `topic vN+row`: which of those of the version."""
    input: str
    time_ms: int
    key: bytes | None
    value: bytes | None
    """As Kafka has them; of a repartition topic's row, an Arrow stream of that row."""
    error: str
    """The class of what was raised."""
    message: str
    stack: str
    version: int
    """The version that left it out."""
    rejected_ms: int
    attempts: int
    retried: int | None
    """The version that took it; None while it waits."""


@dataclass(frozen=True, slots=True)
class RejectedRecords:
    """Of an app's rejected records the newest, and how many there are."""

    app: str
    records: tuple[RejectedRecord, ...]
    total: Mapping[str, int]
    """By stage, all that it ever rejected."""
    waiting: Mapping[str, int]
    """By stage, those that were not retried."""


def rejected(
    store: ObjectStore, cache: SstCache, cut: Cut, *, stage: str = "", limit: int = 50, every: bool = False
) -> RejectedRecords:
    """The newest `limit` rejected records (0 for all) at a moment, of one stage or of all: those that wait, or `every`.

    Raises `NotFound` where there is no such stage at that moment.
    """
    if stage and stage not in cut.stages:
        raise NotFound(f"stage at {cut.ref}", stage, cut.stages)
    stages = [name for name in order(cut.stages) if stage in ("", name) and REJECTED in cut.stages[name].side_tables]
    where = "" if every else "WHERE retried IS NULL"
    newest = f'ORDER BY rejected_at DESC, topic, partition, "offset", "row" {f"LIMIT {limit}" if limit else ""}'
    found = []
    for name in stages:
        table = table_name(name, REJECTED)
        with closing(connect(store, cache, cut, only={table})) as con:
            rows = run_query(con, f"SELECT {_COLUMNS} FROM {quoted(table)} {where} {newest}").to_pylist()
        for row in rows:
            source = cut.stages[name].inputs.get(row["input"])
            topic, partition, offset, number = (row.pop(column) for column in ("topic", "partition", "offset", "row"))
            place = f"{topic}[{partition}]@{offset}"
            address = f"{place}+{number}" if source is not None and source.upstream else place
            if row["input"] in cut.stages[name].sinks:
                address = f"{topic} v{offset}+{number}"
            found.append(RejectedRecord(stage=name, address=address, **row))
    found.sort(key=lambda each: -each.rejected_ms)
    numbers = {name: rejected_of(cut.stages[name]) for name in stages}
    total = {name: each.total for name, each in numbers.items()}
    waiting = {name: each.waiting for name, each in numbers.items()}
    return RejectedRecords(cut.app, tuple(found[: limit or None]), total, waiting)
