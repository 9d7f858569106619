"""One row by its key, from the few pages that can hold it: no download, no scan, no cache."""

from collections.abc import Sequence

import pyarrow as pa

from ...store.objects.protocol import ObjectStore
from ...store.read.multi_get import point_get
from ...store.sst.hashing import hash_keys
from ..cut.graph import Cut
from ..cut.names import having
from .columns import parse_key, visible_schema


def get(store: ObjectStore, cut: Cut, table: str, key_values: Sequence[object]) -> pa.Table:
    """The row of one key at the cut: one row of the table's visible columns, or none.

    The key's values are those of its columns, in their order, as text or as Python's own; None for a null. A table that
    was renamed since is found by either name.

    Raises:
        NotFound: the cut has no such table.
        Usage: there are not as many values as key columns, or one is not of its column's type.
        Corruption: an SST is not what its manifest promises.
        Unavailable: storage did not answer.
    """
    cut = having(store, cut, (table,))
    manifest = cut.tables[table]
    assert manifest.table is not None  # noqa: S101  `Cut.tables` are versions with one
    key = parse_key(table, manifest.table, key_values)
    hashes, clock_ms = hash_keys(key, key.schema.names), cut.clock_ms(table)
    found = point_get(store, manifest.ssts, manifest.table, hashes, key, clock_ms=clock_ms)
    visible = visible_schema(manifest.table)
    row = pa.table([*key.columns, *found.values.columns], [*key.schema.names, *found.values.schema.names])
    return row.select(visible.names).slice(0, int(found.present[0]))
