"""Reads a table at one version in Spark: the location of the table, and its data source reader.

There is one task for each non-empty state partition, which reads only needed columns.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ...common.instants import format_iso
from ...errors import NotFound, Usage
from ...snapshot.cut.graph import Cut
from ...snapshot.cut.moments import heads_of, read_version, require_tables
from ...snapshot.cut.resolve import report_if_collected, resolve
from ...snapshot.query.columns import visible_schema
from ...store.compaction.merge import iter_visible_rows
from ...store.hot.hot_store import open_store
from ...store.objects.open import s3_access_for_others, use_s3_access
from ...store.objects.protocol import ObjectStore
from ...store.objects.s3_settings import S3Access, S3ClientConfig, S3Settings
from ...store.read.multi_get import multi_get
from ...store.sst import sorted_runs
from ...store.sst.hashing import hash_keys, normalise_keys, partition_of
from ...store.sst.schema import arrow_schema
from ...store.versions import history
from ...store.versions.apps import replace_name_by_folder
from ...store.versions.entries.ssts import Sst
from ...store.versions.manifest import Manifest, Table
from ...store.versions.side_tables import as_main_table, find_owner, possible_owners, tables_of
from ..source.spark_types import arrow_schema_of, spark_schema_of

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


_log = logging.getLogger("slackwater")
_HINT = 'spark.read.format("slackwater").option("at", "-5m").load("APP/TABLE")'


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Location of a store, with the driver's S3 credentials. Spark pickles it to other processes."""

    root: str
    s3_settings: S3Settings
    s3: S3Access | None = field(default=None, repr=False)

    def open(self) -> ObjectStore:
        return _open(self.root, self.s3_settings, use_s3_access(self.s3))

    def with_own_access(self) -> StoreLocation:
        """Return a copy with this process's S3 credentials, to send to other processes.

        Call this shortly before the copy is used, because credentials may be temporary.
        """
        return replace(self, s3=s3_access_for_others(self.open()))


@lru_cache(maxsize=8)
def _open(root: str, settings: S3Settings, place: S3ClientConfig | None) -> ObjectStore:
    return open_store(root, settings=settings, client_config=place)


@dataclass(frozen=True, slots=True)
class VersionedTable:
    """A table at a version of its stage. The manifest is read only when needed, because SSTs may be replaced."""

    store: StoreLocation
    app: str
    stage: str
    version: int
    table: str
    clock_ms: int
    """Time by which rows count as expired, in ms since 1970."""

    @classmethod
    def find(cls, place: StoreLocation, path: str, at: str, now_ms: int) -> VersionedTable:
        """Return the table that `path` (`APP/TABLE`) names at the moment `at`, the part of a ref after `@`.

        An empty `at` is the newest moment. Raises `Usage` for an invalid path or moment, and `NotFound` if the table or
        moment does not exist.
        """
        store, (app, table) = place.open(), _split_path(path)
        cut = resolve(store, replace_name_by_folder(store, f"{app}@{at}" if at else app), now_ms=now_ms)
        if cut.thinned is not None:
            answered = format_iso(cut.thinned.answered_ms, "milliseconds")
            _log.warning(
                "%s@%s: gc has thinned out the history there; reading the moment %s instead", path, at, answered
            )
        return cls.from_cut(place, require_tables(store, cut, (table,)), table)

    @classmethod
    def from_cut(cls, place: StoreLocation, cut: Cut, table: str) -> VersionedTable:
        stage, manifest = next((name, head) for name, head in cut.stages.items() if table in tables_of(head, name))
        then = manifest.stage + table.removeprefix(stage)
        return cls(place, cut.app, manifest.stage, manifest.version, then, cut.clock_ms(table))

    @classmethod
    def from_version(cls, place: StoreLocation, path: str, version: int, clock_ms: int) -> VersionedTable:
        """Return the table `APP/TABLE` at a version of its stage. Raises the errors of `find`."""
        store, (app, table) = place.open(), _split_path(path)
        folder = replace_name_by_folder(store, app)
        stage = find_owner(table, heads_of(store, folder, possible_owners(table, history.list_stages(store, folder))))
        return cls(place, folder, stage, version, table, clock_ms)

    def load(self) -> tuple[ObjectStore, Manifest, Table]:
        """Return the store, the version's manifest with this table as its main table, and the table.

        Raises `NotFound` if gc has deleted the version, or if the version does not have the table.
        """
        store = self.store.open()
        manifest = as_main_table(read_version(store, self.app, self.stage, self.version), self.table)
        if manifest.table is None:
            raise NotFound(f"table at {self.app}/{self.stage}@v{self.version}", self.table)
        return store, manifest, manifest.table

    @contextmanager
    def explaining_gc(self, store: ObjectStore, manifest: Manifest) -> Iterator[None]:
        """Raise `NotFound` with the moment's name if gc deletes the version during the block."""
        with report_if_collected(store, Cut(self.app, {self.stage: manifest})):
            yield


def _split_path(path: str) -> tuple[str, str]:
    app, _, table = path.partition("/")
    if not app or not table:
        raise Usage(f"{path!r} is not a table; expected APP/TABLE", hint=_HINT)
    return app, table


_MAX_KEYS = 10_000
"""Maximum number of keys to look up; for more keys, the whole table is read."""


def filtered_keys(table: Table, filters: Iterable[Filter]) -> pa.Table | None:
    """Return a table of the only keys that can satisfy all filters; None if the filters do not restrict the keys."""
    schema = arrow_schema(table.key)
    chosen: dict[str, set[Any]] = {}
    for condition in filters:
        values = _filter_values(condition)
        if values is not None and (name := condition.attribute[0]) in schema.names:  # type: ignore[attr-defined]
            chosen[name] = chosen.get(name, values) & values
    exact = all(_is_exact(field.type) for field in schema)
    if not exact or set(schema.names) - chosen.keys() or prod(len(choices) for choices in chosen.values()) > _MAX_KEYS:
        return None
    keys = [*product(*(chosen[name] for name in schema.names))]
    columns: Sequence[Sequence[Any]] = [*zip(*keys, strict=True)] if keys else [() for _ in schema]
    try:
        arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    except (pa.ArrowException, TypeError, OverflowError):
        return None
    return normalise_keys(pa.table(arrays, schema=schema), schema.names)


def _filter_values(condition: Filter) -> set[Any] | None:
    if len(getattr(condition, "attribute", ())) != 1:
        return None  # a field of a struct
    match type(condition).__name__:
        case "EqualTo" | "EqualNullSafe":
            return {condition.value}  # type: ignore[attr-defined]
        case "In":
            return {*condition.value} - {None}  # type: ignore[attr-defined]
    return None


def _is_exact(kind: pa.DataType) -> bool:
    """Return True if Spark and Arrow convert Python values of this type equally, in any session time zone."""
    is_of = (pa.types.is_integer, pa.types.is_string, pa.types.is_boolean, pa.types.is_date, pa.types.is_binary)
    return any(predicate(kind) for predicate in is_of)


_BATCH_ROWS = 50_000


@dataclass(frozen=True)
class _StatePartition(InputPartition):
    number: int


class TableReader(DataSourceReader):
    """Reads all rows of a table. Pickled to tasks."""

    def __init__(self, at: VersionedTable, schema: StructType) -> None:
        """Raise `NotFound` if the table lacks a column of `schema`, and `Usage` if a column has a different type."""
        self._at, self._schema = replace(at, store=at.store.with_own_access()), schema
        self._keys: pa.Table | None = None
        columns = visible_columns(at)
        for requested in schema:
            if requested.name not in columns.names:
                raise NotFound(f"column of table {at.table!r}", requested.name, columns.names)
            if (kind := columns[requested.name].dataType) != requested.dataType:
                raise Usage(
                    f"column {requested.name!r} of table {at.table!r} is {kind.simpleString()}, not "
                    f"{requested.dataType.simpleString()}",
                    hint="omit .schema(…) to read the table's own types",
                )

    def partitions(self) -> Sequence[InputPartition]:
        _, manifest, table = self._at.load()
        numbers = {*sorted_runs.by_partition(manifest.ssts, table.partitions)}
        if self._keys is not None:
            numbers &= {*partition_of(hash_keys(self._keys, self._keys.schema.names), table.partitions).tolist()}
        # For an empty list, Spark creates a partition without a number.
        return [_StatePartition(number) for number in sorted(numbers)] or [_StatePartition(-1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _StatePartition)  # noqa: S101  what partitions() made
        if partition.number < 0:
            return
        (store, manifest, table), schema = self._at.load(), arrow_schema_of(self._schema)
        with self._at.explaining_gc(store, manifest):
            for rows in self._rows(store, manifest.ssts, table, partition.number):
                yield from rows.select(schema.names).cast(schema).combine_chunks().to_batches(_BATCH_ROWS)

    def _rows(self, store: ObjectStore, ssts: Sequence[Sst], table: Table, partition: int) -> Iterable[pa.Table]:
        clock_ms = self._at.clock_ms
        if self._keys is None:
            return iter_visible_rows(store, None, ssts, table, partition, clock_ms, columns=self._schema.names)
        hashes = hash_keys(self._keys, self._keys.schema.names)
        indexes = np.flatnonzero(partition_of(hashes, table.partitions) == partition)
        # Look-ups need keys in the order of their hashes.
        indexes = indexes[np.argsort(hashes[indexes], kind="stable")]
        keys = self._keys.take(pa.array(indexes))
        values, present = multi_get(store, None, ssts, table, hashes[indexes], keys, clock_ms=clock_ms)
        return [
            pa.table([*keys.columns, *values.columns], [*keys.column_names, *values.column_names]).filter(
                pa.array(present)
            )
        ]


class FilteringReader(TableReader):
    """Reads only rows with the keys that a query's filters select. Spark applies the filters to the rows again."""

    def pushFilters(self, filters: list) -> Iterable:  # type: ignore[type-arg]  # noqa: N802  Spark's name
        self._keys = filtered_keys(self._at.load()[2], filters)
        return filters


def reader_for(at: VersionedTable, schema: StructType) -> TableReader:
    """Return a reader for this process. It accepts filters only in the process in which Spark pushes filters.

    If the session has `spark.sql.python.filterPushdown.enabled` off, Spark refuses a reader that accepts filters. Spark
    pushes filters in a separate process, which is recognised by its command-line arguments.
    """
    asks = any("data_source_pushdown_filters" in word for word in sys.argv)
    return (FilteringReader if asks else TableReader)(at, schema)


def visible_columns(at: VersionedTable) -> StructType:
    """Return the columns that users see, as a Spark schema. Raises `NotFound` if gc has deleted the version."""
    return spark_schema_of(visible_schema(at.load()[2]))
