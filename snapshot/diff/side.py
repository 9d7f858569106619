"""One side of a comparison: a table at a moment, and its stored rows, as many of them as are asked for."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.multi_get import multi_get
from ...store.read.read_stats import Reads
from ...store.read.remote_sst import RangedSst
from ...store.sst.hashing import sort_keys
from ...store.sst.types import EXPIRES, HASH, OP, SEQ, arrow_schema
from ...store.versions.manifest import Manifest, Sst, Table

SMALL_BYTES = 128 << 10
"""An SST up to this comes whole: one request, where ranges would be two."""


_SYSTEM = ((SEQ, pa.int64()), (OP, pa.uint8()), (EXPIRES, pa.int64()))


@dataclass(frozen=True, slots=True)
class Side:
    """A table at one version, by one clock."""

    store: ObjectStore
    cache: SstCache
    table: Table
    """The declared columns; for a side without a version those of the other one."""
    manifest: Manifest | None
    """None where the table had no version yet: then it holds nothing."""
    clock_ms: int = 0
    """Rows that expire at this time or before are absent."""

    @property
    def ssts(self) -> tuple[Sst, ...]:
        """The SSTs that its rows are in."""
        return self.manifest.ssts if self.manifest is not None else ()

    @property
    def key(self) -> list[str]:
        """Names of the key columns."""
        return [column.name for column in self.table.key]

    def no_rows(self) -> pa.Table:
        """What `stored` returns where there are none."""
        return pa.schema([(HASH, pa.int64()), *arrow_schema(self.table.key), *_SYSTEM]).empty_table()

    def look_up(self, keys: pa.Table, names: Sequence[str]) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        """Of each key its values in these columns, nulls where it has no row, and whether it has one.

        Args:
            keys: `_hash` and the key columns.
            names: of value columns.

        Raises:
            Corruption: an SST is missing or damaged.
            Unavailable: the store did not answer.
        """
        hashes = keys.column(HASH).to_numpy()
        values, present = multi_get(
            self.store, self.cache, self.ssts, self.table, hashes, keys.drop_columns([HASH]), clock_ms=self.clock_ms
        )
        return values.select(list(names)), present

    def stored(self, sst: Sst, column: str, low: int, high: int) -> pa.Table:
        """The rows of an SST, visible or not, whose `column` (`_seq`, `_expires_at`) lies from `low` to `high`.

        Of an SST that this machine does not have, and not all of which is asked for, only the row groups are read in
        which such rows can be.

        Returns:
            `_hash`, the key columns, `_seq`, `_op` and `_expires_at`, which is null where the SST has none.

        Raises:
            Corruption: the SST is missing or damaged.
            Unavailable: the store did not answer.
        """
        mapped = self.cache.peek(sst, self.table)
        whole = sst.bytes <= SMALL_BYTES or (column == SEQ and low <= sst.seq_min and sst.seq_max <= high)
        if mapped is None and whole:
            mapped = self.cache.open(self.store, sst, self.table)
        parts: Iterable[pa.RecordBatch]
        if mapped is not None:
            parts = (block.rows for block in mapped.blocks)
        else:
            ranged = RangedSst(self.store, sst, self.table, Reads())
            groups = ranged.having(column, low, high)
            parts = (block.rows for block in ranged.read(groups)) if groups.size else ()
        found = [each for part in parts for each in _within(part, self.key, column, low, high)]
        return pa.concat_tables([self.no_rows(), *found])


def identity(sst: Sst) -> tuple[str, str]:
    """Equal for SSTs that hold the same rows: the same object, whatever root it lies under and at whatever level."""
    return sst.object, sst.checksum


def _within(part: pa.RecordBatch, key: list[str], column: str, low: int, high: int) -> Iterator[pa.Table]:
    if column not in part.schema.names:
        return
    values = part.column(column)
    wanted = pc.fill_null(pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high)), False)
    names = [name for name in (HASH, *key, SEQ, OP, EXPIRES) if name in part.schema.names]
    yield _plain(pa.Table.from_batches([part.select(names).filter(wanted)]), key)


def _plain(rows: pa.Table, key: list[str]) -> pa.Table:
    """The columns that `stored` returns, all of which may be null."""
    for name, kind in _SYSTEM:
        if name not in rows.schema.names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, kind))
    rows = rows.select([HASH, *key, *(name for name, _ in _SYSTEM)])
    return rows.cast(pa.schema([field.with_nullable(True) for field in rows.schema]))


def distinct(keys: pa.Table) -> pa.Table:
    """Each key once, in the order in which they come first: `_hash` and key columns."""
    order, repeats = sort_keys(keys.column(HASH).to_numpy(), keys.drop_columns([HASH]))
    return keys.take(pa.array(np.sort(order[~repeats])))
