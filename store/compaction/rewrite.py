"""Rewriting an SST with other values, or without some rows; order and `_seq` are kept."""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..objects.protocol import ObjectStore
from ..read.cache import SstCache
from ..read.decode import Block, check_shape, decode
from ..read.fetch import fetch
from ..sst.types import EXPIRES, HASH, completed, sst_schema
from ..sst.writer import ROW_GROUP_ROWS, SstWriter
from ..versions.manifest import Sst, Table

_SLICE_ROWS = ROW_GROUP_ROWS
"""Rows changed at once: bounds memory."""


def rewritten(
    store: ObjectStore, cache: SstCache, sst: Sst, table: Table, change: Callable[[pa.Table], pa.Table]
) -> SstWriter:
    """Encode an SST with the rows of this one after `change`, which gets batches with the table's current columns.

    Puts nothing into the store; the input is cached. Raises what `change` raises, `Corruption` if the SST is missing or
    damaged, and `Unavailable`.
    """
    return _encoded(table, cache.open(store, sst, table).blocks, change)


Chosen = Callable[[Block], npt.NDArray[np.bool_]]
"""Function that returns a mask of the chosen rows of a block."""


def without(store: ObjectStore, sst: Sst, table: Table, chosen: Chosen) -> SstWriter:
    """Encode an SST with the rows of this one except the chosen rows.

    Puts nothing into the store, and may have no rows. Caches nothing. `table` is that of the oldest version that names
    the SST: later versions can read its columns. Raises `Corruption` if the SST is missing or damaged, and
    `Unavailable`.
    """
    return _encoded(table, whole_blocks(store, sst, table), lambda rows: rows, chosen)


def _encoded(
    table: Table, blocks: Iterable[Block], change: Callable[[pa.Table], pa.Table], chosen: Chosen | None = None
) -> SstWriter:
    """Encode the rows of an SST's blocks, changed, in batches, without the chosen rows."""
    writer, schema = SstWriter(table), sst_schema(table)
    for block in blocks:
        count = block.stored.num_rows
        keep = pa.array(~chosen(block)) if chosen is not None else None
        # SSTs from before the table got a ttl lack `_expires_at`.
        stored = [name for name in schema.names if name != EXPIRES or name in block.stored.schema.names]
        for start in range(0, count, _SLICE_ROWS):
            rows = pa.Table.from_batches([block.rows(stored, start, min(_SLICE_ROWS, count - start))])
            rows = completed(rows, schema)
            rows = rows if keep is None else rows.filter(keep.slice(start, rows.num_rows))
            writer.append(change(rows).cast(schema))
    return writer


def whole_blocks(store: ObjectStore, sst: Sst, table: Table) -> Iterable[Block]:
    """Yield all rows of an SST, checked and not cached."""
    for rows in decode(fetch(store, sst), sst, table):
        yield Block.of(rows, check_shape(sst, table, rows.schema, sst.rows))


def of_keys(hashes: npt.NDArray[np.int64], keys: pa.Table) -> Chosen:
    """Return a function that chooses the rows of these keys, in look-up form, with their ascending hashes."""

    def chosen(block: Block) -> npt.NDArray[np.bool_]:
        mask = np.zeros(block.stored.num_rows, np.bool_)
        for _, at, _, same in block.match(hashes, keys, np.arange(len(hashes)), [HASH, *keys.schema.names]):
            mask[at[same]] = True
        return mask

    return chosen
