"""An SST once more, with other values: the same rows in the same order, under the same `_seq`."""

from collections.abc import Callable

import pyarrow as pa

from ..objects.protocol import ObjectStore
from ..read.cache import SstCache
from ..sst.types import EXPIRES, completed, sst_schema
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
        # Those from before the table got a ttl lack a column.
        stored = [name for name in schema.names if name != EXPIRES or name in block.stored.schema.names]
        for start in range(0, block.stored.num_rows, _SLICE_ROWS):
            count = min(_SLICE_ROWS, block.stored.num_rows - start)
            rows = completed(pa.Table.from_batches([block.rows(stored, start, count)]), schema)
            writer.append(change(rows).cast(schema))
    return writer
