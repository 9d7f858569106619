"""Comparison of a stage's table with a query's state: the number of rows, and a checksum that ignores their order."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ....store.compaction.merge import merged_rows
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.sst.hashing import digests, normalise_keys
from ....store.sst.schema import arrow_schema
from ....store.versions.manifest import Manifest, Table


@dataclass(frozen=True, slots=True)
class Checksum:
    """Checksum of rows with all columns of a table, internal ones included."""

    rows: int = 0
    sum: int = 0
    """Sum of the rows' hashes, modulo 2^64."""

    def __str__(self) -> str:
        return f"{self.rows:,} rows, checksum {self.sum:016x}"


def of_rows(rows: Iterable[pa.Table], table: Table) -> Checksum:
    """Return the checksum of rows with a table's columns."""
    schema, key = arrow_schema(table.columns), [column.name for column in table.key]
    count = total = 0
    for part in rows:
        for batch in normalise_keys(part.select(schema.names).cast(schema), key).combine_chunks().to_batches():
            count += batch.num_rows
            # Unsigned sums wrap around.
            total += int(digests(batch.to_struct_array()).sum(dtype=np.uint64))
    return Checksum(count, total % (1 << 64))


def of_version(store: ObjectStore, cache: SstCache, version: Manifest) -> Checksum:
    """Return the checksum of a version's rows."""
    table = version.table
    assert table is not None  # noqa: S101  callers pass versions with a table
    partitions = range(table.partitions)
    stored = (
        part
        for partition in partitions
        for part in merged_rows(store, cache, version.ssts, table, partition, version.clock_ms)
    )
    return of_rows(stored, table)
