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
    writer, schema = SstWriter(table), sst_schema(table)
    for block in cache.open(store, sst, table).blocks:
        for start, stored in _slices(block, schema):
            rows = pa.Table.from_batches([block.rows(stored, start, min(_SLICE_ROWS, block.stored.num_rows - start))])
            writer.append(change(completed(rows, schema)).cast(schema))
    return writer


Chosen = Callable[[Block], npt.NDArray[np.bool_]]
"""Which rows of a block are meant."""


def without(store: ObjectStore, sst: Sst, table: Table, chosen: Chosen) -> tuple[SstWriter, int]:
    """An SST of the table with the rows of this one but those that are chosen, and how many these are.

    It is encoded, and put nowhere; without a row where none is left. Nothing of it comes into a cache. `table` is of
    the oldest version that names the SST: those after it know how to read what that had. Raises as `rewritten`.
    """
    writer, schema, gone = SstWriter(table), sst_schema(table), 0
    for block in whole_blocks(store, sst, table):
        drop = chosen(block)
        gone += int(drop.sum())
        for start, stored in _slices(block, schema):
            keep = ~drop[start : start + _SLICE_ROWS]
            if keep.any():
                rows = pa.Table.from_batches([block.rows(stored, start, len(keep))])
                writer.append(completed(rows, schema).filter(pa.array(keep)).cast(schema))
    return writer, gone


def whole_blocks(store: ObjectStore, sst: Sst, table: Table) -> Iterable[Block]:
    """All rows of an SST, checked, and kept nowhere."""
    for rows in decode(fetch(store, sst), sst, table):
        yield Block.of(rows, check_shape(sst, table, rows.schema, sst.rows))


def _slices(block: Block, schema: pa.Schema) -> Iterable[tuple[int, list[str]]]:
    """Where slices of a block begin, and which of an SST's columns it has."""
    # Those from before the table got a ttl lack a column.
    stored = [name for name in schema.names if name != EXPIRES or name in block.stored.schema.names]
    return ((start, stored) for start in range(0, block.stored.num_rows, _SLICE_ROWS))


def of_keys(hashes: npt.NDArray[np.int64], keys: pa.Table) -> Chosen:
    """Chooses the rows of these keys, in the form that look-ups have them in; `hashes` are theirs, ascending."""

    def chosen(block: Block) -> npt.NDArray[np.bool_]:
        found = np.zeros(block.stored.num_rows, np.bool_)
        for _, at, _, same in block.match(hashes, keys, np.arange(len(hashes)), [HASH, *keys.schema.names]):
            found[at[same]] = True
        return found

    return chosen
