"""Values as one Avro schema wrote them, brought to another: Avro's schema resolution, on whole Arrow arrays.

Fields go by name, or by an alias of the reader's. A field that the writer does not know has its default, and is null
where the reader's schema has none; one that the reader does not know is left out. Numbers are promoted, strings and
bytes are each other. https://avro.apache.org/docs/1.12.0/specification/#schema-resolution
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Refused
from .schema import BadMessage

Node = Any
"""An Avro schema as JSON gives it: a name, a list, or an object."""


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


def conform(values: pa.Array, node: Node, named: Mapping[str, Node], to: pa.DataType) -> pa.Array:
    """Values of a writer's schema as those of a reader's.

    Args:
        values: As they were written; not a slice.
        node: The reader's schema, for defaults and aliases.
        named: Its named types.
        to: `plain` of the reader's type.

    Raises:
        BadMessage: A value does not fit, such as a number that is too large.
        Refused: No value of the one schema is one of the other.
    """
    if isinstance(node, str):
        node = named.get(node, node)
    if isinstance(node, list):
        branches = [branch for branch in node if branch != "null"]
        if len(branches) > 1:
            return _members(values, branches, named, to)
        node = branches[0] if branches else "null"
        node = named.get(node, node) if isinstance(node, str) else node
    if isinstance(node, dict) and isinstance(node.get("type"), dict | list):
        return conform(values, node["type"], named, to)
    if pa.types.is_union(values.type):
        return _one_branch(values, node, named, to)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_struct(to) and pa.types.is_struct(values.type):
        return _record(values, node, named, to)
    if pa.types.is_map(to) and pa.types.is_map(values.type):
        items = conform(values.items, node["values"], named, to.item_type)
        made = pa.MapArray.from_arrays(values.offsets, values.keys, items)
        return _with_nulls(made, values).cast(to)
    if pa.types.is_list(to) and pa.types.is_list(values.type):
        items = conform(values.values, node["items"], named, to.value_type)
        made = pa.ListArray.from_arrays(values.offsets, items)
        return _with_nulls(made, values).cast(to)
    return _cast(values, to)


def _record(values: pa.StructArray, node: Node, named: Mapping[str, Node], to: pa.DataType) -> pa.Array:
    written = dict(zip((field.name for field in values.type), values.flatten(), strict=True))
    columns = []
    for declared, field in zip(node["fields"], to, strict=True):
        name = next((name for name in (declared["name"], *declared.get("aliases", ())) if name in written), None)
        if name is not None:
            columns.append(conform(written[name], declared["type"], named, field.type))
        else:
            columns.append(_default(declared, named, field.type, len(values)))
    missing = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(columns, fields=list(to), mask=missing)


def _default(declared: Node, named: Mapping[str, Node], to: pa.DataType, count: int) -> pa.Array:
    default = declared.get("default")
    if default is None:
        return pa.nulls(count, to)
    value = _value(default, declared["type"], named, to)
    return pa.array([value], to).take(pa.array(np.zeros(count, np.int64)))


def _value(default: Any, node: Node, named: Mapping[str, Node], to: pa.DataType) -> Any:
    """A default as JSON has it, as Python's value of the type: bytes are written as characters."""
    if isinstance(node, str):
        node = named.get(node, node)
    if isinstance(node, list):
        # A default is of the first branch; where several are left, that is the first member.
        branches = [branch for branch in node if branch != "null"]
        if len(branches) > 1:
            return {to[0].name: _value(default, branches[0], named, to[0].type)}
        return _value(default, branches[0], named, to)
    if isinstance(node, dict) and isinstance(node.get("type"), dict | list):
        return _value(default, node["type"], named, to)
    if pa.types.is_struct(to):
        given = {each["name"]: default.get(each["name"], each.get("default")) for each in node["fields"]}
        fields = zip(node["fields"], to, strict=True)
        return {
            each["name"]: _value(given[each["name"]], each["type"], named, field.type)
            for each, field in fields
            if given[each["name"]] is not None
        }
    if pa.types.is_map(to):
        return [(key, _value(item, node["values"], named, to.item_type)) for key, item in default.items()]
    if pa.types.is_list(to):
        return [_value(item, node["items"], named, to.value_type) for item in default]
    if pa.types.is_decimal(to):
        unscaled = int.from_bytes(default.encode("latin-1"), "big", signed=True)
        return pa.scalar(unscaled, pa.decimal128(38, 0)).as_py().scaleb(-to.scale)
    if pa.types.is_binary(to):
        return default.encode("latin-1")
    # Numbers of dates and times; Arrow knows their units.
    return pa.scalar(default, _counted(node)).cast(to).as_py() if pa.types.is_temporal(to) else default


def _counted(node: Node) -> pa.DataType:
    kinds = {
        "date": pa.date32(),
        "timestamp-millis": pa.timestamp("ms", "UTC"),
        "local-timestamp-millis": pa.timestamp("ms"),
    }
    return kinds.get(node["logicalType"], pa.timestamp("us", "UTC" if node["logicalType"][0] == "t" else None))


def _members(values: pa.Array, branches: list[Node], named: Mapping[str, Node], to: pa.DataType) -> pa.Array:
    """A struct with a field for each branch of the reader's union, of which one has the value."""
    written = [one for one in _branches(values) if not pa.types.is_null(one.type)]
    kinds = [plain(one.type) for one in written]
    columns = [pa.nulls(len(values), field.type) for field in to]
    for n, (one, kind) in enumerate(zip(written, kinds, strict=True)):
        # Of the same union, by place: an enum and a string have one type here.
        at = n if kinds == [field.type for field in to] else _member(kind, to)
        columns[at] = pc.coalesce(columns[at], conform(one, branches[at], named, to[at].type))
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
    shapes = (pa.types.is_struct, pa.types.is_list, pa.types.is_map, pa.types.is_integer, pa.types.is_floating)
    return any(shape(written) and shape(read) for shape in shapes)


def _branches(values: pa.Array) -> list[pa.Array]:
    """Each branch of a union, as long as the union, null where another has the value. Other values are one branch."""
    if not pa.types.is_union(values.type):
        return [values]
    codes, offsets = np.asarray(values.type_codes), np.asarray(values.offsets)
    return [
        values.field(n).take(pa.array(offsets, mask=codes != code)) for n, code in enumerate(values.type.type_codes)
    ]


def _one_branch(values: pa.UnionArray, node: Node, named: Mapping[str, Node], to: pa.DataType) -> pa.Array:
    """A union that was written, read as one of its branches: the others do not fit."""
    fit: list[pa.Array] = []
    others: list[pa.Array] = []
    for branch in _branches(values):
        same = plain(branch.type) == to or _same_shape(plain(branch.type), to)
        (fit if same else others).append(branch)
    if any(branch.null_count < len(branch) for branch in others if not pa.types.is_null(branch.type)):
        raise BadMessage(f"a value of another branch of its union than {to}")
    return pc.coalesce(*[conform(branch, node, named, to) for branch in fit]) if fit else pa.nulls(len(values), to)


def _cast(values: pa.Array, to: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(values.type):
        try:
            # A writer may put any number of bytes there: more digits than its schema has.
            values.validate(full=True)
        except pa.ArrowInvalid as error:
            raise BadMessage(str(error)) from None
    if values.type == to:
        return values
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), to)
    if not any(written(values.type) and read(to) for written, read in _PROMOTIONS):
        raise Refused(f"what is written as {values.type} is not read as {to}")
    if pa.types.is_timestamp(to) and pa.types.is_timestamp(values.type) and values.type.unit == "ns":
        # Spark has no finer times than microseconds.
        values = pc.floor_temporal(values, unit="microsecond")
    try:
        return values.cast(to, safe=not pa.types.is_floating(to))
    except pa.ArrowInvalid as error:
        raise BadMessage(str(error)) from None


def _with_nulls(made: pa.Array, values: pa.Array) -> pa.Array:
    """Arrow's lists and maps made of parts have no nulls; these get those of `values`."""
    if not values.null_count:
        return made
    return pc.if_else(values.is_null(), pa.scalar(None, made.type), made)
