"""JSON messages: read with a JSON Schema, and written in the format of Spark's `to_json`.

Arrow's JSON reader reads whole batches; values are typed, not validated. To write rows, each column is converted to a
column of texts `"name":value` (null for a null value), and Arrow's kernels join these columns. Python's encoder is used
only for nested values and for characters that need escapes.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from ...common.durations import DAY_MS
from ...common.instants import format_day, format_iso
from ...errors import Refused
from ...store.sst.arrow_types import TICKS_PER_SECOND, escape_invalid_text, map_nested
from .registry import HEADER_BYTES, BadMessage, Reader, Schema, drop_prefix

_PRIMITIVE_TYPES = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}


class JsonReader(Reader):
    """Reader of JSON messages into the columns of the reader's schema. The writer's schema is ignored."""

    def __init__(self, schema: Schema) -> None:
        if schema.references:
            raise Refused(
                "JSON Schemas that refer to other subjects are not supported", hint="register it as one schema"
            )
        try:
            root = json.loads(schema.text)
        except ValueError as error:
            raise Refused(f"the JSON Schema is not valid JSON: {error}") from None
        self.type = _column_type(root, root, "#", ())

    def read(self, writer: Schema, messages: pa.BinaryArray) -> pa.Array:
        return parse_json(drop_prefix(messages, HEADER_BYTES), self.type)


def parse_json(texts: pa.BinaryArray, kind: pa.DataType | None, *, grows: bool = False) -> pa.Array:
    """Parse JSON texts, each to a value of `kind`; fields that `kind` lacks are ignored.

    With `grows`, these fields are added, with types that Arrow infers; `kind` may then be None. Raises `BadMessage` if
    a text is not exactly one JSON value, or has other types.
    """
    count = len(texts)
    # Wrap each text in an object with its number: this detects two values in a text, and half a value.
    numbers = pc.binary_join_element_wise('{"n":', pa.array(np.arange(count)).cast(pa.string()), ',"v":', "")
    lines = pc.binary_join_element_wise(numbers.cast(pa.binary()), texts, b"}\n", b"")
    data = lines.buffers()[2].to_pybytes() if count else b""
    parse = arrow_json.ParseOptions(
        explicit_schema=pa.schema([("n", pa.int64()), *([("v", kind)] if kind is not None else [])]),
        newlines_in_values=True,
        unexpected_field_behavior="infer" if grows else "ignore",
    )
    read = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    try:
        table = arrow_json.read_json(io.BytesIO(data), read, parse)
    except pa.ArrowInvalid as error:
        raise BadMessage(f"it does not match {'its JSON Schema' if not grows else 'the columns'}: {error}") from None
    if not table["n"].combine_chunks().equals(pa.array(np.arange(count))):
        raise BadMessage("it is not exactly one JSON value")
    return table["v"].combine_chunks()


def _column_type(node: Any, root: Any, at: str, within: tuple[str, ...]) -> pa.DataType:
    if not isinstance(node, dict):
        raise _no_columns_error(at, "has no type")
    if "$ref" in node:
        ref = node["$ref"]
        if ref in within:
            raise _no_columns_error(at, f"contains itself ({ref})")
        return _column_type(_referenced(ref, root, at), root, at, (*within, ref))
    if keyword := next((keyword for keyword in ("oneOf", "anyOf") if keyword in node), ""):
        choices = [choice for choice in node[keyword] if choice != {"type": "null"}]
        if len(choices) != 1:
            raise _no_columns_error(at, f"has {len(choices)} alternatives ({keyword})")
        return _column_type(choices[0], root, at, within)
    kinds = _declared_types(node)
    if "properties" in node and kinds in ([], ["object"]):
        fields = ((name, _column_type(part, root, f"{at}/{name}", within)) for name, part in node["properties"].items())
        return pa.struct([pa.field(name, kind) for name, kind in fields])
    if sorted(kinds) == ["integer", "number"]:
        return pa.float64()
    if len(kinds) != 1:
        raise _no_columns_error(at, f"is one of {', '.join(kinds)}" if kinds else "has no type")
    if kinds == ["array"]:
        return pa.list_(_column_type(node.get("items"), root, f"{at}/items", within))
    if kinds[0] not in _PRIMITIVE_TYPES:
        raise _no_columns_error(at, f"is an {kinds[0]} without properties")
    return _PRIMITIVE_TYPES[kinds[0]]


def _declared_types(node: Any) -> list[str]:
    declared = node.get("type") or []
    kinds = [kind for kind in (declared if isinstance(declared, list) else [declared]) if kind != "null"]
    if not kinds and all(isinstance(value, str | None) for value in node.get("enum", [0])):
        return ["string"]
    return kinds


def _referenced(ref: str, root: Any, at: str) -> Any:
    node = root
    for name in ref.removeprefix("#").strip("/").split("/"):
        if not ref.startswith("#") or not isinstance(node, dict) or (name and name not in node):
            raise _no_columns_error(at, f"refers to {ref!r}, which the schema does not define")
        node = node[name] if name else node
    return node


def _no_columns_error(at: str, why: str) -> Refused:
    return Refused(f"the JSON Schema has no columns: {at} {why}", hint="use from_json on the bytes after the fifth")


_ESCAPED = r'["\\\x00-\x1f]'
_FLOAT_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_ENCODER = msgspec.json.Encoder(decimal_format="number")


def check_columns(label: str, schema: pa.Schema) -> None:
    for field in schema:
        if not _has_json_form(field.type):
            raise Refused(
                f"{label}: column {field.name!r} is {field.type}, which has no JSON form",
                hint="cast it in the stage's function, for example to a string",
            )


def encode_objects(rows: pa.Table) -> pa.Array:
    """Encode each row as a JSON object, in UTF-8; null fields are omitted. Invalid UTF-8 in strings is escaped."""
    rows = escape_invalid_text(rows)
    pieces = [
        pc.binary_join_element_wise(
            f"{json.dumps(name, ensure_ascii=False)}:", _to_json_texts(rows[name].combine_chunks()), ""
        )
        for name in rows.column_names
    ]
    if not pieces:
        return pa.repeat(pa.scalar(b"{}", pa.binary()), rows.num_rows)
    # With "skip", a row of nulls only would be dropped. So the piece "{" is added, and later "{,…" becomes "{…".
    brace = pa.repeat(pa.scalar("{"), rows.num_rows)
    joined = pc.binary_join_element_wise(brace, *pieces, ",", null_handling="skip")
    opened = pc.binary_replace_slice(joined, 1, 2, "")
    return pc.binary_join_element_wise(opened, "}", "").cast(pa.binary())


def encode_values(column: pa.ChunkedArray) -> pa.Array:
    return _to_json_texts(escape_invalid_text(pa.table([column], [""])).column(0).combine_chunks()).cast(pa.binary())


def _to_json_texts(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.string())
    if pa.types.is_floating(kind):
        odd = pc.invert(pc.is_finite(column))
        return _replace_where(column.cast(pa.string()), odd, column, lambda number: f'"{_FLOAT_NAMES[str(number)]}"')
    if pa.types.is_string(kind):
        quoted = pc.binary_join_element_wise('"', column, '"', "")
        special = pc.match_substring_regex(column, _ESCAPED)
        return _replace_where(quoted, special, column, lambda text: _ENCODER.encode(text).decode())
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        return pc.binary_join_element_wise('"', _format_times(column), '"', "")
    column = map_nested(column, _format_times)
    kind = column.type
    written = (
        None if value is None else _ENCODER.encode(_to_json_value(value, kind)).decode() for value in column.to_pylist()
    )
    return pa.array(written, pa.string())


def _format_times(column: pa.Array) -> pa.Array:
    """Format dates and times as Spark does by default: to the millisecond, `+10000-01-01T00:00:00.000Z`.

    A column of another type is returned unchanged.
    """
    kind = column.type
    if pa.types.is_date32(kind):
        days = column.cast(pa.int32())
        return _replace_where(
            column.cast(pa.string()), _has_long_year(days, 1), days, lambda number: _add_plus_sign(format_day(number))
        )
    if not pa.types.is_timestamp(kind):
        return column
    ticks, zone = column.cast(pa.int64()), "Z" if kind.tz else ""
    plain = ticks.cast(pa.timestamp(kind.unit))
    # Arrow formats timestamps with a zone ten times as slowly.
    plain = (pc.floor_temporal(plain, unit="millisecond") if kind.unit in ("us", "ns") else plain).cast(
        pa.timestamp("ms"), safe=False
    )
    text = pc.replace_substring(plain.cast(pa.string()), " ", "T", max_replacements=1)
    text = pc.binary_join_element_wise(text, zone, "")
    per_second = TICKS_PER_SECOND[kind.unit]

    def far_text(number: int) -> str:
        return f"{_add_plus_sign(format_iso(number * 1_000 // per_second, 'milliseconds')).removesuffix('Z')}{zone}"

    return _replace_where(text, _has_long_year(ticks, DAY_MS // 1_000 * per_second), ticks, far_text)


_FOUR_DIGIT_YEAR_DAYS = (-719_162, 2_932_896)


def _has_long_year(numbers: pa.Array, per_day: int) -> pa.Array:
    first, last = _FOUR_DIGIT_YEAR_DAYS
    lower, upper = (
        pa.scalar(max(min(day_number * per_day, _MAX_INT64), -_MAX_INT64), numbers.type)
        for day_number in (first, last + 1)
    )
    return pc.or_(pc.less(numbers, lower), pc.greater_equal(numbers, upper))


_MAX_INT64 = (1 << 63) - 1


def _add_plus_sign(text: str) -> str:
    return text if text.startswith("-") or text.index("-") == 4 else f"+{text}"


def _replace_where(texts: pa.Array, selected: pa.Array, column: pa.Array, text_of: Callable[[Any], str]) -> pa.Array:
    if not pc.any(selected).as_py():
        return texts
    replacements = pa.array(map(text_of, column.filter(selected).to_pylist()), pa.string())
    return pc.replace_with_mask(texts, pc.fill_null(selected, False), replacements)


def _to_json_value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        field_values = ((field.name, _to_json_value(value[field.name], field.type)) for field in kind)
        return {name: field_value for name, field_value in field_values if field_value is not None}
    if pa.types.is_map(kind):
        return {str(_to_json_value(name, kind.key_type)): _to_json_value(item, kind.item_type) for name, item in value}
    if pa.types.is_list(kind):
        return [_to_json_value(item, kind.value_type) for item in value]
    if pa.types.is_floating(kind) and not math.isfinite(value):
        return _FLOAT_NAMES[str(value)]
    return value


def _has_json_form(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return all(_has_json_form(kind.field(number).type) for number in range(kind.num_fields))
    return not (pa.types.is_duration(kind) or pa.types.is_interval(kind) or pa.types.is_time(kind))
