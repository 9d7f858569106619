"""Mapping of the state variables of a `transformWithState` class to columns of a stage's table."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ....state.fits import declare_parts
from ....state.kinds.due import due_ms
from ....state.kinds.kind import BoundState, Kind
from ....state.kinds.parts import MAP_KEY, POSITION
from ....state.kinds.processor import BoundProcessor, Processor, side_table_name
from ....state.kinds.state_variables import TIMERS, StateColumn, expiry_column, span_column
from ....store.read.duckdb_view import quote_identifier
from ....store.sst.arrow_types import from_arrow
from ....store.sst.schema import DUE, arrow_schema
from ....store.versions.manifest import Column, Table
from ...attach.protocol import ReadableTable
from .buffers import Array, ColumnMapper, MappedColumn, map_by_name_or_position
from .grouped import GroupedMapping, KeyPart

_EXPIRY_FIELD = "ttlExpirationMs"
"""Name of the field with the expiry time of a list element."""
_NEXT_EXPIRY = "_at"


def map_processor(
    kind: Kind, states: Sequence[ReadableTable], table: Table, bound: BoundState | None, search: ColumnMapper
) -> GroupedMapping | None:
    """Map the state variables and timers of a `transformWithState` class. In Spark, each has a table of its own."""
    assert isinstance(kind, Processor)  # noqa: S101  selected by its tag
    assert isinstance(bound, BoundProcessor)  # noqa: S101  the state of that kind
    if {state.kind for state in states} != {"transform"}:
        keeps = states[0].kind
        search.problems.append(f"{kind} requires a class of transformWithState, but the query has the operator {keeps}")
        return None
    by_name = _states_by_name(kind, states, search)
    parts = [
        _variable(column, by_name[column.name], table, search) for column in bound.columns if column.name in by_name
    ]
    if bound.due_by and TIMERS in by_name:
        parts.append(_timers(by_name[TIMERS], table, search))
    if search.problems:
        return None
    sides = declare_parts(bound, table)
    return GroupedMapping(tuple(parts), table, _values(parts, table), _reported(parts, table), sides)


def _states_by_name(kind: Processor, states: Sequence[ReadableTable], search: ColumnMapper) -> dict[str, ReadableTable]:
    by_name = {state.name: state for state in states}
    missing = [name for name in kind.variables if name not in by_name]
    if len(missing) == 1 and "" in by_name:
        # The query's first table has no name.
        by_name[missing.pop()] = by_name.pop("")
    search.problems += [f"state variable {name!r} is missing in the query" for name in missing]
    extra = by_name.keys() - kind.variables.keys() - {TIMERS}
    search.problems += [f"state variable {name!r} of the query is missing in the class" for name in sorted(extra)]
    return by_name


def _values(parts: Sequence[KeyPart], table: Table) -> tuple[tuple[str, str], ...]:
    values = [(name, quote_identifier(name)) for part in parts for name, _ in part.per_key if name != _NEXT_EXPIRY]
    mapped = {name for name, _ in values} | {DUE}
    values += [(column.name, "NULL") for column in table.values if column.name not in mapped]
    if any(column.name == DUE for column in arrow_schema(table.values)):
        dues = [
            f"p{number}.{_NEXT_EXPIRY}"
            for number, part in enumerate(parts)
            if any(name == _NEXT_EXPIRY for name, _ in part.per_key)
        ]
        values.append((DUE, f"least({', '.join(dues)})" if dues else "NULL"))
    return tuple(values)


def _reported(parts: Sequence[KeyPart], table: Table) -> tuple[MappedColumn, ...]:
    key_names = {column.name for column in table.key}
    reported = [column for column in parts[0].columns if column.column in key_names]
    for part in parts:
        value_names = part.state.values.names or part.state.key.names[-1:]
        reported.append(MappedColumn(part.per_key[0][0], tuple(value_names), lambda rows: rows, "the variable"))
    return tuple(reported)


def _variable(column: StateColumn, state: ReadableTable, table: Table, search: ColumnMapper) -> KeyPart:
    key, remaining_key = _key(state, table, search)
    name, form, timed = column.name, column.variable.form, bool(column.variable.ttl_ms)
    # The expiry is the last column, except in a list, whose elements contain it.
    value_fields = pa.schema(list(state.values)[: -1 if timed and form != "list" else None])
    if form == "list":
        return _list(column, key, state)
    columns = [*key, *_struct(name, "v", column.fields, value_fields, search)]
    if timed:
        columns.append(_in_ms("_ttl", state.values.names[-1]))
    value, ids = f"first({_pack(column.fields, 'v')})", tuple[str, ...]()
    part_columns = tuple[tuple[str, str], ...]()
    if column.key is not None:
        keys = _struct(f"{name} key", "k", column.key, remaining_key, search)
        columns += keys
        value, ids = "count(*)", tuple(key_column.column for key_column in keys)
        part_columns = ((MAP_KEY, _pack(column.key, "k")), (name, _pack(column.fields, "v")))
    per_key = [(name, value)]
    if timed:
        per_key += [(expiry_column(name), "min(_ttl)"), (_NEXT_EXPIRY, "min(_ttl)")]
        part_columns += ((expiry_column(name), "_ttl"),) if part_columns else ()
    side = side_table_name(name) if part_columns else ""
    return KeyPart(state, tuple(columns), ids, tuple(per_key), side, part_columns)


def _list(column: StateColumn, key: Sequence[MappedColumn], state: ReadableTable) -> KeyPart:
    name, timed, (source,) = column.name, bool(column.variable.ttl_ms), state.values.names
    columns = [
        *key,
        MappedColumn("_value", (source,), lambda rows: _elements(rows[source], column.fields, timed=timed)),
    ]
    count = "max(len(_value))"
    per_key = [
        (name, f"nullif({count}, 0)"),
        (span_column(name), f"CASE WHEN {count} > 0 THEN {{'first': 0::BIGINT, 'next': {count}}} END"),
    ]
    per_part = [(POSITION, "unnest(range(len(_value)))"), (name, "unnest(_value)")]
    if timed:
        columns.append(MappedColumn("_ttl", (source,), lambda rows: _expirations(rows[source])))
        per_key += [(expiry_column(name), "min(list_min(_ttl))"), (_NEXT_EXPIRY, "min(list_min(_ttl))")]
        per_part.append((expiry_column(name), "unnest(_ttl)"))
    return KeyPart(state, tuple(columns), (), tuple(per_key), side_table_name(name), tuple(per_part))


def _timers(state: ReadableTable, table: Table, search: ColumnMapper) -> KeyPart:
    key, remaining_key = _key(state, table, search)
    (at,) = remaining_key.names
    columns = (*key, _in_ms(_NEXT_EXPIRY, at))
    return KeyPart(
        state,
        columns,
        (_NEXT_EXPIRY,),
        ((TIMERS, f"list({_NEXT_EXPIRY} ORDER BY {_NEXT_EXPIRY})"), (_NEXT_EXPIRY, f"min({_NEXT_EXPIRY})")),
    )


def _in_ms(column: str, source: str) -> MappedColumn:
    return MappedColumn(column, (source,), lambda rows: due_ms(rows[source]))


def _key(state: ReadableTable, table: Table, search: ColumnMapper) -> tuple[list[MappedColumn], pa.Schema]:
    count = len(table.key)
    columns, own = list(state.key), ColumnMapper()
    map_by_name_or_position(table.key, pa.schema(columns[:count]), own, "key column")
    search.problems += own.problems
    return own.columns, pa.schema(columns[count:])


def _struct(label: str, prefix: str, kind: pa.DataType, state: pa.Schema, search: ColumnMapper) -> list[MappedColumn]:
    own = ColumnMapper()
    map_by_name_or_position(
        [Column(part.name, from_arrow(part.type)) for part in kind], state, own, f"field of {label}"
    )
    search.problems += own.problems
    positions = {part.name: number for number, part in enumerate(kind)}
    return [
        MappedColumn(f"_{prefix}{positions[mapped.column]}", mapped.sources, mapped.compute) for mapped in own.columns
    ]


def _pack(kind: pa.DataType, prefix: str) -> str:
    fields = ", ".join(f"{quote_identifier(part.name)} := _{prefix}{number}" for number, part in enumerate(kind))
    return f"struct_pack({fields})"


def _elements(column: Array, fields: pa.DataType, *, timed: bool) -> pa.Array:
    lists = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    elements = lists.flatten()
    if timed:
        elements = pc.struct_field(elements, "value")
    return _lists_with_lengths(lists, elements.cast(fields))


def _expirations(column: Array) -> pa.Array:
    lists = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return _lists_with_lengths(lists, pc.struct_field(lists.flatten(), _EXPIRY_FIELD))


def _lists_with_lengths(lists: pa.Array, elements: pa.Array) -> pa.Array:
    ends = pc.cumulative_sum(pc.list_value_length(lists)).cast(pa.int32())
    return pa.ListArray.from_arrays(pa.concat_arrays([pa.array([0], pa.int32()), ends]), elements)
