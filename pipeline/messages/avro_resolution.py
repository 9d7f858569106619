"""Values as one Avro schema wrote them, brought to another: Avro's schema resolution, on whole Arrow arrays.

https://avro.apache.org/docs/1.12.0/specification/#schema-resolution, and where that is open, Avro's own reader for
Java: a branch of a union is read as the branch of the same type, else as the first that it is promoted to; names of
records count in unions alone.

Three things are read that Avro refuses, since a writer may come to them by changes that a registry lets through while
an app goes on with an older schema, and since every column may be null: a number of a wider type that fits the narrower
one exactly, a null where the reader's schema has none, and a missing field without a default, which is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Refused
from .avro_defaults import default_of
from .avro_layout import BRANCH, VALUE, as_nullable, as_numbered, has_bytes
from .avro_schema import NAMED, Node, branches, column_type, named
from .schema import BadMessage, last_of_each_key

Rows: TypeAlias = npt.NDArray[np.int64]
Values: TypeAlias = Any
"""An Arrow array as a writer's layout gives it; None for values that have no bytes."""

_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_NARROWED = {"long": ("int",), "double": ("float",)}
_NANOS = 1000
"""Nanoseconds of a microsecond, the finest that Spark has."""
_UNITS = {"millis": "ms", "micros": "us"}


def resolve(values: Values, count: int, written: Node, read: Node) -> pa.Array:
    """Return values of a writer's schema as those of a reader's, of its `column_type`.

    Args:
        values: As the writer's layout gives them, and no slice; None where they have no bytes.
        count: How many they are.
        written: The writer's schema.
        read: The reader's.

    Raises:
        BadMessage: A value does not fit, such as a symbol that the reader's enum does not have.
        Refused: No value of the one schema is one of the other.
    """
    if written["type"] == "null":
        return pa.nulls(count, column_type(read))
    if written["type"] == "union":
        return _of_union(values, count, written, read)
    if read["type"] == "union":
        return _as_branch(values, count, written, read)
    if not _match(written, read):
        raise Refused(f"what is written as {named(written)} is not read as {named(read)}")
    to = column_type(read)
    match read["type"]:
        case "record":
            return pa.StructArray.from_arrays(_fields(values, count, written, read), fields=list(to))
        case "array":
            items = resolve(values.values, len(values.values), written["items"], read["items"])
            return pa.ListArray.from_arrays(values.offsets, items, type=to)
        case "map":
            items = resolve(values.items, len(values.items), written["values"], read["values"])
            return last_of_each_key(pa.MapArray.from_arrays(values.offsets, values.keys, items, type=to))
        case "enum":
            return _symbols(values, written, read)
        case "fixed" if values is None:
            return pa.array([b""] * count, to)
    return _plain(values, written, read, to)


_Others: TypeAlias = Mapping[str, tuple[str, ...]]
_SAME: _Others = {}
_WIDER: _Others = _PROMOTED
_ANY: _Others = {kind: (*_PROMOTED.get(kind, ()), *_NARROWED.get(kind, ())) for kind in (*_PROMOTED, *_NARROWED)}
"""What may be read as another type, by how far one goes."""


def _match(written: Node, read: Node, others: _Others = _ANY, *, in_union: bool = False) -> bool:
    """Return whether one schema's values may be read by another, as far as their outermost types and names say."""
    kind = written["type"]
    if kind != read["type"]:
        if read["type"] in _NARROWED.get(kind, ()) and ("logicalType" in written or "logicalType" in read):
            return False
        return read["type"] in others.get(kind, ()) and _logical_match(written, read)
    if kind in NAMED and (kind != "record" or in_union) and not _same_name(written, read):
        return False
    if in_union and kind in ("array", "map"):
        item = "items" if kind == "array" else "values"
        inner = written[item], read[item]
        unions = any(node["type"] == "union" for node in inner)
        return unions or _match(*inner, others, in_union=True)
    return _logical_match(written, read) and (kind != "fixed" or written["size"] == read["size"])


def _logical_match(written: Node, read: Node) -> bool:
    """Return whether neither or both are decimals, and a date is not read as a time nor the other way round."""
    logical = [node.get("logicalType", "") for node in (written, read)]
    if "decimal" in logical:
        return logical == ["decimal", "decimal"]
    return not all(logical) or (logical[0] == "date") == (logical[1] == "date")


def _same_name(written: Node, read: Node) -> bool:
    # Aliases may be full names, or names in the reader's own namespace.
    names = {read["name"], *(alias.rpartition(".")[2] for alias in read["aliases"] if "." not in alias)}
    return written["name"] in names or written["fullname"] in read["aliases"]


def _of_union(values: Values, count: int, written: Node, read: Node) -> pa.Array:
    choices = written["branches"]
    if not as_numbered(written) and not as_nullable(written):
        codes = np.asarray(values.type_codes)
        # Each branch has its own values alone, in their order.
        rows = [np.flatnonzero(codes == number) for number in range(len(choices))]
        parts = [values.field(number).take(pa.array(np.asarray(values.offsets)[at])) for number, at in enumerate(rows)]
        return _together(
            [_branch(*part, written, n, read) for n, part in enumerate(zip(parts, rows, strict=True))], rows, read
        )
    if as_nullable(written):
        present = np.ones(count, bool) if not values.null_count else np.asarray(values.is_valid())
        null = next(number for number, choice in enumerate(choices) if choice["type"] == "null")
        rows = [np.flatnonzero(~present), np.flatnonzero(present)]
        kept = values if present.all() else values.filter(pa.array(present))
        results = [_branch(None, rows[0], written, null, read), _branch(kept, rows[1], written, 1 - null, read)]
        return results[1] if present.all() else _together(results, rows, read)
    numbers = np.asarray(values.field(BRANCH))
    if count and not ((numbers >= 0) & (numbers < len(choices))).all():
        raise BadMessage("a branch of a union that has fewer")
    rows = [np.flatnonzero(numbers == number) for number in range(len(choices))]
    value = values.field(VALUE) if values.type.num_fields > 1 else None
    return _together([_branch(value, at, written, number, read) for number, at in enumerate(rows)], rows, read)


def _branch(values: Values, rows: Rows, written: Node, number: int, read: Node) -> pa.Array:
    """Return the values of one branch of the writer's union, which are as many as its rows."""
    branch = written["branches"][number]
    try:
        if read["type"] == "union" and written == read and branch["type"] != "null":
            at = sum(choice["type"] != "null" for choice in written["branches"][:number])
            return _member(values, len(rows), branch, read, at)
        return resolve(values if has_bytes(branch) else None, len(rows), branch, read)
    except Refused as error:
        if len(rows):
            raise BadMessage(
                f"a value of a branch of its union for which the reader has none: {error.sentence}"
            ) from None
        return pa.nulls(0, column_type(read))


def _together(parts: list[pa.Array], rows: list[Rows], read: Node) -> pa.Array:
    """Return the values of all branches in the order of their rows."""
    where = np.empty(sum(map(len, rows)), np.int64)
    where[np.concatenate(rows)] = np.arange(len(where))
    kind = column_type(read)
    return pa.concat_arrays([part.cast(kind) if part.type != kind else part for part in parts]).take(pa.array(where))


def _as_branch(values: Values, count: int, written: Node, read: Node) -> pa.Array:
    choices = branches(read)
    for others in (_SAME, _WIDER, _ANY):
        for at, branch in enumerate(choices):
            if _match(written, branch, others, in_union=len(choices) > 1):
                return _member(values, count, written, read, at)
    raise Refused(f"what is written as {named(written)} is in no branch of {named(read)}")


def _member(values: Values, count: int, written: Node, read: Node, at: int) -> pa.Array:
    """Return values as those of one branch of the reader's union, of which `at` is the number among those not null."""
    choices = branches(read)
    member = resolve(values, count, written, choices[at])
    if len(choices) == 1:
        return member
    to = column_type(read)
    columns = [member if number == at else pa.nulls(count, field.type) for number, field in enumerate(to)]
    return pa.StructArray.from_arrays(columns, fields=list(to))


def _fields(values: Values, count: int, written: Node, read: Node) -> list[pa.Array]:
    own = {field["name"] for field in read["fields"]}
    numbers = {field["name"]: number for number, field in enumerate(written["fields"])}
    laid_out = {} if values is None else {field.name: number for number, field in enumerate(values.type)}
    columns = []
    for field in read["fields"]:
        # An alias names a field of the writer's that is not one of the reader's itself.
        names = (field["name"], *(alias for alias in field.get("aliases", ()) if alias not in own))
        name = next((name for name in names if name in numbers), None)
        if name is None:
            columns.append(_default_column(field, count))
            continue
        place = laid_out.get(f"f{numbers[name]}")
        column = None if place is None else values.field(place)
        columns.append(resolve(column, count, written["fields"][numbers[name]]["type"], field["type"]))
    return columns


def _default_column(field: Node, count: int) -> pa.Array:
    if "default" not in field:
        return pa.nulls(count, column_type(field["type"]))
    return default_of(field).take(pa.array(np.zeros(count, np.int64)))


def _symbols(values: pa.DictionaryArray, written: Node, read: Node) -> pa.Array:
    """Return the symbols of an enum; the reader's default for those that it does not have."""
    known, default = set(read["symbols"]), read.get("default")
    indices = np.asarray(values.indices)
    symbols = [symbol if symbol in known else default for symbol in written["symbols"]]
    for number in () if None not in symbols else np.unique(indices).tolist():
        if symbols[number] is None:
            raise BadMessage(f"{written['symbols'][number]!r} is no symbol of {named(read)}, which has no default")
    # arrow-rs gives each symbol the number that it has in the schema.
    return pa.array(symbols, pa.string()).take(pa.array(indices))


def _plain(values: pa.Array, written: Node, read: Node, to: pa.DataType) -> pa.Array:
    try:
        if pa.types.is_decimal(values.type):
            # A writer may put any number of bytes there: more digits than its schema has.
            values.validate(full=True)
        values = instants(values, written.get("logicalType") or read.get("logicalType") or "", to)
        if values.type == to:
            return values
        if pa.types.is_date(to):
            values = values.cast(pa.int32())
        cast = values.cast(to, safe=not pa.types.is_floating(to))
        if written["type"] == "double":
            back = cast.cast(values.type)
            exact = pc.or_(pc.equal(back, values), pc.and_(pc.is_nan(back), pc.is_nan(values)))
            if not pc.all(exact).as_py():
                raise BadMessage("a double that is no float")
        return cast
    except pa.ArrowInvalid as error:
        raise BadMessage(str(error)) from None


def instants(numbers: pa.Array, logical: str, to: pa.DataType) -> pa.Array:
    """Return the numbers of a logical type as times, where the column is one; else as they are.

    Of nanoseconds the rest is cut off, towards the past: Spark has no finer times than microseconds. Raises
    `ArrowInvalid` where one is beyond what a column holds.
    """
    if not pa.types.is_timestamp(to):
        return numbers
    unit, numbers = logical.rpartition("-")[2], numbers.cast(pa.int64())
    if unit == "nanos":
        return pa.array(np.asarray(numbers) // _NANOS).cast(to)
    return numbers.cast(pa.timestamp(_UNITS[unit])).cast(pa.timestamp("us")).cast(pa.int64()).cast(to)
