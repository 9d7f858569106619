"""Mapping of a query's state to a stage's table: the state columns from which each table column is computed. Pure.

Each built-in kind of state has a rule. Other kinds, such as a kind that the program defines, are matched by column
names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from ....errors import Refused
from ....state.kinds.aggregate import Aggregates
from ....state.kinds.due import due_ms, window_of
from ....state.kinds.kind import BoundState, Kind, kind_of
from ....state.kinds.pandas_state import PandasState
from ....store.sst.schema import DUE, arrow_schema
from ....store.versions.manifest import Column, Table, is_internal
from ...attach.protocol import DELETED, ReadableTable, has_timeout
from ...attach.rows import cast_to_columns
from .buffers import ColumnMapper, MappedColumn, concat_changes, map_aggregates, map_by_name_or_position
from .grouped import GroupedMapping, map_join, map_sessions
from .variables import map_processor

_DISTINCT = ("distinct", "distinct-within-watermark")
_SINGLE_ROW_KINDS = ("total", "limit")
"""Kinds of operators whose table has a single row without a key."""
_EXPIRES = "expires_at"


@dataclass(frozen=True, slots=True)
class RowMapping:
    """Mapping of each row of the query's table to one row of the stage's table."""

    state: ReadableTable
    table: Table
    columns: tuple[MappedColumn, ...]

    side_tables: ClassVar[Mapping[str, Table]] = {}

    @property
    def states(self) -> tuple[ReadableTable, ...]:
        return (self.state,)

    def part_rows(self, side: str, *, all_keys: bool) -> Iterator[pa.Table]:
        raise KeyError(side)

    def map_all(self, states: Sequence[Iterable[pa.RecordBatch]]) -> Iterator[pa.Table]:
        (rows,) = states
        return (self.rows(pa.Table.from_batches([batch])) for batch in rows)

    def load_state(self, states: Sequence[Iterable[pa.RecordBatch]]) -> None:
        """Do nothing, because a changed row is mapped without other rows."""

    def map_changes(self, states: Sequence[pa.Table]) -> pa.Table:
        (state,) = states
        deleted = state[DELETED]
        if not pc.any(deleted).as_py():
            return self.rows(state.drop_columns([DELETED])).append_column(DELETED, deleted)
        # Deleted rows have undefined values, which need not fit.
        put, keys = self.rows(state.filter(pc.invert(deleted))), self._rows(state.filter(deleted), self.table.key)
        return concat_changes(put, keys, self.table)

    def rows(self, state: pa.Table) -> pa.Table:
        """Convert rows of the query to the table's columns. Raises `Refused` for a value that does not fit."""
        return self._rows(state, self.table.columns)

    def _rows(self, state: pa.Table, columns: Sequence[Column]) -> pa.Table:
        makers = {column.column: column for column in self.columns}
        names = [column.name for column in columns]
        return cast_to_columns(pa.table([makers[name].compute(state) for name in names], names=names), columns)


StateMapping = RowMapping | GroupedMapping
"""Mapping from a query's rows to rows of a stage's table. Each pass over the batches needs a new instance."""


def map_tables(
    tables: Sequence[ReadableTable], table: Table, label: str, bound: BoundState | None = None
) -> StateMapping:
    """Return the mapping of a query's tables to a stage's table.

    `label` names the stage in errors, and `bound` is the stage's state. Raises `Refused` with the problems of all
    columns.
    """
    kind, search = kind_of(table.state), ColumnMapper()
    if (combine := _GROUPED_RULES.get(kind.tag)) is not None:
        if (combined := combine(kind, tables, table, bound, search)) is None or search.problems:
            raise _refused(search, tables, label, kind)
        return combined
    if len(tables) > 1:
        names = ", ".join(f"{state_table.name or 'its own'} ({state_table.kind})" for state_table in tables)
        raise Refused(f"the query has several tables ({names}), but {label} is {kind}, which is mapped from one")
    (state,) = tables
    if state.kind in _SINGLE_ROW_KINDS:
        _check_one_row(state, table, search)
    map_by_name_or_position(table.key, state.key, search, "key column")
    _RULES.get(kind.core.tag, _by_name)(kind, state, table, search)
    if kind.emits_once:
        _map_window_end(table, search)
    if search.problems:
        raise _refused(search, tables, label, kind)
    return RowMapping(state, table, tuple(search.columns))


def _refused(search: ColumnMapper, tables: Sequence[ReadableTable], label: str, kind: Kind) -> Refused:
    return Refused(
        f"the state of the query ({tables[0].kind}) does not fit {label}, which is {kind}: "
        f"{'; '.join(search.problems)}",
        hint="nothing was written; --emit-program writes a declaration that fits",
    )


def _check_one_row(state: ReadableTable, table: Table, search: ColumnMapper) -> None:
    if [column.name for column in table.key] != state.key.names:
        search.problems.append(
            f"the query keeps a single row ({state.kind}), but the stage's key is "
            f"{', '.join(column.name for column in table.key)}: declare key={state.key.names[0]!r}, a column that is "
            "always 0"
        )


def _aggregate(kind: Kind, state: ReadableTable, table: Table, search: ColumnMapper) -> None:
    core = kind.core
    assert isinstance(core, Aggregates)  # noqa: S101  selected by its tag
    map_aggregates(core.made, state.values, arrow_schema(table.values), search)


def _update(kind: Kind, state: ReadableTable, table: Table, search: ColumnMapper) -> None:
    if state.kind in _DISTINCT:
        _map_distinct(state, table, search)
    else:
        _by_name(kind, state, table, search)
    due = kind.due_column(arrow_schema(table.key))
    if due and (mapped := next((candidate for candidate in search.columns if candidate.column == due), None)):
        search.columns.append(
            MappedColumn(DUE, mapped.sources, lambda rows: due_ms(mapped.compute(rows)), f"when {due} has passed")
        )


def _map_distinct(state: ReadableTable, table: Table, search: ColumnMapper) -> None:
    for column in _visible_columns(table):
        kind = arrow_schema((column,)).field(0).type
        if _EXPIRES in state.values.names and pa.types.is_timestamp(kind):
            search.copy_column(column.name, state.values.field(_EXPIRES), kind)
        elif pa.types.is_boolean(kind):
            search.columns.append(
                MappedColumn(column.name, (), lambda rows: pa.repeat(True, rows.num_rows), "true: the key was seen")
            )
        else:
            search.problems.append(
                f"column {column.name!r} is {kind}, but the state only has the keys that were seen: declare a boolean, "
                "which becomes true, or a timestamp, until which duplicates are dropped"
            )


def _pandas(kind: Kind, state: ReadableTable, table: Table, search: ColumnMapper) -> None:
    assert isinstance(kind, PandasState)  # noqa: S101  selected by its tag
    timed = kind.timeout != "NoTimeout"
    if timed and not has_timeout(state.values):
        kinds = ", ".join(f"{value.name} {value.type}" for value in state.values) or "no columns"
        search.problems.append(f"the function has a timeout, but the state has none: it has {kinds}")
        return
    own = list(state.values)[: -2 if timed else None]
    map_by_name_or_position(_visible_columns(table), pa.schema(own), search, "column")
    if not timed:
        # A key without a state has no row.
        search.columns.append(MappedColumn("_defined", (), lambda rows: pa.repeat(True, rows.num_rows), "true"))
        search.columns.append(MappedColumn(DUE, (), lambda rows: pa.nulls(rows.num_rows, pa.int64()), "never"))
        return
    exists, timeout = state.values.names[-2:]
    search.columns.append(MappedColumn("_defined", (exists,), lambda rows: rows[exists]))
    # As in Spark, a key times out once its timeout is before the clock or the watermark.
    how = "once its timeout has passed"
    search.columns.append(MappedColumn(DUE, (timeout,), lambda rows: pc.add(due_ms(rows[timeout]), 1), how))


def _by_name(_kind: Kind, state: ReadableTable, table: Table, search: ColumnMapper) -> None:
    map_by_name_or_position(_visible_columns(table), state.values, search, "column")


_RULES: Mapping[str, Callable[[Kind, ReadableTable, Table, ColumnMapper], None]] = {
    "aggregate": _aggregate,
    "update": _update,
    "pandas_state": _pandas,
}
_GROUPED_RULES = {"sessions": map_sessions, "join": map_join, "processor": map_processor}


def _visible_columns(table: Table) -> list[Column]:
    return [column for column in table.values if not is_internal(column.name)]


def _map_window_end(table: Table, search: ColumnMapper) -> None:
    window = window_of(arrow_schema(table.key))
    mapped = next((candidate for candidate in search.columns if candidate.column == window), None)
    if mapped is not None:
        end = lambda rows: due_ms(pc.struct_field(mapped.compute(rows), "end"))  # noqa: E731
        search.columns.append(MappedColumn(DUE, mapped.sources, end, "when the window ends"))
