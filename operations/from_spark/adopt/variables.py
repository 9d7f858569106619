"""The state variables of a class for Spark's `transformWithState`, as the columns of one row of a key."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ....state.kinds.due import due_ms
from ....state.kinds.kind import Bound, Kind
from ....state.kinds.processor import Processor
from ....state.kinds.state_variables import TIMERS, Variable, expires
from ....store.sst.arrow_types import from_arrow
from ....store.sst.types import DUE, arrow_schema
from ....store.versions.manifest import Column, Table
from ..checkpoint.protocol import ReadableTable
from .columns import Array, ColumnSearch, MadeColumn, by_name_or_place
from .grouped import Grouped, KeyPart, quoted

_TTL = "ttlExpirationMs"
"""When an element of a list expires, beside its value."""
_AT = "_at"


def processed(
    kind: Kind, states: Sequence[ReadableTable], table: Table, _bound: Bound | None, found: ColumnSearch
) -> Grouped | None:
    """All variables of a key, and its timers: Spark has a table for each."""
    assert isinstance(kind, Processor)  # noqa: S101  its tag says so
    if {each.kind for each in states} != {"transform"}:
        keeps = states[0].kind
        found.problems.append(f"{kind} goes on from a class of transformWithState, and the query keeps {keeps}")
        return None
    by_name = {each.name: each for each in states}
    missing = [name for name in kind.variables if name not in by_name]
    if len(missing) == 1 and "" in by_name:
        # The query's first table has no name of its own.
        by_name[missing.pop()] = by_name.pop("")
    found.problems += [f"state variable {name!r} is none of the query's" for name in missing]
    more = by_name.keys() - kind.variables.keys() - {TIMERS}
    found.problems += [f"state variable {name!r} of the query is none of the class's" for name in sorted(more)]
    types = {each.name: each.type for each in arrow_schema(table.values)}
    parts = [
        _variable(name, variable, types[name], by_name[name], table, found)
        for name, variable in kind.variables.items()
        if name in by_name
    ]
    if TIMERS in types and TIMERS in by_name:
        parts.append(_timers(by_name[TIMERS], table, found))
    if found.problems:
        return None
    dues = [f"p{number}.{_AT}" for number, part in enumerate(parts) if any(name == _AT for name, _ in part.per_key)]
    values = [(name, quoted(name)) for part in parts for name, _ in part.per_key if name != _AT]
    known = {name for name, _ in values}
    values += [(each.name, "NULL") for each in table.values if each.name not in known and each.name != DUE]
    if DUE in types:
        values.append((DUE, f"least({', '.join(dues)})" if dues else "NULL"))
    for_people = [each for each in parts[0].made if each.column in {column.name for column in table.key}]
    for part in parts:
        of = part.state.values.names or part.state.key.names[-1:]
        for_people.append(MadeColumn(part.per_key[0][0], tuple(of), lambda rows: rows, "the variable"))
    return Grouped(tuple(parts), table, tuple(values), tuple(for_people))


def _variable(
    name: str, variable: Variable, kind: pa.DataType, state: ReadableTable, table: Table, found: ColumnSearch
) -> KeyPart:
    key, rest = _key(state, table, found)
    made, order = list(key), ""
    ids: tuple[str, ...] = ()
    timed = bool(variable.ttl_ms)
    # Elements of a list have each their own within.
    own = pa.schema(list(state.values)[: -1 if timed and variable.form != "list" else None])
    if variable.form == "list":
        (column,) = own.names
        fields = kind.value_type
        made.append(MadeColumn("_value", (column,), lambda rows: _elements(rows[column], fields, timed=timed)))
        value = 'first("_value")'
        if timed:
            made.append(MadeColumn("_ttl", (column,), lambda rows: _expirations(rows[column])))
    elif variable.form == "map":
        keys = _struct(f"{name} key", "k", kind.key_type, rest, found)
        entries = _struct(name, "v", kind.item_type, own, found)
        made += [*keys, *entries]
        ids = tuple(each.column for each in keys)
        order = ", ".join(f"{quoted(each)} NULLS FIRST" for each in ids)
        entry = f"struct_pack(k := {_pack(kind.key_type, 'k')}, v := {_pack(kind.item_type, 'v')})"
        value = f"map_from_entries(list({entry} ORDER BY {order}))"
    else:
        made += _struct(name, "v", kind, own, found)
        value = f"first({_pack(kind, 'v')})"
    per_key = [(name, value)]
    if timed:
        if variable.form != "list":
            made.append(_in_ms("_ttl", state.values.names[-1]))
        expirations = f"list(_ttl ORDER BY {order})" if order else "first(_ttl)"
        least = "min(list_min(_ttl))" if variable.form == "list" else "min(_ttl)"
        per_key += [(expires(name), expirations), (_AT, least)]
    return KeyPart(state, tuple(made), ids, tuple(per_key))


def _timers(state: ReadableTable, table: Table, found: ColumnSearch) -> KeyPart:
    key, rest = _key(state, table, found)
    (at,) = rest.names
    made = (*key, _in_ms(_AT, at))
    return KeyPart(state, made, (_AT,), ((TIMERS, f"list({_AT} ORDER BY {_AT})"), (_AT, f"min({_AT})")))


def _in_ms(column: str, of: str) -> MadeColumn:
    return MadeColumn(column, (of,), lambda rows: due_ms(rows[of]))


def _key(state: ReadableTable, table: Table, found: ColumnSearch) -> tuple[list[MadeColumn], pa.Schema]:
    """The table's key, and what follows the query's own in a row's: the key of a map, a timer's time."""
    count = len(table.key)
    columns, mine = list(state.key), ColumnSearch()
    by_name_or_place(table.key, pa.schema(columns[:count]), mine, "key column")
    found.problems += mine.problems
    return mine.made, pa.schema(columns[count:])


def _struct(what: str, mark: str, kind: pa.DataType, state: pa.Schema, found: ColumnSearch) -> list[MadeColumn]:
    """The fields of a struct as columns, each named by its place."""
    inner = ColumnSearch()
    by_name_or_place([Column(each.name, from_arrow(each.type)) for each in kind], state, inner, f"field of {what}")
    found.problems += inner.problems
    places = {each.name: number for number, each in enumerate(kind)}
    return [MadeColumn(f"_{mark}{places[each.column]}", each.of, each.make) for each in inner.made]


def _pack(kind: pa.DataType, mark: str) -> str:
    fields = ", ".join(f"{quoted(each.name)} := _{mark}{number}" for number, each in enumerate(kind))
    return f"struct_pack({fields})"


def _elements(column: Array, fields: pa.DataType, *, timed: bool) -> pa.Array:
    lists = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    elements = lists.flatten()
    if timed:
        elements = pc.struct_field(elements, "value")
    return _lists(lists, elements.cast(fields))


def _expirations(column: Array) -> pa.Array:
    lists = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return _lists(lists, pc.struct_field(lists.flatten(), _TTL))


def _lists(lists: pa.Array, elements: pa.Array) -> pa.Array:
    """Lists as long as these, of other elements."""
    ends = pc.cumulative_sum(pc.list_value_length(lists)).cast(pa.int32())
    return pa.ListArray.from_arrays(pa.concat_arrays([pa.array([0], pa.int32()), ends]), elements)
