"""Values as one Avro schema wrote them, brought to another: Avro's schema resolution, on whole Arrow arrays.

Fields go by name, or by an alias of the reader's. A field that the writer does not know has its default, and is null
where the reader's schema has none; one that the reader does not know is left out. Numbers are promoted, strings and
bytes are each other. https://avro.apache.org/docs/1.12.0/specification/#schema-resolution
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Refused
from .avro_schema import Node
from .schema import BadMessage


def _is_text(kind: pa.DataType) -> bool:
    return any(one(kind) for one in (pa.types.is_string, pa.types.is_binary, pa.types.is_fixed_size_binary))


_PROMOTIONS = (
    (pa.types.is_integer, pa.types.is_integer),
    (pa.types.is_integer, pa.types.is_floating),
    (pa.types.is_floating, pa.types.is_floating),
    (pa.types.is_decimal, pa.types.is_decimal),
    (pa.types.is_timestamp, pa.types.is_timestamp),
    (_is_text, _is_text),
)
"""What may be written as the one and read as the other; where a value does not fit, its message is bad."""
_SHAPES = (pa.types.is_struct, pa.types.is_list, pa.types.is_map, pa.types.is_integer, pa.types.is_floating)


def plain(kind: pa.DataType) -> pa.DataType:
    """The Arrow type of a column for what an Avro reader gives: all may be null, a union has a field a branch."""
    if pa.types.is_dictionary(kind):
        return plain(kind.value_type)
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), plain(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(plain(kind.value_type))
    if pa.types.is_union(kind):
        members = [field.type for field in kind if not pa.types.is_null(field.type)]
        return pa.struct([pa.field(f"member{n}", plain(member)) for n, member in enumerate(members)])
    return kind


def conform(values: pa.Array, node: Node, to: pa.DataType) -> pa.Array:
    """Values as they were written, no slice, as those of a reader's schema, and of type `to`, which is `plain` of its.

    Raises `BadMessage` where a value does not fit, such as a number that is too large, and `Refused` where no value of
    the one schema is one of the other.
    """
    node, branches = _without_null(node)
    if len(branches) > 1:
        return _members(values, branches, to)
    if pa.types.is_union(values.type):
        return _one_branch(values, node, to)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    missing = values.is_null() if values.null_count else None
    if pa.types.is_struct(to) and pa.types.is_struct(values.type):
        if missing is not None and any(pa.types.is_union(field.type) for field in values.type):
            # Unions have no nulls: Arrow ends the process where it would give them those of the struct around them.
            present = np.asarray(values.is_valid())
            made = conform(values.filter(pa.array(present)), node, to)
            return made.take(pa.array(np.cumsum(present) - 1, mask=~present))
        columns = _fields(values, node, to)
        return pa.StructArray.from_arrays(columns, fields=list(to), mask=missing)
    if pa.types.is_map(to) and pa.types.is_map(values.type):
        items = conform(values.items, node["values"], to.item_type)
        return pa.MapArray.from_arrays(values.offsets, values.keys, items, type=to, mask=missing)
    if pa.types.is_list(to) and pa.types.is_list(values.type):
        items = conform(values.values, node["items"], to.value_type)
        return pa.ListArray.from_arrays(values.offsets, items, type=to, mask=missing)
    return _cast(values, to)


def _without_null(node: Node) -> tuple[Node, list[Node]]:
    """The schema of what is not null: the first branch of a union, and all its branches."""
    if isinstance(node, list):
        branches = [branch for branch in node if branch != "null"] or ["null"]
        return branches[0] if len(branches) > 1 else _without_null(branches[0])[0], branches
    if isinstance(node, dict) and isinstance(node["type"], dict | list):
        return _without_null(node["type"])
    return node, [node]


def _fields(values: pa.StructArray, node: Node, to: pa.StructType) -> list[pa.Array]:
    children = values.flatten() if values.null_count else [values.field(n) for n in range(values.type.num_fields)]
    written = dict(zip((field.name for field in values.type), children, strict=True))
    columns = []
    for declared, field in zip(node["fields"], to, strict=True):
        name = next((name for name in (declared["name"], *declared.get("aliases", ())) if name in written), None)
        if name is not None:
            columns.append(conform(written[name], declared["type"], field.type))
        else:
            default = pa.array([_default(declared.get("default"), declared["type"], field.type)], field.type)
            columns.append(default.take(pa.array(np.zeros(len(values), np.int64))))
    return columns


def _default(default: Any, node: Node, to: pa.DataType) -> Any:
    """A default as JSON has it, as Python's value of the type: bytes are written as characters."""
    if default is None:
        return None
    node, branches = _without_null(node)
    if len(branches) > 1:
        # A default is of the first branch; where several are left, that is the first member.
        return {to[0].name: _default(default, node, to[0].type)}
    if pa.types.is_struct(to):
        return {
            field.name: _default(default.get(field.name, each.get("default")), each["type"], field.type)
            for each, field in zip(node["fields"], to, strict=True)
        }
    if pa.types.is_map(to):
        return [(key, _default(item, node["values"], to.item_type)) for key, item in default.items()]
    if pa.types.is_list(to):
        return [_default(item, node["items"], to.value_type) for item in default]
    if pa.types.is_decimal(to):
        return Decimal(f"{int.from_bytes(default.encode('latin-1'), 'big', signed=True)}e-{to.scale}")
    if pa.types.is_binary(to):
        return default.encode("latin-1")
    return default * 1000 if pa.types.is_timestamp(to) and node["logicalType"].endswith("millis") else default


def _members(values: pa.Array, branches: list[Node], to: pa.DataType) -> pa.Array:
    """A struct with a field for each branch of the reader's union, of which one has the value."""
    written = [one for one in _branches(values) if not pa.types.is_null(one.type)]
    kinds = [plain(one.type) for one in written]
    columns = [pa.nulls(len(values), field.type) for field in to]
    for n, (one, kind) in enumerate(zip(written, kinds, strict=True)):
        # Of the same union, by place: an enum and a string have one type here.
        at = n if kinds == [field.type for field in to] else _member(kind, to)
        columns[at] = pc.coalesce(columns[at], conform(one, branches[at], to[at].type))
    missing = np.logical_and.reduce([np.asarray(column.is_null()) for column in columns])
    return pa.StructArray.from_arrays(columns, fields=list(to), mask=pa.array(missing))


def _member(kind: pa.DataType, to: pa.DataType) -> int:
    """Which member takes a branch of another union: the first of its type, else the first that it is promoted to."""
    for fits in (lambda one: one == kind, lambda one: _same_shape(kind, one)):
        for n, field in enumerate(to):
            if fits(field.type):
                return n
    raise Refused(f"a branch of type {kind} is in no union of {', '.join(str(field.type) for field in to)}")


def _same_shape(written: pa.DataType, read: pa.DataType) -> bool:
    return any(shape(written) and shape(read) for shape in _SHAPES)


def _branches(values: pa.Array) -> list[pa.Array]:
    """Each branch of a union, as long as the union, null where another has the value. Other values are one branch."""
    if not pa.types.is_union(values.type):
        return [values]
    codes, offsets = np.asarray(values.type_codes), np.asarray(values.offsets)
    return [
        values.field(n).take(pa.array(offsets, mask=codes != code)) for n, code in enumerate(values.type.type_codes)
    ]


def _one_branch(values: pa.UnionArray, node: Node, to: pa.DataType) -> pa.Array:
    """A union that was written, read as one of its branches: the others do not fit."""
    fit: list[pa.Array] = []
    for branch in _branches(values):
        kind = plain(branch.type)
        if kind == to or _same_shape(kind, to):
            fit.append(conform(branch, node, to))
        elif branch.null_count < len(branch) and not pa.types.is_null(kind):
            raise BadMessage(f"a value of another branch of its union than {to}")
    return pc.coalesce(*fit) if fit else pa.nulls(len(values), to)


def _cast(values: pa.Array, to: pa.DataType) -> pa.Array:
    written = values.type
    try:
        if pa.types.is_decimal(written):
            # A writer may put any number of bytes there: more digits than its schema has.
            values.validate(full=True)
        if written == to:
            return values
        if pa.types.is_null(written):
            return pa.nulls(len(values), to)
        if not any(one(written) and other(to) for one, other in _PROMOTIONS):
            raise Refused(f"what is written as {written} is not read as {to}")
        if pa.types.is_timestamp(written) and written.unit == "ns":
            # Spark has no finer times than microseconds.
            values = pc.floor_temporal(values, unit="microsecond")
        return values.cast(to, safe=not pa.types.is_floating(to))
    except pa.ArrowInvalid as error:
        raise BadMessage(str(error)) from None
