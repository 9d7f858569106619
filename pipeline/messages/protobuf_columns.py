"""Columns of a Protobuf message type, and the layout by which ptars reads the type's messages.

A layout is a simpler type with the same bytes. All its fields are optional, so that fields on the wire can be told
from missing ones; enums are numbers, maps are lists of entries, and well-known types are plain messages. This module
converts them with whole Arrow arrays, by Protobuf's rules: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Refused
from .schema import BadMessage, last_of_each_key

Rows = npt.NDArray[np.int64]
_PACKAGE = "slackwater_layout"
_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
_WRAPPERS = tuple(
    f"google.protobuf.{kind}Value"
    for kind in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
_MICROS, _NANOS = 1_000_000, 1_000
_MAX_SECONDS = (1 << 63) // _MICROS - 4
"""Maximum seconds of a time in microseconds, less the up to three seconds of 32-bit nanoseconds."""
_UNSIGNED_64 = pa.decimal128(20, 0)
"""The smallest Spark type that holds every unsigned 64-bit integer."""


def column_type(message: Any, within: tuple[str, ...] = ()) -> pa.StructType:
    """Return the Arrow type of a message type's columns. Raises `Refused` for a recursive type or a group."""
    if message.full_name in within:
        raise Refused(
            f"the Protobuf message {message.full_name} is recursive, so it has no columns",
            hint="decode it in a function of your own",
        )
    for field in message.fields:
        if field.type == field.TYPE_GROUP:
            raise Refused(
                f"the Protobuf field {field.full_name} is a group, which is not supported",
                hint="decode it in a function of your own",
            )
    return pa.struct([pa.field(field.name, _type(field, (*within, message.full_name))) for field in message.fields])


def layout(message: Any) -> Any:
    """Return the `FileDescriptorProto` of the layout, whose first message has the same bytes as the type."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto2")
    names: dict[str, str] = {}

    def add(kind: Any) -> str:
        if kind.full_name in names:
            return names[kind.full_name]
        name = names[kind.full_name] = f"M{len(names)}"
        message_proto = file.message_type.add(name=name)
        for field in kind.fields:
            own = message_proto.field.add(name=f"f{field.number}", number=field.number, type=field.type)
            own.label = own.LABEL_REPEATED if field.is_repeated else own.LABEL_OPTIONAL
            if field.message_type is not None:
                own.type_name = f".{_PACKAGE}.{add(field.message_type)}"
            if field.enum_type is not None:
                own.type = own.TYPE_INT32
        return name

    add(message)
    return file


def columns(values: pa.StructArray, message: Any, rows: Rows, doubtful: list[Rows]) -> pa.StructArray:
    """Convert messages that ptars read by their layout to `column_type`.

    Args:
        values: The messages.
        message: Descriptor of their type.
        rows: For each message, its row in the batch.
        doubtful: Gets the rows that need Protobuf's own parser, since the result depends on the order on the wire:
            several fields of a oneof, unknown numbers of a closed enum, map entries without a message.

    Raises:
        BadMessage: A time is out of range.
    """
    present = values.is_valid()
    if values.null_count:
        rows = rows.copy()
    children = {field.name: child for field, child in zip(values.type, values.flatten(), strict=True)}
    for oneof in message.oneofs:
        # ptars sets all fields of a oneof that are on the wire.
        num_set = np.zeros(len(values), np.int64)
        for field in oneof.fields:
            num_set += np.asarray(children[f"f{field.number}"].is_valid())
        doubtful.append(rows[num_set > 1])
    built = [_column(children[f"f{field.number}"], field, rows, doubtful) for field in message.fields]
    if not built:
        return pa.StructArray.from_arrays([], fields=[]) if not len(values) else _empty(present)
    mask = pc.invert(present) if values.null_count else None
    fields = [pa.field(field.name, column.type) for field, column in zip(message.fields, built, strict=True)]
    return pa.StructArray.from_arrays(built, fields=fields, mask=mask)


def _empty(present: pa.BooleanArray) -> pa.StructArray:
    """Return structs without fields, null where `present` is false."""
    return pa.array([{} if is_present else None for is_present in present.to_pylist()], pa.struct([]))


def _type(field: Any, within: tuple[str, ...]) -> pa.DataType:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, value = message.fields
        return pa.map_(_single_type(key, within), _single_type(value, within))
    kind = _single_type(field, within)
    return pa.list_(kind) if field.is_repeated else kind


def _single_type(field: Any, within: tuple[str, ...]) -> pa.DataType:
    if field.enum_type is not None:
        return pa.string()
    message = field.message_type
    if message is None:
        return _scalar_type(field)
    if message.full_name == _TIMESTAMP:
        return pa.timestamp("us", "UTC")
    if message.full_name == _DURATION:
        return pa.duration("us")
    if message.full_name in _WRAPPERS:
        return _scalar_type(message.fields[0])
    return column_type(message, within)


def _scalar_type(field: Any) -> pa.DataType:
    match field.cpp_type:
        case field.CPPTYPE_INT32:
            return pa.int32()
        # Spark has no unsigned integers.
        case field.CPPTYPE_INT64 | field.CPPTYPE_UINT32:
            return pa.int64()
        case field.CPPTYPE_UINT64:
            return _UNSIGNED_64
        case field.CPPTYPE_BOOL:
            return pa.bool_()
        case field.CPPTYPE_FLOAT:
            return pa.float32()
        case field.CPPTYPE_DOUBLE:
            return pa.float64()
    return pa.binary() if field.type == field.TYPE_BYTES else pa.string()


def _column(values: pa.Array, field: Any, rows: Rows, doubtful: list[Rows]) -> pa.Array:
    if not field.is_repeated:
        return _single(values, field, rows, doubtful, fill=not field.has_presence)
    offsets, items = np.asarray(values.offsets), values.flatten()
    sizes = np.asarray(pc.fill_null(values.value_lengths(), 0)).astype(np.int64)
    offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))), pa.int32())
    inside = np.repeat(rows, sizes)
    message = field.message_type
    if message is None or not message.GetOptions().map_entry:
        items = _single(items, field, inside, doubtful, fill=False)
        return pa.ListArray.from_arrays(offsets, items, type=pa.list_(items.type))
    key, value = message.fields
    entries = {child.name: column for child, column in zip(items.type, items.flatten(), strict=True)}
    keys = _single(entries["f1"], key, inside, doubtful, fill=True)
    if value.message_type is not None:
        doubtful.append(inside[np.asarray(entries["f2"].is_null())])
    items_by_key = _single(entries["f2"], value, inside, doubtful, fill=True)
    return last_of_each_key(
        pa.MapArray.from_arrays(offsets, keys, items_by_key, type=pa.map_(keys.type, items_by_key.type))
    )


def _single(values: pa.Array, field: Any, rows: Rows, doubtful: list[Rows], *, fill: bool) -> pa.Array:
    """Return the values of a field, or of the items of a repeated field; `fill` replaces nulls by the default."""
    message = field.message_type
    if message is not None:
        if message.full_name in (_TIMESTAMP, _DURATION):
            return _instants(values, message.full_name)
        if message.full_name in _WRAPPERS:
            inner = _scalars(values.flatten()[0], message.fields[0], fill=True)
            return pc.if_else(values.is_valid(), inner, None) if values.null_count else inner
        return columns(values, message, rows, doubtful)
    if field.enum_type is None:
        return _scalars(values, field, fill=fill)
    return _symbols(values, field, rows, doubtful, fill=fill)


def _scalars(values: pa.Array, field: Any, *, fill: bool) -> pa.Array:
    kind = _scalar_type(field)
    if fill and values.null_count:
        zero = {pa.string(): "", pa.binary(): b"", pa.bool_(): False}.get(kind, 0)
        values = pc.fill_null(values, pa.scalar(zero, values.type))
    return values if values.type == kind else values.cast(kind)


def _symbols(values: pa.Array, field: Any, rows: Rows, doubtful: list[Rows], *, fill: bool) -> pa.Array:
    enum = field.enum_type
    if fill and values.null_count:
        values = pc.fill_null(values, enum.values[0].number)
    names: dict[int, str] = {}
    for symbol in enum.values:
        names.setdefault(symbol.number, symbol.name)
    at = pc.index_in(values, value_set=pa.array(names, values.type))
    symbols = pa.array(list(names.values()), pa.string()).take(at)
    unknown = pc.and_(at.is_null(), values.is_valid())
    if not pc.any(unknown).as_py():
        return symbols
    if enum.is_closed:
        doubtful.append(rows[np.asarray(unknown)])
    return pc.if_else(unknown, values.cast(pa.string()), symbols)


def _instants(values: pa.StructArray, name: str) -> pa.Array:
    present = values.is_valid()
    seconds, nanos = (np.asarray(pc.fill_null(part, 0)).astype(np.int64) for part in values.flatten())
    if ((seconds > _MAX_SECONDS) | (seconds < -_MAX_SECONDS)).any():
        raise BadMessage(f"a {name} is out of range for a column of microseconds")
    # Both parts of a duration have the same sign; round to microseconds towards zero, as Protobuf does.
    micros = nanos // _NANOS if name == _TIMESTAMP else np.sign(nanos) * (np.abs(nanos) // _NANOS)
    kind = pa.timestamp("us", "UTC") if name == _TIMESTAMP else pa.duration("us")
    return pa.array(seconds * _MICROS + micros, mask=~np.asarray(present)).cast(kind)
