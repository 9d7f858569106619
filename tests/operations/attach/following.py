"""In-memory checkpoints, their followers, and the content of the resulting versions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from slackwater.operations.attach.tail import FollowedVersion, Tail
from slackwater.store.compaction.merge import iter_visible_rows
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.arrow_types import python_rows
from slackwater.store.versions import history
from slackwater.store.versions.manifest import Manifest
from slackwater.store.versions.side_tables import tables_of

from tests.operations.attach.memory_checkpoint import Changes, MemoryCheckpoint, MemoryTable, Row

START_MS = 1_700_000_000_000
TOTALS = MemoryTable(
    "", pa.schema([("country", pa.string())]), pa.schema([("orders", pa.int64()), ("cents", pa.float64())])
)
SEEN = MemoryTable("Seen", pa.schema([("id", pa.int64()), ("day", pa.date32())]), pa.schema([]), "distinct")
LATEST = MemoryTable(
    "Latest", pa.schema([("id", pa.int64())]), pa.schema([("days", pa.list_(pa.int64()))]), "transform"
)


@dataclass(slots=True)
class RacingCheckpoint(MemoryCheckpoint):
    """A checkpoint that changes between two reads: each read first runs the next step of `between`."""

    between: Iterator[Callable[[], object]] = field(default_factory=lambda: iter(()))

    def _check_there(self, batch: int) -> None:
        next(self.between, lambda: None)()
        MemoryCheckpoint._check_there(self, batch)


def query(*tables: MemoryTable) -> RacingCheckpoint:
    """Return a query that has not committed a batch yet."""
    return RacingCheckpoint(tables or (TOTALS, SEEN, LATEST))


def commit(checkpoint: MemoryCheckpoint, changes: Changes) -> None:
    """Commit the query's next batch, a second after the previous one."""
    number = len(checkpoint.batches)
    checkpoint.commit(changes, {"orders": (10 * number + 10, number)}, START_MS + 1_000 * number, 500 * number)


def tail(store: ObjectStore, cache: SstCache, checkpoint: MemoryCheckpoint, **options: int) -> Tail:
    """Return a follower of the checkpoint for the stage shop/totals."""
    return Tail(store, cache, checkpoint, "shop", "totals", by="host:1", **{"partitions": 2} | options)


def caught_up(following: Tail) -> tuple[FollowedVersion, ...]:
    """Read all available batches; return the new versions."""
    if following.head is None:
        following.claim()
    made: tuple[FollowedVersion, ...] = ()
    while landed := following.commit_next():
        made += landed
    return made


def rows_at(store: ObjectStore, cache: SstCache, manifest: Manifest) -> dict[str, dict[Row, Row]]:
    """Return the rows of all tables of a version, by table, key and values."""
    found = {}
    for name, at in tables_of(manifest).items():
        assert at.table is not None
        key, values = ([column.name for column in columns] for columns in (at.table.key, at.table.values))
        parts = (iter_visible_rows(store, cache, at.ssts, at.table, p, 0) for p in range(at.table.partitions))
        rows = [row for part in parts for some in part for row in python_rows(some)]
        found[name] = {tuple(map(_hashable, _values(row, key))): _values(row, values) for row in rows}
        assert len(found[name]) == len(rows), "a key is there twice"
    return found


def _values(row: Mapping[str, object], names: Sequence[str]) -> Row:
    return tuple(row[name] for name in names)


def _hashable(value: object) -> object:
    return tuple(map(_hashable, value.values())) if isinstance(value, Mapping) else value


def truth(checkpoint: MemoryCheckpoint, batch: int) -> dict[str, dict[Row, Row]]:
    """Return the rows that a version up to this batch must have."""
    found = checkpoint.state(batch)
    return {"totals": found[""]} | {f"totals_{name.lower()}": rows for name, rows in found.items() if name}


def versions(store: ObjectStore) -> tuple[Manifest, ...]:
    """Return all versions of shop/totals, oldest first."""
    numbers = history.list_versions(store, "shop", "totals")
    return tuple(history.read_stored(store, "shop", "totals", number) for number in numbers)


def check_never_wrong(store: ObjectStore, cache: SstCache, checkpoint: MemoryCheckpoint) -> None:
    """Check that each version names its batches, and has the query's rows at the end of the last of them."""
    before = 0
    for each in versions(store):
        assert each.attached is not None
        assert each.attached.next_batch - each.attached.batches == before, each
        before = each.attached.next_batch
        if before:
            assert rows_at(store, cache, each) == truth(checkpoint, before - 1), each
        if each.kind == "batch":
            batch = checkpoint.batches[before - 1]
            assert (each.time_ms, each.inputs["orders"].offsets) == (batch.committed_ms, batch.offsets["orders"])
            assert each.watermark_ms == batch.watermark_ms
