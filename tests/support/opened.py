"""Rows of keys as `OpenRows` gives them, of SSTs that are all fetched and opened."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.open_rows import OpenRows
from slackwater.store.sst.arrow_types import python_rows
from slackwater.store.sst.hashing import normalise_keys
from slackwater.store.versions.manifest import Sst, Table


def rows_of(
    store: ObjectStore,
    cache: SstCache,
    ssts: Sequence[Sst],
    table: Table,
    hashes: npt.NDArray[np.int64],
    keys: pa.Table,
    clock_ms: int | None = None,
) -> list[dict[str, object] | None]:
    """The value columns of each key, None where there is no row."""
    opened = OpenRows(table, range(table.partitions), [(sst, cache.open(store, sst, table)) for sst in ssts])
    names = [column.name for column in table.values]
    each = zip(hashes.tolist(), python_rows(normalise_keys(keys, keys.schema.names)), strict=True)
    return [opened.row(hashed, tuple(key.values()), names, clock_ms) for hashed, key in each]
