"""What a stage's table has of a query's state: of each of its columns, of which of the query's it is made. Pure.

A kind of state has a rule here for how its columns are kept by Spark; a kind without one, such as a program's own, gets
the columns of the same names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ....errors import Refused
from ....state.kinds.aggregate import Aggregates
from ....state.kinds.due import due_ms, window_of
from ....state.kinds.kind import Bound, Kind, kind_of
from ....state.kinds.pandas_state import PandasState
from ....store.sst.types import DUE, arrow_schema
from ....store.versions.manifest import Column, Table, is_internal
from ..attach.tables import fitting
from ..checkpoint.protocol import DELETED, ReadableTable, times_out
from .buffers import aggregates
from .columns import ColumnSearch, MadeColumn, by_name_or_place, with_gone
from .grouped import Grouped
from .lists import joined, sessions
from .variables import processed

_DISTINCT = ("distinct", "distinct-within-watermark")
_ONE_ROW = ("total", "limit")
"""Operators without a key."""
_EXPIRES = "expires_at"
"""Of dropDuplicatesWithinWatermark, until when a key is kept."""


@dataclass(frozen=True, slots=True)
class RowByRow:
    """A table of a stage, made of one of a query's, a row of a row."""

    state: ReadableTable
    table: Table
    made: tuple[MadeColumn, ...]

    @property
    def states(self) -> tuple[ReadableTable, ...]:
        """What it is made of."""
        return (self.state,)

    def whole(self, states: Sequence[Iterable[pa.RecordBatch]]) -> Iterator[pa.Table]:
        """All rows of the table at the end of a batch, out of those of `states`."""
        (rows,) = states
        return (self.rows(pa.Table.from_batches([each])) for each in rows)

    def recall(self, states: Sequence[Iterable[pa.RecordBatch]]) -> None:
        """Begin with changes behind a batch at whose end the state was this."""

    def changes(self, states: Sequence[pa.Table]) -> pa.Table:
        """What a batch changed, with `DELETED`; the changes of `states` of one batch after the other."""
        (state,) = states
        gone = state[DELETED]
        if not pc.any(gone).as_py():
            return self.rows(state.drop_columns([DELETED])).append_column(DELETED, gone)
        # The values of a row that is gone mean nothing, and need not fit.
        there, keys = self.rows(state.filter(pc.invert(gone))), self._rows(state.filter(gone), self.table.key)
        return with_gone(there, keys, self.table)

    def rows(self, state: pa.Table) -> pa.Table:
        """Rows with the table's columns. Raises `Refused` where a value has no place there."""
        return self._rows(state, self.table.columns)

    def _rows(self, state: pa.Table, columns: Sequence[Column]) -> pa.Table:
        makers = {each.column: each for each in self.made}
        named = [each.name for each in columns]
        return fitting(pa.table([makers[name].make(state) for name in named], names=named), columns)


def mapping_of(
    tables: Sequence[ReadableTable], table: Table, what: str, bound: Bound | None = None
) -> RowByRow | Grouped:
    """How a table of a stage is made of a query's state.

    `what` is the stage, for errors, and `bound` its state. Raises `Refused` where that cannot be, with what each column
    lacks.
    """
    kind, found = kind_of(table.state), ColumnSearch()
    if (several := _SEVERAL.get(kind.tag)) is not None:
        if (made := several(kind, tables, table, bound, found)) is None or found.problems:
            raise _refused(found, tables, what, kind)
        return made
    if len(tables) > 1:
        names = ", ".join(f"{each.name or 'its own'} ({each.kind})" for each in tables)
        raise Refused(f"the query keeps several tables, {names}, and {what} is {kind}, which is made of one")
    (state,) = tables
    if state.kind in _ONE_ROW:
        _check_one_row(state, table, found)
    by_name_or_place(table.key, state.key, found, "key column")
    _RULES.get(kind.core.tag, _by_name)(kind, state, table, found)
    if kind.once:
        _due_at_the_end(table, found)
    if found.problems:
        raise _refused(found, tables, what, kind)
    return RowByRow(state, table, tuple(found.made))


def _refused(found: ColumnSearch, tables: Sequence[ReadableTable], what: str, kind: Kind) -> Refused:
    return Refused(
        f"the state of the query ({tables[0].kind}) does not become that of {what}, which is {kind}: "
        f"{'; '.join(found.problems)}",
        hint="nothing was written; --emit-program writes a declaration that fits",
    )


def _check_one_row(state: ReadableTable, table: Table, found: ColumnSearch) -> None:
    """Of one row nothing says which key the program gives it: it must be the one that the state is said to have."""
    if [each.name for each in table.key] != state.key.names:
        found.problems.append(
            f"the query keeps one row, of all its rows ({state.kind}), and the stage's key is "
            f"{', '.join(each.name for each in table.key)}: make it key={state.key.names[0]!r}, which is 0 in each row"
        )


def _aggregate(kind: Kind, state: ReadableTable, table: Table, found: ColumnSearch) -> None:
    made = kind.core
    assert isinstance(made, Aggregates)  # noqa: S101  its tag says so
    aggregates(made.made, state.values, arrow_schema(table.values), found)


def _update(kind: Kind, state: ReadableTable, table: Table, found: ColumnSearch) -> None:
    if state.kind in _DISTINCT:
        _seen(state, table, found)
    else:
        _by_name(kind, state, table, found)
    due = kind.due_column(arrow_schema(table.key))
    if due and (made := next((each for each in found.made if each.column == due), None)):
        found.made.append(MadeColumn(DUE, made.of, lambda rows: due_ms(made.make(rows)), f"when {due} has passed"))


def _seen(state: ReadableTable, table: Table, found: ColumnSearch) -> None:
    """That a key was there is all that dropDuplicates keeps, and until when that counts."""
    for column in _visible(table):
        kind = arrow_schema((column,)).field(0).type
        if _EXPIRES in state.values.names and pa.types.is_timestamp(kind):
            found.as_it_is(column.name, state.values.field(_EXPIRES), kind)
        elif pa.types.is_boolean(kind):
            found.made.append(
                MadeColumn(column.name, (), lambda rows: pa.repeat(True, rows.num_rows), "true: the key was seen")
            )
        else:
            found.problems.append(
                f"column {column.name!r} is {kind}, and of a key that was seen the state has only that it was: "
                "a boolean becomes true, a timestamp until when a duplicate is left out"
            )


def _pandas(kind: Kind, state: ReadableTable, table: Table, found: ColumnSearch) -> None:
    """The fields of a state; where a key may time out, behind them whether it has a state, and until when."""
    assert isinstance(kind, PandasState)  # noqa: S101  its tag says so
    timed = kind.timeout != "NoTimeout"
    if timed and not times_out(state.values):
        kinds = ", ".join(f"{each.name} {each.type}" for each in state.values) or "no columns"
        found.problems.append(f"the function times out, and the state has no timeout: it is {kinds}")
        return
    own = list(state.values)[: -2 if timed else None]
    by_name_or_place(_visible(table), pa.schema(own), found, "column")
    if not timed:
        # A key without a state has no row.
        found.made.append(MadeColumn("_defined", (), lambda rows: pa.repeat(True, rows.num_rows), "true"))
        found.made.append(MadeColumn(DUE, (), lambda rows: pa.nulls(rows.num_rows, pa.int64()), "never"))
        return
    exists, timeout = state.values.names[-2:]
    found.made.append(MadeColumn("_defined", (exists,), lambda rows: rows[exists]))
    # As Spark, a key times out once its time is before the clock, or the watermark.
    how = "once its timeout has passed"
    found.made.append(MadeColumn(DUE, (timeout,), lambda rows: pc.add(due_ms(rows[timeout]), 1), how))


def _by_name(_kind: Kind, state: ReadableTable, table: Table, found: ColumnSearch) -> None:
    by_name_or_place(_visible(table), state.values, found, "column")


_RULES: Mapping[str, Callable[[Kind, ReadableTable, Table, ColumnSearch], None]] = {
    "aggregate": _aggregate,
    "update": _update,
    "pandas_state": _pandas,
}
_SEVERAL = {"sessions": sessions, "join": joined, "processor": processed}


def _visible(table: Table) -> list[Column]:
    return [each for each in table.values if not is_internal(each.name)]


def _due_at_the_end(table: Table, found: ColumnSearch) -> None:
    """A row is emitted when its window has ended."""
    window = window_of(arrow_schema(table.key))
    made = next((each for each in found.made if each.column == window), None)
    if made is not None:
        end = lambda rows: due_ms(pc.struct_field(made.make(rows), "end"))  # noqa: E731
        found.made.append(MadeColumn(DUE, made.of, end, "when the window ends"))
