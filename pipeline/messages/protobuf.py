"""Decodes Protobuf messages to Arrow arrays, with ptars. Schemas are compiled with protoc.

Messages are decoded by the reader's schema. By Protobuf's rules, fields that only the writer knows are ignored, and
fields that only the reader knows get defaults. The writer's schema is only needed to find a message's type.

ptars decodes the messages of a type by the type's layout: a simpler message type that describes the same bytes. In a
layout, all fields are optional, so that missing fields can be recognised; enums are numbers, maps are lists of entries,
and well-known types are plain messages. The result is converted as whole Arrow arrays, by Protobuf's rules:
https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import tempfile
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import NotFound, Refused
from .registry import HEADER_BYTES, BadMessage, Reader, Schema, drop_prefix, encode_varint, keep_last_of_each_key

_MAIN_FILE = "slackwater_main.proto"


class ProtobufReader(Reader):
    """Reads one type of Protobuf message."""

    def __init__(self, schema: Schema, message: str = "") -> None:
        """Open a reader for the message type with the full name `message`; if empty, for the schema's first type.

        Raises `NotFound` if there is no such type, and `Refused` if protoc rejects the schema or the type has no
        columns.
        """
        types = _message_types(_compile(schema))
        self._name = message or next(iter(types), "")
        if self._name not in types:
            raise NotFound("message type", self._name, types, hint="message= is its full name, with the package")
        self._message = types[self._name][1]
        self.type = column_type(self._message)
        self._handler = _layout_reader(self._message)

    def read(self, writer: Schema, messages: pa.BinaryArray) -> pa.Array:
        types = _message_types(_compile(writer))
        if self._name not in types:
            raise BadMessage(f"its schema has no message type {self._name}")
        # A message begins with the index path of its type in the schema's file, as zigzag varints: first the length.
        # The path of the first type may also be written as a single zero.
        path = types[self._name][0]
        prefixes = (b"".join(map(encode_varint, (len(path), *path))), *((b"\x00",) if path == (0,) else ()))
        payloads = drop_prefix(messages, HEADER_BYTES)
        bodies = pc.coalesce(
            *(
                pc.if_else(pc.starts_with(payloads, prefix), drop_prefix(payloads, len(prefix)), None)
                for prefix in prefixes
            )
        )
        if bodies.null_count:
            raise BadMessage(f"it is not of the message type {self._name}")
        values, doubtful = self._read_columns(bodies)
        if len(doubtful):
            # Protobuf's own parser respects the order of fields in the message, but parses one message at a time.
            normalized = pa.array([self._reparse(bodies[row].as_py()) for row in doubtful.tolist()], pa.binary())
            reread, _ = self._read_columns(normalized)
            source_rows = np.arange(len(values))
            source_rows[doubtful] = len(values) + np.arange(len(doubtful))
            values = pa.concat_arrays([values, reread]).take(pa.array(source_rows))
        return values

    def _read_columns(self, bodies: pa.BinaryArray) -> tuple[pa.StructArray, Rows]:
        """Return the messages' columns, and the row numbers of messages that need Protobuf's own parser.

        Raises `BadMessage` for bytes that do not match the schema.
        """
        try:
            batch = self._handler.array_to_record_batch(bodies)
        except ValueError as error:
            raise BadMessage(f"the bytes do not match the Protobuf schema: {error}") from None
        doubtful: list[Rows] = [np.empty(0, np.int64)]
        values = convert_messages(batch.to_struct_array(), self._message, np.arange(len(bodies)), doubtful)
        return values, np.unique(np.concatenate(doubtful))

    def _reparse(self, body: bytes) -> bytes:
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

        try:
            message = GetMessageClass(self._message).FromString(body)
        except DecodeError as error:
            raise BadMessage(f"the bytes do not match the Protobuf schema: {error}") from None
        message.DiscardUnknownFields()
        return bytes(message.SerializePartialToString())


def _layout_reader(message: Any) -> Any:
    from google.protobuf import descriptor_pool
    from ptars import HandlerPool, PtarsConfig

    pool = descriptor_pool.DescriptorPool()
    pool.Add(build_layout(message))
    file = pool.FindFileByName(build_layout(message).name)
    config = PtarsConfig(list_value_nullable=True)
    return HandlerPool([file], config).get_for_message(file.message_types_by_name["M0"])


def _message_types(file: Any) -> dict[str, tuple[tuple[int, ...], Any]]:
    from google.protobuf import descriptor_pb2

    types_by_name: dict[str, tuple[tuple[int, ...], Any]] = {}

    def add(types: Any, path: tuple[int, ...]) -> None:
        for number, message_type in enumerate(types):
            types_by_name[message_type.full_name] = ((*path, number), message_type)
            add(message_type.nested_types, (*path, number))

    # `message_types_by_name` is unordered; index paths follow the order in the file.
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    add([file.message_types_by_name[message_type.name] for message_type in proto.message_type], ())
    return types_by_name


@lru_cache(maxsize=256)
def _compile(schema: Schema) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory(prefix="slackwater-") as folder:
        _write_schema(Path(folder), _MAIN_FILE, schema)
        out = Path(folder) / "descriptors"
        with resources.as_file(resources.files("grpc_tools") / "_proto") as well_known:
            arguments = (
                f"-I{folder}",
                f"-I{well_known}",
                "--include_imports",
                f"--descriptor_set_out={out}",
                _MAIN_FILE,
            )
            if protoc.main(["protoc", *arguments]):
                raise Refused("protoc rejects the Protobuf schema; its output is above")
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool.FindFileByName(_MAIN_FILE)


def _write_schema(folder: Path, name: str, schema: Schema) -> None:
    file = (folder / name).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise Refused(f"a Protobuf schema refers to {name!r}, which is not a valid path")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(schema.text, encoding="utf-8")
    for other, referenced in schema.references:
        _write_schema(folder, other, referenced)


Rows = npt.NDArray[np.int64]
_PACKAGE = "slackwater_layout"
_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
_WRAPPERS = tuple(
    f"google.protobuf.{kind}Value"
    for kind in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
_MICROS_PER_SECOND, _NANOS_PER_MICRO = 1_000_000, 1_000
_MAX_SECONDS = (1 << 63) // _MICROS_PER_SECOND - 4
"""Maximum time in seconds that fits into 64 bits as microseconds, less 3 s to leave room for the nanoseconds."""
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
    return pa.struct(
        [pa.field(field.name, _field_type(field, (*within, message.full_name))) for field in message.fields]
    )


def build_layout(message: Any) -> Any:
    """Return a `FileDescriptorProto` whose first message is the layout of a message type."""
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


def convert_messages(values: pa.StructArray, message: Any, rows: Rows, doubtful: list[Rows]) -> pa.StructArray:
    """Return messages as structs of `column_type`.

    Args:
        values: The messages, decoded by the library ptars with the layout of their type.
        message: Descriptor of the messages' type.
        rows: For each message, its row number in the batch.
        doubtful: List to which row numbers are added. These messages must be read again with Protobuf's own parser,
            because the result depends on the order of fields in the message: several fields of a oneof, unknown numbers
            of a closed enum, map entries without a message.

    Raises:
        BadMessage: A time is out of range.
    """
    present = values.is_valid()
    if values.null_count:
        rows = rows.copy()
    children = {field.name: child for field, child in zip(values.type, values.flatten(), strict=True)}
    for oneof in message.oneofs:
        # ptars sets all fields of a oneof that are in the message.
        num_set = np.zeros(len(values), np.int64)
        for field in oneof.fields:
            num_set += np.asarray(children[f"f{field.number}"].is_valid())
        doubtful.append(rows[num_set > 1])
    built = [_convert_field(children[f"f{field.number}"], field, rows, doubtful) for field in message.fields]
    if not built:
        return pa.StructArray.from_arrays([], fields=[]) if not len(values) else _structs_without_fields(present)
    mask = pc.invert(present) if values.null_count else None
    fields = [pa.field(field.name, column.type) for field, column in zip(message.fields, built, strict=True)]
    return pa.StructArray.from_arrays(built, fields=fields, mask=mask)


def _structs_without_fields(present: pa.BooleanArray) -> pa.StructArray:
    return pa.array([{} if is_present else None for is_present in present.to_pylist()], pa.struct([]))


def _field_type(field: Any, within: tuple[str, ...]) -> pa.DataType:
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


def _convert_field(values: pa.Array, field: Any, rows: Rows, doubtful: list[Rows]) -> pa.Array:
    if not field.is_repeated:
        return _convert_values(values, field, rows, doubtful, fill=not field.has_presence)
    offsets, items = np.asarray(values.offsets), values.flatten()
    sizes = np.asarray(pc.fill_null(values.value_lengths(), 0)).astype(np.int64)
    offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))), pa.int32())
    inside = np.repeat(rows, sizes)
    message = field.message_type
    if message is None or not message.GetOptions().map_entry:
        items = _convert_values(items, field, inside, doubtful, fill=False)
        return pa.ListArray.from_arrays(offsets, items, type=pa.list_(items.type))
    key, value = message.fields
    entries = {child.name: column for child, column in zip(items.type, items.flatten(), strict=True)}
    keys = _convert_values(entries["f1"], key, inside, doubtful, fill=True)
    if value.message_type is not None:
        doubtful.append(inside[np.asarray(entries["f2"].is_null())])
    items_by_key = _convert_values(entries["f2"], value, inside, doubtful, fill=True)
    return keep_last_of_each_key(
        pa.MapArray.from_arrays(offsets, keys, items_by_key, type=pa.map_(keys.type, items_by_key.type))
    )


def _convert_values(values: pa.Array, field: Any, rows: Rows, doubtful: list[Rows], *, fill: bool) -> pa.Array:
    message = field.message_type
    if message is not None:
        if message.full_name in (_TIMESTAMP, _DURATION):
            return _convert_times(values, message.full_name)
        if message.full_name in _WRAPPERS:
            inner = _convert_scalars(values.flatten()[0], message.fields[0], fill=True)
            return pc.if_else(values.is_valid(), inner, None) if values.null_count else inner
        return convert_messages(values, message, rows, doubtful)
    if field.enum_type is None:
        return _convert_scalars(values, field, fill=fill)
    return _convert_symbols(values, field, rows, doubtful, fill=fill)


def _convert_scalars(values: pa.Array, field: Any, *, fill: bool) -> pa.Array:
    kind = _scalar_type(field)
    if fill and values.null_count:
        zero = {pa.string(): "", pa.binary(): b"", pa.bool_(): False}.get(kind, 0)
        values = pc.fill_null(values, pa.scalar(zero, values.type))
    return values if values.type == kind else values.cast(kind)


def _convert_symbols(values: pa.Array, field: Any, rows: Rows, doubtful: list[Rows], *, fill: bool) -> pa.Array:
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


def _convert_times(values: pa.StructArray, name: str) -> pa.Array:
    present = values.is_valid()
    seconds, nanos = (np.asarray(pc.fill_null(part, 0)).astype(np.int64) for part in values.flatten())
    if ((seconds > _MAX_SECONDS) | (seconds < -_MAX_SECONDS)).any():
        raise BadMessage(f"a {name} is out of range for a column of microseconds")
    # Both parts of a duration have the same sign; round to microseconds towards zero, as Protobuf does.
    micros = nanos // _NANOS_PER_MICRO if name == _TIMESTAMP else np.sign(nanos) * (np.abs(nanos) // _NANOS_PER_MICRO)
    kind = pa.timestamp("us", "UTC") if name == _TIMESTAMP else pa.duration("us")
    return pa.array(seconds * _MICROS_PER_SECOND + micros, mask=~np.asarray(present)).cast(kind)
