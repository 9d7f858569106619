r"""Arrow types of the column types in manifests, and conversion of values that neither Python nor SQL can represent.

Some Arrow values have no Python value: dates and times beyond the years 1 to 9999, nanoseconds, strings that are not
UTF-8. These values become text, so that mistakes stay visible. For example, a program that reads milliseconds as
seconds produces the year 55,840.

Spark keeps any bytes in a string, and keeps duplicate map keys from JSON or Protobuf. State tables store these values
unchanged. DuckDB refuses a whole file with such a value. So, for DuckDB, strings that are not UTF-8 get `\xff` in place
of invalid bytes, and maps with duplicate keys become null.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...common.durations import DAY_MS
from ...common.instants import format_day
from ..versions.column_types import (
    ColumnType,
    check_field_names,
    is_plain,
    parse_ddl,
    parse_decimal,
    parse_type,
    unknown_type_error,
)
from .hashing import hash_values

_PLAIN: dict[str, pa.DataType] = {
    **{
        name: pa.type_for_alias(name)
        for name in ("string", "binary", "bool", "int8", "int16", "int32", "int64", "float", "double", "date32")
    },
    "date32[day]": pa.date32(),
    "timestamp[us]": pa.timestamp("us"),
    "timestamp[us, tz=UTC]": pa.timestamp("us", "UTC"),
    # Spark's names, with the types that pyspark uses for such columns in Arrow.
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_TEXT = re.compile(r"(?:var)?char(?:\(\d+\))?")
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def schema_from_ddl(ddl: str) -> pa.Schema:
    return pa.schema([(name, arrow_type(kind)) for name, kind in parse_ddl(ddl)])


@lru_cache(maxsize=1024)
def to_arrow(name: str) -> pa.DataType:
    """Return the Arrow type of a column type in a manifest. Raises `Usage` for a type that tables do not support."""
    return arrow_type(parse_type(name))


def arrow_type(kind: ColumnType) -> pa.DataType:
    """Return the Arrow type of a parsed column type. Raises `KeyError` for an unknown plain type."""
    inside = [arrow_type(child) for child in kind.children]
    match kind.name:
        case "struct":
            return pa.struct(list(zip(kind.fields, inside, strict=True)))
        case "map":
            return pa.map_(*inside)
        case "list":
            return pa.list_(*inside)
    if digits := parse_decimal(kind.name):
        return pa.decimal128(*digits)
    return pa.string() if _TEXT.fullmatch(kind.name) else _PLAIN[kind.name]


def from_arrow(arrow_type: pa.DataType) -> str:
    """Return the name that manifests use for an Arrow type.

    Variants of a type share one name: large and view variants of string, binary and list are named like the plain type,
    and a timestamp in any time zone is named like a timestamp in UTC. Struct fields and list elements are always
    nullable. Raises `Usage` if state tables do not support the type.
    """
    types = pa.types
    if types.is_struct(arrow_type):
        fields = [arrow_type.field(number) for number in range(arrow_type.num_fields)]
        check_field_names(str(arrow_type), [field.name for field in fields])
        return f"struct<{', '.join(f'{_quote(field.name)}: {from_arrow(field.type)}' for field in fields)}>"
    if types.is_map(arrow_type):
        return f"map<{from_arrow(arrow_type.key_type)}, {from_arrow(arrow_type.item_type)}>"
    lists = (types.is_list, types.is_large_list, types.is_list_view, types.is_large_list_view, types.is_fixed_size_list)
    if any(is_one(arrow_type) for is_one in lists):
        return f"list<{from_arrow(arrow_type.value_type)}>"
    if types.is_large_string(arrow_type) or types.is_string_view(arrow_type):
        return "string"
    if types.is_large_binary(arrow_type) or types.is_binary_view(arrow_type):
        return "binary"
    if types.is_timestamp(arrow_type) and arrow_type.unit == "us" and arrow_type.tz is not None:
        return "timestamp[us, tz=UTC]"
    if not is_plain(str(arrow_type)):
        raise unknown_type_error(str(arrow_type))
    return str(arrow_type)


def _quote(name: str) -> str:
    return name if _WORD.fullmatch(name) else f"`{name.replace('`', '``')}`"


def python_rows(table: pa.Table | pa.RecordBatch) -> list[dict[str, object]]:
    r"""Return the rows as dicts, like `to_pylist`. Values that Python cannot represent become text.

    Such text is `55840-11-08 22:13:20`, for example. Times with a zone are in UTC, and years are written as by
    `instants.format_day`. Bytes of a string that are not UTF-8 become `\xff`.
    """
    if not table.num_columns:
        return [{} for _ in range(table.num_rows)]
    columns = (python_values(column) for column in table.columns)
    return [dict(zip(table.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def python_values(column: pa.ChunkedArray | pa.Array) -> list[object]:
    if not _may_exceed_python(column.type):
        try:
            return list(column.to_pylist())
        except (OverflowError, ValueError):
            pass  # convert values one by one
    return [python_value(scalar) for scalar in column]


def bytes_to_hex(value: object) -> object:
    match value:
        case bytes():
            return value.hex()
        case dict():
            return {name: bytes_to_hex(inner) for name, inner in value.items()}
        case list() | tuple():
            return type(value)(map(bytes_to_hex, value))
        case _:
            return value


def python_value(scalar: pa.Scalar) -> object:
    if not scalar.is_valid:
        return None
    if not _may_exceed_python(scalar.type):
        try:
            return scalar.as_py()
        except (OverflowError, ValueError):
            pass  # converted to text below
    return _convert(scalar)


@lru_cache(maxsize=1024)
def _may_exceed_python(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_nested(kind):
        return any(_may_exceed_python(kind.field(number).type) for number in range(kind.num_fields))
    timed = types.is_timestamp(kind) or types.is_duration(kind)
    return (
        types.is_time(kind)
        or (timed and kind.unit == "ns")
        or (types.is_dictionary(kind) and _may_exceed_python(kind.value_type))
    )


TICKS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_S = DAY_MS // 1_000


def _convert(scalar: pa.Scalar) -> object:
    kind, types = scalar.type, pa.types
    if types.is_struct(kind):
        return {name: python_value(child) for name, child in scalar.items()}
    if types.is_map(kind):
        return [(python_value(entry["key"]), python_value(entry["value"])) for entry in scalar.values]
    if any(is_one(kind) for is_one in _LISTS):
        return [python_value(element) for element in scalar.values]
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return scalar.as_buffer().to_pybytes().decode(errors="backslashreplace")
    if types.is_date32(kind):
        return format_day(scalar.value)
    if types.is_date64(kind):
        return format_day(scalar.value // DAY_MS)
    if types.is_timestamp(kind):
        return _timestamp(scalar, TICKS_PER_SECOND[kind.unit])
    if types.is_time(kind):
        per_second = TICKS_PER_SECOND[kind.unit]
        seconds, ticks = divmod(scalar.value, per_second)
        if not 0 <= seconds < _DAY_S:
            return f"{scalar.value} {kind.unit}"  # not a time of day
        return (
            _format_time_of_day(seconds, ticks, per_second)
            if ticks * 10**6 % per_second
            else _to_datetime(seconds, ticks, per_second).time()
        )
    if types.is_duration(kind):
        # Durations with nanoseconds have no Python type.
        whole, finer = divmod(scalar.value * 10**6, TICKS_PER_SECOND[kind.unit])
        try:
            return f"{scalar.value} {kind.unit}" if finer else timedelta(microseconds=whole)
        except OverflowError:
            return f"{scalar.value} {kind.unit}"
    # The value of a union, a dictionary or an extension type has another type.
    return python_value(scalar.value)


_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def _timestamp(scalar: pa.Scalar, per_second: int) -> object:
    kind, (seconds, ticks) = scalar.type, divmod(scalar.value, per_second)
    if not ticks * 10**6 % per_second:
        try:
            # Whole microseconds fit Python's type, within its range of years.
            micros = pa.scalar(seconds * 10**6 + ticks * 10**6 // per_second, pa.int64())
            return micros.cast(pa.timestamp("us", kind.tz)).as_py()
        except (OverflowError, ValueError):
            pass
    days, seconds = divmod(seconds, _DAY_S)
    return f"{format_day(days)} {_format_time_of_day(seconds, ticks, per_second)}{'' if kind.tz is None else '+00:00'}"


def _to_datetime(seconds: int, ticks: int, per_second: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds, microseconds=ticks * 10**6 // per_second)


def _format_time_of_day(seconds: int, ticks: int, per_second: int) -> str:
    digits = 9 if ticks * 10**6 % per_second else 6
    fraction = f".{ticks * 10**digits // per_second:0{digits}}" if ticks else ""
    return f"{_to_datetime(seconds, 0, 1):%H:%M:%S}{fraction}"


def is_sql_safe(rows: pa.Table) -> bool:
    """Return True if SQL can represent all values: strings are UTF-8, and no map has duplicate keys."""
    return all(_is_sql_safe(chunk) for column in rows.columns for chunk in column.chunks)


def make_sql_safe(rows: pa.Table) -> pa.Table:
    """Return the rows with invalid strings escaped, and maps with duplicate keys replaced by null."""
    return _replace_values(rows, _null_duplicates)


def escape_invalid_text(rows: pa.Table) -> pa.Table:
    return _replace_values(rows, lambda maps: maps)


def _replace_values(rows: pa.Table, change_map: Callable[[pa.MapArray], pa.Array]) -> pa.Table:
    columns = [
        column
        if all(map(_is_sql_safe, column.chunks))
        else pa.chunked_array([map_nested(chunk, _escape_array, change_map) for chunk in column.chunks], column.type)
        for column in rows.columns
    ]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def maps_as_lists(array: pa.Array) -> pa.Array:
    """Return the array with maps at any depth converted to lists of entries, which may have duplicate keys."""

    def listed(maps: pa.MapArray) -> pa.Array:
        entries = pa.StructArray.from_arrays([maps.keys, maps.items], ["key", "value"])
        return pa.ListArray.from_arrays(maps.offsets, entries, mask=maps.is_null() if maps.null_count else None)

    return map_nested(array, lambda leaf: leaf, listed)


def map_nested(
    array: pa.Array,
    change_leaf: Callable[[pa.Array], pa.Array],
    change_map: Callable[[pa.MapArray], pa.Array] = lambda it: it,
) -> pa.Array:
    """Return a changed copy of the array: `change_leaf` is applied to leaf arrays first, then `change_map` to maps.

    Applies to nested arrays at any depth.
    """
    kind, types = array.type, pa.types
    if not (types.is_struct(kind) or types.is_map(kind) or types.is_list(kind)):
        return change_leaf(array)
    if array.offset:
        array = array.take(pa.array(np.arange(len(array))))  # copy, so that nulls and offsets begin at 0
    mask = array.is_null() if array.null_count else None

    def inside(part: pa.Array) -> pa.Array:
        return map_nested(part, change_leaf, change_map)

    if types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        parts = [inside(array.field(number)) for number in range(kind.num_fields)]
        named = [field.with_type(part.type) for field, part in zip(fields, parts, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=named, mask=mask)
    if types.is_map(kind):
        return change_map(pa.MapArray.from_arrays(array.offsets, inside(array.keys), inside(array.items), mask=mask))
    return pa.ListArray.from_arrays(array.offsets, inside(array.values), mask=mask)


def _is_sql_safe(array: pa.Array) -> bool:
    kind, types = array.type, pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        return _is_text(array)
    if types.is_struct(kind):
        return all(map(_is_sql_safe, array.flatten()))
    if types.is_map(kind):
        starts = np.asarray(array.offsets)
        inside = (part.slice(starts[0], starts[-1] - starts[0]) for part in (array.keys, array.items))
        return all(map(_is_sql_safe, inside)) and not _has_duplicate_keys(array).any()
    return not types.is_list(kind) or _is_sql_safe(array.flatten())


def _is_text(array: pa.Array) -> bool:
    try:
        # The cast to binary copies nothing; the cast back validates each byte.
        array.cast(pa.large_binary()).cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def _escape_array(array: pa.Array) -> pa.Array:
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)) or _is_text(array):
        return array
    values = array.cast(pa.large_binary()).to_pylist()
    texts = (None if value is None else value.decode(errors="backslashreplace") for value in values)
    return pa.array(texts, array.type)


def _has_duplicate_keys(maps: pa.MapArray) -> npt.NDArray[np.bool_]:
    starts = np.asarray(maps.offsets).astype(np.int64)
    owners = np.repeat(np.arange(len(maps)), np.diff(starts))
    hashes = hash_values(maps.keys.slice(starts[0], starts[-1] - starts[0]))
    order = np.lexsort((hashes, owners))
    owners, hashes = owners[order], hashes[order]
    duplicates = np.zeros(len(maps), bool)
    duplicates[owners[1:][(owners[1:] == owners[:-1]) & (hashes[1:] == hashes[:-1])]] = True
    return duplicates


def _null_duplicates(maps: pa.MapArray) -> pa.Array:
    duplicates = _has_duplicate_keys(maps)
    return maps.take(pa.array(np.arange(len(maps)), mask=duplicates)) if duplicates.any() else maps
