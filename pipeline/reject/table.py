"""The table of a stage's rejected records, beside its own: `<stage>_rejected`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from msgspec.structs import replace

from ...snapshot.rejected.retries import TABLE
from ...store.compaction import merge
from ...store.compaction.picker import pick
from ...store.compaction.plan import apply, newest_first
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.sst import writer as sst
from ...store.sst.hashing import hash_keys
from ...store.sst.types import PUT, arrow_schema
from ...store.versions.aside import REJECTED
from ...store.versions.manifest import Aside, Manifest
from ..kafka.rejects import DeadLetter

SCHEMA = arrow_schema(TABLE.columns)
_NO_ROWS = SCHEMA.empty_table()
_KEY = [column.name for column in TABLE.key]


@dataclass(frozen=True, slots=True)
class Written:
    """The table's rows, where they are: in the store (or spool) and the cache of the stage's batches."""

    store: ObjectStore
    cache: SstCache
    app: str
    stage: str

    def rows(self, manifest: Manifest) -> pa.Table:
        """All rows of a version's table, of `SCHEMA`."""
        table = manifest.aside.get(REJECTED)
        ssts = newest_first(table.ssts) if table is not None else ()
        blocks = (block for sst in ssts for block in self.cache.open(self.store, sst, TABLE).blocks)
        parts = [pa.Table.from_batches([block.stored]) for block in blocks]
        return merge.merge_rows(parts, TABLE, drop_tombstones=True).select(SCHEMA.names) if parts else _NO_ROWS

    def put(self, base: Manifest, rows: pa.Table, seq: int, *, added: int, waiting: int) -> Aside:
        """The table after `base` with these rows, of `SCHEMA`; its runs are merged where there are many.

        Args:
            base: The version before.
            rows: At least one. Those of keys that are there replace them.
            seq: `_seq` of the rows.
            added: How many of them are new.
            waiting: By how many more records are waiting; negative when some were retried.
        """
        before = base.aside.get(REJECTED) or Aside(TABLE)
        hashed = pa.table(
            [
                pa.array(hash_keys(rows, _KEY)),
                *rows.columns,
                pa.repeat(pa.scalar(seq, pa.int64()), rows.num_rows),
                pa.repeat(pa.scalar(PUT, pa.uint8()), rows.num_rows),
            ],
            names=["_hash", *SCHEMA.names, "_seq", "_op"],
        )
        new = sst.write(self.store, self.cache, app=self.app, stage=self.stage, table=TABLE, partition=0, rows=hashed)
        ssts = (*before.ssts, new)
        for due in pick(ssts, TABLE.partitions, TABLE.compaction):
            ssts = apply(ssts, [merge.run(self.store, self.cache, self.app, self.stage, TABLE, due)])
        return replace(
            before,
            table=TABLE,
            ssts=ssts,
            rows=added,
            total=before.total + added,
            waiting=before.waiting + waiting,
        )


def table_of_rows(rows: Sequence[dict[str, object]]) -> pa.Table:
    """Rows of the table."""
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def row_of(letter: DeadLetter, name: str, row: int, time_ms: int, *, version: int, now_ms: int) -> dict[str, object]:
    """A record that is rejected for the first time, as a row of the table; `name` is its input's."""
    return {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "row": row,
        "input": name,
        "time": time_ms * 1_000,
        "key": letter.key,
        "value": letter.value,
        "headers": [{"name": header, "value": value} for header, value in letter.headers],
        **error_of(letter.error, letter.message, letter.stack),
        "version": version,
        "rejected_at": now_ms * 1_000,
        "attempts": 1,
        "retried": None,
    }


def error_of(kind: str, message: str, stack: str) -> dict[str, object]:
    """The columns that say why a record failed."""
    return {"error": kind, "message": message, "stack": stack}
