"""Kinds of state whose rows are made of several of a query's: sessions, joins, and classes with several variables."""

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
from ....store.sst.types import DUE, arrow_schema
from ....store.versions.manifest import Table, is_internal
from ..checkpoint.protocol import ReadableTable
from .buffers import aggregates
from .columns import ColumnSearch, MadeColumn, by_name_or_place
from .grouped import Grouped, KeyPart, listed, quoted

_ID, _DUE, _MATCHED = "_id", "_due", "_matched"


def sessions(
    kind: Kind, states: Sequence[ReadableTable], table: Table, _bound: Bound | None, found: ColumnSearch
) -> Grouped | None:
    """Sessions of a key as a list: Spark has a row for each, under the key and where it began."""
    (state,) = states
    assert isinstance(kind, Sessions)  # noqa: S101  its tag says so
    lists = {
        each.name: list(each.type.value_type) for each in arrow_schema(table.values) if pa.types.is_list(each.type)
    }
    begin, *_ = [each.name for each in state.key][-1:]
    by_name_or_place(table.key, pa.schema([each for each in state.key if each.name != begin]), found, "key column")
    window, *buffer = state.values
    kept = pa.schema([each for fields in lists.values() for each in fields])
    made, inner = kind.state.core, ColumnSearch()
    if not isinstance(made, Aggregates) or state.kind != "session":
        found.problems.append(f"{kind} goes on from a session window's aggregates, and the query keeps {state.kind}")
        return None
    aggregates(made.made, pa.schema(buffer), kept, inner)
    found.problems += inner.problems
    found.made += inner.made
    if found.problems:
        return None

    def edge(which: str, rows: pa.Table) -> pa.ChunkedArray:
        return pc.struct_field(rows[window.name], which)

    edges = zip(TIMES, ("start", "end"), strict=True)
    times = [MadeColumn(name, (window.name,), partial(edge, which)) for name, which in edges]
    rest = [
        MadeColumn(_ID, (begin,), itemgetter(begin)),
        MadeColumn(_DUE, (window.name,), lambda rows: due_ms(edge("end", rows))),
    ]
    per_key = [(name, listed([each.name for each in fields], TIMES[:1])) for name, fields in lists.items()]
    per_key.append((DUE, f"min({_DUE})"))
    part = KeyPart(state, (*found.made, *times, *rest), (_ID,), tuple(per_key))
    shown = next(name for name in lists if not is_internal(name))
    for_people = [each for each in found.made if each.column in {column.name for column in table.key}]
    for_people.append(MadeColumn(shown, tuple(state.values.names), lambda rows: rows, "a list of its sessions"))
    return Grouped((part,), table, tuple((name, quoted(name)) for name, _ in per_key), tuple(for_people))


def joined(
    kind: Kind, states: Sequence[ReadableTable], table: Table, bound: Bound | None, found: ColumnSearch
) -> Grouped | None:
    """Rows of each side that wait, as a list: Spark numbers those of a key."""
    assert isinstance(kind, Join)  # noqa: S101  its tag says so
    if len(states) != 2 or not isinstance(bound, BoundJoin) or {each.kind for each in states} != {"join"}:
        found.problems.append(f"{kind} goes on from a join of two streams, and the query keeps {states[0].kind}")
        return None
    parts = [
        _side(state, side, kind, table, found) for state, side in zip(states, (bound.left, bound.right), strict=True)
    ]
    if found.problems:
        return None
    left, right = (quoted(side.name) for side in (bound.left, bound.right))
    due = f"greatest(p0.{_DUE}, p1.{_DUE})"
    values = [(bound.left.name, f"coalesce({left}, [])"), (bound.right.name, f"coalesce({right}, [])")]
    if bound.outer:
        values.append((_MATCHED, f"coalesce({_MATCHED}, [])"))
        due = f"coalesce(p0._open, {due})"
    values.append((DUE, due))
    for_people = [each for each in parts[0].made if each.column in {column.name for column in table.key}]
    of = [tuple(state.values.names) for state in states]
    for_people += [
        MadeColumn(side.name, names, lambda rows: rows, "a list of its rows that wait")
        for side, names in zip((bound.left, bound.right), of, strict=True)
    ]
    return Grouped((parts[0], parts[1]), table, tuple(values), tuple(for_people))


def _side(state: ReadableTable, side: JoinSide, kind: Join, table: Table, found: ColumnSearch) -> KeyPart:
    index = state.key.names[-1]
    mine, what = ColumnSearch(), f"column of {side.name}"
    by_name_or_place(table.key, pa.schema([each for each in state.key if each.name != index]), mine, "key column")
    known = set(state.values.names)
    for each in side.columns:
        if each.name in known:
            mine.as_it_is(each.name, state.values.field(each.name), each.type)
        else:
            mine.problems.append(f"{what} {each.name!r} ({each.type}) is none of the state's: {', '.join(known)}")
    found.problems += mine.problems
    within_ms, at = kind.within_ms, side.time

    def due(rows: pa.Table) -> pa.Array:
        return pc.add(due_ms(rows[at]), within_ms + 1)

    rest = [MadeColumn(_ID, (index,), itemgetter(index)), MadeColumn(_DUE, (at,), due)]
    columns = listed(side.columns.names, (at, _ID))
    per_key = [(side.name, columns), (_DUE, f"max({_DUE})")]
    if kind.how == "left" and side.name == kind.left:
        met = "matched" if "matched" in known else None
        rest.append(
            MadeColumn(
                _MATCHED, (met,) if met else (), lambda rows: rows[met] if met else pa.repeat(False, rows.num_rows)
            )
        )
        order = f"{quoted(at)}, {_ID}"
        per_key += [
            (_MATCHED, f"list({_MATCHED} ORDER BY {order})"),
            ("_open", f"min({_DUE}) FILTER (NOT {_MATCHED})"),
        ]
    return KeyPart(state, (*mine.made, *rest), (_ID,), tuple(per_key))
