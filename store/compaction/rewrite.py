"""An SST once more: with other values, or without some of its rows; in the same order, under the same `_seq`."""

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
    """An SST of the table with the rows of this one; `change` gets some of them at a time, as the table has them now.

    It is encoded, and put nowhere. What is read comes into the cache. Raises as `change`, `Corruption` where the SST is
    missing or damaged, and `Unavailable`.
    """
    return _encoded(table, cache.open(store, sst, table).blocks, change)


Chosen = Callable[[Block], npt.NDArray[np.bool_]]
"""Which rows of a block are meant."""


def without(store: ObjectStore, sst: Sst, table: Table, chosen: Chosen) -> SstWriter:
    """An SST of the table with the rows of this one but those that are chosen.

    It is encoded, and put nowhere; without a row where none is left. Nothing of it comes into a cache. `table` is of
    the oldest version that names the SST: those after it know how to read what that had. Raises as `rewritten`.
    """
    return _encoded(table, whole_blocks(store, sst, table), lambda rows: rows, chosen)


def _encoded(
    table: Table, blocks: Iterable[Block], change: Callable[[pa.Table], pa.Table], chosen: Chosen | None = None
) -> SstWriter:
    """Rows of an SST's blocks but those that are chosen, changed, some at a time."""
    writer, schema = SstWriter(table), sst_schema(table)
    for block in blocks:
        count = block.stored.num_rows
        keep = pa.array(~chosen(block)) if chosen is not None else None
        # Those from before the table got a ttl lack a column.
        stored = [name for name in schema.names if name != EXPIRES or name in block.stored.schema.names]
        for start in range(0, count, _SLICE_ROWS):
            rows = pa.Table.from_batches([block.rows(stored, start, min(_SLICE_ROWS, count - start))])
            rows = completed(rows, schema)
            rows = rows if keep is None else rows.filter(keep.slice(start, rows.num_rows))
            writer.append(change(rows).cast(schema))
    return writer


def whole_blocks(store: ObjectStore, sst: Sst, table: Table) -> Iterable[Block]:
    """All rows of an SST, checked, and kept nowhere."""
    for rows in decode(fetch(store, sst), sst, table):
        yield Block.of(rows, check_shape(sst, table, rows.schema, sst.rows))


def of_keys(hashes: npt.NDArray[np.int64], keys: pa.Table) -> Chosen:
    """Chooses the rows of these keys, in the form that look-ups have them in; `hashes` are theirs, ascending."""

    def chosen(block: Block) -> npt.NDArray[np.bool_]:
        found = np.zeros(block.stored.num_rows, np.bool_)
        for _, at, _, same in block.match(hashes, keys, np.arange(len(hashes)), [HASH, *keys.schema.names]):
            found[at[same]] = True
        return found

    return chosen
