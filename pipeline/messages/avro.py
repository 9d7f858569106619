"""Decodes Avro messages to Arrow arrays, with the Avro reader of arrow-rs, which DataFusion provides.

The reader takes files, so a batch of messages is written as an object container file with one block. The five bytes of
each message's header are replaced by the message's number in the batch, as an additional first field. If a message is
longer or shorter than its schema requires, the next number is read from the wrong position and does not match, which
reveals the error.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Refused
from .avro_layout import BRANCH, VALUE, Layout, build_layout, has_bytes, is_nullable_union, is_numbered_union
from .avro_schema import (
    NAMED_TYPES,
    Node,
    branches,
    column_type,
    default_array,
    describe_node,
    is_one_value,
    parse_schema,
)
from .registry import HEADER_BYTES, BadMessage, Reader, Schema, drop_prefix, encode_varint, keep_last_of_each_key

_SYNC = b"slackwater_block"
_HEADER_LAYOUT = Layout(
    {"type": "fixed", "name": "head", "size": HEADER_BYTES},
    pa.field("head", pa.binary(HEADER_BYTES), nullable=False, metadata={"avro.name": "head"}),
)


class AvroReader(Reader):
    """Reads Avro messages into the columns of one schema."""

    def __init__(self, schema: Schema) -> None:
        self._node = parse_schema(schema)
        self.type = column_type(self._node)

    def read(self, writer: Schema, messages: pa.BinaryArray) -> pa.Array:
        written, laid_out = parse_schema(writer), _layout_for(writer)
        # The first message is repeated at the end: its number shows that the last message ended at the right position.
        count = len(messages) + 1
        bodies = drop_prefix(pa.concat_arrays([messages, messages.slice(0, 1)]), HEADER_BYTES)
        numbers = np.arange(count, dtype=">u8").view(np.uint8).reshape(-1, 8)[:, -HEADER_BYTES:].tobytes()
        heads = pa.FixedSizeBinaryArray.from_buffers(pa.binary(HEADER_BYTES), count, [None, pa.py_buffer(numbers)])
        records = pc.binary_join_element_wise(heads.cast(pa.binary()), bodies, b"")
        try:
            table = _decode_records(laid_out, records.buffers()[2].to_pybytes(), count)
        except Exception as error:  # DataFusion raises plain Exceptions
            raise BadMessage(f"the bytes do not match the Avro schema: {_first_line(error)}") from None
        if not table["head"].combine_chunks().equals(heads):
            raise BadMessage("the bytes do not match the Avro schema: there are too many or too few")
        values = table[VALUE].combine_chunks() if laid_out else None
        if values is not None and values.offset:
            # A slice's children ignore its offset, so copy the slice.
            values = values.take(pa.array(np.arange(count)))
        return resolve(values, count, written, self._node).slice(0, count - 1)

    def may_be_valid(self, writer: Schema, messages: pa.BinaryArray) -> npt.NDArray[np.bool_]:
        node = parse_schema(writer)
        return np.fromiter(
            (is_one_value(node, message, HEADER_BYTES) for message in messages.to_pylist()), bool, len(messages)
        )


@lru_cache(maxsize=256)
def _layout_for(schema: Schema) -> Layout | None:
    laid_out = build_layout(parse_schema(schema), _null_branch())
    try:
        _decode_records(laid_out, b"", 0)
    except Exception as error:
        raise Refused(f"the Avro schema cannot be converted to columns: {_first_line(error)}") from None
    return laid_out


@lru_cache(maxsize=1)
def _null_branch() -> pa.Field:
    union = _decode_records(Layout(["null", "int", "string"], None), b"", 0).schema.field(VALUE).type
    return union.field(0)


def _decode_records(laid_out: Layout | None, records: bytes, count: int) -> pa.Table:
    """Decode records to columns `head` and `value`. Each record begins with `HEADER_BYTES` bytes, its number.

    The records are written to a temporary object container file. There is no column `value` if the values have no
    bytes. https://avro.apache.org/docs/1.12.0/specification/#object-container-files
    """
    from datafusion import SessionConfig, SessionContext

    block = b"".join((encode_varint(count), encode_varint(len(records)), records, _SYNC)) if count else b""
    # arrow-rs loops forever if a block has bytes after its last record. A batch of exactly `count` rows stops before
    # them.
    size = max(1, count)
    config = SessionConfig().with_batch_size(size).with_target_partitions(1)
    columns = [_HEADER_LAYOUT.field, *([laid_out.field] if laid_out else [])]
    schema = None if laid_out and laid_out.field is None else pa.schema(columns)
    # The reader requires this suffix.
    handle, path = tempfile.mkstemp(suffix=".avro", prefix="slackwater-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_container_header(laid_out) + block)
        return SessionContext(config).read_avro(path, schema=schema).limit(size).to_arrow_table()
    finally:
        Path(path).unlink()


def _container_header(laid_out: Layout | None) -> bytes:
    value = [{"name": VALUE, "type": laid_out.avro}] if laid_out else []
    fields = [{"name": "head", "type": _HEADER_LAYOUT.avro}, *value]
    row = json.dumps({"type": "record", "name": "slackwater_row", "fields": fields}).encode()
    meta = ((b"avro.schema", row), (b"avro.codec", b"null"))
    entries = (encode_varint(len(text)) + text for entry in meta for text in entry)
    return b"".join((b"Obj\x01", encode_varint(len(meta)), *entries, encode_varint(0), _SYNC))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


Rows: TypeAlias = npt.NDArray[np.int64]
Values: TypeAlias = Any
"""Arrow array in the writer's layout; None for values without bytes."""

_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_NARROWED = {"long": ("int",), "double": ("float",)}
_NANOS_PER_MICRO = 1000
_UNITS = {"millis": "ms", "micros": "us"}


def resolve(values: Values, count: int, written: Node, read: Node) -> pa.Array:
    """Convert values of a writer's schema to the reader's `column_type`.

    Args:
        values: Array in the writer's layout, not a slice; None for values without bytes.
        count: Number of values.
        written: The writer's schema.
        read: The reader's schema.

    Raises:
        BadMessage: A value cannot be converted, such as a symbol that the reader's enum lacks.
        Refused: The schemas are incompatible.
    """
    if written["type"] == "null":
        return pa.nulls(count, column_type(read))
    if written["type"] == "union":
        return _resolve_union(values, count, written, read)
    if read["type"] == "union":
        return _resolve_to_union(values, count, written, read)
    if not _is_readable_as(written, read):
        raise Refused(f"a value written as {describe_node(written)} cannot be read as {describe_node(read)}")
    to = column_type(read)
    match read["type"]:
        case "record":
            return pa.StructArray.from_arrays(_resolve_fields(values, count, written, read), fields=list(to))
        case "array":
            items = resolve(values.values, len(values.values), written["items"], read["items"])
            return pa.ListArray.from_arrays(values.offsets, items, type=to)
        case "map":
            items = resolve(values.items, len(values.items), written["values"], read["values"])
            return keep_last_of_each_key(pa.MapArray.from_arrays(values.offsets, values.keys, items, type=to))
        case "enum":
            return _resolve_symbols(values, written, read)
        case "fixed" if values is None:
            return pa.array([b""] * count, to)
    return _resolve_scalars(values, written, read, to)


_Conversions: TypeAlias = Mapping[str, tuple[str, ...]]
_NO_CONVERSIONS: _Conversions = {}
_PROMOTIONS: _Conversions = _PROMOTED
_ALL_CONVERSIONS: _Conversions = {
    kind: (*_PROMOTED.get(kind, ()), *_NARROWED.get(kind, ())) for kind in (*_PROMOTED, *_NARROWED)
}
"""Types to which values of each type may be converted: Avro's promotions, and conversions to narrower types."""


def _is_readable_as(
    written: Node, read: Node, conversions: _Conversions = _ALL_CONVERSIONS, *, in_union: bool = False
) -> bool:
    """Return True if values of `written` can be read as `read`, judged by types and names at the top level."""
    kind = written["type"]
    if kind != read["type"]:
        if read["type"] in _NARROWED.get(kind, ()) and ("logicalType" in written or "logicalType" in read):
            return False
        return read["type"] in conversions.get(kind, ()) and _is_logically_readable_as(written, read)
    if kind in NAMED_TYPES and (kind != "record" or in_union) and not _has_matching_name(written, read):
        return False
    if in_union and kind in ("array", "map"):
        item = "items" if kind == "array" else "values"
        items = written[item], read[item]
        unions = any(node["type"] == "union" for node in items)
        return unions or _is_readable_as(*items, conversions, in_union=True)
    return _is_logically_readable_as(written, read) and (kind != "fixed" or written["size"] == read["size"])


def _is_logically_readable_as(written: Node, read: Node) -> bool:
    """Return False if exactly one of the schemas is a decimal, or if one is a date and the other a time."""
    logical = [node.get("logicalType", "") for node in (written, read)]
    if "decimal" in logical:
        return logical == ["decimal", "decimal"]
    return not all(logical) or (logical[0] == "date") == (logical[1] == "date")


def _has_matching_name(written: Node, read: Node) -> bool:
    # Aliases may be full names, or names in the reader's own namespace.
    names = {read["name"], *(alias.rpartition(".")[2] for alias in read["aliases"] if "." not in alias)}
    return written["name"] in names or written["fullname"] in read["aliases"]


def _resolve_union(values: Values, count: int, written: Node, read: Node) -> pa.Array:
    choices = written["branches"]
    if not is_numbered_union(written) and not is_nullable_union(written):
        codes = np.asarray(values.type_codes)
        # In a dense union, each child holds only its own branch's values, in order.
        rows = [np.flatnonzero(codes == number) for number in range(len(choices))]
        parts = [values.field(number).take(pa.array(np.asarray(values.offsets)[at])) for number, at in enumerate(rows)]
        return _merge_branches(
            [_resolve_branch(*part, written, n, read) for n, part in enumerate(zip(parts, rows, strict=True))],
            rows,
            read,
        )
    if is_nullable_union(written):
        present = np.ones(count, bool) if not values.null_count else np.asarray(values.is_valid())
        null = next(number for number, choice in enumerate(choices) if choice["type"] == "null")
        rows = [np.flatnonzero(~present), np.flatnonzero(present)]
        non_null = values if present.all() else values.filter(pa.array(present))
        results = [
            _resolve_branch(None, rows[0], written, null, read),
            _resolve_branch(non_null, rows[1], written, 1 - null, read),
        ]
        return results[1] if present.all() else _merge_branches(results, rows, read)
    numbers = np.asarray(values.field(BRANCH))
    if count and not ((numbers >= 0) & (numbers < len(choices))).all():
        raise BadMessage("the message names a branch that its union does not have")
    rows = [np.flatnonzero(numbers == number) for number in range(len(choices))]
    value = values.field(VALUE) if values.type.num_fields > 1 else None
    return _merge_branches(
        [_resolve_branch(value, at, written, number, read) for number, at in enumerate(rows)], rows, read
    )


def _resolve_branch(values: Values, rows: Rows, written: Node, number: int, read: Node) -> pa.Array:
    branch = written["branches"][number]
    try:
        if read["type"] == "union" and written == read and branch["type"] != "null":
            at = sum(choice["type"] != "null" for choice in written["branches"][:number])
            return _resolve_to_member(values, len(rows), branch, read, at)
        return resolve(values if has_bytes(branch) else None, len(rows), branch, read)
    except Refused as error:
        if len(rows):
            raise BadMessage(f"a value is of a union branch that the reader cannot read: {error.sentence}") from None
        return pa.nulls(0, column_type(read))


def _merge_branches(parts: list[pa.Array], rows: list[Rows], read: Node) -> pa.Array:
    positions = np.empty(sum(map(len, rows)), np.int64)
    positions[np.concatenate(rows)] = np.arange(len(positions))
    kind = column_type(read)
    return pa.concat_arrays([part.cast(kind) if part.type != kind else part for part in parts]).take(
        pa.array(positions)
    )


def _resolve_to_union(values: Values, count: int, written: Node, read: Node) -> pa.Array:
    choices = branches(read)
    for conversions in (_NO_CONVERSIONS, _PROMOTIONS, _ALL_CONVERSIONS):
        for at, branch in enumerate(choices):
            if _is_readable_as(written, branch, conversions, in_union=len(choices) > 1):
                return _resolve_to_member(values, count, written, read, at)
    raise Refused(f"a value written as {describe_node(written)} matches no branch of {describe_node(read)}")


def _resolve_to_member(values: Values, count: int, written: Node, read: Node, at: int) -> pa.Array:
    choices = branches(read)
    member = resolve(values, count, written, choices[at])
    if len(choices) == 1:
        return member
    to = column_type(read)
    columns = [member if number == at else pa.nulls(count, field.type) for number, field in enumerate(to)]
    return pa.StructArray.from_arrays(columns, fields=list(to))


def _resolve_fields(values: Values, count: int, written: Node, read: Node) -> list[pa.Array]:
    own = {field["name"] for field in read["fields"]}
    numbers = {field["name"]: number for number, field in enumerate(written["fields"])}
    laid_out = {} if values is None else {field.name: number for number, field in enumerate(values.type)}
    columns = []
    for field in read["fields"]:
        # An alias matches a writer's field, unless the reader has a field with the name of that writer's field.
        names = (field["name"], *(alias for alias in field.get("aliases", ()) if alias not in own))
        name = next((name for name in names if name in numbers), None)
        if name is None:
            columns.append(_default_column(field, count))
            continue
        index = laid_out.get(f"f{numbers[name]}")
        column = None if index is None else values.field(index)
        columns.append(resolve(column, count, written["fields"][numbers[name]]["type"], field["type"]))
    return columns


def _default_column(field: Node, count: int) -> pa.Array:
    if "default" not in field:
        return pa.nulls(count, column_type(field["type"]))
    return default_array(field).take(pa.array(np.zeros(count, np.int64)))


def _resolve_symbols(values: pa.DictionaryArray, written: Node, read: Node) -> pa.Array:
    reader_symbols, default = set(read["symbols"]), read.get("default")
    indices = np.asarray(values.indices)
    symbols = [symbol if symbol in reader_symbols else default for symbol in written["symbols"]]
    for number in () if None not in symbols else np.unique(indices).tolist():
        if symbols[number] is None:
            raise BadMessage(
                f"{written['symbols'][number]!r} is not a symbol of {describe_node(read)}, which has no default"
            )
    # arrow-rs's dictionary indices are the symbols' positions in the schema.
    return pa.array(symbols, pa.string()).take(pa.array(indices))


def _resolve_scalars(values: pa.Array, written: Node, read: Node, to: pa.DataType) -> pa.Array:
    try:
        if pa.types.is_decimal(values.type):
            # A writer may encode more digits than its schema's precision.
            values.validate(full=True)
        values = to_timestamps(values, written.get("logicalType") or read.get("logicalType") or "", to)
        if values.type == to:
            return values
        if pa.types.is_date(to):
            values = values.cast(pa.int32())
        cast = values.cast(to, safe=not pa.types.is_floating(to))
        if written["type"] == "double":
            back = cast.cast(values.type)
            exact = pc.or_(pc.equal(back, values), pc.and_(pc.is_nan(back), pc.is_nan(values)))
            if not pc.all(exact).as_py():
                raise BadMessage("a double does not fit into a float")
        return cast
    except pa.ArrowInvalid as error:
        raise BadMessage(str(error)) from None


def to_timestamps(numbers: pa.Array, logical: str, to: pa.DataType) -> pa.Array:
    """Convert numbers of the logical type `logical` to timestamps of type `to`; unchanged if `to` is no timestamp.

    Nanoseconds are rounded down to Spark's microseconds. Raises `ArrowInvalid` for a time out of range.
    """
    if not pa.types.is_timestamp(to):
        return numbers
    unit, numbers = logical.rpartition("-")[2], numbers.cast(pa.int64())
    if unit == "nanos":
        return pa.array(np.asarray(numbers) // _NANOS_PER_MICRO).cast(to)
    return numbers.cast(pa.timestamp(_UNITS[unit])).cast(pa.timestamp("us")).cast(pa.int64()).cast(to)
