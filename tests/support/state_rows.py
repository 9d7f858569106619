"""Rows of state tables, for tests of the store."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.multi_get import multi_get
from slackwater.store.read.open_rows import OpenRows
from slackwater.store.sst import schema, writer
from slackwater.store.sst.arrow_types import python_rows
from slackwater.store.sst.hashing import hash_keys, normalise_keys
from slackwater.store.sst.schema import arrow_schema
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Manifest, Table

ROUTES = Table(
    key=(Column("origin", "string"), Column("dest", "string")),
    values=(Column("flights", "int64"), Column("delay", "double"), Column("_sum", "decimal128(38, 2)")),
    partitions=1,
)

_NO_FOLDER = SstCache(Path(os.devnull) / "cache", 0)

Key = tuple[object, ...]
Values = tuple[object, ...]


def columns(declared: Sequence[Column], tuples: Iterable[tuple[object, ...]]) -> pa.Table:
    """Return a table of these columns from one tuple per row."""
    schema = arrow_schema(declared)
    rows = list(tuples)
    arrays = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    return pa.Table.from_arrays(arrays, schema=schema)


@dataclass(frozen=True)
class Hashes:
    """A hash function of keys: the normal one, or one with only `modulus` values, with which keys collide."""

    modulus: int = 0

    def of(self, table: Table, keys: pa.Table) -> npt.NDArray[np.int64]:
        hashes = hash_keys(keys, [column.name for column in table.key])
        if not self.modulus:
            return hashes
        # Spread over the whole range, so that every partition gets some.
        step = np.uint64(2**64 // self.modulus % 2**64)
        return (hashes.view(np.uint64) % np.uint64(self.modulus) * step).view(np.int64)


AS_ALWAYS = Hashes()


def state_rows(table: Table, changes: Mapping[Key, Values | None], seq: int, hashes: Hashes = AS_ALWAYS) -> pa.Table:
    """Return the rows of an SST that puts these keys, or deletes those whose value is `None`."""
    absent = (None,) * len(table.values)
    keys = columns(table.key, changes)
    values = columns(table.values, (absent if put is None else put for put in changes.values()))
    rows = pa.Table.from_arrays([*keys.columns, *values.columns], names=[*keys.column_names, *values.column_names])
    rows = rows.append_column("_hash", pa.array(hashes.of(table, keys), pa.int64()))
    rows = rows.append_column("_seq", pa.array([seq] * len(changes), pa.int64()))
    return rows.append_column("_op", pa.array([int(put is None) for put in changes.values()], pa.int8()))


def write_version(
    store: ObjectStore,
    cache: SstCache | None,
    table: Table,
    changes: Mapping[Key, Values | None],
    seq: int,
    hashes: Hashes = AS_ALWAYS,
    app: str = "app",
    *,
    clock_ms: int = 0,
    base: Sequence[Sst] | None = None,
    stage: str = "stage",
) -> tuple[Sst, ...]:
    """Write an SST for each state partition that has changes.

    If `base` is given, each row also gets the version of the row that it replaces in these SSTs.
    """
    rows = schema.with_expiry(state_rows(table, changes, seq, hashes), table, clock_ms)
    if base is not None:
        rows = with_prev(store, table, rows, base)
    return writer.write_partitions(store, cache, app=app, stage=stage, table=table, rows=rows)


def with_prev(store: ObjectStore, table: Table, rows: pa.Table, base: Sequence[Sst]) -> pa.Table:
    """Return the rows with `_prev_seq`: the version of the row that each one replaces in these SSTs."""
    before = np.zeros(rows.num_rows, np.int64)
    keys = rows.select([column.name for column in table.key])
    multi_get(store, _NO_FOLDER, base, table, rows["_hash"].to_numpy(), keys, clock_ms=0, seqs=before)
    return rows.append_column("_prev_seq", pa.array(before))


def manifest_of(table: Table, ssts: Sequence[Sst], version: int = 1, clock_ms: int = 0) -> Manifest:
    """Return a manifest with only this state."""
    return Manifest(
        "app",
        "stage",
        version,
        epoch=1,
        writer="w",
        time_ms=version,
        kind="batch",
        table=table,
        clock_ms=clock_ms,
        ssts=tuple(ssts),
    )


def rows_of_open(
    store: ObjectStore,
    cache: SstCache,
    ssts: Sequence[Sst],
    table: Table,
    hashes: npt.NDArray[np.int64],
    keys: pa.Table,
    clock_ms: int | None = None,
) -> list[dict[str, object] | None]:
    """Return the values of each key as read by `OpenRows` with all SSTs open, or `None` for a missing row."""
    opened = OpenRows(table, range(table.partitions), [(sst, cache.open(store, sst, table)) for sst in ssts])
    names = [column.name for column in table.values]
    each = zip(hashes.tolist(), python_rows(normalise_keys(keys, keys.schema.names)), strict=True)
    return [opened.row(hashed, tuple(key.values()), names, clock_ms) for hashed, key in each]


@lru_cache(maxsize=10_000)
def decoded(data: bytes) -> list[dict[str, Any]]:
    """Return the rows of an SST. They are cached because many versions have the same SST."""
    return pq.read_table(pa.BufferReader(data)).to_pylist()
