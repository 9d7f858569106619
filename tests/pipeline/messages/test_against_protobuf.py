"""Protobuf columns compared with google.protobuf, value by value, for the same schemas and bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, note
from slackwater.pipeline.messages.decode import open_reader, read_batch
from slackwater.pipeline.messages.protobuf import _compile
from slackwater.pipeline.messages.registry import Schema

from tests.models.profiles import scaled
from tests.pipeline.messages.protobuf_pairs import Pair, pairs

HEAD = b"\0\0\0\0\x07"


def columns(message: Any) -> dict[str, Any]:
    """Return a message in the form of columns: null for a missing field that tracks presence."""
    return {field.name: column(message, field) for field in message.DESCRIPTOR.fields}


def column(message: Any, field: Any) -> Any:
    kind = field.message_type
    value = getattr(message, field.name)
    if kind is not None and kind.GetOptions().map_entry:
        return {key: single(item, kind.fields[1]) for key, item in value.items()}
    if field.is_repeated:
        return [single(item, field) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return single(value, field)


def single(value: Any, field: Any) -> Any:
    if field.enum_type is not None:
        symbol = field.enum_type.values_by_number.get(value)
        return symbol.name if symbol else str(value)
    if field.message_type is None:
        return value
    match field.message_type.full_name:
        case "google.protobuf.Timestamp" | "google.protobuf.Duration":
            # By hand: google's own refuses what is beyond the year 9999.
            finer = value.nanos // 1000 if field.message_type.name == "Timestamp" else int(value.nanos / 1000)
            return value.seconds * 10**6 + finer
        case name if name.startswith("google.protobuf."):
            return value.value
    return columns(value)


def plain(value: Any, kind: pa.DataType) -> Any:
    """Return a column's value in the form of `columns`."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: plain(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        made = {key: plain(item, kind.item_type) for key, item in value}
        assert len(made) == len(value), "a key twice"
        return made
    if pa.types.is_list(kind):
        return [plain(item, kind.value_type) for item in value]
    return int(value) if pa.types.is_decimal(kind) else value


def counted(kind: pa.DataType) -> pa.DataType:
    """Return the type with times as integer microseconds, because Python cannot represent all times."""
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, counted(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, counted(kind.item_type))
    return pa.list_(counted(kind.value_type)) if pa.types.is_list(kind) else kind


def unchecked(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the array with another type over the same buffers."""
    if pa.types.is_nested(kind):
        children = [values.field(n) for n in range(kind.num_fields)] if pa.types.is_struct(kind) else [values.values]
        types = [kind.field(n).type for n in range(kind.num_fields)]
        if pa.types.is_map(kind):
            types = [pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])]
        inner = [unchecked(child, one) for child, one in zip(children, types, strict=True)]
        count = 1 if pa.types.is_struct(kind) else 2
        return pa.Array.from_buffers(kind, len(values), values.buffers()[:count], offset=values.offset, children=inner)
    return values.cast(kind) if values.type != kind else values


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list) and isinstance(ours, list):
        return len(ours) == len(theirs) and all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    if isinstance(theirs, float):
        return bool(np.array_equal(ours, theirs, equal_nan=True))
    return type(ours) is type(theirs) and bool(ours == theirs)


@given(pairs())
@scaled(100, in_ci=2000)
def test_values_equal_those_of_googles_parser(pair: Pair) -> None:
    note(f"{pair.written}\n\n{pair.read}\n\n{[body.hex() for body in pair.bodies]}")
    written, read = Schema("PROTOBUF", pair.written), Schema("PROTOBUF", pair.read)
    reader = open_reader(read, "p.M")
    # M is the second type of its file.
    messages = pa.array([HEAD + b"\x02\x02" + body for body in pair.bodies], pa.binary())
    values, bad = read_batch(messages, reader, "PROTOBUF", lambda _number: written)
    values.validate(full=True)
    assert values.type == reader.type
    google = GetMessageClass(_compile(read).message_types_by_name["M"])
    kind, refused = counted(values.type), {one.row: one.why for one in bad}
    for row, body in enumerate(pair.bodies):
        try:
            theirs = columns(google.FromString(body))
        except (DecodeError, UnicodeDecodeError):
            assert row in refused, "google does not read it"
            continue
        assert row not in refused or "beyond" in refused[row], (refused[row], theirs)
        if row not in refused:
            ours = plain(unchecked(values.slice(row, 1).take(pa.array([0])), kind)[0].as_py(), kind)
            assert same(ours, theirs), (ours, theirs)
