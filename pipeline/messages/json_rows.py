"""Rows as JSON objects, a whole Arrow table at a time, as Spark's `to_json` writes them.

Each column becomes a column of texts `"name":value`, null where the value is, and those are joined: Arrow's kernels do
all of it, but for what is nested or has characters to escape, which Python's own encoder writes.
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
from ...common.instants import day, iso
from ...errors import Refused
from ...store.sst.arrow_types import PER_SECOND
from ...store.sst.showable import changed_inside, escaped

_ESCAPED = r'["\\\x00-\x1f]'
_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""How Spark writes what JSON has no number for."""
_ENCODER = msgspec.json.Encoder(decimal_format="number")


def check(what: str, schema: pa.Schema) -> None:
    """See that there is JSON for these columns. Raises `Refused`, beginning with `what`."""
    for field in schema:
        if not _has_json(field.type):
            raise Refused(
                f"{what}: column {field.name!r} is {field.type}, for which there is no JSON",
                hint="cast it in the stage's function, to a string for example",
            )


def objects(rows: pa.Table) -> pa.Array:
    """An object for each row, as UTF-8 bytes; what is null is left out. Strings that are no UTF-8 are escaped."""
    rows = escaped(rows)
    pieces = [
        pc.binary_join_element_wise(
            f"{json.dumps(name, ensure_ascii=False)}:", _values(rows[name].combine_chunks()), ""
        )
        for name in rows.column_names
    ]
    if not pieces:
        return pa.repeat(pa.scalar(b"{}", pa.binary()), rows.num_rows)
    # With "skip", Arrow leaves a row out in which all are null. So one piece never is, and "{,…" becomes "{…".
    brace = pa.repeat(pa.scalar("{"), rows.num_rows)
    joined = pc.binary_join_element_wise(brace, *pieces, ",", null_handling="skip")
    opened = pc.binary_replace_slice(joined, 1, 2, "")
    return pc.binary_join_element_wise(opened, "}", "").cast(pa.binary())


def values(column: pa.ChunkedArray) -> pa.Array:
    """The JSON of each value, as UTF-8 bytes; null where it is null. Strings that are no UTF-8 are escaped."""
    return _values(escaped(pa.table([column], [""])).column(0).combine_chunks()).cast(pa.binary())


def _values(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.string())
    if pa.types.is_floating(kind):
        odd = pc.invert(pc.is_finite(column))
        return _replaced(column.cast(pa.string()), odd, column, lambda one: f'"{_NAMES[str(one)]}"')
    if pa.types.is_string(kind):
        quoted = pc.binary_join_element_wise('"', column, '"', "")
        special = pc.match_substring_regex(column, _ESCAPED)
        return _replaced(quoted, special, column, lambda one: _ENCODER.encode(one).decode())
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        return pc.binary_join_element_wise('"', _time_texts(column), '"', "")
    column = changed_inside(column, _time_texts)
    kind = column.type
    written = (None if value is None else _ENCODER.encode(_plain(value, kind)).decode() for value in column.to_pylist())
    return pa.array(written, pa.string())


def _time_texts(column: pa.Array) -> pa.Array:
    """Dates and times as texts, as Spark writes them by default: to the millisecond, `+10000-01-01T00:00:00.000Z`.

    Columns of other types are as they were.
    """
    kind = column.type
    if pa.types.is_date32(kind):
        days = column.cast(pa.int32())
        return _replaced(column.cast(pa.string()), _far(days, 1), days, lambda number: _signed(day(number)))
    if not pa.types.is_timestamp(kind):
        return column
    ticks, zone = column.cast(pa.int64()), "Z" if kind.tz else ""
    plain = ticks.cast(pa.timestamp(kind.unit))
    # Arrow formats what has a zone ten times as slowly.
    plain = (pc.floor_temporal(plain, unit="millisecond") if kind.unit in ("us", "ns") else plain).cast(
        pa.timestamp("ms"), safe=False
    )
    text = pc.replace_substring(plain.cast(pa.string()), " ", "T", max_replacements=1)
    text = pc.binary_join_element_wise(text, zone, "")
    per_second = PER_SECOND[kind.unit]

    def far_text(number: int) -> str:
        return f"{_signed(iso(number * 1_000 // per_second, 'milliseconds')).removesuffix('Z')}{zone}"

    return _replaced(text, _far(ticks, DAY_MS // 1_000 * per_second), ticks, far_text)


_YEARS = (-719_162, 2_932_896)
"""The first day of the year 1 and the last of the year 9999, counted from 1970: Arrow writes these as others do."""


def _far(numbers: pa.Array, per_day: int) -> pa.Array:
    """Which times, of so many ticks a day, are beyond the years 1 to 9999."""
    first, last = _YEARS
    least, most = (pa.scalar(max(min(each * per_day, _LARGEST), -_LARGEST), numbers.type) for each in (first, last + 1))
    return pc.or_(pc.less(numbers, least), pc.greater_equal(numbers, most))


_LARGEST = (1 << 63) - 1


def _signed(text: str) -> str:
    """A time of a year of more digits than four, with the sign that ISO 8601 has before it."""
    return text if text.startswith("-") or text.index("-") == 4 else f"+{text}"


def _replaced(texts: pa.Array, which: pa.Array, column: pa.Array, text_of: Callable[[Any], str]) -> pa.Array:
    """The texts of a column with others in the place of some, rarely of any."""
    if not pc.any(which).as_py():
        return texts
    others = pa.array(map(text_of, column.filter(which).to_pylist()), pa.string())
    return pc.replace_with_mask(texts, pc.fill_null(which, False), others)


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A value of a nested column as the encoder takes it, and Spark writes it."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        each = ((field.name, _plain(value[field.name], field.type)) for field in kind)
        return {name: one for name, one in each if one is not None}
    if pa.types.is_map(kind):
        return {str(_plain(name, kind.key_type)): _plain(one, kind.item_type) for name, one in value}
    if pa.types.is_list(kind):
        return [_plain(one, kind.value_type) for one in value]
    if pa.types.is_floating(kind) and not math.isfinite(value):
        return _NAMES[str(value)]
    return value


def _has_json(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return all(_has_json(kind.field(number).type) for number in range(kind.num_fields))
    return not (pa.types.is_duration(kind) or pa.types.is_interval(kind) or pa.types.is_time(kind))
