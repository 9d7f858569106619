"""One side of a comparison: a table at a moment, and its stored rows, as many of them as are asked for."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...store.objects.protocol import ObjectStore
from ...store.objects.stats import Reads
from ...store.read.cache import SstCache
from ...store.read.decode import Block
from ...store.read.multi_get import multi_get
from ...store.read.remote_sst import SMALL_BYTES, RangedSst
from ...store.sst.expiry import expired
from ...store.sst.hashing import sort_keys
from ...store.sst.types import EXPIRES, HASH, OP, SEQ, TOMBSTONE, arrow_schema
from ...store.versions.manifest import Manifest, Sst, Table

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

    @property
    def most_rows(self) -> int:
        """How many rows it has at most: what its SSTs hold, overwritten rows among them."""
        return sum(sst.rows - sst.tombstones for sst in self.ssts)

    def count_rows(self) -> int:
        """How many rows it has. Reads all of its SSTs; errors as of `stored`."""
        newest_first = sorted(self.ssts, key=lambda sst: -sst.seq_max)
        rows = newest(
            pa.concat_tables([self.no_rows(), *(self.stored(sst, SEQ, 0, sst.seq_max) for sst in newest_first)]),
            self.key,
        )
        hidden, gone = np.asarray(pc.equal(rows.column(OP), TOMBSTONE)), expired(rows, self.clock_ms)
        return int((~(hidden if gone is None else hidden | gone)).sum())

    def no_rows(self, *, values: bool = False) -> pa.Table:
        """What `stored` returns where there are none."""
        columns = arrow_schema((*self.table.key, *(self.table.values if values else ())))
        return pa.schema([(HASH, pa.int64()), *columns, *_SYSTEM]).empty_table()

    def look_up(
        self, keys: pa.Table, names: Sequence[str], newest: pa.Table | None = None
    ) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        """Of each key its values in these columns, nulls where it has no row, and whether it has one.

        Args:
            keys: `_hash` and the key columns.
            names: of value columns.
            newest: rows that `stored` gave with their values, as `newest` orders them, and newer than any other.

        Raises:
            Corruption: an SST is missing or damaged.
            Unavailable: the store did not answer.
        """
        blocks = newest.combine_chunks().to_batches() if newest is not None else ()
        values, present = multi_get(
            self.store,
            self.cache,
            self.ssts,
            self.table,
            keys.column(HASH).to_numpy(),
            keys.drop_columns([HASH]),
            clock_ms=self.clock_ms,
            newer=map(Block.of, blocks),
        )
        return values.select(list(names)), present

    def stored(self, sst: Sst, column: str, low: int, high: int, *, values: bool = False) -> pa.Table:
        """The rows of an SST, visible or not, whose `column` (`_seq`, `_expires_at`) lies from `low` to `high`.

        Of an SST that this machine does not have, and not all of which is asked for, only the pages are read in which
        such rows can be.

        Returns:
            `_hash`, the key columns, with `values` these too, `_seq`, `_op`, and `_expires_at`, which is null where the
            SST has none.

        Raises:
            Corruption: the SST is missing or damaged.
            Unavailable: the store did not answer.
        """
        mapped = self.cache.peek(sst, self.table)
        whole = sst.bytes <= SMALL_BYTES or (column == SEQ and low <= sst.seq_min and sst.seq_max <= high)
        if mapped is None and whole:
            mapped = self.cache.open(self.store, sst, self.table)
        blocks: Iterable[Block]
        if mapped is not None:
            blocks = mapped.blocks
        else:
            ranged = RangedSst(self.store, sst, self.table, Reads())
            blocks = ranged.read(ranged.having(column, low, high))
        empty = self.no_rows(values=values)
        return pa.concat_tables([empty, *(_within(block, empty.schema, column, low, high) for block in blocks)])


def identity(sst: Sst) -> tuple[str, str]:
    """Equal for SSTs that hold the same rows: the same object, whatever root it lies under and at whatever level."""
    return sst.object, sst.checksum


def _within(block: Block, schema: pa.Schema, column: str, low: int, high: int) -> pa.Table:
    """The rows with such a value, in these columns."""
    own = block.stored.schema.names
    if column not in own:
        return schema.empty_table()
    at = block.stored.column(column)
    wanted = pc.fill_null(pc.and_(pc.greater_equal(at, low), pc.less_equal(at, high)), False)
    names = [name for name in schema.names if name != EXPIRES or EXPIRES in own]
    some = block.take(np.flatnonzero(wanted), names)
    columns = [
        some.column(name) if name in names else pa.nulls(some.num_rows, schema.field(name).type)
        for name in schema.names
    ]
    return pa.table(columns, schema=schema)


def newest(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Of each key the row that comes first, in the order of an SST: by hash and key."""
    order, repeats = sort_keys(rows.column(HASH).to_numpy(), rows.select(list(key)))
    return rows.take(pa.array(order[~repeats]))


def distinct(keys: pa.Table) -> pa.Table:
    """Each key once, in the order in which they come first: `_hash` and key columns."""
    order, repeats = sort_keys(keys.column(HASH).to_numpy(), keys.drop_columns([HASH]))
    return keys.take(pa.array(np.sort(order[~repeats])))
