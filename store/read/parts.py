"""Look-ups of all parts of keys. A part is an element of a list or an entry of a map, stored as one row.

The last key column of a part, such as the position in a list, is not hashed. So the parts of a key share a hash, and
are adjacent in each SST.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..objects.counting import ReadCounters
from ..objects.protocol import ObjectStore
from ..sst.hashing import hash_keys, same_keys, sort_keys
from ..sst.schema import HASH, OP, SEQ, TOMBSTONE, arrow_schema
from ..sst.sorted_runs import overlapping
from ..versions.entries.ssts import Sst
from ..versions.keys import hashed_columns
from ..versions.manifest import Table
from .cache import SstCache
from .decode import Block
from .remote_sst import SMALL_BYTES, RangedSst


def find_parts(
    store: ObjectStore,
    cache: SstCache,
    table: Table,
    ssts: Sequence[Sst],
    hashes: npt.NDArray[np.int64],
    keys: pa.Table,
    reads: ReadCounters,
) -> tuple[npt.NDArray[np.int64], pa.Table]:
    """Return all visible parts of some keys: the index of each part's key, ascending, and the rows of the parts.

    `keys` has the hashed key columns, each key once, and `hashes` their hashes. Rows have all columns of the table. The
    rows of one key are in the order of their last key column. Raises `Corruption`.
    """
    own = hashed_columns([column.name for column in table.key])
    schema = arrow_schema(table.columns)
    order = np.argsort(hashes, kind="stable")
    distinct, first = np.unique(hashes[order], return_index=True)
    repeats = np.diff(np.append(first, len(order)))
    columns = [HASH, *schema.names, OP]
    batches: list[pa.RecordBatch] = []
    near = overlapping(ssts, int(distinct[0]), int(distinct[-1])) if distinct.size else ()
    for sst in sorted(near, key=lambda run: -run.seq_max):
        for block in read_hashes(store, cache, table, sst, distinct, columns, reads):
            at = block.rows_with(distinct)[1]
            if at.size:
                batches.append(block.take(at, columns))
    if not batches:
        return np.empty(0, np.int64), schema.empty_table()
    same_schema = [pa.RecordBatch.from_arrays(batch.columns, columns) for batch in batches]
    rows = pa.Table.from_batches(same_schema).combine_chunks()
    # The sort is stable, and the rows of the newest SST come first.
    by_key, is_older = sort_keys(rows[HASH].to_numpy(), rows.select([column.name for column in table.key]))
    newest = by_key[~is_older]
    newest = newest[rows[OP].to_numpy()[newest] != TOMBSTONE]
    rows = rows.take(pa.array(newest))
    number = np.searchsorted(distinct, rows[HASH].to_numpy())
    # The columns distinguish keys that share a hash.
    owners = np.repeat(first[number], repeats[number])
    candidates = np.repeat(np.arange(rows.num_rows), repeats[number])
    owners += np.arange(len(owners)) - np.repeat(np.cumsum(repeats[number]) - repeats[number], repeats[number])
    requested = keys.select(own).take(pa.array(order[owners]))
    visible = rows.select(schema.names).take(pa.array(candidates))
    same = same_keys(requested.cast(visible.select(own).schema), visible.select(own), own)
    owners, visible = order[owners[same]], visible.filter(pa.array(same))
    by_owner = np.argsort(owners, kind="stable")
    return owners[by_owner], visible.take(pa.array(by_owner))


def read_hashes(
    store: ObjectStore,
    cache: SstCache | None,
    table: Table,
    sst: Sst,
    hashes: npt.NDArray[np.int64],
    columns: Sequence[str],
    reads: ReadCounters,
) -> Iterable[Block]:
    """Return blocks of an SST that contain all rows with these ascending hashes. Raises `Corruption`.

    For an SST outside the cache, reads only pages that may have the hashes. An SST is fetched whole into the cache if
    it is small, or if earlier range reads have cost as many bytes as its size.
    """
    mapped = cache.cached_rows(sst, table) if cache is not None else None
    if mapped is None and cache is not None and (sst.bytes <= SMALL_BYTES or cache.ranged_bytes(sst) >= sst.bytes):
        mapped = cache.fetch_rows(store, sst, table, reads)
    if mapped is not None:
        return mapped.blocks
    ranged = RangedSst(store, sst, table, reads)
    pages = ranged.find_hashes(hashes)[1]
    if cache is not None:
        cache.count_ranged(sst, ranged.bytes_of(pages))
    return ranged.read(pages, columns)


def as_tombstones(parts: pa.Table, table: Table, seq: int) -> pa.Table:
    """Return rows of an SST that delete these parts. `parts` has the key columns of the table of parts."""
    keys, count = parts.select([column.name for column in table.key]), parts.num_rows
    rows = keys.add_column(0, HASH, pa.array(hash_keys(keys, keys.column_names)))
    for field in arrow_schema(table.values):
        rows = rows.append_column(field, pa.nulls(count, field.type))
    stamps = {SEQ: pa.scalar(seq, pa.int64()), OP: pa.scalar(TOMBSTONE, pa.int8())}
    for name, value in stamps.items():
        rows = rows.append_column(name, pa.repeat(value, count))
    return rows
