"""Conversion of manifest column types (`column_types`) to Arrow types and back, and of Arrow values to Python's.

Some Arrow values have no Python value: dates and times beyond the years 1 to 9999, nanoseconds, strings that are not
UTF-8. Milliseconds taken for seconds make the year 55,840: such a fault must be visible, so these values become text.
"""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import pyarrow as pa

from ...common.durations import DAY_MS
from ...common.instants import day
from ..versions.column_types import Type, check_field_names, decimal, is_plain, parse, parse_ddl, unknown

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


def schema_of(ddl: str) -> pa.Schema:
    """Return the schema of a channel, from a Spark DDL string, "`name` type, `name` type".

    Raises `ValueError` if the string is no DDL, and `KeyError` for an unknown type.
    """
    return pa.schema([(name, arrow_type(kind)) for name, kind in parse_ddl(ddl)])


@lru_cache(maxsize=1024)
def to_arrow(name: str) -> pa.DataType:
    """Return the Arrow type that a `Column.type` names. Raises `Usage` for a type that state tables do not support."""
    return arrow_type(parse(name))


def arrow_type(kind: Type) -> pa.DataType:
    """Return the Arrow type of a type tree.

    Raises `KeyError` if a plain type in the tree is neither a column type of state tables nor one of Spark's.
    """
    inside = [arrow_type(child) for child in kind.inside]
    match kind.name:
        case "struct":
            return pa.struct(list(zip(kind.fields, inside, strict=True)))
        case "map":
            return pa.map_(*inside)
        case "list":
            return pa.list_(*inside)
    if digits := decimal(kind.name):
        return pa.decimal128(*digits)
    return pa.string() if _TEXT.fullmatch(kind.name) else _PLAIN[kind.name]


def from_arrow(arrow_type: pa.DataType) -> str:
    """Return the name of `arrow_type` in manifests.

    Types that hold the same values in another layout share a name: large and view variants of string, binary and list
    have the plain variant's, a timestamp in any time zone has UTC's (Arrow timestamps with a zone count from UTC
    anyway). Fields of a struct and elements of a list are always nullable.

    Raises `Usage` if no column of a state table can have this type.
    """
    types = pa.types
    if types.is_struct(arrow_type):
        fields = [arrow_type.field(number) for number in range(arrow_type.num_fields)]
        check_field_names(str(arrow_type), [field.name for field in fields])
        return f"struct<{', '.join(f'{_quoted(field.name)}: {from_arrow(field.type)}' for field in fields)}>"
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
        raise unknown(str(arrow_type))
    return str(arrow_type)


def _quoted(name: str) -> str:
    return name if _WORD.fullmatch(name) else f"`{name.replace('`', '``')}`"


def python_rows(table: pa.Table | pa.RecordBatch) -> list[dict[str, object]]:
    r"""Return the rows as dicts, like `to_pylist`; values that Python lacks become text: `55840-11-08 22:13:20`.

    Times with a zone are in UTC, and years are written as by `instants.day`. Bytes of a string that are not UTF-8
    become `\xff`.
    """
    if not table.num_columns:
        return [{} for _ in range(table.num_rows)]
    columns = (python_values(column) for column in table.columns)
    return [dict(zip(table.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def python_values(column: pa.ChunkedArray | pa.Array) -> list[object]:
    """Return the values of one column, converted like those of `python_rows`."""
    if not _is_finer(column.type):
        try:
            return list(column.to_pylist())
        except (OverflowError, ValueError):
            pass  # convert values one by one
    return [python_value(scalar) for scalar in column]


def hexadecimal(value: object) -> object:
    """Return the value with all bytes in it, at any depth, as hexadecimal text."""
    match value:
        case bytes():
            return value.hex()
        case dict():
            return {name: hexadecimal(inner) for name, inner in value.items()}
        case list() | tuple():
            return type(value)(map(hexadecimal, value))
        case _:
            return value


def python_value(scalar: pa.Scalar) -> object:
    """Return one value, converted like those of `python_rows`."""
    if not scalar.is_valid:
        return None
    if not _is_finer(scalar.type):
        try:
            return scalar.as_py()
        except (OverflowError, ValueError):
            pass  # converted to text below
    return _convert(scalar)


@lru_cache(maxsize=1024)
def _is_finer(kind: pa.DataType) -> bool:
    """Return True if a type has values beyond Python's range or precision: nanoseconds, or a time beyond 24 h."""
    types = pa.types
    if types.is_nested(kind):
        return any(_is_finer(kind.field(number).type) for number in range(kind.num_fields))
    timed = types.is_timestamp(kind) or types.is_duration(kind)
    return (
        types.is_time(kind)
        or (timed and kind.unit == "ns")
        or (types.is_dictionary(kind) and _is_finer(kind.value_type))
    )


PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Ticks per second, by Arrow unit."""
_DAY_S = DAY_MS // 1_000


def _convert(scalar: pa.Scalar) -> object:
    """Convert a value that Python lacks, or a nested value that may contain one."""
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
        return day(scalar.value)
    if types.is_date64(kind):
        return day(scalar.value // DAY_MS)
    if types.is_timestamp(kind):
        return _timestamp(scalar, PER_SECOND[kind.unit])
    if types.is_time(kind):
        per_second = PER_SECOND[kind.unit]
        seconds, ticks = divmod(scalar.value, per_second)
        if not 0 <= seconds < _DAY_S:
            return f"{scalar.value} {kind.unit}"  # not a time of day
        return (
            _clock(seconds, ticks, per_second)
            if ticks * 10**6 % per_second
            else _time(seconds, ticks, per_second).time()
        )
    if types.is_duration(kind):
        # Durations with nanoseconds have no Python type.
        whole, finer = divmod(scalar.value * 10**6, PER_SECOND[kind.unit])
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
    return f"{day(days)} {_clock(seconds, ticks, per_second)}{'' if kind.tz is None else '+00:00'}"


def _time(seconds: int, ticks: int, per_second: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds, microseconds=ticks * 10**6 // per_second)


def _clock(seconds: int, ticks: int, per_second: int) -> str:
    """Format a time of day like Python: a fraction, if any, has six digits, or nine for nanoseconds."""
    digits = 9 if ticks * 10**6 % per_second else 6
    fraction = f".{ticks * 10**digits // per_second:0{digits}}" if ticks else ""
    return f"{_time(seconds, 0, 1):%H:%M:%S}{fraction}"
