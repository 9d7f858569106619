"""The first rows of a table at a moment, and those that follow: read from the SSTs, a few pages of them, without SQL.

They come in the order of their hashes, which is that of SSTs, so what is read follows the rows asked for and not the
table: hashes are spread evenly, so a span of them is tried that should hold about as many rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...store.compaction.merge import merged_rows
from ...store.objects.protocol import ObjectStore
from ...store.objects.stats import Reads
from ...store.read.cache import SstCache
from ...store.read.remote_sst import SMALL_BYTES
from ...store.sst.sorted_runs import bounds, of_hash, overlapping, part_within
from ...store.sst.types import HASH
from ..cut.graph import Cut
from .columns import visible_schema

FIRST = -(1 << 63)
"""The lowest hash."""
_LAST = (1 << 63) - 1
_AHEAD = 2
"""A span should hold so many times the rows asked for: some are of the same key, and it ends amidst pages anyway."""


@dataclass(frozen=True, slots=True)
class FirstRows:
    """Rows that follow each other."""

    rows: pa.Table
    """The visible columns."""
    hashes: npt.NDArray[np.int64]
    """Of each row, ascending."""
    next_hash: int | None
    """Where the next rows begin; None where there are none."""

    def below(self, end: int | None) -> "FirstRows":
        """Those whose hash is below `end`, which is where the next begin then; all for None."""
        if end is None or (self.next_hash is not None and self.next_hash <= end):
            return self
        count = int(np.searchsorted(self.hashes, end))
        return FirstRows(self.rows.slice(0, count), self.hashes[:count], end)


def first_rows(
    store: ObjectStore, cache: SstCache | None, cut: Cut, table: str, limit: int, start: int = FIRST
) -> FirstRows:
    """The first `limit` rows of a table whose hash is `start` or more; more where several have the last one's hash.

    The cut has the table.
    """
    manifest = cut.tables[table]
    assert manifest.table is not None  # noqa: S101  `Cut.tables` are versions with one
    schema = visible_schema(manifest.table)
    found: list[pa.Table] = []
    count, at = 0, start
    for partition, window in _spans(cut, table, limit, start):
        for sst in overlapping(manifest.ssts, *window):
            # To read a part of it would take more requests.
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
            found.append(rows.select([HASH, *schema.names]))
            count += rows.num_rows
        at = window[1] + 1
        if count > limit:
            break
    together = pa.concat_tables(found) if found else pa.schema([(HASH, pa.int64()), *schema]).empty_table()
    hashes = together.column(HASH).to_numpy()
    rows = together.drop_columns([HASH])
    if count > limit:
        return FirstRows(rows, hashes, at if at <= _LAST else None).below(int(hashes[limit - 1]) + 1)
    return FirstRows(rows, hashes, None)


def _spans(cut: Cut, table: str, limit: int, start: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """State partitions, and spans of hashes in them, each of which should hold `limit` rows, or twice the last one."""
    manifest = cut.tables[table]
    assert manifest.table is not None  # noqa: S101
    partitions = manifest.table.partitions
    wanted = limit * _AHEAD
    for partition in range(of_hash(start, partitions), partitions):
        low, high = bounds(partition, partitions)
        low = max(low, start)
        while low <= high:
            rows = sum(part_within(sst.rows, sst, low, high) for sst in overlapping(manifest.ssts, low, high))
            end = high if rows <= wanted else min(high, low + (high - low + 1) * wanted // rows)
            yield partition, (low, end)
            low, wanted = end + 1, wanted * 2
