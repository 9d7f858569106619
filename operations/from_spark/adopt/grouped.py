"""Mapping of several query rows to one row of a table: sessions, waiting rows of joins, state variables.

A batch changes single rows of the query, but the table needs the complete row of a key. So DuckDB holds the query's
rows, on disk if they exceed the memory limit. For each batch, the rows of changed keys are computed again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from ....state.kinds.aggregate import Aggregates
from ....state.kinds.due import due_ms
from ....state.kinds.join import BoundJoin, Join, JoinSide
from ....state.kinds.kind import BoundState, Kind
from ....state.kinds.session import TIMES, Sessions
from ....store.read.duckdb_view import quote_identifier
from ....store.sst.schema import DUE, arrow_schema
from ....store.versions.manifest import Table, is_internal
from ...attach.protocol import DELETED, ReadableTable
from ...attach.rows import cast_to_columns
from ...exchange.initialise import SORT_MEMORY
from .buffers import Array, ColumnMapper, MappedColumn, concat_changes, map_aggregates, map_by_name_or_position

_BATCH_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class KeyPart:
    """Mapping of one table of the query to a part of a row in the stage's table."""

    state: ReadableTable
    columns: tuple[MappedColumn, ...]
    """Columns of the DuckDB table: the key, the columns in `ids`, and the values."""
    ids: tuple[str, ...]
    """Columns that distinguish several rows of the same key."""
    per_key: tuple[tuple[str, str], ...]
    """Name and DuckDB expression of each aggregate over the rows of a key."""
    side: str = ""
    """Name of the side table with the parts of a list or a map; empty for none."""
    per_part: tuple[tuple[str, str], ...] = ()
    """Name and DuckDB expression of each column of the side table, besides the key columns of the stage."""

    def to_database_rows(self, state: pa.Table, columns: Sequence[str]) -> pa.Table:
        makers = {column.column: column for column in self.columns}
        return pa.table([_chunked(makers[name].compute(state)) for name in columns], names=list(columns))


@dataclass(slots=True)
class GroupedMapping:
    """Mapping of all query rows with one key to one row of the stage's table.

    `values` are the table's value columns as DuckDB expressions over the columns in `KeyPart.per_key`.
    """

    parts: tuple[KeyPart, ...]
    table: Table
    values: tuple[tuple[str, str], ...]
    columns: tuple[MappedColumn, ...]
    side_tables: Mapping[str, Table] = field(default_factory=dict)
    """Tables of the parts of lists and maps, by side-table name."""
    _con: duckdb.DuckDBPyConnection | None = field(default=None, init=False)

    @property
    def key(self) -> list[str]:
        return [column.name for column in self.table.key]

    @property
    def states(self) -> tuple[ReadableTable, ...]:
        return tuple(part.state for part in self.parts)

    def map_all(self, states: Sequence[Iterable[pa.RecordBatch]]) -> Iterator[pa.Table]:
        """Yield all rows of the stage's table, computed from all rows of the query's tables at the end of a batch.

        Raises `Refused` for a value that does not fit.
        """
        self.load_state(states)
        yield from self._rows("")

    def load_state(self, states: Sequence[Iterable[pa.RecordBatch]]) -> None:
        """Load all rows of the query's tables at the end of a batch. Must be called before `map_changes`."""
        # Imported here: reporting the mapping needs no database.
        from ....snapshot.query.sql import empty_database

        con = self._con = empty_database()
        con.execute(f"SET TimeZone = 'UTC'; SET preserve_insertion_order = false; SET memory_limit = '{SORT_MEMORY}'")
        for number, (part, rows) in enumerate(zip(self.parts, states, strict=True)):
            columns = [column.column for column in part.columns]
            exists = False
            for batch in (part.to_database_rows(pa.Table.from_batches([state_batch]), columns) for state_batch in rows):
                con.register("came", batch)
                con.execute(f"INSERT INTO t{number} FROM came" if exists else f"CREATE TABLE t{number} AS FROM came")
                exists = True
            if not exists:
                state = pa.schema([*part.state.key, *part.state.values]).empty_table()
                con.register("came", part.to_database_rows(state, columns))
                con.execute(f"CREATE TABLE t{number} AS FROM came")

    def map_changes(self, states: Sequence[pa.Table]) -> pa.Table:
        """Convert a batch's changes of the query's tables to changes of the stage's table, with `DELETED`.

        Must be called in the order of batches.
        """
        con = self._con
        assert con is not None  # noqa: S101  `load_state` was called
        keys = _column_list(self.key)
        touched = []
        for number, (part, state) in enumerate(zip(self.parts, states, strict=True)):
            row_ids, columns = [*self.key, *part.ids], [column.column for column in part.columns]
            con.register(f"gone{number}", part.to_database_rows(state, row_ids))
            con.register(
                f"came{number}", part.to_database_rows(state.filter(pa.compute.invert(state[DELETED])), columns)
            )
            con.execute(
                f"DELETE FROM t{number} USING gone{number} g WHERE {_columns_equal(f't{number}', 'g', row_ids)}"
            )
            con.execute(f"INSERT INTO t{number} FROM came{number}")
            touched.append(f"SELECT DISTINCT {keys} FROM gone{number}")
        con.execute(f"CREATE OR REPLACE TEMP TABLE touched AS {' UNION '.join(touched)}")
        current = pa.concat_tables([arrow_schema(self.table.columns).empty_table(), *self._rows("touched")])
        con.register("found", current.select(self.key))
        deleted = con.sql(
            f"SELECT t.* FROM touched t ANTI JOIN found f ON {_columns_equal('t', 'f', self.key)}"
        ).to_arrow_table()
        return concat_changes(current, cast_to_columns(deleted, self.table.key), self.table)

    def part_rows(self, side: str, *, all_keys: bool) -> Iterator[pa.Table]:
        """Yield the current rows of a table of parts, of all keys or of the keys that `map_changes` last returned."""
        con = self._con
        assert con is not None  # noqa: S101  `load_state` was called
        table = self.side_tables[side]
        number, part = next((number, part) for number, part in enumerate(self.parts) if part.side == side)
        values = ", ".join(f"{expression} AS {quote_identifier(name)}" for name, expression in part.per_part)
        source = f"t{number} t" + ("" if all_keys else f" SEMI JOIN touched k ON {_columns_equal('t', 'k', self.key)}")
        query = f"SELECT {_column_list(self.key)}, {values} FROM (SELECT t.* FROM {source})"
        for batch in con.sql(query).to_arrow_reader(_BATCH_ROWS):
            yield cast_to_columns(batch, table.columns)

    def _rows(self, touched: str) -> Iterator[pa.Table]:
        con = self._con
        assert con is not None  # noqa: S101
        keys, with_parts, joins = _column_list(self.key), [], []
        for number, part in enumerate(self.parts):
            source = f"t{number}"
            if touched:
                source = f"(SELECT t.* FROM t{number} t SEMI JOIN {touched} k ON {_columns_equal('t', 'k', self.key)})"
            aggregates = ", ".join(f"{expression} AS {quote_identifier(name)}" for name, expression in part.per_key)
            with_parts.append(f"p{number} AS (SELECT {keys}, {aggregates} FROM {source} GROUP BY {keys})")
            joins.append(f"LEFT JOIN p{number} ON {_columns_equal('k', f'p{number}', self.key)}")
        all_keys = " UNION ".join(f"SELECT {keys} FROM p{number}" for number in range(len(self.parts)))
        key_columns = ", ".join(f"k.{quote_identifier(name)}" for name in self.key)
        values = ", ".join(f"{expression} AS {quote_identifier(name)}" for name, expression in self.values)
        query = f"WITH {', '.join(with_parts)} SELECT {key_columns}, {values} FROM ({all_keys}) k {' '.join(joins)}"
        for batch in con.sql(query).to_arrow_reader(_BATCH_ROWS):
            yield cast_to_columns(batch, self.table.columns)


def _column_list(names: Iterable[str]) -> str:
    return ", ".join(map(quote_identifier, names))


def _columns_equal(first: str, second: str, names: Iterable[str]) -> str:
    return " AND ".join(
        f"{first}.{quote_identifier(name)} IS NOT DISTINCT FROM {second}.{quote_identifier(name)}" for name in names
    )


def list_expression(fields: Sequence[str], order: Sequence[str]) -> str:
    """Return the DuckDB expression that collects a key's rows as a list of structs, sorted by `order`."""
    columns = ", ".join(f"{name} := {name}" for name in map(quote_identifier, fields))
    return f"list(struct_pack({columns}) ORDER BY {_column_list(order)})"


def _chunked(column: Array) -> Array:
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


_ID, _DUE, _MATCHED = "_id", "_due", "_matched"


def map_sessions(
    kind: Kind, states: Sequence[ReadableTable], table: Table, _bound: BoundState | None, search: ColumnMapper
) -> GroupedMapping | None:
    """Map the session windows of each key to one list. In Spark, each session is a row with its start in the key."""
    (state,) = states
    assert isinstance(kind, Sessions)  # noqa: S101  selected by its tag
    lists = {
        column.name: list(column.type.value_type)
        for column in arrow_schema(table.values)
        if pa.types.is_list(column.type)
    }
    begin, *_ = [key_field.name for key_field in state.key][-1:]
    map_by_name_or_position(
        table.key, pa.schema([key_field for key_field in state.key if key_field.name != begin]), search, "key column"
    )
    window, *buffer = state.values
    list_fields = pa.schema([list_field for fields in lists.values() for list_field in fields])
    core, value_search = kind.state.core, ColumnMapper()
    if not isinstance(core, Aggregates) or state.kind != "session":
        search.problems.append(
            f"{kind} requires the aggregates of a session window, but the query has the operator {state.kind}"
        )
        return None
    map_aggregates(core.made, pa.schema(buffer), list_fields, value_search)
    search.problems += value_search.problems
    search.columns += value_search.columns
    if search.problems:
        return None

    def edge(end: str, rows: pa.Table) -> pa.ChunkedArray:
        return pc.struct_field(rows[window.name], end)

    edges = zip(TIMES, ("start", "end"), strict=True)
    times = [MappedColumn(name, (window.name,), partial(edge, end)) for name, end in edges]
    extra = [
        MappedColumn(_ID, (begin,), itemgetter(begin)),
        MappedColumn(_DUE, (window.name,), lambda rows: due_ms(edge("end", rows))),
    ]
    per_key = [
        (name, list_expression([list_field.name for list_field in fields], TIMES[:1])) for name, fields in lists.items()
    ]
    per_key.append((DUE, f"min({_DUE})"))
    part = KeyPart(state, (*search.columns, *times, *extra), (_ID,), tuple(per_key))
    shown = next(name for name in lists if not is_internal(name))
    reported = [mapped for mapped in search.columns if mapped.column in {column.name for column in table.key}]
    reported.append(MappedColumn(shown, tuple(state.values.names), lambda rows: rows, "a list of its sessions"))
    return GroupedMapping((part,), table, tuple((name, quote_identifier(name)) for name, _ in per_key), tuple(reported))


def map_join(
    kind: Kind, states: Sequence[ReadableTable], table: Table, bound: BoundState | None, search: ColumnMapper
) -> GroupedMapping | None:
    """Map the waiting rows of both sides of a join to one list per side. Spark stores each waiting row separately."""
    assert isinstance(kind, Join)  # noqa: S101  selected by its tag
    if len(states) != 2 or not isinstance(bound, BoundJoin) or {state.kind for state in states} != {"join"}:
        search.problems.append(
            f"{kind} requires a join of two streams, but the query has the operator {states[0].kind}"
        )
        return None
    parts = [
        _map_join_side(state, side, kind, table, search)
        for state, side in zip(states, (bound.left, bound.right), strict=True)
    ]
    if search.problems:
        return None
    left_name, right_name = (quote_identifier(side.name) for side in (bound.left, bound.right))
    due = f"greatest(p0.{_DUE}, p1.{_DUE})"
    values = [(bound.left.name, f"coalesce({left_name}, [])"), (bound.right.name, f"coalesce({right_name}, [])")]
    if bound.outer:
        values.append((_MATCHED, f"coalesce({_MATCHED}, [])"))
        due = f"coalesce(p0._open, {due})"
    values.append((DUE, due))
    reported = [mapped for mapped in parts[0].columns if mapped.column in {column.name for column in table.key}]
    value_names = [tuple(state.values.names) for state in states]
    reported += [
        MappedColumn(side.name, names, lambda rows: rows, "a list of its waiting rows")
        for side, names in zip((bound.left, bound.right), value_names, strict=True)
    ]
    return GroupedMapping((parts[0], parts[1]), table, tuple(values), tuple(reported))


def _map_join_side(state: ReadableTable, side: JoinSide, kind: Join, table: Table, search: ColumnMapper) -> KeyPart:
    index = state.key.names[-1]
    own, label = ColumnMapper(), f"column of {side.name}"
    map_by_name_or_position(
        table.key, pa.schema([key_field for key_field in state.key if key_field.name != index]), own, "key column"
    )
    state_columns = set(state.values.names)
    for column in side.columns:
        if column.name in state_columns:
            own.copy_column(column.name, state.values.field(column.name), column.type)
        else:
            own.problems.append(
                f"{label} {column.name!r} ({column.type}) is missing in the state, which has: "
                f"{', '.join(sorted(state_columns))}"
            )
    search.problems += own.problems
    within_ms, time = kind.within_ms, side.time

    def due(rows: pa.Table) -> pa.Array:
        return pc.add(due_ms(rows[time]), within_ms + 1)

    extra = [MappedColumn(_ID, (index,), itemgetter(index)), MappedColumn(_DUE, (time,), due)]
    columns = list_expression(side.columns.names, (time, _ID))
    per_key = [(side.name, columns), (_DUE, f"max({_DUE})")]
    if kind.how == "left" and side.name == kind.left:
        met = "matched" if "matched" in state_columns else None
        extra.append(
            MappedColumn(
                _MATCHED, (met,) if met else (), lambda rows: rows[met] if met else pa.repeat(False, rows.num_rows)
            )
        )
        order = f"{quote_identifier(time)}, {_ID}"
        per_key += [
            (_MATCHED, f"list({_MATCHED} ORDER BY {order})"),
            ("_open", f"min({_DUE}) FILTER (NOT {_MATCHED})"),
        ]
    return KeyPart(state, (*own.columns, *extra), (_ID,), tuple(per_key))
