"""Structs as code for Spark's stateful operators has them in Python, and in Arrow.

A struct is a tuple, or within another one a row that knows its fields. What Spark hands such code out of its state are
its own inner values: a timestamp is a number of microseconds since 1970 UTC, a date one of days, whatever was put in.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from ...errors import Refused

Fields: TypeAlias = tuple[Any, ...]
"""The values of a struct's fields."""
MakesRow: TypeAlias = Callable[..., Callable[..., Any]]
"""Gets the names of fields, and gives what makes a row of values."""
_DAY_0 = 719_163
"""1970-01-01 as Python counts days."""


class Structs:
    """Structs of one type."""

    def __init__(self, column: str, kind: pa.StructType, row: MakesRow) -> None:
        self._column, self._kind, self._row = column, kind, row
        self._named = row(*(each.name for each in kind))
        self._inner = [_inner(each.type) for each in kind]
        self._nested = any(pa.types.is_nested(each.type) for each in kind)
        self._python_types = tuple(map(_python_type, self._inner))

    def python(self, structs: pa.Array, times: pa.Array | None = None) -> list[Fields | None]:
        """Tuples with the fields, and at the end what `times` has; None for a null."""
        parts = [
            self._values(each.cast(inner), inner) for each, inner in zip(structs.flatten(), self._inner, strict=True)
        ]
        rows: list[Fields | None] = list(zip(*parts, *((times.to_pylist(),) if times is not None else ()), strict=True))
        for at in np.flatnonzero(np.asarray(structs.is_null())).tolist() if structs.null_count else ():
            rows[at] = None
        return rows

    def arrays(self, rows: Sequence[Fields | None], *, timed: bool = False) -> list[pa.Array]:
        """The structs of tuples, and where they are `timed`, what these have at the end."""
        there = [row for row in rows if row is not None]
        parts = list(zip(*there, strict=True)) or [()] * (self._kind.num_fields + timed)
        made = [self._array(*each) for each in zip(self._kind, self._inner, parts, strict=False)]
        every = [pa.StructArray.from_arrays(made, fields=list(self._kind))]
        every += [pa.array(parts[-1], pa.int64())] if timed else []
        if len(there) == len(rows):
            return every
        is_there = np.array([row is not None for row in rows], bool)
        place = pa.array(np.cumsum(is_there) - 1, mask=~is_there)
        return [each.take(place) for each in every]

    def taken(self, value: Sequence[Any]) -> Fields:
        """What a user gives. Raises `Refused` where it is something else than such a struct."""
        if type(value) is tuple and tuple(map(type, value)) == self._python_types:
            return value  # nearly always
        names = ", ".join(each.name for each in self._kind)
        if not isinstance(value, tuple | list):
            what = f"state variable {self._column!r}: {type(value).__name__} was given"
            raise Refused(f"{what}; expected a tuple of {names}")
        if len(value) != self._kind.num_fields:
            what = f"state variable {self._column!r}: {len(value)} values were given"
            raise Refused(f"{what}; expected {self._kind.num_fields}: {names}")
        return tuple(self._plain(each, field.type) for each, field in zip(value, self._kind, strict=True))

    def given(self, value: Fields) -> Fields:
        """A struct for the user, who may change what is in it."""
        return deepcopy(value) if self._nested else value

    def named(self, value: Fields) -> Any:
        """The same as a row that knows its fields."""
        return self._named(*value)

    def _values(self, array: pa.Array, kind: pa.DataType) -> list[Any]:
        values = array.to_pylist(maps_as_pydicts="lossy") if pa.types.is_nested(kind) else array.to_pylist()
        return [self._read(each, kind) for each in values] if pa.types.is_nested(kind) else values

    def _read(self, value: Any, kind: pa.DataType) -> Any:
        """A nested value, in which structs are rows."""
        if value is None or not pa.types.is_nested(kind):
            return value
        if pa.types.is_struct(kind):
            return self._row(*value)(*(self._read(value[each.name], each.type) for each in kind))
        if pa.types.is_map(kind):
            return {name: self._read(each, kind.item_type) for name, each in value.items()}
        return [self._read(each, kind.value_type) for each in value]

    def _plain(self, value: Any, kind: pa.DataType) -> Any:
        """A value in Python's own types, as Spark would give it back."""
        types = pa.types
        if isinstance(value, np.generic):
            value = value.item()
        if value is None:
            return None
        if types.is_timestamp(kind) and hasattr(value, "timestamp"):
            # Without a zone, Spark takes it for local time, but in a column without one.
            is_utc = kind.tz is None and value.tzinfo is None
            return pa.scalar(value, kind).value if is_utc else round(value.timestamp() * 1_000_000)
        if types.is_date32(kind) and hasattr(value, "toordinal"):
            return value.toordinal() - _DAY_0
        if types.is_floating(kind) and type(value) is int:
            return float(value)
        if types.is_struct(kind):
            parts = [value.get(each.name) for each in kind] if isinstance(value, dict) else list(value)
            made = (self._plain(each, field.type) for each, field in zip(parts, kind, strict=True))
            return self._row(*(each.name for each in kind))(*made)
        if types.is_map(kind):
            entries = value.items() if isinstance(value, dict) else value
            return {self._plain(name, kind.key_type): self._plain(each, kind.item_type) for name, each in entries}
        if types.is_list(kind):
            return [self._plain(each, kind.value_type) for each in value]
        return value

    def _array(self, field: pa.Field, inner: pa.DataType, values: Sequence[Any]) -> pa.Array:
        try:
            written = [_written(each, inner) for each in values] if pa.types.is_nested(inner) else values
            return pa.array(written, inner).cast(field.type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise Refused(
                f"state variable {self._column!r}: a value of field {field.name!r} is no {field.type}: {error}"
            ) from error


def _inner(kind: pa.DataType) -> pa.DataType:
    """The type of what Spark's code sees of values of a type."""
    types = pa.types
    if types.is_timestamp(kind):
        return pa.int64()
    if types.is_date32(kind):
        return pa.int32()
    if types.is_struct(kind):
        return pa.struct([each.with_type(_inner(each.type)) for each in kind])
    if types.is_map(kind):
        return pa.map_(_inner(kind.key_type), _inner(kind.item_type))
    return pa.list_(_inner(kind.value_type)) if types.is_list(kind) else kind


def _written(value: Any, kind: pa.DataType) -> Any:
    """A nested value as Arrow takes it."""
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_struct(kind):
        return {each.name: _written(part, each.type) for each, part in zip(kind, value, strict=True)}
    if pa.types.is_map(kind):
        return [(name, _written(each, kind.item_type)) for name, each in value.items()]
    return [_written(each, kind.value_type) for each in value]


def _python_type(kind: pa.DataType) -> type | None:
    """The type of Python's that such values have, where one says all."""
    types = pa.types
    checks = {bool: types.is_boolean, int: types.is_integer, float: types.is_floating, str: types.is_string}
    return next((python for python, is_one in checks.items() if is_one(kind)), None)
