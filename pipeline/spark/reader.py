"""Reads a table at a moment in Spark's tasks: one for each state partition that has rows, of the columns asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ...errors import NotFound, Usage
from ...snapshot.query.columns import visible_schema
from ...store.compaction.merge import merged_rows
from ...store.objects.protocol import ObjectStore
from ...store.read.multi_get import multi_get
from ...store.sst import sorted_runs
from ...store.sst.hashing import hash_keys, normalise_keys, partition_of
from ...store.sst.types import arrow_schema
from ...store.versions.manifest import Manifest, Table
from ..source.spark_types import arrow_of, spark_schema_of
from .table_at import VersionedTable

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


_MOST = 10_000
"""More keys than this are not looked up: the table is read."""


def keys_in(table: Table, filters: Iterable[Filter]) -> pa.Table | None:
    """The key columns of all rows for which the filters, joined by AND, can hold; None where these may be any."""
    schema = arrow_schema(table.key)
    chosen: dict[str, set[Any]] = {}
    for each in filters:
        values = _values(each)
        if values is not None and (name := each.attribute[0]) in schema.names:  # type: ignore[attr-defined]
            chosen[name] = chosen.get(name, values) & values
    exact = all(_is_exact(field.type) for field in schema)
    if not exact or set(schema.names) - chosen.keys() or prod(len(each) for each in chosen.values()) > _MOST:
        return None
    keys = [*product(*(chosen[name] for name in schema.names))]
    columns: Sequence[Sequence[Any]] = [*zip(*keys, strict=True)] if keys else [() for _ in schema]
    try:
        arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    except (pa.ArrowException, TypeError, OverflowError):
        return None
    return normalise_keys(pa.table(arrays, schema=schema), schema.names)


def _values(one: Filter) -> set[Any] | None:
    """The values that a filter leaves of one column; None where they are not said one by one."""
    if len(getattr(one, "attribute", ())) != 1:
        return None  # a field of a struct
    match type(one).__name__:
        case "EqualTo" | "EqualNullSafe":
            return {one.value}  # type: ignore[attr-defined]
        case "In":
            return {*one.value} - {None}  # type: ignore[attr-defined]
    return None


def _is_exact(kind: pa.DataType) -> bool:
    """Whether Spark and Arrow understand a value of Python's alike, whatever the session's time zone."""
    is_of = (pa.types.is_integer, pa.types.is_string, pa.types.is_boolean, pa.types.is_date, pa.types.is_binary)
    return any(each(kind) for each in is_of)


_BATCH_ROWS = 50_000
"""Rows that go to Spark at once."""


@dataclass(frozen=True)
class _StatePartition(InputPartition):
    number: int


class TableReader(DataSourceReader):
    """Reads all rows of a table. It crosses to tasks by pickle."""

    def __init__(self, at: VersionedTable, schema: StructType) -> None:
        """`schema` has the columns to read. Raises `NotFound` and `Usage` where the table does not have them so."""
        self._at, self._schema = replace(at, store=at.store.as_here()), schema
        self._keys: pa.Table | None = None
        there = columns_of(at)
        for asked in schema:
            if asked.name not in there.names:
                raise NotFound(f"column of table {at.table!r}", asked.name, there.names)
            if (kind := there[asked.name].dataType) != asked.dataType:
                raise Usage(
                    f"column {asked.name!r} of table {at.table!r} is {kind.simpleString()}, and asked for as "
                    f"{asked.dataType.simpleString()}",
                    hint="leave .schema(…) out to see what the table has",
                )

    def partitions(self) -> Sequence[InputPartition]:
        """Spark's hook."""
        manifest = self._at.read(self._at.store.open())
        table = _table(manifest)
        there = {*sorted_runs.by_partition(manifest.ssts, table.partitions)}
        if self._keys is not None:
            there &= {*partition_of(hash_keys(self._keys, self._keys.schema.names), table.partitions).tolist()}
        # Of an empty list Spark would make a partition without a number.
        return [_StatePartition(number) for number in sorted(there)] or [_StatePartition(-1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Spark's hook, in a task."""
        assert isinstance(partition, _StatePartition)  # noqa: S101  what partitions() made
        if partition.number < 0:
            return
        store, schema = self._at.store.open(), arrow_of(self._schema)
        manifest = self._at.read(store)
        with self._at.reading(store, manifest):
            for rows in self._rows(store, manifest, partition.number):
                yield from rows.select(schema.names).cast(schema).combine_chunks().to_batches(_BATCH_ROWS)

    def _rows(self, store: ObjectStore, manifest: Manifest, partition: int) -> Iterable[pa.Table]:
        table, clock_ms = _table(manifest), self._at.clock_ms
        if self._keys is None:
            return merged_rows(store, None, manifest.ssts, table, partition, clock_ms, columns=self._schema.names)
        hashes = hash_keys(self._keys, self._keys.schema.names)
        mine = np.flatnonzero(partition_of(hashes, table.partitions) == partition)
        # As look-ups want them, in the order of their hashes.
        mine = mine[np.argsort(hashes[mine], kind="stable")]
        keys = self._keys.take(pa.array(mine))
        values, present = multi_get(store, None, manifest.ssts, table, hashes[mine], keys, clock_ms=clock_ms)
        return [
            pa.table([*keys.columns, *values.columns], [*keys.column_names, *values.column_names]).filter(
                pa.array(present)
            )
        ]


class FilteringReader(TableReader):
    """Reads those rows only whose keys a query's filters say. Spark filters what comes all the same."""

    def pushFilters(self, filters: list) -> Iterable:  # type: ignore[type-arg]  # noqa: N802  Spark's name
        """Spark's hook, from 4.1 on."""
        table = _table(self._at.read(self._at.store.open()))
        self._keys = keys_in(table, filters)
        return filters


def reader_for(at: VersionedTable, schema: StructType) -> TableReader:
    """The reader for this process of Spark's, which asks for filters or does not.

    Where the session has `spark.sql.python.filterPushdown.enabled` off, Spark refuses a reader that would take any; it
    asks in a process of its own, and nothing else tells one from the other.
    """
    asks = any("data_source_pushdown_filters" in word for word in sys.argv)
    return (FilteringReader if asks else TableReader)(at, schema)


def columns_of(at: VersionedTable) -> StructType:
    """The columns that users see, as Spark has them. Raises `NotFound` where the version was collected."""
    return spark_schema_of(visible_schema(_table(at.read(at.store.open()))))


def _table(manifest: Manifest) -> Table:
    assert manifest.table is not None  # noqa: S101  what was found has one
    return manifest.table
