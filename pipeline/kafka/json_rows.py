"""Rows as JSON objects, in the format of Spark's `to_json`.

Each column is converted to a column of texts `"name":value` (null for a null value), and Arrow's kernels join these
columns. Python's encoder is used only for nested values and for characters that need escapes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ...common.durations import DAY_MS
from ...common.instants import format_day, format_iso
from ...errors import Refused
from ...store.sst.arrow_types import TICKS_PER_SECOND, escape_invalid_text, map_nested

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
    """Return a mask that is True for times before the year 1 or after the year 9999. A day has `per_day` ticks."""
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
