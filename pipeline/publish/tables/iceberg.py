"""Iceberg tables, by pyiceberg. The summary of a snapshot names the version whose rows it added.

A property of the table has the newest version, too, because snapshots expire. Upserts copy the files that have the keys
(copy-on-write): an equality delete would not apply to rows that are added in the same snapshot.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import reduce, wraps
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThanOrEqual,
    Or,
)
from pyiceberg.io.pyarrow import ArrowProjectionVisitor, ArrowScan, _dataframe_to_data_files
from pyiceberg.table import FileScanTask, Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import SetCurrentSchemaUpdate
from pyiceberg.table.update.snapshot import ManageSnapshots

from ...api.table_sink import TableSink
from .protocol import (
    PERIOD,
    SINK,
    SMALL_FILE_BYTES,
    VERSION,
    Mark,
    SinkState,
    TableCommit,
    has_key_of,
    newest_by_key,
    table_errors,
)

_MAX_MERGED_BYTES = 256 << 20
_COMPACTION = "slackwater.compaction"
_BASE = "slackwater.base"
"""Snapshot before a restoring commit. The commit's parent is the restored snapshot."""


def _with_nulls(convert: Callable[..., pa.Array | None]) -> Callable[..., pa.Array | None]:
    """Wrap a conversion so that null lists and null maps of structs stay null: pyiceberg makes them empty."""

    @wraps(convert)
    def converted(visitor: object, kind: object, values: pa.Array | None, *parts: pa.Array | None) -> pa.Array | None:
        result = convert(visitor, kind, values, *parts)
        if values is None or result is None or result.null_count == values.null_count:
            return result
        return pc.if_else(values.is_valid(), result, pa.scalar(None, result.type)).cast(result.type)

    return converted


for _name in ("list", "map"):
    setattr(ArrowProjectionVisitor, _name, _with_nulls(getattr(ArrowProjectionVisitor, _name)))


class IcebergLakeTable:
    """A table of an Iceberg catalog as a sink."""

    def __init__(self, sink: TableSink, address: str) -> None:
        catalog, _, self._name = address.partition(".")
        self._sink, self._address, self._catalog_name = sink, address, catalog
        self._catalog: Catalog | None = None
        self._table: Table | None = None
        self._schema: pa.Schema | None = None
        """Schema of rows whose columns the table is known to have."""

    def load(self, sink: str, period: str) -> SinkState:
        with table_errors(self._sink, self._address):
            self._schema = None
            if self._catalog is None:
                self._catalog = load_catalog(self._catalog_name, **dict(self._sink.options))
            try:
                table = self._catalog.load_table(self._name)
            except NoSuchTableError:
                self._table = None
                return SinkState()
            self._table = table
            newest, _, version = table.properties.get(_property(sink), "").partition(" ")
            return SinkState(int(version) if newest == period else 0, bool(newest))

    def publish(self, mark: Mark, rows: pa.Table) -> None:
        with table_errors(self._sink, self._address, CommitFailedException, TableAlreadyExistsError):
            table = self._table or self._create(rows.schema)
            with _transaction(table) as transaction:
                if rows.schema != self._schema:
                    with transaction.update_schema() as update:
                        update.union_by_name(rows.schema)
                if self._sink.key:
                    _upsert(table, transaction, mark, newest_by_key(rows, self._sink.key), self._sink.key)
                else:
                    transaction.append(rows, snapshot_properties=mark.properties)
                transaction.set_properties({_property(mark.sink): f"{mark.period} {mark.version}"})
            self._schema = rows.schema

    def begin(self, mark: Mark, snapshot: str | None) -> None:
        with table_errors(self._sink, self._address, CommitFailedException):
            table = self._loaded()
            former = table.current_snapshot()
            properties = mark.properties | {_BASE: str(former.snapshot_id if former is not None else "")}
            with _transaction(table) as transaction:
                if snapshot:
                    _restore(transaction, int(snapshot))
                elif snapshot is not None:
                    transaction.delete("true", snapshot_properties=properties)
                # Makes concurrent commits fail, which build on the former snapshot.
                none = table.schema().as_arrow().empty_table()
                transaction.append(none, snapshot_properties=properties)
                transaction.set_properties({_property(mark.sink): f"{mark.period} {mark.version}"})

    def log(self) -> Sequence[TableCommit]:
        commits: list[TableCommit] = []
        for snapshot in self._loaded().metadata.snapshots:
            commit, last = _commit(snapshot), commits[-1] if commits else None
            if last is not None and commit.mark is not None and last.mark == commit.mark:
                # An upsert has two snapshots: one without the replaced rows, one with the new rows.
                commits[-1] = last._replace(snapshot=commit.snapshot)
            else:
                commits.append(commit)
        return commits

    def compact(self, max_small_files: int) -> None:
        with table_errors(self._sink, self._address, CommitFailedException):
            table = self._loaded()
            partitions = defaultdict[str, list[FileScanTask]](list)
            for task in table.scan().plan_files():
                if task.file.file_size_in_bytes < SMALL_FILE_BYTES and not task.delete_files:
                    partitions[repr(task.file.partition)].append(task)
            for tasks in partitions.values():
                if len(tasks) > max_small_files:
                    _merge_files(table, tasks)

    def _loaded(self) -> Table:
        assert self._table is not None  # noqa: S101  a table with commits exists
        return self._table

    def _create(self, schema: pa.Schema) -> Table:
        assert self._catalog is not None  # noqa: S101  `load` was called
        with self._catalog.create_table_transaction(self._name, schema) as creation:
            if self._sink.partition_by:
                with creation.update_spec() as spec:
                    for name in self._sink.partition_by:
                        spec.add_identity(name)
        self._table = self._catalog.load_table(self._name)
        return self._table


class _Transaction(Transaction):
    """Transaction that caches its metadata, because pyiceberg copies the metadata at each of thirty accesses."""

    _kept: tuple[TableMetadata, int, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        base, updates = self._table.metadata, len(self._updates)
        if self._kept is None or self._kept[0] is not base or self._kept[1] != updates:
            self._kept = base, updates, super().table_metadata
        return self._kept[2]


def _restore(transaction: Transaction, snapshot_id: int) -> None:
    """Restore a snapshot with its schema. Columns of later versions may then be added again with other types."""
    ManageSnapshots(transaction).set_current_snapshot(snapshot_id).commit()
    metadata = transaction.table_metadata
    snapshot = metadata.snapshot_by_id(snapshot_id)
    if snapshot is not None and snapshot.schema_id not in (None, metadata.current_schema_id):
        transaction._apply((SetCurrentSchemaUpdate(schema_id=snapshot.schema_id),))  # type: ignore[call-arg]


def _transaction(table: Table) -> Transaction:
    # pyiceberg would repeat a lost commit on top of the winner, which may have published the same version. Only this
    # copy of the metadata changes, until the next commit.
    table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
    return _Transaction(table)


def _upsert(table: Table, transaction: Transaction, mark: Mark, rows: pa.Table, key: Sequence[str]) -> None:
    # The transaction may have added columns.
    metadata, io = transaction.table_metadata, table.io
    scan = ArrowScan(metadata, io, metadata.schema(), AlwaysTrue())
    partition = {metadata.schema().find_column_name(part.source_id) for part in metadata.spec().fields}
    conditions = (_values(name, rows[name]) if name in partition else _range(name, rows[name]) for name in key)
    with transaction.update_snapshot(snapshot_properties=mark.properties).overwrite() as update:
        for task in table.scan(row_filter=reduce(And, conditions)).plan_files():
            stored = scan.to_table([task])
            if (replaced := has_key_of(stored, rows, key)).any():
                update.delete_data_file(task.file)
                _add_files(table, update, metadata, stored.filter(pa.array(~replaced)))
        _add_files(table, update, metadata, rows)


def _add_files(table: Table, update: Any, metadata: TableMetadata, rows: pa.Table) -> None:
    if rows.num_rows:
        for file in _dataframe_to_data_files(metadata, rows, table.io):
            update.append_data_file(file)


def _range(name: str, column: pa.ChunkedArray) -> BooleanExpression:
    """Return a condition that holds for all values of a column: a range, because pyiceberg is slow with many values."""
    if pa.types.is_boolean(column.type):
        return AlwaysTrue()
    ends = pc.min_max(column)
    least, most = ends["min"].as_py(), ends["max"].as_py()
    if least is None:
        return IsNull(name)  # type: ignore[arg-type, call-arg]
    bounds: list[Any] = [GreaterThanOrEqual(name, least), LessThanOrEqual(name, most)]  # type: ignore[arg-type, call-arg]
    values = And(*bounds)
    return Or(values, IsNull(name)) if column.null_count else values  # type: ignore[arg-type, call-arg]


def _values(name: str, column: pa.ChunkedArray) -> BooleanExpression:
    """Return a condition that a partition column has one of these values.

    It is no range, because pyiceberg fails when it compares null with the end of a range.
    """
    values = [value for value in column.unique().to_pylist() if value is not None]
    if not values:
        return IsNull(name)  # type: ignore[arg-type, call-arg]
    return Or(In(name, values), IsNull(name)) if column.null_count else In(name, values)  # type: ignore[arg-type, call-arg]


def _merge_files(table: Table, tasks: Sequence[FileScanTask]) -> None:
    merged: list[FileScanTask] = []
    for task in tasks:
        if sum(other.file.file_size_in_bytes for other in merged) < _MAX_MERGED_BYTES:
            merged.append(task)
    with _transaction(table) as transaction:
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        rows = scan.to_table(merged)
        with transaction.update_snapshot(snapshot_properties={_COMPACTION: "true"}).overwrite() as update:
            for task in merged:
                update.delete_data_file(task.file)
            _add_files(table, update, table.metadata, rows)


def _property(sink: str) -> str:
    return f"slackwater.{sink}"


def _commit(snapshot: Snapshot) -> TableCommit:
    summary = snapshot.summary
    properties = summary.additional_properties if summary is not None else {}
    sink, period, version = (properties.get(name, "") for name in (SINK, PERIOD, VERSION))
    mark = Mark(sink, period, int(version)) if sink and version.isdecimal() else None
    operation = summary.operation if summary is not None else Operation.OVERWRITE
    changes = operation is not Operation.REPLACE and _COMPACTION not in properties
    base = properties.get(_BASE, str(snapshot.parent_snapshot_id or ""))
    return TableCommit(str(snapshot.snapshot_id), base, mark, changes, operation.value.upper())
