"""Whether a table has the rows of a query's state: how many, and a checksum that does not depend on their order."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ....store.compaction.merge import merged_rows
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.sst.hashing import digests, normalise_keys
from ....store.sst.types import arrow_schema
from ....store.versions.manifest import Manifest, Table


@dataclass(frozen=True, slots=True)
class Checksum:
    """Of rows with all columns of a table, internal ones included."""

    rows: int = 0
    sum: int = 0
    """Of a hash of each row, modulo 2^64."""

    def __str__(self) -> str:
        return f"{self.rows:,} rows, checksum {self.sum:016x}"


def of_rows(rows: Iterable[pa.Table], table: Table) -> Checksum:
    """The checksum of rows with a table's columns, some at a time."""
    schema, key = arrow_schema(table.columns), [column.name for column in table.key]
    count = total = 0
    for some in rows:
        for batch in normalise_keys(some.select(schema.names).cast(schema), key).combine_chunks().to_batches():
            count += batch.num_rows
            # A sum of unsigned numbers wraps around.
            total += int(digests(batch.to_struct_array()).sum(dtype=np.uint64))
    return Checksum(count, total % (1 << 64))


def of_version(store: ObjectStore, cache: SstCache, version: Manifest) -> Checksum:
    """The checksum of what a version has stored."""
    table = version.table
    assert table is not None  # noqa: S101  it is a version of one
    parts = range(table.partitions)
    stored = (some for each in parts for some in merged_rows(store, cache, version.ssts, table, each, version.clock_ms))
    return of_rows(stored, table)
