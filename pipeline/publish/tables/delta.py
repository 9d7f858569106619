"""Delta tables, through delta-rs.

A commit with a version's rows has an application transaction (`txn`) for the version.
"""

from collections.abc import Callable, Sequence

import deltalake
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, TableFeatures, Transaction
from deltalake.exceptions import CommitFailedError

from ...api.table_sink import TableSink, leaf_types
from .fit import fit, fitted_schema
from .protocol import (
    PERIOD,
    SINK,
    SMALL_FILE_BYTES,
    VERSION,
    Mark,
    SinkState,
    TableCommit,
    newest_by_key,
    table_errors,
)

_HARMLESS = ("OPTIMIZE", "VACUUM", "CREATE TABLE", "SET TBLPROPERTIES", "ADD", "DROP CONSTRAINT", "UPDATE FIELD")
"""First words of operations that do not change rows."""

_LOCAL_TIME = "timestampNtz"
"""Table feature that is required for times without a zone."""


class DeltaLakeTable:
    """A Delta table as a sink."""

    def __init__(self, sink: TableSink, address: str) -> None:
        self._sink, self._address = sink, address
        self._options = dict(sink.options)
        self._table: DeltaTable | None = None

    def load(self, sink: str, period: str) -> SinkState:
        with table_errors(self._sink, self._address):
            if not DeltaTable.is_deltatable(self._address, storage_options=self._options):
                self._table = None
                return SinkState()
            self._table = DeltaTable(self._address, storage_options=self._options)
            newest = self._table.transaction_version(_period_id(sink, period))
            return SinkState(newest or 0, self._table.transaction_version(_sink_id(sink)) is not None)

    def publish(self, mark: Mark, rows: pa.Table) -> None:
        with table_errors(self._sink, self._address, CommitFailedError):
            table = self._table or self._create(rows.schema)
            schema = fitted_schema(self._address, _arrow(Schema.from_arrow(rows.schema)), _arrow(table.schema()))
            self._add_features(schema)
            if self._sink.key:
                self._merge(mark, fit(newest_by_key(rows, self._sink.key), schema))
            else:
                deltalake.write_deltalake(
                    self._loaded(),
                    fit(rows, schema).select(rows.column_names),
                    mode="append",
                    schema_mode="merge",
                    commit_properties=_properties(mark),
                )

    def begin(self, mark: Mark, snapshot: str | None) -> None:
        with table_errors(self._sink, self._address, CommitFailedError):
            table = self._loaded()
            if snapshot is not None:
                table.restore(int(snapshot), commit_properties=_properties(mark))
            else:
                none = _arrow(table.schema()).empty_table()
                deltalake.write_deltalake(table, none, mode="append", commit_properties=_properties(mark))

    def log(self) -> Sequence[TableCommit]:
        with table_errors(self._sink, self._address):
            return [_commit(entry) for entry in reversed(self._loaded().history())]

    def compact(self, max_small_files: int) -> None:
        with table_errors(self._sink, self._address, CommitFailedError):
            files = pa.table(self._loaded().get_add_actions(flatten=True))
            small = files.filter(pa.compute.field("size_bytes") < SMALL_FILE_BYTES)
            partition = [name for name in small.column_names if name.startswith("partition.")]
            counts = small.group_by(partition).aggregate([([], "count_all")])["count_all"].to_pylist()
            if max(counts, default=0) > max_small_files:
                self._change(lambda table: table.optimize.compact())

    def _loaded(self) -> DeltaTable:
        assert self._table is not None  # noqa: S101  a table with commits exists
        return self._table

    def _change(self, change: Callable[[DeltaTable], object]) -> None:
        """Commit a change that belongs to no sink, such as a new property.

        The change is made on a copy of the table object. Otherwise this object would include earlier commits of other
        writers, and a later commit would no longer conflict with them.
        """
        former = self._loaded().version()
        copy = DeltaTable(self._address, version=former, storage_options=self._options)
        change(copy)
        if copy.version() == former + 1:
            self._table = copy

    def _create(self, schema: pa.Schema) -> DeltaTable:
        # A commit of its own, so that there is a snapshot before the first rows.
        self._table = DeltaTable.create(
            self._address,
            # The first rows add the others, once the table has their feature.
            pa.schema([field for field in schema if not (field.type.num_fields and _has_local_times(field))]),
            mode="error",
            partition_by=list(self._sink.partition_by),
            storage_options=self._options,
        )
        return self._table

    def _add_features(self, schema: pa.Schema) -> None:
        # delta-rs does so itself for appended columns, but neither for merged ones nor inside of maps.
        features = self._loaded().protocol().writer_features or ()
        if _LOCAL_TIME not in features and any(map(_has_local_times, schema)):
            self._change(
                lambda table: table.alter.add_feature(
                    TableFeatures.TimestampWithoutTimezone, allow_protocol_versions_increase=True
                )
            )

    def _merge(self, mark: Mark, rows: pa.Table) -> None:
        # Null keys are equal, as in a table of the app.
        names = [f'"{name.replace(chr(34), chr(34) * 2)}"' for name in self._sink.key]
        merger = self._loaded().merge(
            rows,
            " AND ".join(f"(t.{name} IS NOT DISTINCT FROM s.{name})" for name in names),
            source_alias="s",
            target_alias="t",
            merge_schema=True,
            commit_properties=_properties(mark),
        )
        merger.when_matched_update_all().when_not_matched_insert_all().execute()


def _arrow(schema: Schema) -> pa.Schema:
    return pa.schema(schema.to_arrow())


def _has_local_times(field: pa.Field) -> bool:
    return any(pa.types.is_timestamp(kind) and kind.tz is None for kind in leaf_types(field.type))


def _sink_id(sink: str) -> str:
    return f"slackwater {sink}"


def _period_id(sink: str, period: str) -> str:
    return f"slackwater {sink} {period}"


def _properties(mark: Mark) -> CommitProperties:
    # Delta refuses concurrent commits with the same application, so all periods of a sink share one.
    return CommitProperties(
        custom_metadata=mark.properties,
        app_transactions=[
            Transaction(_sink_id(mark.sink), mark.version),
            Transaction(_period_id(mark.sink, mark.period), mark.version),
        ],
    )


def _commit(entry: dict[str, object]) -> TableCommit:
    number, operation = int(str(entry["version"])), str(entry.get("operation", ""))
    sink, period, version = (str(entry.get(name, "")) for name in (SINK, PERIOD, VERSION))
    mark = Mark(sink, period, int(version)) if sink and version.isdecimal() else None
    base = str(number - 1) if number else ""
    return TableCommit(str(number), base, mark, not operation.startswith(_HARMLESS), operation)
