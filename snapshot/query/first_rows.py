"""First rows of a table at a moment, and the following ones, read from a few pages of SSTs without SQL.

Rows come in order of their hashes, which is the order of SSTs, so the cost follows the number of rows and not the size
of the table. Hashes are evenly distributed, so a range of hashes is read that should hold about as many rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...store.compaction.merge import merged_rows
from ...store.objects.counting import Reads
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.remote_sst import SMALL_BYTES
from ...store.sst.schema import HASH
from ...store.sst.sorted_runs import bounds, of_hash, overlapping, part_within
from ..cut.graph import Cut
from .columns import visible_schema

FIRST = -(1 << 63)
"""Lowest hash."""
_LAST = (1 << 63) - 1
_AHEAD = 2
"""Factor on the number of rows that a hash range should hold: some rows share a key, and ranges end within pages."""


@dataclass(frozen=True, slots=True)
class FirstRows:
    """Consecutive rows."""

    rows: pa.Table
    """Visible columns."""
    hashes: npt.NDArray[np.int64]
    """Hash of each row, ascending."""
    next_hash: int | None
    """Hash at which the next rows start; None at the end of the table."""

    def below(self, end: int | None) -> "FirstRows":
        """Return the rows whose hash is below `end`, where the next rows then start; all rows for None."""
        if end is None or (self.next_hash is not None and self.next_hash <= end):
            return self
        count = int(np.searchsorted(self.hashes, end))
        return FirstRows(self.rows.slice(0, count), self.hashes[:count], end)


def first_rows(
    store: ObjectStore, cache: SstCache | None, cut: Cut, table: str, limit: int, start: int = FIRST
) -> FirstRows:
    """Return the first `limit` rows of a table from hash `start` on; more if several share the last hash.

    The cut must have the table.
    """
    manifest = cut.tables[table]
    assert manifest.table is not None  # noqa: S101  `Cut.tables` has only versions with a table
    schema = visible_schema(manifest.table)
    batches: list[pa.Table] = []
    count, next_hash = 0, start
    for partition, window in _spans(cut, table, limit, start):
        for sst in overlapping(manifest.ssts, *window):
            # Reading a small SST whole takes fewer requests than reading parts of it.
            if cache is not None and sst.bytes <= SMALL_BYTES and cache.peek(sst, manifest.table) is None:
                cache.bring(store, sst, manifest.table, Reads())
        for rows in merged_rows(
            store,
            cache,
            manifest.ssts,
            manifest.table,
            partition,
            cut.clock_ms(table),
            columns=schema.names,
            window=window,
        ):
            batches.append(rows.select([HASH, *schema.names]))
            count += rows.num_rows
        next_hash = window[1] + 1
        if count > limit:
            break
    joined = pa.concat_tables(batches) if batches else pa.schema([(HASH, pa.int64()), *schema]).empty_table()
    hashes = joined.column(HASH).to_numpy()
    rows = joined.drop_columns([HASH])
    if count > limit:
        return FirstRows(rows, hashes, next_hash if next_hash <= _LAST else None).below(int(hashes[limit - 1]) + 1)
    return FirstRows(rows, hashes, None)


def _spans(cut: Cut, table: str, limit: int, start: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield state partitions with hash ranges that should hold `_AHEAD` times `limit` rows, doubled in each range."""
    manifest = cut.tables[table]
    assert manifest.table is not None  # noqa: S101
    partitions = manifest.table.partitions
    num_rows = limit * _AHEAD
    for partition in range(of_hash(start, partitions), partitions):
        low, high = bounds(partition, partitions)
        low = max(low, start)
        while low <= high:
            rows = sum(part_within(sst.rows, sst, low, high) for sst in overlapping(manifest.ssts, low, high))
            end = high if rows <= num_rows else min(high, low + (high - low + 1) * num_rows // rows)
            yield partition, (low, end)
            low, num_rows = end + 1, num_rows * 2
