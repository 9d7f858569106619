"""Arrow values as Python's, also those for which Python has no value: dates and times beyond the years 1 to 9999.

Milliseconds taken for seconds make the year 55,840. Such a fault must be visible, so these come as text.
"""

from datetime import date, timedelta

import pyarrow as pa

_CYCLE_DAYS, _CYCLE_YEARS = 146_097, 400
"""After so many days the Gregorian calendar is the same again."""
_DAY_S = 86_400
_UNIT = {"s": (1, 0), "ms": (10**3, 3), "us": (10**6, 6), "ns": (10**9, 9)}
"""How many are a second, and the digits that they take."""


def python_rows(table: pa.Table | pa.RecordBatch) -> list[dict[str, object]]:
    """As `to_pylist`, with text for what Python has no value for: `55840-11-08 22:13:20`, in UTC where there is a zone.

    Years are counted as ISO 8601 does: 0 is before 1, and -43 is 44 BC.
    """
    if not table.num_columns:
        return [{} for _ in range(table.num_rows)]
    columns = (python_values(column) for column in table.columns)
    return [dict(zip(table.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def python_values(column: pa.ChunkedArray | pa.Array) -> list[object]:
    """The values of one column, as `python_rows` gives them."""
    try:
        values: list[object] = column.to_pylist()
    except (OverflowError, ValueError):
        return [_value(scalar) for scalar in column]
    return values


def _value(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return _inside(scalar)


def _inside(scalar: pa.Scalar) -> object:
    """A value that holds one, or is one, that Python cannot hold."""
    kind, types = scalar.type, pa.types
    if types.is_struct(kind):
        return {name: _value(each) for name, each in scalar.items()}
    if types.is_map(kind):
        return [(_value(each["key"]), _value(each["value"])) for each in scalar.values]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [_value(each) for each in scalar.values]
    if types.is_date32(kind):
        return _day(scalar.value)
    if types.is_date64(kind):
        return _day(scalar.value // (_DAY_S * 1_000))
    if types.is_timestamp(kind):
        days, clock = divmod(scalar.value, _DAY_S * _UNIT[kind.unit][0])
        return f"{_day(days)} {_clock(clock, kind.unit)}{'' if kind.tz is None else '+00:00'}"
    if types.is_duration(kind):
        return f"{scalar.value} {kind.unit}"
    # Of a union, a dictionary or an extension type the value is one of another type.
    return _value(scalar.value)


def _day(days: int) -> str:
    """A day, counted from 1970-01-01: the same day of a year that Python knows, with the year that it is."""
    cycles, day = divmod(days, _CYCLE_DAYS)
    same = date(1970, 1, 1) + timedelta(days=day)
    year = same.year + cycles * _CYCLE_YEARS
    return f"{'-' if year < 0 else ''}{abs(year):04}-{same.month:02}-{same.day:02}"


def _clock(ticks: int, unit: str) -> str:
    """A time of the day, as Python prints it: a fraction if there is one, of six digits or more."""
    per_s, digits = _UNIT[unit]
    seconds, rest = divmod(ticks, per_s)
    fraction = f".{rest:0{digits}}".ljust(7, "0") if rest else ""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"
