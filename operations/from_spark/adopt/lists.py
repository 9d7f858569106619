"""Mapping of kinds of state that combine several rows of a query: sessions and joins."""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc

from ....state.kinds.aggregate import Aggregates
from ....state.kinds.due import due_ms
from ....state.kinds.join import BoundJoin, Join, JoinSide
from ....state.kinds.kind import Bound, Kind
from ....state.kinds.session import TIMES, Sessions
from ....store.sst.schema import DUE, arrow_schema
from ....store.versions.manifest import Table, is_internal
from ..checkpoint.protocol import ReadableTable
from .buffers import aggregates
from .columns import ColumnSearch, MappedColumn, by_name_or_place
from .grouped import Grouped, KeyPart, listed, quoted

_ID, _DUE, _MATCHED = "_id", "_due", "_matched"


def sessions(
    kind: Kind, states: Sequence[ReadableTable], table: Table, _bound: Bound | None, search: ColumnSearch
) -> Grouped | None:
    """Map sessions to a list for each key. Spark has a row for each session, whose key includes the session's start."""
    (state,) = states
    assert isinstance(kind, Sessions)  # noqa: S101  selected by its tag
    lists = {
        column.name: list(column.type.value_type)
        for column in arrow_schema(table.values)
        if pa.types.is_list(column.type)
    }
    begin, *_ = [key_field.name for key_field in state.key][-1:]
    by_name_or_place(
        table.key, pa.schema([key_field for key_field in state.key if key_field.name != begin]), search, "key column"
    )
    window, *buffer = state.values
    list_fields = pa.schema([list_field for fields in lists.values() for list_field in fields])
    core, value_search = kind.state.core, ColumnSearch()
    if not isinstance(core, Aggregates) or state.kind != "session":
        search.problems.append(
            f"{kind} requires the aggregates of a session window, but the query has the operator {state.kind}"
        )
        return None
    aggregates(core.made, pa.schema(buffer), list_fields, value_search)
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
    per_key = [(name, listed([list_field.name for list_field in fields], TIMES[:1])) for name, fields in lists.items()]
    per_key.append((DUE, f"min({_DUE})"))
    part = KeyPart(state, (*search.columns, *times, *extra), (_ID,), tuple(per_key))
    shown = next(name for name in lists if not is_internal(name))
    reported = [mapped for mapped in search.columns if mapped.column in {column.name for column in table.key}]
    reported.append(MappedColumn(shown, tuple(state.values.names), lambda rows: rows, "a list of its sessions"))
    return Grouped((part,), table, tuple((name, quoted(name)) for name, _ in per_key), tuple(reported))


def joined(
    kind: Kind, states: Sequence[ReadableTable], table: Table, bound: Bound | None, search: ColumnSearch
) -> Grouped | None:
    """Map the waiting rows of both sides of a join to lists: Spark numbers the rows of a key."""
    assert isinstance(kind, Join)  # noqa: S101  selected by its tag
    if len(states) != 2 or not isinstance(bound, BoundJoin) or {state.kind for state in states} != {"join"}:
        search.problems.append(
            f"{kind} requires a join of two streams, but the query has the operator {states[0].kind}"
        )
        return None
    parts = [
        _side(state, side, kind, table, search) for state, side in zip(states, (bound.left, bound.right), strict=True)
    ]
    if search.problems:
        return None
    left_name, right_name = (quoted(side.name) for side in (bound.left, bound.right))
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
    return Grouped((parts[0], parts[1]), table, tuple(values), tuple(reported))


def _side(state: ReadableTable, side: JoinSide, kind: Join, table: Table, search: ColumnSearch) -> KeyPart:
    index = state.key.names[-1]
    own, label = ColumnSearch(), f"column of {side.name}"
    by_name_or_place(
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
    columns = listed(side.columns.names, (time, _ID))
    per_key = [(side.name, columns), (_DUE, f"max({_DUE})")]
    if kind.how == "left" and side.name == kind.left:
        met = "matched" if "matched" in state_columns else None
        extra.append(
            MappedColumn(
                _MATCHED, (met,) if met else (), lambda rows: rows[met] if met else pa.repeat(False, rows.num_rows)
            )
        )
        order = f"{quoted(time)}, {_ID}"
        per_key += [
            (_MATCHED, f"list({_MATCHED} ORDER BY {order})"),
            ("_open", f"min({_DUE}) FILTER (NOT {_MATCHED})"),
        ]
    return KeyPart(state, (*own.columns, *extra), (_ID,), tuple(per_key))
